"""Claiming: ends expired leases, takes fair turns, leases jobs. [CLAIM-1 to CLAIM-5, TENANT-4, LEASE-3]"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from heapq import heappop, heappush

from msgspec import Struct

from holdfast.core import dedup, fairness, lifecycle
from holdfast.core.job import Claimed, ClaimRequest, Job, JobKey
from holdfast.core.retry import spread
from holdfast.store import REPAIR_LIMIT
from holdfast.stores.file import rows
from holdfast.stores.file.sql import SOONEST, SQL, VISIBLE
from holdfast.stores.file.transaction import Transaction

ENTER_LIMIT = 1000
"""The most lanes with newly visible work that one claim lets into the turns."""
LEAVE_LIMIT = 200
"""The most lanes without work that one claim takes out of the turns; the next claim continues. [CLAIM-4]"""


def claim(t: Transaction, request: ClaimRequest) -> Claimed:
    """Lease up to `limit` visible jobs, from the queues in rotation."""
    if reap(t, REPAIR_LIMIT, request.random):
        t.flush()
    # A queue named twice counts once: two pickers on one lane would lease its jobs twice. [CLAIM-1]
    queues = list(dict.fromkeys(request.queues))
    chunk = max(1, math.ceil(request.limit / max(1, len(queues))))
    pickers = [_Picker(t, request.tenant, queue, chunk) for queue in queues]
    going = [iter(picker) for picker in pickers]
    jobs: list[Job] = []
    while going and len(jobs) < request.limit:
        still: list[Iterator[tuple[Job, int]]] = []
        for picks in going:
            pick = next(picks, None) if len(jobs) < request.limit else None
            if pick is not None:
                jobs.append(_lease(t, *pick, request))
                still.append(picks)
        going = still
    for picker in pickers:
        picker.save_turns()
    next_at = None
    if len(jobs) < request.limit:
        next_at = t.now if any(picker.is_cut for picker in pickers) else _next_at(t, request)
    return Claimed(jobs, t.now, next_at)


def reap(t: Transaction, limit: int, random: float) -> list[JobKey]:
    """End expired leases, earliest deadline first. [LEASE-3, RETRY-2]"""
    keys: list[JobKey] = []
    for row in t.db.execute(SQL["expired_leases"], (t.now, limit)).fetchall():
        lane: int = row[1]
        tenant, queue = t.db.execute(SQL["lane_names"], (lane,)).fetchone()
        job = rows.to_job(row, tenant, queue)
        chance = spread(random, len(keys))
        expire = partial(lifecycle.expire, job, chance, t.now, t.settings.retention)
        t.append(t.change(job, lane, expire), lane)
        keys.append(job.key)
    return keys


def _lease(t: Transaction, job: Job, lane: int, request: ClaimRequest) -> Job:
    t.token = t.next_token()
    t.read_payload(job)
    t.count(lane, job.state, -1)
    event = lifecycle.claim(job, t.token, t.now + request.lease_ms, request.worker_id, t.now)
    t.count(lane, job.state, +1)
    t.claimed(job, lane)
    t.append(event, lane)
    if dedup.is_released(job):
        t.drop_key(job, lane)
    return job


def _next_at(t: Transaction, request: ClaimRequest) -> int | None:
    """When to claim again after too few jobs were found. [CLAIM-3]"""
    t.flush()
    times: list[int | None] = [t.one("next_deadline")]
    for queue in request.queues:
        if request.tenant is None:
            times.append(t.one("next_entering", queue))
        else:
            lane = t.find_lane(request.tenant, queue)
            if lane is not None and not t.one("lane_paused", lane):
                times.append(_soonest(t, lane))
    return min((at for at in times if at is not None), default=None)


def _soonest(t: Transaction, lane: int) -> int | None:
    return t.db.execute(SOONEST, (lane,)).fetchone()[0]


class _Lane(Struct):
    """One lane's visible jobs, read a chunk at a time, and its virtual time."""

    tenant: str
    number: int
    time: int
    rows: list[rows.Row]
    taken: int = 0
    read: int = 0
    exhausted: bool = False


class _Picker:
    """The visible jobs of one queue name, one at a time, in claim order."""

    def __init__(self, t: Transaction, tenant: str | None, queue: str, chunk: int) -> None:
        self._t = t
        self._tenant = tenant
        self._queue = queue
        self._chunk = chunk
        self._lanes: dict[str, _Lane] = {}
        self._floor = -1
        self._idle = 0
        """How many lanes in the turns had no work."""

    @property
    def is_cut(self) -> bool:
        """Whether it stopped before it reached all lanes."""
        return self._idle >= LEAVE_LIMIT

    def __iter__(self) -> Iterator[tuple[Job, int]]:
        return self._of_all() if self._tenant is None else self._of_one(self._tenant)

    def _of_one(self, tenant: str) -> Iterator[tuple[Job, int]]:
        t = self._t
        number = t.find_lane(tenant, self._queue)
        if number is None or t.one("lane_paused", number):
            return
        lane = _Lane(tenant, number, 0, [])
        while (job := self._next(lane)) is not None:
            yield job, number

    def _of_all(self) -> Iterator[tuple[Job, int]]:
        """Weighted turns between the tenants that have visible work in this queue. [TENANT-4]"""
        self._enter()
        cursor = self._t.db.execute(SQL["lanes_in_turns"], (self._queue,))
        turns: list[fairness.Lane] = []
        self._more(turns, cursor.fetchmany(self._chunk))
        self._chunk = max(1, math.ceil(self._chunk / max(1, len(turns))))
        ahead = cursor.fetchone()
        picked: list[tuple[Job, int]] = []

        def take(tenant: str) -> bool:
            lane = self._lanes[tenant]
            job = self._next(lane)
            if job is None:
                lane.exhausted = True
                self._idle += not lane.taken
                return False
            self._floor = max(self._floor, lane.time)
            lane.time += self._t.cost(tenant, self._queue)
            picked.append((job, lane.number))
            return True

        while not self.is_cut:
            # Read lanes from the index as needed: a lane joins the heap when its turn comes before all others there.
            while ahead is not None and (not turns or (ahead[0], ahead[1]) < turns[0]):
                self._more(turns, [ahead])
                ahead = cursor.fetchone()
            if not turns:
                return
            # One lane at a time: if it is exhausted, the next one in the index may come before those in the heap.
            head = [heappop(turns)]
            if fairness.turns(head, 1, take, lambda tenant: self._t.cost(tenant, self._queue)):
                heappush(turns, head[0])
                yield picked.pop()

    def _more(self, turns: list[fairness.Lane], found: list[tuple[int, str, int]]) -> None:
        for time, tenant, number in found:
            self._lanes[tenant] = _Lane(tenant, number, time, [])
            heappush(turns, (time, tenant))

    def _enter(self) -> None:
        """Let lanes with newly visible work into the turns, at the current minimum."""
        t = self._t
        floor: int = t.one("floor", self._queue) or 0
        first = SQL["lanes_in_turns"] + " LIMIT 1"
        while not self.is_cut and (head := t.db.execute(first, (self._queue,)).fetchone()) is not None:
            if t.has_visible(head[2]):
                floor = head[0]
                break
            t.db.execute(SQL["leave_turns"], (_soonest(t, head[2]), head[2]))
            self._idle += 1
        for _, number, time in t.db.execute(SQL["lanes_entering"], (self._queue, t.now, ENTER_LIMIT)).fetchall():
            if self._t.has_visible(number):
                t.db.execute(SQL["enter_turns"], (fairness.entry(time, floor), number))
            else:
                t.db.execute(SQL["leave_turns"], (_soonest(t, number), number))

    def _next(self, lane: _Lane) -> Job | None:
        if lane.taken == lane.read:
            lane.rows = self._t.db.execute(VISIBLE, (lane.number, self._t.now, self._chunk, lane.read)).fetchall()
            lane.read += len(lane.rows)
            lane.rows.reverse()
        if not lane.rows:
            return None
        lane.taken += 1
        return rows.to_job(lane.rows.pop(), lane.tenant, self._queue)

    def save_turns(self) -> None:
        """Write the virtual times after the claim."""
        t = self._t
        if self._floor >= 0:
            t.db.execute(SQL["set_floor"], (self._queue, self._floor))
        for lane in self._lanes.values():
            if lane.exhausted:
                # Write the claimed jobs first: `_soonest` must find only jobs that become visible later.
                t.flush()
                t.db.execute(SQL["leave_turns"], (_soonest(t, lane.number), lane.number))
            if lane.taken:
                t.db.execute(SQL["set_time"], (lane.time, lane.number))
