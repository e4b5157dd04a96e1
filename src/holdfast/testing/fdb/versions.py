"""Keys and values by version: every reader sees the moment of its read version."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator

from holdfast.testing.fdb.keys import RangeSet, SortedKeys


class Commit:
    """What a commit has written, for the conflicts of those that read before it."""

    __slots__ = ("_ordered", "keys", "ranges", "version")

    def __init__(self, version: int, keys: set[bytes], ranges: RangeSet) -> None:
        self.version = version
        self.keys = keys
        self.ranges = ranges
        self._ordered: list[bytes] | None = None

    def meets(self, keys: set[bytes], ranges: RangeSet) -> bool:
        """Say whether one of these keys, or a key in these ranges, was written."""
        if not self.keys.isdisjoint(keys):
            return True
        if self.ranges and (
            any(key in self.ranges for key in keys) or any(self.ranges.meets(begin, end) for begin, end in ranges)
        ):
            return True
        if not ranges or not self.keys:
            return False
        if self._ordered is None:
            self._ordered = sorted(self.keys)
        ordered = self._ordered
        for begin, end in ranges:
            at = bisect_left(ordered, begin)
            if at < len(ordered) and ordered[at] < end:
                return True
        return False


class Versions:
    """The pairs of a database as of now, and as of every version that a reader may still ask for."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys = SortedKeys()  # Also those that only an old version has.
        self._older: dict[bytes, list[tuple[int, bytes | None]]] = {}  # By key: when a value ended, and the value.
        self._ended: deque[tuple[int, bytes]] = deque()
        self._commits: deque[Commit] = deque()
        self._readers: Counter[int] = Counter()
        self._left: deque[int] = deque()  # Read versions given back. Appending needs no lock: a collector may do it.

    def __len__(self) -> int:
        return len(self._values)

    # -- readers

    def enter(self, version: int) -> None:
        """Keep a version readable until `leave`."""
        self._readers[version] += 1

    def leave(self, version: int) -> None:
        """Give a version back."""
        self._left.append(version)

    def trim(self, oldest: int) -> None:
        """Forget what no reader asks for any more. No reader may ask for what is older than `oldest`."""
        while self._left:
            version = self._left.popleft()
            self._readers[version] -= 1
            if not self._readers[version]:
                del self._readers[version]
        asked = [version for version in self._readers if version >= oldest]
        limit = min(asked) if asked else None
        while self._commits and (limit is None or self._commits[0].version <= limit):
            self._commits.popleft()
        while self._ended and (limit is None or self._ended[0][0] <= limit):
            _, key = self._ended.popleft()
            older = self._older[key]
            del older[0]
            if not older:
                del self._older[key]
                if key not in self._values:
                    self._keys.remove(key)

    # -- reading

    def get(self, key: bytes, version: int) -> bytes | None:
        """Return the value of a key at a version."""
        for ended, value in self._older.get(key, ()):
            if ended > version:
                return value
        return self._values.get(key)

    def scan(self, begin: bytes, end: bytes, version: int, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Yield the pairs of a range at a version. Nothing may be written meanwhile."""
        keys = self._keys.between_backwards(begin, end) if reverse else self._keys.between(begin, end)
        if not self._older:
            values = self._values
            for key in keys:
                yield key, values[key]
            return
        for key in keys:
            value = self.get(key, version)
            if value is not None:
                yield key, value

    # -- writing

    def conflicts(self, version: int, keys: set[bytes], ranges: RangeSet) -> bool:
        """Say whether a commit after a version has written one of these keys, or into these ranges."""
        for commit in reversed(self._commits):
            if commit.version <= version:
                return False
            if commit.meets(keys, ranges):
                return True
        return False

    def note(self, commit: Commit) -> None:
        """Keep what a commit has written, if a reader is from before it."""
        if self._readers:
            self._commits.append(commit)

    def put(self, key: bytes, value: bytes | None, version: int) -> None:
        """Set a key, or clear it with None."""
        old = self._values.get(key)
        if old is None and value is None:
            return
        if self._readers:
            if old is None and key not in self._older:
                self._keys.add(key)
            self._older.setdefault(key, []).append((version, old))
            self._ended.append((version, key))
        elif old is None:
            if key not in self._older:
                self._keys.add(key)
        elif value is None and key not in self._older:
            self._keys.remove(key)
        if value is None:
            del self._values[key]
        else:
            self._values[key] = value

    def live_keys(self, begin: bytes, end: bytes) -> list[bytes]:
        """Return the keys that have a value now."""
        return [key for key in self._keys.between(begin, end) if key in self._values]
