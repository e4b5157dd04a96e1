"""A transaction of the simulated database, with the rules of the official client."""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from holdfast.stores.foundationdb.awaiting import together
from holdfast.stores.foundationdb.database import (
    ACCESSED_UNREADABLE,
    KEY_OUTSIDE_LEGAL_RANGE,
    KEY_TOO_LARGE,
    MAX_KEY_BYTES,
    MAX_TRANSACTION_BYTES,
    NO_COMMIT_VERSION,
    RETRYABLE,
    TRANSACTION_CANCELLED,
    TRANSACTION_INVALID_VERSION,
    TRANSACTION_TIMED_OUT,
    TRANSACTION_TOO_LARGE,
    USED_DURING_COMMIT,
    FdbError,
)
from holdfast.testing.fdb.atomic import stamp_of
from holdfast.testing.fdb.futures import SharedFuture
from holdfast.testing.fdb.keys import END, after
from holdfast.testing.fdb.watches import SimulatedWatch
from holdfast.testing.fdb.writes import MUTATION_BYTES, RANGE_BYTES, Mutation, bytes_of
from holdfast.testing.fdb.writing import Writing

if TYPE_CHECKING:
    from holdfast.testing.fdb.database import SimulatedDatabase


class SimulatedTransaction(Writing):
    """See `holdfast.stores.foundationdb.database.FdbTransaction`."""

    def __init__(self, database: SimulatedDatabase) -> None:
        super().__init__()
        self._database = database
        self._entered: int | None = None
        self._stamp: SharedFuture[bytes] = SharedFuture()
        self.reset()

    def __del__(self) -> None:
        self._leave()
        self._end_watches(TRANSACTION_CANCELLED)

    # -- its states

    def reset(self) -> None:
        self._began = self._database.now()
        self._timeout_s = 0.0
        self._size_limit = MAX_TRANSACTION_BYTES
        self._retries = 0
        self._start()

    def _start(self) -> None:
        """Begin anew, with the same options."""
        self._leave()
        self._end_watches(TRANSACTION_CANCELLED)
        self._stamp.set_exception(FdbError(TRANSACTION_CANCELLED))
        self._stamp = SharedFuture()
        self._run = object()  # Reads that began before belong to another run.
        self._committed_version = -1
        self._forget()

    def cancel(self) -> None:
        """Watches go on until the transaction is reset or forgotten."""
        self._failed = self._failed or TRANSACTION_CANCELLED
        self._leave()

    def set_timeout(self, milliseconds: int) -> None:
        self._timeout_s = milliseconds / 1000

    def set_size_limit(self, size: int) -> None:
        self._size_limit = size

    def _leave(self) -> None:
        """Give the read version back: the database need not keep it readable."""
        entered, self._entered = self._entered, None
        if entered is not None:
            self._database.leave(entered)

    def _end_watches(self, code: int) -> None:
        watches, self._watches = self._watches, []
        for watch in watches:
            watch.set_exception(FdbError(code))

    def _check_time(self) -> None:
        if self._timeout_s and not self._failed and self._database.now() - self._began >= self._timeout_s:
            self._failed = TRANSACTION_TIMED_OUT
        if self._failed:
            raise FdbError(self._failed)

    def _check(self) -> None:
        """Raise what keeps the transaction from being used."""
        if self._deferred:
            raise FdbError(self._deferred)
        if self._committing:
            self._failed = self._failed or USED_DURING_COMMIT
            raise FdbError(USED_DURING_COMMIT)
        self._check_time()

    # -- reads

    async def get_read_version(self) -> int:
        return await self._enter()

    async def _enter(self) -> int:
        """Wait as a read does, and return the read version."""
        self._check()
        database, run = self._database, self._run
        if self._version is None or database.faults.slow:
            await database.turn(self._check_time, at_least=1 if self._version is None else 0)
            if run is not self._run:
                raise FdbError(TRANSACTION_CANCELLED)
            self._check()
        return self._begin()

    def _begin(self) -> int:
        if self._version is None:
            with self._database.lock:
                self._version = self._database.read_version()
            self._entered = self._version
        return self._version

    async def get(self, key: bytes, *, snapshot: bool = False) -> bytes | None:
        self._check_key_to_read(key)
        with self._noting_errors():
            version = None if self._writes.settle(key) else await self._enter()
            return self._get(key, version, snapshot=snapshot)

    async def get_all(self, keys: Sequence[bytes], *, snapshot: bool = False) -> list[bytes | None]:
        return await together(*(self.get(key, snapshot=snapshot) for key in keys))

    def _get(self, key: bytes, version: int | None, *, snapshot: bool) -> bytes | None:
        """Read a key. Without a version: one that the transaction's own writes settle."""
        writes = self._writes
        entry = writes.entries.get(key)
        if key in writes.unreadable if entry is None else entry.unreadable:
            raise FdbError(ACCESSED_UNREADABLE)
        if version is None:
            return entry.value(None) if entry else None
        with self._database.lock:
            value = self._database.readable(version).get(key, version)
        if not snapshot:
            self._note_read_key(key)
        return entry.value(value) if entry else value

    async def get_ranges(
        self, ranges: Sequence[tuple[bytes, bytes]], *, limit: int = 0, snapshot: bool = False
    ) -> list[list[tuple[bytes, bytes]]]:
        return await together(*(self.get_range(*one, limit=limit, snapshot=snapshot) for one in ranges))

    async def get_range(
        self, begin: bytes, end: bytes, *, limit: int = 0, reverse: bool = False, snapshot: bool = False
    ) -> list[tuple[bytes, bytes]]:
        self._check()
        if begin > END or end > END:
            raise FdbError(KEY_OUTSIDE_LEGAL_RANGE)
        if begin >= end:
            return []  # It takes no read version.
        with self._noting_errors():
            pairs = self._read_own(begin, end, limit, reverse=reverse)
            if pairs is None:
                version = await self._enter()
                with self._database.lock:
                    scan = self._database.readable(version).scan(begin, end, version, reverse=reverse)
                    if self._writes and self._writes.touch(begin, end):
                        scan = self._merged(scan, begin, end, reverse=reverse)
                    pairs = self._first(scan, limit)
        if not snapshot:
            if limit and len(pairs) == limit and not reverse:  # What is behind the last key makes no difference.
                end = after(pairs[-1][0])
            self._note_read_range(begin, end)
        return pairs

    def _read_own(self, begin: bytes, end: bytes, limit: int, *, reverse: bool) -> list[tuple[bytes, bytes]] | None:
        """Read a range without the database, if the transaction's own writes settle as much of it as is asked for."""
        if not self._writes:
            return None
        open_parts = list(self._writes.not_settled(begin, end))
        first, last = begin, end
        if open_parts and reverse:
            first = open_parts[-1][1]
        elif open_parts:
            last = open_parts[0][0]
        pairs = self._first(self._merged(iter(()), first, last, reverse=reverse), limit)
        return pairs if not open_parts or (limit and len(pairs) == limit) else None

    @staticmethod
    def _first(scan: Iterator[tuple[bytes, bytes]], limit: int) -> list[tuple[bytes, bytes]]:
        return list(islice(scan, limit) if limit else scan)

    def _merged(
        self, scan: Iterator[tuple[bytes, bytes]], begin: bytes, end: bytes, *, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the pairs of the database with the transaction's own writes over them."""
        writes = self._writes
        own = writes.between(begin, end)  # The last one is the next.
        if not reverse:
            own.reverse()
        unreadable = list(writes.unreadable.within(begin, end))
        pair = next(scan, None)
        while own or pair:
            if own and (pair is None or own[-1] == pair[0] or (own[-1] > pair[0]) is reverse):
                key = own.pop()
                base = None
                if pair and pair[0] == key:
                    base, pair = pair[1], next(scan, None)
                entry = writes.entries[key]
                if entry.unreadable:
                    raise FdbError(ACCESSED_UNREADABLE)
                value = entry.value(base)
            else:
                assert pair is not None
                key, value = pair
                pair = next(scan, None)
                if key in writes.cleared:
                    continue
            if value is None:
                continue
            if unreadable and (unreadable[-1][1] > key if reverse else unreadable[0][0] <= key):
                break
            yield key, value
        if unreadable:
            raise FdbError(ACCESSED_UNREADABLE)

    async def get_approximate_size(self) -> int:
        self._check()
        return self._size

    @contextmanager
    def _noting_errors(self) -> Generator[None]:
        """A read that fails keeps its transaction from committing."""
        run = self._run
        try:
            yield
        except FdbError as error:
            if run is self._run:
                self._read_error = self._read_error or error.code
            raise

    def _check_key_to_read(self, key: bytes) -> None:
        self._check()
        if key >= END:
            raise FdbError(KEY_OUTSIDE_LEGAL_RANGE)

    # -- the end

    def watch(self, key: bytes) -> SimulatedWatch:
        try:
            value = self._value_to_watch(key)
        except FdbError as error:
            watch = SimulatedWatch(key, None)
            watch.set_exception(error)
            return watch
        with self._database.lock:
            watch = self._database.watches.new(key, value)
        if not watch.done:
            self._watches.append(watch)
        return watch

    def _value_to_watch(self, key: bytes) -> bytes | None:
        self._check_key_to_read(key)
        if len(key) > MAX_KEY_BYTES:
            raise FdbError(KEY_TOO_LARGE)
        return self._get(key, None if self._writes.settle(key) else self._begin(), snapshot=False)

    def committed_version(self) -> int:
        return self._committed_version

    def versionstamp(self) -> Awaitable[bytes]:
        if not self._committing:
            return self._stamp
        self._failed = self._failed or USED_DURING_COMMIT
        stamp: SharedFuture[bytes] = SharedFuture()
        stamp.set_exception(FdbError(USED_DURING_COMMIT))
        return stamp

    async def commit(self) -> None:
        self._check()
        self._committing = True
        if self._read_error:
            raise FdbError(self._read_error)
        run = self._run
        try:
            await self._commit(run)
        except FdbError as error:
            if run is self._run:
                self._end_watches(error.code)
                self._stamp.set_exception(FdbError(TRANSACTION_INVALID_VERSION))
            raise

    async def _commit(self, run: object) -> None:
        database, writes = self._database, self._writes
        mutations = writes.mutations()
        if not mutations and not writes.conflict_keys and not writes.conflict_ranges:
            self._arm_watches()
            self._stamp.set_exception(FdbError(NO_COMMIT_VERSION))
            return
        if self._size_of_commit(mutations) > self._size_limit:
            raise FdbError(TRANSACTION_TOO_LARGE)
        await database.turn(self._check_time, at_least=1)
        self._check_run(run)
        with database.lock:
            version = self._version
            self._leave()
            at = database.commit(
                version,
                (self._read_keys, self._read_ranges),
                (writes.conflict_keys, writes.conflict_ranges),
                mutations,
            )
        await database.turn(self._check_time)
        self._check_run(run)
        self._committed_version = at[0]
        self._stamp.set_result(stamp_of(*at))
        self._arm_watches()

    def _check_run(self, run: object) -> None:
        if run is not self._run:
            raise FdbError(TRANSACTION_CANCELLED)
        self._check_time()

    def _arm_watches(self) -> None:
        database = self._database
        watches, self._watches = self._watches, []
        with database.lock:
            for watch in watches:
                database.watches.arm(watch, database.value_now(watch.key))

    def _size_of_commit(self, mutations: list[Mutation]) -> int:
        size = sum(len(key) + len(operand) + MUTATION_BYTES for _, key, operand in mutations)
        size += sum(2 * len(key) + 1 + RANGE_BYTES for key in self._read_keys)
        return size + bytes_of(self._read_ranges) + self._writes.bytes_of_conflicts()

    async def on_error(self, error: FdbError) -> None:
        if self._failed:
            raise FdbError(self._failed)
        if error.code not in RETRYABLE:
            self.cancel()
            raise error
        self._retries += 1
        self._start()
        run = self._run
        await self._database.back_off(self._retries)
        self._check_run(run)
