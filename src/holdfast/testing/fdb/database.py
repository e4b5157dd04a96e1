"""The simulated database: versions, conflicts, commits and watches."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable

from holdfast.stores.foundationdb.database import (
    COMMIT_UNKNOWN_RESULT,
    FUTURE_VERSION,
    GRV_PROXY_MEMORY_LIMIT_EXCEEDED,
    MAX_AGE_VERSIONS,
    NOT_COMMITTED,
    PROCESS_BEHIND,
    TAG_THROTTLED,
    TRANSACTION_TOO_OLD,
    VERSIONS_PER_SECOND,
    FdbError,
)
from holdfast.testing.fdb.atomic import Kind, apply, stamp_of, stamped
from holdfast.testing.fdb.faults import NONE, Faults
from holdfast.testing.fdb.keys import RangeSet
from holdfast.testing.fdb.transaction import SimulatedTransaction
from holdfast.testing.fdb.versions import Commit, Versions
from holdfast.testing.fdb.watches import Watches
from holdfast.testing.fdb.writes import Mutation

FIRST_VERSION = 100_000_000
RECOVERY_VERSIONS = 100_000_000
FORCED_RECOVERY_VERSIONS = 600_000_000_000
IDLE_S = 2.0
"""How often a cluster without traffic commits nothing, so that its versions advance."""

MAX_ORDER = 65_535
_OUTAGE_TURNS = 40


class SimulatedDatabase:
    """A FoundationDB database in memory, for any number of tasks, event loops and threads.

    Its versions follow `time.monotonic`, and `advance`. With `frozen` they follow `advance` alone. All chance comes
    from `seed`: in one event loop, the same program with the same seed meets the same faults.
    """

    def __init__(self, *, seed: int = 0, faults: Faults = NONE, frozen: bool = False) -> None:
        self.lock = threading.RLock()
        self.random = random.Random(seed)
        self.faults = faults
        self.counts: Counter[str] = Counter()
        """How many commits ended how: "commits", "reads" for those without writes, else the number of the error."""
        self.watches = Watches(self.lock)
        self._clock: Callable[[], float] = (lambda: 0.0) if frozen else time.monotonic
        self._began = self._clock()
        self._advanced_s = 0.0
        self._jumped = 0
        self._data = Versions()
        self._committed = FIRST_VERSION
        self._order = 0
        self._given = 0  # The latest read version given.
        self._outage = 0
        self._stopped = False
        self._planned: list[tuple[int, int, bool]] = []

    def __len__(self) -> int:
        return len(self._data)

    def transaction(self) -> SimulatedTransaction:
        return SimulatedTransaction(self)

    async def close(self) -> None:
        """Do nothing: the database is there for the next client."""

    # -- what a test does to it

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        with self.lock:
            self._advanced_s += seconds

    def recover(self, versions: int = RECOVERY_VERSIONS) -> None:
        """Jump ahead as in a recovery: transactions from before are too old."""
        with self.lock:
            self._committed, self._order = self._latest() + versions, 0
            self._jumped += versions

    def stop(self) -> None:
        """Answer nothing until `start`."""
        self._stopped = True

    def start(self) -> None:
        """Answer again."""
        self._stopped = False

    def fail_commit(self, code: int, *, applied: bool = False, nth: int = 1) -> None:
        """Let the nth commit with writes from now on fail with an error; with `applied` it is applied all the same."""
        with self.lock:
            self._planned.append((nth, code, applied))

    def now(self) -> float:
        """Return the seconds since the database was made."""
        return self._clock() - self._began + self._advanced_s

    def pairs(self, begin: bytes = b"", end: bytes = b"\xff") -> list[tuple[bytes, bytes]]:
        """Return what is there now, without a transaction."""
        with self.lock:
            return list(self._data.scan(begin, end, self._committed, reverse=False))

    # -- what transactions ask; all with the lock held

    def _current(self) -> int:
        return FIRST_VERSION + int(self.now() * VERSIONS_PER_SECOND) + self._jumped

    def _latest(self) -> int:
        """Return the last version that was committed, by a transaction or by an idle cluster."""
        idle = FIRST_VERSION + int(self.now() // IDLE_S * IDLE_S * VERSIONS_PER_SECOND) + self._jumped
        return max(self._committed, idle)

    def read_version(self) -> int:
        """Give a read version, and keep it readable until `leave`."""
        if self._happens(self.faults.refused):
            raise FdbError(self.random.choice((TAG_THROTTLED, GRV_PROXY_MEMORY_LIMIT_EXCEEDED)))
        if self._committed < self._latest():
            self._committed, self._order = self._latest(), 0
        self._given = self._committed
        self._data.enter(self._committed)
        return self._committed

    def leave(self, version: int) -> None:
        """Give a read version back. Needs no lock."""
        self._data.leave(version)

    def readable(self, version: int) -> Versions:
        """Return the data to read at a version from."""
        if version < self._latest() - MAX_AGE_VERSIONS or self._happens(self.faults.too_old):
            raise FdbError(TRANSACTION_TOO_OLD)
        if self._happens(self.faults.behind):
            raise FdbError(self.random.choice((FUTURE_VERSION, PROCESS_BEHIND)))
        return self._data

    def commit(
        self,
        version: int | None,
        reads: tuple[set[bytes], RangeSet],
        conflicts: tuple[set[bytes], RangeSet],
        mutations: list[Mutation],
    ) -> tuple[int, int]:
        """Apply a transaction that has given its read version back. Returns its version and its place in the batch."""
        current = max(self._committed + 1, self._current())
        if version is not None and version < current - MAX_AGE_VERSIONS:
            self._refuse(TRANSACTION_TOO_OLD)
        if version is not None and self._data.conflicts(version, *reads):
            self._refuse(NOT_COMMITTED)
        code, applied = self._fault()
        if code and not applied:
            self._refuse(code)
        self._data.trim(self._latest() - MAX_AGE_VERSIONS)
        at = self._advance_version(current)
        stamp = stamp_of(*at)
        stamped_keys = {stamped(key, stamp) for kind, key, _ in mutations if kind is Kind.STAMPED_KEY}
        self._data.note(Commit(at[0], conflicts[0] | stamped_keys, conflicts[1]))
        self._write(mutations, stamp, at[0])
        if self._happens(self.faults.spurious_watch):
            self.watches.end_one(self.random)
        if code:
            self._refuse(code)
        self.counts["commits"] += 1
        return at

    def _advance_version(self, current: int) -> tuple[int, int]:
        if self._given < self._committed and self._order < MAX_ORDER and self._happens(self.faults.shared_version):
            self._order += 1
        else:
            self._committed, self._order = current, 0
        return self._committed, self._order

    def _write(self, mutations: list[Mutation], stamp: bytes, version: int) -> None:
        data = self._data
        written: list[bytes] = []
        for kind, key, operand in mutations:
            if kind is None:
                for each in data.live_keys(key, operand):
                    data.put(each, None, version)
                    written.append(each)
                continue
            if kind is Kind.STAMPED_KEY:
                at, value = stamped(key, stamp), operand
            elif kind is Kind.STAMPED_VALUE:
                at, value = key, stamped(operand, stamp)
            else:
                at, value = key, operand if kind is Kind.SET else apply(kind, data.get(key, version), operand)
            data.put(at, value, version)
            written.append(at)
        for key in self.watches.watched(written):
            self.watches.changed(key, self.value_now(key))

    def value_now(self, key: bytes) -> bytes | None:
        """Return the value of a key as of the last commit."""
        return self._data.get(key, self._committed)

    # -- faults

    def _happens(self, share: float) -> bool:
        return share > 0 and self.random.random() < share

    def _refuse(self, code: int) -> None:
        self.counts[str(code)] += 1
        raise FdbError(code)

    def _fault(self) -> tuple[int, bool]:
        """Return the error that this commit is to fail with, 0 for none, and whether it is applied all the same."""
        self._planned = [(nth - 1, code, applied) for nth, code, applied in self._planned]
        for planned in self._planned:
            if planned[0] == 0:
                self._planned.remove(planned)
                return planned[1:]
        faults = self.faults
        if self._happens(faults.unknown_applied):
            return COMMIT_UNKNOWN_RESULT, True
        if self._happens(faults.unknown_not_applied):
            return COMMIT_UNKNOWN_RESULT, False
        if self._happens(faults.conflict):
            return NOT_COMMITTED, False
        if self._happens(faults.too_old):
            return TRANSACTION_TOO_OLD, False
        return 0, False

    # -- waiting

    async def turn(self, check: Callable[[], None], *, at_least: int = 0) -> None:
        """Let other tasks run, as many turns as the faults say, and while the database doesn't answer.

        `check` raises what ends the transaction meanwhile.
        """
        with self.lock:
            turns = max(at_least, self.random.randint(0, self.faults.slow)) if self.faults.slow else at_least
            if at_least and self._happens(self.faults.unavailable):
                self._outage = self.random.randint(1, _OUTAGE_TURNS)
        for _ in range(turns):
            await asyncio.sleep(0)
        while self._stopped or self._outage > 0:
            check()
            if self._stopped:
                await asyncio.sleep(0.001)
            else:
                self._outage -= 1
                await asyncio.sleep(0)

    async def back_off(self, retries: int) -> None:
        """Let other tasks run before a transaction is tried again."""
        with self.lock:
            turns = self.random.randint(0, min(2**retries, 64))
        for _ in range(turns):
            await asyncio.sleep(0)
