"""Turns between tenants, as this process knows them. [TENANT-4]

The order is that of the memory store: lanes with visible work enter the turns at the current minimum, and the lane with
the least (virtual time, tenant) is next. The pointers say which lanes may have work; they are read once, in the order
in which they came, and then only those that are new. Virtual times are kept here, so that claims write none.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from msgspec import Struct, field

MAX_TIMES = 20_000
"""The most virtual times of lanes without pointers that are remembered."""


class KnownLane(Struct, eq=False):
    """A lane with a pointer."""

    tenant: str
    time: int = 0
    """Its virtual time; see `core.fairness`."""
    stamps: list[bytes] = field(default_factory=list[bytes])
    """Where its pointers are."""
    inside: bool = False
    """Whether it takes turns."""
    fresh: bool = True
    """Whether its pointer is new: it has work, as far as is known."""


class KnownTurns:
    """The turns of one queue name."""

    def __init__(self) -> None:
        self.seen = b""
        """The pointers up to this stamp were read."""
        self.lanes: dict[str, KnownLane] = {}
        self.order: list[tuple[int, str]] = []
        """The lanes inside the turns, by virtual time."""
        self.outside: dict[str, KnownLane] = {}
        """The other lanes with a pointer: new ones, and those that were found without work."""
        self.floor = 0
        """The highest virtual time at which a turn was given."""
        self._left: dict[str, int] = {}
        """The virtual times of lanes that lost their pointers."""

    def add_pointers(self, found: Iterable[tuple[bytes, str]]) -> None:
        """Note pointers that were read: stamps and tenants."""
        for stamp, tenant in found:
            self.seen = max(self.seen, stamp)
            lane = self.lanes.get(tenant)
            if lane is None:
                lane = self.lanes[tenant] = KnownLane(tenant, self._left.pop(tenant, 0))
            lane.fresh = True
            lane.stamps.append(stamp)
            if not lane.inside:
                self.outside[tenant] = lane

    def enter(self, lane: KnownLane, time: int) -> None:
        """Let a lane enter the turns."""
        lane.time, lane.inside, lane.fresh = time, True, False
        self.outside.pop(lane.tenant, None)
        insort(self.order, (time, lane.tenant))

    def move(self, lane: KnownLane, time: int) -> None:
        """A lane had its turns."""
        if lane.inside:
            self._take_out(lane)
            insort(self.order, (time, lane.tenant))
        lane.time = time

    def rest(self, lane: KnownLane) -> None:
        """A lane has no visible job: it takes no turns until it is found to have one."""
        lane.fresh = False
        if lane.inside:
            self._take_out(lane)
            lane.inside = False
        if lane.tenant in self.lanes:
            self.outside[lane.tenant] = lane

    def drop(self, tenant: str) -> None:
        """A lane has lost its pointers."""
        lane = self.lanes.pop(tenant, None)
        if lane is None:
            return
        self.outside.pop(tenant, None)
        if lane.inside:
            self._take_out(lane)
        if lane.time > self.floor:
            self._left[tenant] = lane.time
            if len(self._left) > MAX_TIMES:
                self._left = {tenant: time for tenant, time in self._left.items() if time > self.floor}

    def _take_out(self, lane: KnownLane) -> None:
        del self.order[bisect_left(self.order, (lane.time, lane.tenant))]
