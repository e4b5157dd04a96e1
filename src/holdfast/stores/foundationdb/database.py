"""What the store asks of a FoundationDB database.

The official binding and the simulation of `holdfast.testing.fdb` answer it alike: the store is the same on both.

The names and rules are those of the binding, at API version 630. A read or a commit is awaited; a write only notes what
to do, and its error (a key too large, say) comes with the next read or the commit. A transaction belongs to one task at
a time, except that several of its reads may be awaited together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Sequence
from typing import Any, Protocol

CLIENT_INVALID_OPERATION = 2000
TRANSACTION_TOO_OLD = 1007
FUTURE_VERSION = 1009
NOT_COMMITTED = 1020
COMMIT_UNKNOWN_RESULT = 1021
TRANSACTION_CANCELLED = 1025
TRANSACTION_TIMED_OUT = 1031
TOO_MANY_WATCHES = 1032
ACCESSED_UNREADABLE = 1036
PROCESS_BEHIND = 1037
DATABASE_LOCKED = 1038
CLUSTER_VERSION_CHANGED = 1039
COMMIT_PROXY_MEMORY_LIMIT_EXCEEDED = 1042
BATCH_TRANSACTION_THROTTLED = 1051
GRV_PROXY_MEMORY_LIMIT_EXCEEDED = 1078
TAG_THROTTLED = 1213
KEY_OUTSIDE_LEGAL_RANGE = 2004
INVERTED_RANGE = 2005
USED_DURING_COMMIT = 2017
TRANSACTION_INVALID_VERSION = 2020
NO_COMMIT_VERSION = 2021
TRANSACTION_TOO_LARGE = 2101
KEY_TOO_LARGE = 2102
VALUE_TOO_LARGE = 2103

NOT_APPLIED = frozenset(
    {
        TRANSACTION_TOO_OLD,
        FUTURE_VERSION,
        NOT_COMMITTED,
        PROCESS_BEHIND,
        DATABASE_LOCKED,
        COMMIT_PROXY_MEMORY_LIMIT_EXCEEDED,
        BATCH_TRANSACTION_THROTTLED,
        GRV_PROXY_MEMORY_LIMIT_EXCEEDED,
        TAG_THROTTLED,
    }
)
"""A commit that fails with one of these was not applied, and may be tried again."""

RETRYABLE = NOT_APPLIED | {COMMIT_UNKNOWN_RESULT, CLUSTER_VERSION_CHANGED}
"""What `FdbTransaction.on_error` takes. It raises every other error."""

MAYBE_APPLIED = frozenset(
    {
        COMMIT_UNKNOWN_RESULT,
        CLUSTER_VERSION_CHANGED,
        TRANSACTION_TIMED_OUT,
        TRANSACTION_CANCELLED,
        USED_DURING_COMMIT,
    }
)
"""A commit that fails with one of these was applied or was not; another try may apply it twice.

After COMMIT_UNKNOWN_RESULT it isn't under way any more. After a timeout or a cancellation it may be.
"""

MAX_KEY_BYTES = 10_000
MAX_VALUE_BYTES = 100_000
MAX_TRANSACTION_BYTES = 10_000_000
VERSIONS_PER_SECOND = 1_000_000
MAX_AGE_VERSIONS = 5 * VERSIONS_PER_SECOND


class FdbError(Exception):
    """An error of FoundationDB, by its number."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(f"{message or 'FoundationDB error'} ({code})")
        self.code = code


class FdbWatch(Protocol):
    """Done when the key changes, or now and then without a change. Raises an FdbError if the transaction fails.

    It may be awaited in any event loop, and by several tasks. Cancel one that no task awaits any more: a database takes
    10,000 at a time.
    """

    def __await__(self) -> Generator[Any, None, None]: ...

    def cancel(self) -> None: ...


class FdbTransaction(Protocol):
    """One transaction: what it reads is of one moment, and what it writes is applied at another, whole or not at all.

    It sees its own writes, in snapshot reads too. It fails with NOT_COMMITTED if another commit has changed, since its
    read version, what it has read without `snapshot` or named in `add_read_conflict_key` or `_range`.
    """

    # -- reads

    async def get(self, key: bytes, *, snapshot: bool = False) -> bytes | None: ...

    async def get_all(self, keys: Sequence[bytes], *, snapshot: bool = False) -> list[bytes | None]:
        """Get several keys at once: this costs much less than a task for each."""
        ...

    async def get_range(
        self, begin: bytes, end: bytes, *, limit: int = 0, reverse: bool = False, snapshot: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Return the pairs with begin <= key < end, at most `limit` if it isn't 0.

        With a limit reached, the read conflict ends at the last key returned. In reverse, it is the whole range.
        """
        ...

    async def get_ranges(
        self, ranges: Sequence[tuple[bytes, bytes]], *, limit: int = 0, snapshot: bool = False
    ) -> list[list[tuple[bytes, bytes]]]:
        """Get several ranges at once, at most `limit` pairs of each."""
        ...

    async def get_read_version(self) -> int: ...

    async def get_approximate_size(self) -> int:
        """Return the bytes of the commit so far: mutations and conflict ranges."""
        ...

    # -- writes

    def set(self, key: bytes, value: bytes) -> None: ...

    def clear(self, key: bytes) -> None: ...

    def clear_range(self, begin: bytes, end: bytes) -> None: ...

    def add(self, key: bytes, amount: int) -> None:
        """Add to a number of 8 bytes, little-endian, in two's complement; a missing key counts as 0."""
        ...

    def max(self, key: bytes, value: bytes) -> None:
        """Keep the larger of the two as unsigned little-endian numbers, in the length of `value`."""
        ...

    def min(self, key: bytes, value: bytes) -> None:
        """Keep the smaller of the two as unsigned little-endian numbers, in the length of `value`."""
        ...

    def byte_max(self, key: bytes, value: bytes) -> None:
        """Keep the one that sorts last; a missing key takes `value`."""
        ...

    def byte_min(self, key: bytes, value: bytes) -> None:
        """Keep the one that sorts first; a missing key takes `value`."""
        ...

    def compare_and_clear(self, key: bytes, value: bytes) -> None:
        """Clear the key if its value is `value`."""
        ...

    def set_versionstamped_key(self, key: bytes, value: bytes) -> None:
        """Set a key with the versionstamp in it: ten bytes at the offset in the last four bytes, little-endian.

        The four bytes are cut off. Reading where the key may come to lie raises ACCESSED_UNREADABLE,
        and so does the commit then.
        """
        ...

    def set_versionstamped_value(self, key: bytes, value: bytes) -> None:
        """Set a value with the versionstamp in it, its place named as in `set_versionstamped_key`."""
        ...

    # -- conflicts

    # A read conflict must be named before the transaction writes the key: what it has set or cleared itself, whatever
    # it was before, is left out of its read conflicts, as it is when it is read.

    def add_read_conflict_key(self, key: bytes) -> None: ...

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None: ...

    def add_write_conflict_key(self, key: bytes) -> None: ...

    def add_write_conflict_range(self, begin: bytes, end: bytes) -> None: ...

    def next_write_no_write_conflict_range(self) -> None:
        """The next write makes no write conflict: readers of its key aren't disturbed."""
        ...

    # -- the end

    def watch(self, key: bytes) -> FdbWatch:
        """Watch a key from its value as this transaction sees it; armed by the commit, also by one without writes.

        It is a read of the key, with its read conflict.
        """
        ...

    async def commit(self) -> None: ...

    def committed_version(self) -> int:
        """Return the version of the commit; -1 if nothing was written."""
        ...

    def versionstamp(self) -> Awaitable[bytes]:
        """Ask before the commit, await after it: the ten bytes. NO_COMMIT_VERSION if nothing was written."""
        ...

    async def on_error(self, error: FdbError) -> None:
        """Reset the transaction and wait a little, so that it can be tried again; or raise what can't be."""
        ...

    def reset(self) -> None: ...

    def cancel(self) -> None: ...

    # -- options; they last through on_error

    def set_timeout(self, milliseconds: int) -> None:
        """Raise TRANSACTION_TIMED_OUT so long after the transaction's beginning; 0 for never."""
        ...

    def set_size_limit(self, size: int) -> None: ...


class Database(Protocol):
    """A FoundationDB database, open."""

    def transaction(self) -> FdbTransaction: ...

    async def close(self) -> None: ...
