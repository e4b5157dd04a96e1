"""Claiming: repair, fair turns, leases. [CLAIM-1 to CLAIM-5, TENANT-4, LEASE-3]"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from msgspec import Struct

from holdfast.core.errors import StoreError
from holdfast.core.job import Claimed, ClaimRequest, Job
from holdfast.store import REPAIR_LIMIT
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.connection import PostgresClient
from holdfast.stores.postgres.lanes import FULL_SCAN_S, LATE_COMMIT_MS, LaneCache, TenantLane, is_due, low_water_of
from holdfast.stores.postgres.literals import numbers, some_numbers
from holdfast.stores.postgres.reads import lanes_of
from holdfast.stores.postgres.rows import Row
from holdfast.stores.postgres.turns import Part, leave, plan, record_round

SOON_MS = 50
"""Read a lane this long before its next job is due: the store's clock is only estimated here."""
MAX_BATCH = 1000
"""The most jobs that one statement leases."""
LOCKED_MS = 200
"""How long to wait before reading a lane again whose visible jobs another transaction has locked.

A claim in turns is such a transaction: until its commit it locks all jobs that it has read, and others skip them.
"""
HELD_MS = int(1000 * FULL_SCAN_S) + SOON_MS
"""How long to wait for expired leases that another transaction has locked: until the next scan of all leases."""

Reap = Callable[[int, float], Awaitable[Any]]


class _ClaimAnswer(Struct):
    """The answer of the function claim()."""

    now: int
    expired: bool
    next_deadline: int | None
    founds: list[int]
    costs: list[int | None]
    soon: list[int | None]
    """When the next job of each lane is due. Not later than `now`: that job is locked, or was just enqueued."""
    jobs: list[Row]
    """In the order in which to run them."""
    hints_seen: list[int]
    """`hints_seen` of each lane when it was read."""
    whole: set[TenantLane]
    """Lanes that were read in full."""


class Claims:
    """The claims of one handle."""

    def __init__(self, client: PostgresClient, cache: LaneCache, reap: Reap, *, real_clock: bool) -> None:
        self._client = client
        self._cache = cache
        self._reap = reap
        self._real_clock = real_clock
        self._clock: tuple[int, float] | None = None

    async def claim(self, request: ClaimRequest) -> Claimed:
        """Lease up to `limit` visible jobs, taking from the queues in rotation. A claim is never sent twice. [ENQ-8]"""
        cache = self._cache
        queues = list(dict.fromkeys(request.queues))
        parts = await self._parts(request.tenant, queues)
        jobs: list[Job] = []
        try:
            now = await self._rounds(request, parts, jobs)
            with cache.lock:
                for part in parts:
                    leave(part)
            return Claimed(jobs, now, None if len(jobs) == request.limit else await self._next_at(parts, now))
        except StoreError:
            if not jobs:
                raise
            at = jobs[-1].claimed_at or 0  # Keep the leases that were granted, and claim the rest again.
            return Claimed(jobs, at, at + 1)

    async def _rounds(self, request: ClaimRequest, parts: list[Part], jobs: list[Job]) -> int:
        """Claim in rounds until there are enough jobs or no more. Adds leases to `jobs`; returns the store's time."""
        cache = self._cache
        going = parts
        repaired = False
        look = is_due(cache.deadline_scanned_at)
        while True:
            left = min(request.limit - len(jobs), MAX_BATCH)
            sent = self._deal(going, left)
            full = is_due(cache.reap_scanned_at)
            reaped = None if repaired else 0 if full else cache.reaped
            asked = time.monotonic()
            answer = await self._send(request, sent, left, reaped, look=look)
            now = answer.now
            self._clock = (now, asked)  # Early rather than late, however long the answer took.
            if answer.expired:
                ended = await self._reap(REPAIR_LIMIT, request.random)
                if len(ended.jobs) < REPAIR_LIMIT:
                    self._note_reaped(now, full=full)
                repaired = True
                for part in parts:
                    part.began = False
                continue
            if not repaired:
                self._note_reaped(now, full=full)
            if look:
                with cache.lock:
                    cache.next_deadline, cache.deadline_scanned_at = answer.next_deadline, time.monotonic()
            repaired, look = True, False
            taken = self._record(request, sent, answer)
            if taken:
                jobs += taken
                cache.granted(now + request.lease_ms)
                cache.lease((job.token, job.seq) for job in taken)
            # Next is the queue that got the least jobs so far; of several, the first.
            places = {id(part): part.got * len(going) + n for n, part in enumerate(going)}
            going = sorted((part for part in going if not part.short), key=lambda part: places[id(part)])
            if len(jobs) >= request.limit or not going:
                return now

    def _note_reaped(self, now: int, *, full: bool) -> None:
        cache = self._cache
        with cache.lock:
            cache.reaped = now
            if full:
                cache.reap_scanned_at = time.monotonic()

    async def _parts(self, tenant: str | None, queues: list[str]) -> list[Part]:
        cache = self._cache
        if tenant is not None:
            lanes = await lanes_of(self._client, cache, [(tenant, queue) for queue in queues])
            return [Part(queue, None, [lane] if lane else []) for queue, lane in zip(queues, lanes, strict=True)]
        for queue in queues:
            if is_due(cache.queue(queue).scanned_at):
                await self._find_lanes_with_work(queue)
        return [Part(queue, cache.queue(queue)) for queue in queues]

    async def _find_lanes_with_work(self, queue: str) -> None:
        """Read which lanes of a queue have work: hints may have been missed."""
        cache = self._cache
        queue_lanes = cache.queue(queue)
        hints_seen, scanned_at = queue_lanes.hints_seen, time.monotonic()
        number, fingerprint = queue_lanes.number, cache.fingerprint()
        if number is None:
            number = await self._client.value("find_queue", queue, fingerprint, repeat=True)
        found = [] if number is None else await self._client.rows("lanes_with_work", number, fingerprint, repeat=True)
        with cache.lock:
            queue_lanes.number = number
            for row in found:
                *names, next_at = row.values()
                lane = cache.learn(fingerprint, *names)
                lane.look_by(next_at)
                lane.look_from(next_at)
            if queue_lanes.hints_seen == hints_seen:
                queue_lanes.scanned_at = scanned_at

    def _deal(self, going: list[Part], left: int) -> list[Part]:
        """Share out the wanted jobs between the queues in rotation, and plan each queue's part."""
        shares = [left // len(going) + (n < left % len(going)) for n in range(len(going))]
        now, past = None, 0
        if self._clock is not None:
            past = self._clock[0]
            if self._real_clock:
                now = past + int(1000 * (time.monotonic() - self._clock[1])) + SOON_MS
        with self._cache.lock:
            for part, share in zip(going, shares, strict=True):
                part.got = 0
                if share:
                    plan(part, share, now, past)
        return going[:left]

    async def _send(
        self, request: ClaimRequest, sent: list[Part], limit: int, reaped: int | None, *, look: bool
    ) -> _ClaimAnswer:
        lanes = [lane for part in sent for lane in part.lanes]
        tenants = {lane.tenant for lane in lanes} | {part.bound[1] for part in sent if part.bound}
        ties = {tenant: n for n, tenant in enumerate(sorted(tenants))}
        bounds: list[int | None] = []
        for part in sent:
            bounds += [None, None] if part.bound is None else [part.bound[0], ties[part.bound[1]]]
        hints_seen = [lane.hints_seen for lane in lanes]
        marks, whole = low_water_of(lanes)
        found = await self._client.rows(
            "claim",
            numbers(lane.number for lane in lanes),
            numbers(lane.queue_id for lane in lanes),
            numbers(q for q, part in enumerate(sent) for _ in part.lanes),
            numbers(lane.time for lane in lanes),
            numbers(int(lane.in_turns) for lane in lanes),
            numbers(ties[lane.tenant] for lane in lanes),
            numbers(wanted for part in sent for wanted in part.wanted),
            numbers(marks),
            some_numbers(
                (part.queue_lanes.floor if part.queue_lanes else 0) if part.all_inside else None for part in sent
            ),
            numbers(part.share for part in sent),
            some_numbers(bounds),
            limit,
            request.lease_ms,
            request.worker_id,
            reaped,
            look,
            self._cache.fingerprint(lanes),
        )
        info: Sequence[Any] = found.pop()["info"]
        count = len(lanes)
        return _ClaimAnswer(
            info[0], bool(info[1]), info[2], list(info[3 : 3 + count]), list(info[3 + count : 3 + 2 * count]),
            list(info[3 + 2 * count :]), sorted(found, key=itemgetter("token")), hints_seen, whole,
        )  # fmt: skip

    def _record(self, request: ClaimRequest, sent: list[Part], answer: _ClaimAnswer) -> list[Job]:
        jobs: list[Job] = []
        taken: dict[int, int] = {}
        cache = self._cache
        with cache.lock:
            asked = [lane for part in sent for lane in part.lanes]
            # The statement has compared the names of these lanes with the database. [TENANT-3]
            by_number = {lane.number: lane for lane in asked}
            # A hint that arrived meanwhile may be of jobs that come before the ones taken.
            hinted = {
                lane for lane, hints_seen in zip(asked, answer.hints_seen, strict=True) if lane.hints_seen != hints_seen
            }
            for number, alike in groupby(answer.jobs, itemgetter("lane")):
                lane = by_number[number]
                back = LATE_COMMIT_MS if lane in hinted else 0
                count = len(jobs)
                for row in alike:
                    rank: int = row["rank"]
                    lane.low_water[rank] = max(lane.low_water[rank], row["visible_at"] - back)
                    jobs.append(rows.to_claimed(row, lane.tenant, lane.queue, request.worker_id))
                taken[number] = taken.get(number, 0) + len(jobs) - count
            at = 0
            for part in sent:
                end = at + len(part.lanes)
                record_round(part, answer.founds[at:end], answer.costs[at:end], taken)
                part.got = sum(taken.get(lane.number, 0) for lane in part.lanes)
                part.short = part.got < part.share and not self._may_have_more(part)
                for lane, soon in zip(part.lanes, answer.soon[at:end], strict=True):
                    if lane in hinted or lane not in part.exhausted:
                        lane.look_at(0)
                        lane.needs_rescan = True  # Some of the jobs that it read may have been locked.
                    elif soon is not None and soon <= answer.now:
                        lane.look_at(answer.now + LOCKED_MS)
                        lane.look_from(soon)
                    else:
                        lane.look_at(soon)
                        lane.is_empty(marked=lane not in answer.whole)
                at = end
        return jobs

    @staticmethod
    def _may_have_more(part: Part) -> bool:
        """Whether this queue may have more jobs than a round could be certain of."""
        queue_lanes = part.queue_lanes
        lanes = part.lanes if queue_lanes is None else (queue_lanes.lanes[tenant] for _, tenant in queue_lanes.turns)
        return any(lane not in part.exhausted for lane in lanes)

    async def _next_at(self, parts: list[Part], now: int) -> int | None:
        """When to claim again after a claim with fewer jobs than its limit. [CLAIM-3]"""
        times: list[int] = []
        cache = self._cache
        if cache.next_deadline is not None and cache.next_deadline <= now:
            cache.next_deadline = await self._client.value("next_deadline", repeat=True)
        with cache.lock:
            deadline = cache.next_deadline
            if deadline is not None:
                # An expired lease that the reaper could not end: another transaction has locked it.
                times.append(now + HELD_MS if deadline <= cache.reaped else deadline)
            clock = time.monotonic()
            rescans: list[float | None] = []
            for part in parts:
                queue_lanes = part.queue_lanes
                if queue_lanes is None:
                    times += [lane.next_at for lane in part.lanes if lane.next_at is not None]
                    rescans += [lane.rescan_at for lane in part.lanes]
                else:
                    times += [0] if queue_lanes.turns else [at for at, _ in islice(queue_lanes.due, 1)]
                    first = queue_lanes.first_rescan()
                    rescans += [first[0]] if first else []
            if self._real_clock:
                times += [now + int(1000 * (at - clock)) + 1 for at in rescans if at is not None]
        return min((max(at, now + 1) for at in times), default=None)
