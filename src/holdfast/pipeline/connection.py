"""A store for code that has no event loop: its loop runs in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from holdfast.core.errors import Unsupported
from holdfast.extensions import SplitLog
from holdfast.opening import check_shared, existing, open_store
from holdfast.store import Store

T = TypeVar("T")


class OpenStore:
    """An existing store, opened in an event loop that runs in its own thread. It is never created."""

    def __init__(self, url: str) -> None:
        check_shared("store", url, "exists in one process, but Spark runs several; use file:, redis: or postgresql:")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-pipeline", daemon=True)
        self._thread.start()
        try:
            self.store: Store = self.run(open_store(existing(url)))
        except BaseException:
            self._end()
            raise

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `work` and return at once."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end and return what it returns."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @property
    def log(self) -> SplitLog:
        """The store, if its log can be read in ranges. Raises Unsupported."""
        if not isinstance(self.store, SplitLog):
            raise Unsupported("reading its log in ranges, which Spark needs", self.store.capabilities.name)
        return self.store

    def close(self) -> None:
        self.run(self.store.close())
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
