"""The official binding as a `Database`: its futures are awaited in the event loop, its errors are FdbErrors.

A future calls back on the network thread of the client, which wakes the event loop: no thread waits for one.
"""
# The binding has no types.
# pyright: basic, reportAttributeAccessIssue=false
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Generator, Sequence
from typing import Any

import fdb  # pyright: ignore[reportMissingImports]

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.foundationdb.database import FdbError

API_VERSION = 630

if not fdb.is_api_version_selected():  # The application may have chosen a later one.
    fdb.api_version(API_VERSION)
_FDBError = fdb.FDBError

_databases: dict[str, Any] = {}
_lock = threading.Lock()


async def open_cluster(cluster_file: str) -> ClusterDatabase:
    """The cluster of a file; "": of this machine's own. One client of it serves the whole process."""
    with _lock:
        found = _databases.get(cluster_file)
        if found is None:
            try:
                found = _databases[cluster_file] = fdb.open(cluster_file or None)
            except (_FDBError, OSError) as error:
                raise StoreUnavailable(f"FoundationDB cannot be opened: {error}") from error
    return ClusterDatabase(found)


def joined(transaction: Any) -> ClusterTransaction:
    """The caller's transaction, as the store uses it."""
    return ClusterTransaction(transaction)


class ClusterDatabase:
    """A cluster."""

    def __init__(self, database: Any) -> None:
        self._database = database

    def transaction(self) -> ClusterTransaction:
        return ClusterTransaction(self._database.create_transaction())

    async def close(self) -> None:
        """The client belongs to the process."""


class ClusterWatch:
    """A watch of the binding."""

    def __init__(self, future: Any) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, None]:
        return (yield from _done(self._future).__await__())

    def cancel(self) -> None:
        self._future.cancel()


class ClusterVersionstamp:
    """The versionstamp of a commit to come."""

    def __init__(self, future: Any) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, bytes]:
        return (yield from _done(self._future).__await__()).value


class ClusterTransaction:
    """A transaction of the binding."""

    def __init__(self, transaction: Any) -> None:
        self._tr = transaction

    async def get(self, key: bytes, *, snapshot: bool = False) -> bytes | None:
        return (await _done((self._tr.snapshot if snapshot else self._tr).get(key))).value

    async def get_all(self, keys: Sequence[bytes], *, snapshot: bool = False) -> list[bytes | None]:
        source = self._tr.snapshot if snapshot else self._tr
        futures = [source.get(key) for key in keys]
        return [(await _done(future)).value for future in futures]

    async def get_range(
        self, begin: bytes, end: bytes, *, limit: int = 0, reverse: bool = False, snapshot: bool = False
    ) -> list[tuple[bytes, bytes]]:
        return await _Scan(self._tr.snapshot if snapshot else self._tr, begin, end, limit, reverse).rows()

    async def get_ranges(
        self, ranges: Sequence[tuple[bytes, bytes]], *, limit: int = 0, snapshot: bool = False
    ) -> list[list[tuple[bytes, bytes]]]:
        source = self._tr.snapshot if snapshot else self._tr
        scans = [_Scan(source, begin, end, limit, False) for begin, end in ranges]
        return [await scan.rows() for scan in scans]

    async def get_read_version(self) -> int:
        return await _done(self._tr.get_read_version())

    async def get_approximate_size(self) -> int:
        return await _done(self._tr.get_approximate_size())

    def set(self, key: bytes, value: bytes) -> None:
        self._tr.set(key, value)

    def clear(self, key: bytes) -> None:
        self._tr.clear(key)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        self._tr.clear_range(begin, end)

    def add(self, key: bytes, amount: int) -> None:
        self._tr.add(key, amount.to_bytes(8, "little", signed=True))

    def max(self, key: bytes, value: bytes) -> None:
        self._tr.max(key, value)

    def min(self, key: bytes, value: bytes) -> None:
        self._tr.min(key, value)

    def byte_max(self, key: bytes, value: bytes) -> None:
        self._tr.byte_max(key, value)

    def byte_min(self, key: bytes, value: bytes) -> None:
        self._tr.byte_min(key, value)

    def compare_and_clear(self, key: bytes, value: bytes) -> None:
        self._tr.compare_and_clear(key, value)

    def set_versionstamped_key(self, key: bytes, value: bytes) -> None:
        self._tr.set_versionstamped_key(key, value)

    def set_versionstamped_value(self, key: bytes, value: bytes) -> None:
        self._tr.set_versionstamped_value(key, value)

    def add_read_conflict_key(self, key: bytes) -> None:
        self._tr.add_read_conflict_key(key)

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        self._tr.add_read_conflict_range(begin, end)

    def add_write_conflict_key(self, key: bytes) -> None:
        self._tr.add_write_conflict_key(key)

    def add_write_conflict_range(self, begin: bytes, end: bytes) -> None:
        self._tr.add_write_conflict_range(begin, end)

    def next_write_no_write_conflict_range(self) -> None:
        self._tr.options.set_next_write_no_write_conflict_range()

    def watch(self, key: bytes) -> ClusterWatch:
        return ClusterWatch(self._tr.watch(key))

    async def commit(self) -> None:
        await _done(self._tr.commit())

    def committed_version(self) -> int:
        return self._tr.get_committed_version()

    def versionstamp(self) -> ClusterVersionstamp:
        return ClusterVersionstamp(self._tr.get_versionstamp())

    async def on_error(self, error: FdbError) -> None:
        await _done(self._tr.on_error(error.code))

    def reset(self) -> None:
        self._tr.reset()

    def cancel(self) -> None:
        self._tr.cancel()

    def set_timeout(self, milliseconds: int) -> None:
        self._tr.options.set_timeout(milliseconds)

    def set_size_limit(self, size: int) -> None:
        self._tr.options.set_size_limit(size)


class _Scan:
    """A read of a range, chunk by chunk: to_list() of the binding would wait for each chunk in this thread."""

    def __init__(self, source: Any, begin: bytes, end: bytes, limit: int, reverse: bool) -> None:  # noqa: FBT001 - as given
        self._source = source
        self._first, self._last = map(fdb.KeySelector.first_greater_or_equal, (begin, end))
        self._limit = limit
        self._reverse = reverse
        self._found: list[tuple[bytes, bytes]] = []
        self._iteration = 0
        self._chunk = self._start()

    def _start(self) -> Any:
        self._iteration += 1
        left = self._limit - len(self._found) if self._limit else 0
        # (begin, end, limit, mode, iteration, reverse) of FDBTransaction._get_range.
        options = left, fdb.StreamingMode.want_all, self._iteration, self._reverse
        return self._source._get_range(self._first, self._last, *options)  # noqa: SLF001

    async def rows(self) -> list[tuple[bytes, bytes]]:
        """Wait for all of them."""
        found = self._found
        while True:
            rows, count, more = await _done(self._chunk)
            found += [(row.key, row.value) for row in rows]
            if not more or not count or (self._limit and len(found) >= self._limit):
                return found
            if self._reverse:
                self._last = fdb.KeySelector.first_greater_or_equal(found[-1][0])
            else:
                self._first = fdb.KeySelector.first_greater_than(found[-1][0])
            self._chunk = self._start()


async def _done(future: Any) -> Any:
    """Await a future of the binding. An error that it ended with is an FdbError."""
    if not future.is_ready():  # A callback costs more than the rest: of reads made together, most need none.
        await _ready(future)
    try:
        return future.wait()  # It is ready: this does not wait.
    except _FDBError as error:
        raise FdbError(error.code, _text(error.description)) from error


async def _ready(future: Any) -> None:
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiting.done():
            waiting.set_result(None)

    def ready(_: Any) -> None:
        with contextlib.suppress(RuntimeError):  # The event loop was closed meanwhile.
            loop.call_soon_threadsafe(wake)

    future.on_ready(ready)
    try:
        await waiting
    except asyncio.CancelledError:
        future.cancel()
        raise


def _text(description: Any) -> str:
    return description.decode(errors="replace") if isinstance(description, bytes) else str(description)
