"""How much of a shard's log each tenant may keep. [EVENT-2]

The log of a shard is bounded. Every tenant keeps up to L events, where the level L is the largest number for which the
sum over all tenants of min(kept, L) is within the bound. A tenant below the level loses nothing, however much the
others write. There are two levels: the soft one for events that every reader has passed, the hard one for events that
a registered reader has yet to read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from msgspec import Struct


def level(counts: Collection[int], bound: int) -> int:
    """The largest L for which sum(min(count, L)) is at most `bound`; the largest count if they all fit.

    With more tenants than `bound`, it is 1 and the sum is larger than `bound`; with a bound of 0 it is 0.
    """
    left, among, least = bound, len(counts), min(1, bound)
    highest = 0
    for count in sorted(counts):
        highest = count
        if count * among > left:
            return max(least, left // among)
        left, among = left - count, among - 1
    return highest


class Excess(Struct):
    """How many of one tenant's oldest events to trim."""

    soft: int
    """Among the events that all its readers have read."""
    hard: int
    """Among all its events."""

    def takes(self, count: int, passed: float) -> int:
        """How many of the next `count` events to trim, the oldest first. They are subtracted from the excess.

        `passed` is the number of these events that every registered reader has read.
        """
        taken = int(min(count, max(self.hard, min(self.soft, passed), 0)))
        self.soft, self.hard = self.soft - taken, self.hard - taken
        return taken


def excess(kept: Mapping[str, int], keep_events: int, bound: int) -> dict[str, Excess]:
    """The tenants with more events than the soft level, and how many events to trim of each."""
    soft, hard = level(kept.values(), keep_events), level(kept.values(), bound)
    return {tenant: Excess(count - soft, count - hard) for tenant, count in kept.items() if count > soft}


class Trimming:
    """Decides which events to trim. Ask in log order: after a tenant's first kept event, all its events are kept."""

    def __init__(self, pending: dict[str, Excess], slowest: Callable[[str], float]) -> None:
        """`slowest` returns the place up to which all readers of a tenant have read."""
        self.pending = pending
        """The tenants whose next events may have to be trimmed."""
        self._slowest = slowest

    def takes(self, tenant: str, place: int, count: int = 1) -> int:
        """How many to trim of `count` consecutive events of one tenant, the first at this place."""
        excess = self.pending.get(tenant)
        if excess is None:
            return 0
        taken = excess.takes(count, self._slowest(tenant) - place + 1)
        if taken < count or excess.soft <= 0:
            del self.pending[tenant]
        return taken
