"""Sorted keys and sets of ranges: what a database in memory is made of."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

END = b"\xff"
"""Behind the last key that a program may use."""

_CHUNK = 512


def after(key: bytes) -> bytes:
    """Return the first key behind `key`."""
    return key + b"\x00"


class SortedKeys:
    """Different keys in order, in chunks, so that adding one doesn't move all the others."""

    def __init__(self) -> None:
        self._chunks: list[list[bytes]] = []
        self._last: list[bytes] = []  # The last key of each chunk.

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def add(self, key: bytes) -> None:
        """Add a key that isn't here."""
        if not self._chunks:
            self._chunks.append([key])
            self._last.append(key)
            return
        at = min(bisect_left(self._last, key), len(self._chunks) - 1)
        chunk = self._chunks[at]
        insort(chunk, key)
        if len(chunk) > 2 * _CHUNK:
            self._chunks[at : at + 1] = [chunk[:_CHUNK], chunk[_CHUNK:]]
            self._last[at : at + 1] = [chunk[_CHUNK - 1], chunk[-1]]
        else:
            self._last[at] = chunk[-1]

    def remove(self, key: bytes) -> None:
        """Remove a key that is here."""
        at = bisect_left(self._last, key)
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, key)]
        if chunk:
            self._last[at] = chunk[-1]
        else:
            del self._chunks[at], self._last[at]

    def between(self, begin: bytes, end: bytes) -> Iterator[bytes]:
        """Yield the keys with begin <= key < end. Nothing may be added or removed meanwhile."""
        at = bisect_left(self._last, begin)
        if at == len(self._chunks):
            return
        chunk = self._chunks[at]
        start = bisect_left(chunk, begin)
        while self._last[at] < end:
            yield from chunk[start:] if start else chunk
            at, start = at + 1, 0
            if at == len(self._chunks):
                return
            chunk = self._chunks[at]
        for place in range(start, bisect_left(chunk, end)):
            yield chunk[place]

    def between_backwards(self, begin: bytes, end: bytes) -> Iterator[bytes]:
        """Yield the keys with begin <= key < end, the last one first."""
        at = bisect_left(self._last, end)
        if at == len(self._chunks):
            at -= 1
        while at >= 0:
            chunk = self._chunks[at]
            start = bisect_left(chunk, begin)
            for place in range(bisect_left(chunk, end) - 1, start - 1, -1):
                yield chunk[place]
            if start:
                return
            at -= 1


class RangeSet:
    """A set of keys as disjoint ranges in order, none of which touches another."""

    def __init__(self, ranges: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self.begins: list[bytes] = []
        self.ends: list[bytes] = []
        for begin, end in ranges:
            self.add(begin, end)

    def __bool__(self) -> bool:
        return bool(self.begins)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return zip(self.begins, self.ends, strict=True)

    def __contains__(self, key: bytes) -> bool:
        at = bisect_right(self.begins, key) - 1
        return at >= 0 and key < self.ends[at]

    def add(self, begin: bytes, end: bytes) -> None:
        """Add all keys of a range."""
        if begin >= end:
            return
        first = bisect_left(self.ends, begin)
        last = bisect_right(self.begins, end)
        if first < last:
            begin = min(begin, self.begins[first])
            end = max(end, self.ends[last - 1])
        self.begins[first:last] = [begin]
        self.ends[first:last] = [end]

    def subtract(self, begin: bytes, end: bytes) -> None:
        """Take all keys of a range out."""
        if begin >= end:
            return
        first = bisect_right(self.ends, begin)
        last = bisect_left(self.begins, end)
        if first >= last:
            return
        left = [(self.begins[first], begin)] if self.begins[first] < begin else []
        right = [(end, self.ends[last - 1])] if end < self.ends[last - 1] else []
        self.begins[first:last] = [pair[0] for pair in left + right]
        self.ends[first:last] = [pair[1] for pair in left + right]

    def within(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the parts that lie in a range."""
        at = bisect_right(self.ends, begin)
        while at < len(self.begins) and self.begins[at] < end:
            yield max(begin, self.begins[at]), min(end, self.ends[at])
            at += 1

    def meets(self, begin: bytes, end: bytes) -> bool:
        """Say whether a key of the range is in the set."""
        at = bisect_right(self.ends, begin)
        return begin < end and at < len(self.begins) and self.begins[at] < end
