"""The writes and the conflicts of a transaction of the simulated database."""

from __future__ import annotations

from holdfast.stores.foundationdb.database import (
    CLIENT_INVALID_OPERATION,
    INVERTED_RANGE,
    KEY_OUTSIDE_LEGAL_RANGE,
    KEY_TOO_LARGE,
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    USED_DURING_COMMIT,
    VALUE_TOO_LARGE,
    FdbError,
)
from holdfast.testing.fdb.atomic import OFFSET_BYTES, STAMP_BYTES, Kind, offset_of, stamp_of
from holdfast.testing.fdb.keys import END, RangeSet, after
from holdfast.testing.fdb.watches import SimulatedWatch
from holdfast.testing.fdb.writes import MUTATION_BYTES, RANGE_BYTES, Writes


class Writing:
    """What a transaction notes before it commits. See `holdfast.stores.foundationdb.database.FdbTransaction`."""

    def __init__(self) -> None:
        self._watches: list[SimulatedWatch] = []
        self._forget()

    def _forget(self) -> None:
        """Begin without writes, conflicts and errors."""
        self._version: int | None = None
        self._writes = Writes()
        self._read_keys: set[bytes] = set()
        self._read_ranges = RangeSet()
        self._size = 0
        self._quiet = False
        self._deferred = 0
        self._failed = 0
        self._read_error = 0
        self._committing = False

    # -- writes

    def set(self, key: bytes, value: bytes) -> None:
        self._write(Kind.SET, key, value)

    def add(self, key: bytes, amount: int) -> None:
        self._write(Kind.ADD, key, (amount & ((1 << 64) - 1)).to_bytes(8, "little"))

    def max(self, key: bytes, value: bytes) -> None:
        self._write(Kind.MAX, key, value)

    def min(self, key: bytes, value: bytes) -> None:
        self._write(Kind.MIN, key, value)

    def byte_max(self, key: bytes, value: bytes) -> None:
        self._write(Kind.BYTE_MAX, key, value)

    def byte_min(self, key: bytes, value: bytes) -> None:
        self._write(Kind.BYTE_MIN, key, value)

    def compare_and_clear(self, key: bytes, value: bytes) -> None:
        self._write(Kind.COMPARE_AND_CLEAR, key, value)

    def set_versionstamped_value(self, key: bytes, value: bytes) -> None:
        if offset_of(value) is None:
            self._defer(CLIENT_INVALID_OPERATION)
        else:
            self._write(Kind.STAMPED_VALUE, key, value)

    def set_versionstamped_key(self, key: bytes, value: bytes) -> None:
        self._takes_conflict()
        if not self._fits(key, value):
            return
        offset = offset_of(key)
        if offset is None:
            self._defer(CLIENT_INVALID_OPERATION)
            return
        rest = key[offset + STAMP_BYTES : -OFFSET_BYTES]
        begin = key[:offset] + stamp_of(self._version or 0, 0) + rest
        end = key[:offset] + END * STAMP_BYTES + after(rest)
        self._size += len(key) + len(value) + MUTATION_BYTES
        self._writes.write_stamped_key(begin, min(end, END), key, value)

    def clear(self, key: bytes) -> None:
        if len(key) > MAX_KEY_BYTES:
            self._takes_conflict()  # No key is that long: there is nothing to clear.
        elif key >= END:
            self._takes_conflict()
            self._defer(KEY_OUTSIDE_LEGAL_RANGE)
        else:
            self._clear(key, after(key))

    def clear_range(self, begin: bytes, end: bytes) -> None:
        if begin > end:
            self._takes_conflict()
            self._defer(INVERTED_RANGE)
        elif end > END:
            self._takes_conflict()
            self._defer(KEY_OUTSIDE_LEGAL_RANGE)
        else:
            self._clear(begin, end)

    def next_write_no_write_conflict_range(self) -> None:
        self._quiet = True

    def _takes_conflict(self) -> bool:
        conflict, self._quiet = not self._quiet, False
        return conflict

    def _defer(self, code: int) -> None:
        """Fail with the next read or the commit, as a write does in the binding."""
        self._deferred = self._deferred or code

    def _fits(self, key: bytes, value: bytes) -> bool:
        if self._deferred:
            return False
        if self._committing:
            self._failed = self._failed or USED_DURING_COMMIT
            self._defer(USED_DURING_COMMIT)
        elif key >= END:
            self._defer(KEY_OUTSIDE_LEGAL_RANGE)
        elif len(key) > MAX_KEY_BYTES:
            self._defer(KEY_TOO_LARGE)
        elif len(value) > MAX_VALUE_BYTES:
            self._defer(VALUE_TOO_LARGE)
        else:
            return True
        return False

    def _write(self, kind: Kind, key: bytes, operand: bytes) -> None:
        conflict = self._takes_conflict()
        if not self._fits(key, operand):
            return
        self._size += len(key) + len(operand) + MUTATION_BYTES + (2 * len(key) + 1 + RANGE_BYTES if conflict else 0)
        self._writes.write(kind, key, operand, conflict=conflict)
        if self._watches:
            self._fire(key, after(key), operand if kind is Kind.SET else None, known=kind is Kind.SET)

    def _clear(self, begin: bytes, end: bytes) -> None:
        conflict = self._takes_conflict()
        if not self._fits(b"", b"") or begin == end:
            return
        self._size += len(begin) + len(end) + MUTATION_BYTES + (len(begin) + len(end) + RANGE_BYTES if conflict else 0)
        self._writes.clear(begin, end, conflict=conflict)
        self._fire(begin, end, None, known=True)

    def _fire(self, begin: bytes, end: bytes, value: bytes | None, *, known: bool) -> None:
        """End the transaction's own watches of what it writes itself."""
        for watch in self._watches:
            if begin <= watch.key < end and (not known or value != watch.value):
                watch.set_result(None)

    # -- conflicts

    def add_read_conflict_key(self, key: bytes) -> None:
        self.add_read_conflict_range(key, after(key))

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        if self._fits_range(begin, end):
            self._note_read_range(begin, end)

    def add_write_conflict_key(self, key: bytes) -> None:
        self.add_write_conflict_range(key, after(key))

    def add_write_conflict_range(self, begin: bytes, end: bytes) -> None:
        if self._fits_range(begin, end):
            self._size += len(begin) + len(end) + RANGE_BYTES
            self._writes.conflict_ranges.add(begin, end)

    def _fits_range(self, begin: bytes, end: bytes) -> bool:
        if begin > end:
            raise FdbError(INVERTED_RANGE)
        if end > END:
            self._defer(KEY_OUTSIDE_LEGAL_RANGE)
        return begin < end <= END and self._fits(b"", b"")

    def _note_read_key(self, key: bytes) -> None:
        self._size += 2 * len(key) + 1 + RANGE_BYTES
        self._read_keys.add(key)

    def _note_read_range(self, begin: bytes, end: bytes) -> None:
        parts = self._writes.not_settled(begin, end) if self._writes else ((begin, end),)
        for first, last in parts:
            self._size += len(begin) + len(end) + RANGE_BYTES
            self._read_ranges.add(first, last)
