"""The watches of a simulated database."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from random import Random

from holdfast.stores.foundationdb.database import TOO_MANY_WATCHES, FdbError
from holdfast.testing.fdb.futures import SharedFuture

MAX_WATCHES = 10_000


class SimulatedWatch(SharedFuture[None]):
    """A watch of one key, from the value that its transaction sees."""

    def __init__(self, key: bytes, value: bytes | None) -> None:
        super().__init__()
        self.key = key
        self.value = value


class Watches:
    """All watches that have not ended. The database's lock is held around each call."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._armed: dict[bytes, list[SimulatedWatch]] = {}
        self._open = 0

    def __len__(self) -> int:
        return self._open

    def new(self, key: bytes, value: bytes | None) -> SimulatedWatch:
        """Return a watch that is not armed yet. It has failed if there are too many."""
        watch = SimulatedWatch(key, value)
        if self._open >= MAX_WATCHES:
            watch.set_exception(FdbError(TOO_MANY_WATCHES))
        else:
            self._open += 1
            watch.when_done = lambda: self._ended(watch)
        return watch

    def arm(self, watch: SimulatedWatch, value: bytes | None) -> None:
        """Wait for a change of the key, or end the watch if `value` is already another one."""
        if watch.done:
            return
        if watch.value != value:
            watch.set_result(None)
        else:
            self._armed.setdefault(watch.key, []).append(watch)

    def changed(self, key: bytes, value: bytes | None) -> None:
        """End the watches of a key for which this value is a change."""
        for watch in list(self._armed.get(key, ())):
            if watch.value != value:
                watch.set_result(None)

    def end_one(self, random: Random) -> None:
        """End the watches of some key without a change."""
        if self._armed:
            key = random.choice(list(self._armed))
            for watch in list(self._armed[key]):
                watch.set_result(None)

    def watched(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return those of these keys that have a watch, once each."""
        return [key for key in dict.fromkeys(keys) if key in self._armed] if self._armed else []

    def _ended(self, watch: SimulatedWatch) -> None:
        with self._lock:  # A watch may be cancelled in any thread.
            self._open -= 1
            armed = self._armed.get(watch.key, [])
            if watch in armed:
                armed.remove(watch)
                if not armed:
                    del self._armed[watch.key]
