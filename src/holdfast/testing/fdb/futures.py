"""A future that any number of tasks in any event loops may await."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from holdfast.stores.foundationdb.database import TRANSACTION_CANCELLED, FdbError

T = TypeVar("T")


class SharedFuture(Generic[T]):
    """Set once, with a value or an error. A task that stops waiting doesn't disturb the others."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # A dropped transaction may be collected in here, and cancel its watches.
        self._done: Callable[[], T] | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self.when_done: Callable[[], None] = _nothing

    @property
    def done(self) -> bool:
        """Whether it is set."""
        return self._done is not None

    def set_result(self, value: T) -> None:
        """Set the value, unless it is set."""
        self._set(lambda: value)

    def set_exception(self, error: FdbError) -> None:
        """Set an error, unless it is set."""

        def fail() -> T:
            raise FdbError(error.code)

        self._set(fail)

    def cancel(self) -> None:
        """Give it up."""
        self.set_exception(FdbError(TRANSACTION_CANCELLED))

    def _set(self, done: Callable[[], T]) -> None:
        none: list[
            asyncio.Future[None]
        ] = []  # Made here: what allocates may collect, and the lock is to be held briefly.
        with self._lock:
            if self._done is not None:
                return
            self._done = done
            waiting, self._waiting = self._waiting, none
        self.when_done()
        for future in waiting:
            with contextlib.suppress(RuntimeError):  # Its event loop is closed.
                future.get_loop().call_soon_threadsafe(_wake, future)

    def __await__(self) -> Generator[Any, None, T]:
        return self._wait().__await__()

    async def _wait(self) -> T:
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._done is None:
                self._waiting.append(future)
            else:
                future.set_result(None)
        try:
            await future
        finally:
            with contextlib.suppress(ValueError), self._lock:
                self._waiting.remove(future)
        done = self._done
        assert done is not None
        return done()


def _nothing() -> None:
    pass


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
