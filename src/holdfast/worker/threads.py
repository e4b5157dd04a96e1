"""Threads for plain functions."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from holdfast.telemetry.logging import get_logger

_log = get_logger(__name__)


class Threads:
    """Up to `limit` threads, started when they are needed.

    They are daemon threads, unlike those of `concurrent.futures`: a handler that never returns must not keep the
    process from exiting.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._free = 0

    def submit(self, call: Callable[[], None]) -> None:
        """Run `call` in one of the threads. It must not raise."""
        with self._lock:
            if self._free > 0:
                self._free -= 1
            elif len(self._threads) < self._limit:
                thread = threading.Thread(target=self._serve, name="holdfast job", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._work.put(call)

    def close(self, timeout_s: float) -> bool:
        """End the idle threads. Returns whether all threads ended in time."""
        for _ in self._threads:
            self._work.put(None)
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        stuck = sum(thread.is_alive() for thread in self._threads)
        if stuck:
            _log.error("handlers that were asked to stop still run in their threads", threads=stuck)
        return not stuck

    def _serve(self) -> None:
        while True:
            call = self._work.get()
            if call is None:
                return
            call()
            del call
            with self._lock:
                self._free += 1
