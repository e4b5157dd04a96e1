"""Picks the jobs of a claim from the indexes, by snapshot: in claim order, in turns, from the queues in rotation.

Nothing is written here. What was learned about the turns is kept only after the commit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import islice

from holdfast.core import fairness
from holdfast.core.job import ClaimRequest
from holdfast.stores.foundationdb.awaiting import together
from holdfast.stores.foundationdb.keyspace import STAMP_BYTES, after, span
from holdfast.stores.foundationdb.lanes import LaneJobs, Waiting, read_lanes
from holdfast.stores.foundationdb.settings import cost
from holdfast.stores.foundationdb.turns import KnownLane, KnownTurns
from holdfast.stores.foundationdb.unit_of_work import Work

POINTERS = 1_000
"""The most pointers that one read returns."""
PROBES = 40
"""The most lanes without work that one claim reads again."""
MAX_IDLE = 200
"""The most lanes of the turns in which one claim finds no work; the next one continues. [CLAIM-4]"""


class LanePicker:
    """The visible jobs of one lane."""

    def __init__(self, work: Work, tenant: str, queue: str, share: int, skip: int) -> None:
        self.lane = LaneJobs(work, tenant, queue)
        self._share = share
        self._skip = skip

    @property
    def is_cut(self) -> bool:
        return False

    async def prepare(self) -> None:
        """Read the first jobs."""
        await self.lane.fetch(self._share, skip=self._skip)

    async def next(self) -> Waiting | None:
        """The next job."""
        await self.lane.fetch(1)
        return self.lane.take() if self.lane.at_hand else None

    def next_due(self) -> Iterable[int | None]:
        """When further jobs become visible."""
        return (None if self.lane.paused else self.lane.next_due,)

    def learn(self) -> None:
        """There are no turns."""


class TurnsPicker:
    """The visible jobs of one queue name, in weighted turns between the tenants. [TENANT-4]"""

    def __init__(self, work: Work, turns: KnownTurns, queue: str, share: int, skip: int) -> None:
        self._work = work
        self._turns = turns
        self._queue = queue
        self._share = share
        self._skip = skip
        self._lanes: dict[str, LaneJobs] = {}
        self._heap: list[tuple[int, str]] = []
        self._order: list[tuple[int, str]] = []
        """The lanes in the turns that were not read yet: the last one is next."""
        self._entered: dict[str, int] = {}
        self._times: dict[str, int] = {}
        self._resting: set[str] = set()
        self._floor = turns.floor
        self._probed: list[KnownLane] = []

    @property
    def is_cut(self) -> bool:
        """Whether lanes were left out that may have work."""
        idle = sum(not lane.fresh for lane in self._turns.outside.values())
        return idle > len(self._probed) or (len(self._resting) >= MAX_IDLE and bool(self._order or self._heap))

    async def prepare(self) -> None:
        """Read the new pointers, and the first jobs of the lanes that come next."""
        turns = self._turns
        await read_pointers(self._work, turns, self._queue)
        self._order = turns.order[::-1]
        self._probed = list(islice((lane for lane in turns.outside.values() if not lane.fresh), PROBES))
        fresh = [lane for lane in turns.outside.values() if lane.fresh]
        first = [tenant for _, tenant in islice(reversed(self._order), self._share)]
        first += [lane.tenant for lane in islice(fresh, self._share)]
        await self._fetch([*first, *(lane.tenant for lane in self._probed)], len(first))
        minimum = await self._minimum()
        for lane in fresh:
            self._enter(lane, minimum)
        for lane in self._probed:
            if self._lanes[lane.tenant].at_hand:
                self._enter(lane, minimum)

    async def _fetch(self, tenants: Iterable[str], among: int) -> None:
        """Read jobs of lanes that were not read yet. The claim's share is dealt among this number."""
        new = [tenant for tenant in tenants if tenant not in self._lanes]
        count = max(1, math.ceil(self._share / max(1, among)))
        if new:
            lanes = await read_lanes(self._work, new, self._queue, count, self._skip)
            self._lanes.update(zip(new, lanes, strict=True))

    async def _minimum(self) -> int:
        """The virtual time of the first lane that has work. Those before it leave the turns."""
        while self._order and len(self._resting) < MAX_IDLE:
            time, tenant = self._order[-1]
            await self._fetch((tenant for _, tenant in self._order[: -1 - self._share : -1]), self._share)
            if self._lanes[tenant].at_hand:
                return time
            self._order.pop()
            self._resting.add(tenant)
        return self._order[-1][0] if self._order else self._floor

    def _enter(self, lane: KnownLane, minimum: int) -> None:
        time = fairness.entry(lane.time, minimum)
        self._entered[lane.tenant] = time
        heappush(self._heap, (time, lane.tenant))

    async def next(self) -> Waiting | None:
        """The next job."""
        while (self._order or self._heap) and len(self._resting) < MAX_IDLE:
            if self._order and (not self._heap or self._order[-1] < self._heap[0]):
                time, tenant = self._order.pop()
            else:
                time, tenant = heappop(self._heap)
            if tenant not in self._lanes:
                following = (other for _, other in islice(reversed(self._order), self._share))
                await self._fetch((tenant, *following), self._share)
            lane = self._lanes[tenant]
            if not await lane.has_visible():
                self._resting.add(tenant)
                continue
            self._floor = max(self._floor, time)
            # One after the other: they are nearly always cached, and tasks cost more.
            of_queue = await self._work.setting(tenant, self._queue)
            self._times[tenant] = time + cost(of_queue, await self._work.setting(tenant, ""))
            heappush(self._heap, (self._times[tenant], tenant))
            return lane.take()
        return None

    def next_due(self) -> Iterable[int | None]:
        """When further jobs become visible, in the lanes that were read."""
        return (lane.next_due for lane in self._lanes.values() if not lane.paused)

    def learn(self) -> None:
        """Keep what was learned, after the commit."""
        turns = self._turns
        turns.floor = max(turns.floor, self._floor)
        for tenant in self._entered.keys() | self._times.keys() | self._resting:
            lane = turns.lanes.get(tenant)
            if lane is None:
                continue
            if tenant in self._entered and not lane.inside:
                turns.enter(lane, self._entered[tenant])
            if tenant in self._times:
                turns.move(lane, max(lane.time, self._times[tenant]))
            if tenant in self._resting:
                turns.rest(lane)


async def read_pointers(work: Work, turns: KnownTurns, queue: str) -> None:
    """Read the pointers that are new since the last time."""
    prefix = work.keys.pointers(queue)
    begin, end = span(prefix)[0] if not turns.seen else after(prefix + turns.seen), prefix + b"\xff" * STAMP_BYTES
    while rows := await work.tr.get_range(begin, end, limit=POINTERS, snapshot=True):
        turns.add_pointers((key[len(prefix) :], value.decode()) for key, value in rows)
        if len(rows) < POINTERS:
            return
        begin = after(rows[-1][0])


Picker = LanePicker | TurnsPicker


async def pick(request: ClaimRequest, pickers: list[Picker]) -> list[Waiting]:
    """Up to `limit` jobs, one from each queue in rotation; a queue without visible jobs drops out."""
    await together(*(picker.prepare() for picker in pickers))
    going = list(pickers)
    found: list[Waiting] = []
    while going and len(found) < request.limit:
        still: list[Picker] = []
        for picker in going:
            waiting = await picker.next() if len(found) < request.limit else None
            if waiting is not None:
                found.append(waiting)
                still.append(picker)
        going = still
    return found
