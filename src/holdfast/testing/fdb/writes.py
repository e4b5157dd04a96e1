"""What a transaction has written so far, and what of it the transaction may read."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from holdfast.testing.fdb.atomic import INDEPENDENT, Kind, apply, together
from holdfast.testing.fdb.keys import END, RangeSet, after

Mutation = tuple[Kind | None, bytes, bytes]
"""A write of one key: its kind, the key and the operand. Kind None clears the range from the key to the operand."""

# What a mutation and a range of conflicts take beside their keys and values, as the real client counts.
MUTATION_BYTES = 28
RANGE_BYTES = 24


class KeyWrites:
    """The writes of one key. With `cleared`, they begin at no value, whatever the database has."""

    __slots__ = ("cleared", "operations", "unreadable")

    def __init__(self, *, cleared: bool, unreadable: bool) -> None:
        self.cleared = cleared
        self.unreadable = unreadable
        self.operations: list[tuple[Kind, bytes]] = []

    @property
    def independent(self) -> bool:
        """Whether the value in the database doesn't matter."""
        return self.cleared or self.operations[0][0] in INDEPENDENT

    def push(self, kind: Kind, operand: bytes) -> None:
        """Add one more write."""
        done = self.operations
        if self.unreadable:
            done.append((kind, operand))
        elif kind in INDEPENDENT:
            self.operations = [(kind, operand)]
        elif not done:
            done.append((kind, operand))
        elif done[-1][0] is Kind.SET and (value := apply(kind, done[-1][1], operand)) is not None:
            done[-1] = (Kind.SET, value)
        elif done[-1][0] is kind and (both := together(kind, done[-1][1], operand)) is not None:
            done[-1] = (kind, both)
        else:
            done.append((kind, operand))

    def value(self, base: bytes | None) -> bytes | None:
        """Return what the key holds, if it held `base` in the database."""
        value = None if self.cleared else base
        for kind, operand in self.operations:
            value = apply(kind, value, operand)
        return value


class Writes:
    """The writes of a transaction by key, its cleared ranges and its write conflicts."""

    def __init__(self) -> None:
        self.entries: dict[bytes, KeyWrites] = {}
        self.keys: list[bytes] = []
        self.cleared = RangeSet()
        self.unreadable = RangeSet()
        self.conflict_keys: set[bytes] = set()
        self.conflict_ranges = RangeSet()
        self._before: list[Mutation] = []  # What was written where a versionstamped key may come to lie.

    def __bool__(self) -> bool:
        return bool(self.entries or self.cleared or self.unreadable)

    # -- writing

    def write(self, kind: Kind, key: bytes, operand: bytes, *, conflict: bool) -> None:
        """Note a write of one key."""
        entry = self.entries.get(key)
        if entry is None:
            unreadable = bool(self.unreadable) and key in self.unreadable
            entry = KeyWrites(cleared=bool(self.cleared) and key in self.cleared, unreadable=unreadable)
            self.entries[key] = entry
            insort(self.keys, key)
        entry.push(kind, operand)
        entry.unreadable |= kind is Kind.STAMPED_VALUE
        if conflict:
            self.conflict_keys.add(key)

    def clear(self, begin: bytes, end: bytes, *, conflict: bool) -> None:
        """Note that a range is cleared."""
        self._forget(begin, end)
        self.cleared.add(begin, end)
        self.unreadable.subtract(begin, end)
        if conflict and end == after(begin):
            self.conflict_keys.add(begin)
        elif conflict:
            self.conflict_ranges.add(begin, end)

    def write_stamped_key(self, begin: bytes, end: bytes, key: bytes, value: bytes) -> None:
        """Note a key that will lie between two keys; what was written between them is done before."""
        self._before += self._mutations(begin, end)
        self._forget(begin, end)
        self.cleared.subtract(begin, end)
        self.unreadable.add(begin, end)
        self._before.append((Kind.STAMPED_KEY, key, value))

    def _forget(self, begin: bytes, end: bytes) -> None:
        first, last = bisect_left(self.keys, begin), bisect_left(self.keys, end)
        for key in self.keys[first:last]:
            del self.entries[key]
        del self.keys[first:last]

    # -- reading

    def touch(self, begin: bytes, end: bytes) -> bool:
        """Say whether reading a range needs a look at these writes."""
        at = bisect_left(self.keys, begin)
        return (
            (at < len(self.keys) and self.keys[at] < end)
            or self.cleared.meets(begin, end)
            or self.unreadable.meets(begin, end)
        )

    def settle(self, key: bytes) -> bool:
        """Say whether reading a key needs no look at the database."""
        entry = self.entries.get(key)
        if entry is not None:
            return entry.independent or entry.unreadable
        return key in self.cleared or key in self.unreadable

    def between(self, begin: bytes, end: bytes) -> list[bytes]:
        """Return the keys written in a range."""
        return self.keys[bisect_left(self.keys, begin) : bisect_left(self.keys, end)]

    def not_settled(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the parts of a range whose contents depend on the database: a read conflicts on these."""
        settled = RangeSet(self.cleared.within(begin, end))
        for key in self.between(begin, end):
            if self.entries[key].independent:
                settled.add(key, after(key))
        at = begin
        for first, last in settled:
            if at < first:
                yield at, first
            at = last
        if at < end:
            yield at, end

    # -- committing

    def mutations(self) -> list[Mutation]:
        """Return what to do, in an order in which it may be done."""
        return self._before + self._mutations(b"", END)

    def _mutations(self, begin: bytes, end: bytes) -> list[Mutation]:
        done: list[Mutation] = [(None, first, last) for first, last in self.cleared.within(begin, end)]
        done += [
            (kind, key, operand) for key in self.between(begin, end) for kind, operand in self.entries[key].operations
        ]
        return done

    def bytes_of_conflicts(self) -> int:
        """Return the bytes of the write conflicts in a commit."""
        return sum(2 * len(key) + 1 + RANGE_BYTES for key in self.conflict_keys) + bytes_of(self.conflict_ranges)


def bytes_of(ranges: RangeSet) -> int:
    """Return the bytes of conflict ranges in a commit."""
    return sum(len(begin) + len(end) + RANGE_BYTES for begin, end in ranges)
