"""A heap whose entries can become stale."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

E = TypeVar("E", bound=tuple[Any, ...])

SLACK = 64
"""Smaller heaps are never rebuilt."""


class LazyHeap(Generic[E]):
    """A heap that does not remove an entry when its job changes. `is_live` says which entries still count.

    Stale entries are dropped when they reach the top. A heap that is mostly stale is rebuilt, so that its size stays in
    proportion to the number of live entries.
    """

    __slots__ = ("_is_live", "entries")

    def __init__(self, is_live: Callable[[E], bool]) -> None:
        self.entries: list[E] = []
        self._is_live = is_live

    def push(self, entry: E, live: int) -> None:
        """Add an entry; `live` is the number of live entries with it."""
        heappush(self.entries, entry)
        if len(self.entries) > 2 * live + SLACK:
            self.tidy(live)

    def first(self) -> E | None:
        """The smallest live entry. It stays in the heap."""
        entries = self.entries
        while entries:
            entry = entries[0]
            if self._is_live(entry):
                return entry
            heappop(entries)
        return None

    def count_below(self, bound: tuple[Any, ...], limit: int) -> int:
        """How many live entries are smaller than `bound`, up to `limit`. Looks at few other entries."""
        count, places = 0, [0]
        while places and count < limit:
            place = places.pop()
            if place < len(self.entries) and self.entries[place] < bound:
                count += self._is_live(self.entries[place])
                places += (2 * place + 1, 2 * place + 2)
        return count

    def take(self) -> E | None:
        """Remove the smallest live entry and return it."""
        entries = self.entries
        while entries:
            entry = heappop(entries)
            if self._is_live(entry):
                return entry
        return None

    def pop(self) -> None:
        """Remove the entry that `first` returned."""
        heappop(self.entries)

    def tidy(self, live: int) -> None:
        """Rebuild the heap if it is mostly stale; `live` is the number of live entries."""
        if len(self.entries) > 2 * live + SLACK:
            self.entries = [entry for entry in self.entries if self._is_live(entry)]
            heapify(self.entries)
