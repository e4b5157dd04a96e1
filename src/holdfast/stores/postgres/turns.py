"""Turns between tenants: which lanes a claim names, and what it learns from the answer. [TENANT-4]

The order is that of the memory store: lanes with visible work enter the turns at the current minimum, then the lane
with the least (virtual time, tenant) is next. Here only the database knows which lanes have visible work. So a round
is planned as if every lane that may have work had some, and claim() in migrations/ takes jobs only as far as the order
is certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from itertools import islice, takewhile
from time import monotonic

from msgspec import Struct, field

from holdfast.core import fairness
from holdfast.stores.postgres.lanes import MAX_FULL_SCANS, QueueLanes, TenantLane

MAX_NEWCOMERS = 200
"""The most lanes that enter the turns in one claim, unless it wants more jobs than this."""
MIN_LANES = 16
"""The least number of newcomers that a claim reads in its first round. It doubles with each further round."""


class Part(Struct):
    """One queue's part in a claim: the lanes to read, and what is known about them."""

    queue: str
    queue_lanes: QueueLanes | None
    """None: the claim is for one tenant, and there are no turns."""
    lanes: list[TenantLane] = field(default_factory=list[TenantLane])
    """The lanes to read in this round."""
    wanted: list[int] = field(default_factory=list[int])
    """How many jobs to look for in each of them."""
    share: int = 0
    got: int = 0
    """Jobs that this round took."""
    bound: tuple[int, str] | None = None
    """The turn of the first lane that is not read in this round."""
    unseen: list[TenantLane] = field(default_factory=list[TenantLane])
    """Newcomers that enter without being read: they have work, as far as is known."""
    all_inside: bool = True
    """All lanes in the turns are read: if none of them has work, newcomers enter at the floor now."""
    rounds: int = 0
    """Rounds so far."""
    exhausted: set[TenantLane] = field(default_factory=set[TenantLane])
    """Lanes without visible jobs left."""
    empty: set[TenantLane] = field(default_factory=set[TenantLane])
    """Lanes in the turns that had no visible job to begin with."""
    began: bool = False
    """Newcomers have entered."""
    last: tuple[int, str] | None = None
    """The last turn that got a job."""
    short: bool = False
    """The claim wanted more jobs than there were."""


def plan(part: Part, share: int, now: int | None, past: int) -> None:
    """Choose the lanes to read for `share` more jobs. `now` is about the store's time; None: unknown.

    Newcomers that are known to have had visible work at the time `past` enter without being read.
    """
    part.share = share
    part.bound = None
    if part.queue_lanes is None:
        part.lanes = [lane for lane in part.lanes if lane not in part.exhausted]
        part.wanted = [share] * len(part.lanes)
        return
    lanes = part.queue_lanes.lanes
    wide = max(share, min(MIN_LANES << part.rounds, MAX_NEWCOMERS))
    waiting = (turn for turn in part.queue_lanes.turns if lanes[turn[1]] not in part.exhausted)
    inside = list(islice(waiting, (wide if part.rounds else share) + 1))
    entering: list[TenantLane] = []
    if not part.began:  # After the first round it is known where newcomers enter.
        due = takewhile(lambda entry: now is None or entry[0] <= now, part.queue_lanes.due)
        entering = [lanes[tenant] for _, tenant in islice(due, max(MAX_NEWCOMERS, share))]
    needs_rescan = [] if part.began else _rescans(part.queue_lanes, set(entering))
    floor = inside[0][0] if inside else part.queue_lanes.floor
    newcomers = sorted((fairness.entry(lane.time, floor), lane.tenant) for lane in entering + needs_rescan)
    turns = inside + newcomers
    dealt = _deal(turns, share, lanes)
    named = set(dealt)
    named.update(tenant for _, tenant in inside[: wide if part.rounds else min(1, len(newcomers))])
    named.update(tenant for _, tenant in newcomers[:MIN_LANES])
    named.update(lane.tenant for lane in entering if not lane.had_work_at(past))
    named.update(lane.tenant for lane in needs_rescan)
    part.lanes = [lanes[tenant] for _, tenant in turns if tenant in named]
    part.wanted = [max(1, dealt.get(lane.tenant, 0)) for lane in part.lanes]
    part.bound = min((turn for turn in turns if turn[1] not in named), default=None)
    part.unseen = [lanes[tenant] for _, tenant in newcomers if tenant not in named]
    # With unseen newcomers the bound holds only if a lane in the turns has work. Otherwise newcomers wait a round.
    part.all_inside = all(tenant in named for _, tenant in inside) and not (inside and part.unseen)


def _deal(turns: list[tuple[int, str]], share: int, lanes: dict[str, TenantLane]) -> dict[str, int]:
    """How many of `share` turns each tenant gets, if all have enough jobs."""
    heap = turns.copy()
    heapify(heap)
    dealt: dict[str, int] = {}
    for _ in range(share if heap else 0):
        time, tenant = heap[0]
        dealt[tenant] = dealt.get(tenant, 0) + 1
        heapreplace(heap, (time + lanes[tenant].cost, tenant))
    return dealt


def _rescans(queue_lanes: QueueLanes, entering: set[TenantLane]) -> list[TenantLane]:
    """A few lanes that are due to be read in full."""
    found: list[TenantLane] = []
    now = monotonic()
    while len(found) < MAX_FULL_SCANS and (first := queue_lanes.first_rescan()) and first[0] <= now:
        queue_lanes.rescans.popleft()
        lane = first[1]
        lane.rescan_at = None  # If it is not read in full this time, another rescan follows.
        if not lane.in_turns and lane not in entering:
            found.append(lane)
    return found


def record_round(part: Part, founds: Sequence[int], costs: Sequence[int | None], taken: dict[int, int]) -> None:
    """Note what a round found and took: virtual times, lanes that entered, lanes without jobs."""
    queue_lanes = part.queue_lanes
    visible = [lane.time for lane, found in zip(part.lanes, founds, strict=True) if lane.in_turns and found]
    # Newcomers enter at the time of the first lane that has work. If that was not read, they wait for the next round.
    part.empty |= {lane for lane, found in zip(part.lanes, founds, strict=True) if lane.in_turns and not found}
    part.rounds += 1
    if not part.began and (visible or part.all_inside):
        part.began = True
        if queue_lanes is not None:
            _drop_heads(queue_lanes, part.empty)
    floor = min(visible, default=0 if queue_lanes is None else queue_lanes.floor)
    for lane, found, wanted, cost in zip(part.lanes, founds, part.wanted, costs, strict=True):
        if found < wanted:
            part.exhausted.add(lane)
        if queue_lanes is None:
            continue
        lane.cost = cost or lane.cost
        if found and not lane.in_turns and part.began:
            lane.enter(fairness.entry(lane.time, floor))
        got = taken.get(lane.number, 0)
        if found > got:
            part.exhausted.discard(lane)
        if got:
            last = lane.time + (got - 1) * lane.cost
            queue_lanes.floor = max(queue_lanes.floor, last)
            lane.move(last + lane.cost)
            part.last = max(part.last or (0, ""), (last, lane.tenant))
    if part.began:
        _enter_unseen(part, floor)


def _enter_unseen(part: Part, floor: int) -> None:
    for lane in part.unseen:
        if not lane.in_turns and lane.next_at is not None:  # Another claim may have read it meanwhile.
            lane.enter(fairness.entry(lane.time, floor))


def _drop_heads(queue_lanes: QueueLanes, empty: set[TenantLane]) -> None:
    """Remove lanes without work from the head of the turns, before newcomers enter."""
    for lane in list(takewhile(empty.__contains__, (queue_lanes.lanes[tenant] for _, tenant in queue_lanes.turns))):
        lane.leave()


def leave(part: Part) -> None:
    """Remove from the turns the lanes that had no visible job when their turn came. They keep their virtual time."""
    for lane in part.exhausted if part.queue_lanes is not None else ():
        if part.short or part.last is None or (lane.time, lane.tenant) <= part.last:
            lane.leave()
