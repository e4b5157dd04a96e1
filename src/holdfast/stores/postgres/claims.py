"""Claiming: repair, fair turns, leases. [CLAIM-1 to CLAIM-5, TENANT-4, LEASE-3]"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct

from holdfast.core.job import Claimed, ClaimRequest, Job
from holdfast.store import REPAIR_LIMIT
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.lanes import Lane, Memory, is_due, marks_of
from holdfast.stores.postgres.link import Link
from holdfast.stores.postgres.rows import Row
from holdfast.stores.postgres.turns import Part, leave, plan, settle

SOON_MS = 50
"""Lanes are looked at that much before their next job is due by our reckoning of the store's clock."""
BATCH = 1000
"""How many jobs one statement leases at most."""

Reap = Callable[[int, float], Awaitable[Any]]


class _Answer(Struct):
    """What the function `claim` answered."""

    now: int
    expired: bool
    next_deadline: int | None
    founds: list[int]
    costs: list[int | None]
    soon: list[int | None]
    jobs: list[tuple[int, Row]]
    """The number of its lane, and the job, in the order they are to be run in."""


class Claims:
    """The claims of one handle."""

    def __init__(self, link: Link, memory: Memory, reap: Reap, *, real_clock: bool) -> None:
        self._link = link
        self._memory = memory
        self._reap = reap
        self._real_clock = real_clock
        self._clock: tuple[int, float] | None = None

    async def claim(self, request: ClaimRequest) -> Claimed:
        """Lease up to `limit` visible jobs, taking from the queues in rotation. Never sent again. [ENQ-8]"""
        memory = self._memory
        queues = list(dict.fromkeys(request.queues))
        parts = await self._parts(request.tenant, queues)
        going = parts
        jobs: list[Job] = []
        repaired = False
        now = 0
        look = is_due(memory.deadline_looked)
        while True:
            left = min(request.limit - len(jobs), BATCH)
            sent = self._deal(going, left)
            full = is_due(memory.reap_looked)
            reaped = None if repaired else 0 if full else memory.reaped
            answer = await self._send(request, sent, left, reaped, look=look)
            now = answer.now
            self._clock = (now, time.monotonic())
            if answer.expired:
                await self._reap(REPAIR_LIMIT, request.random)
                repaired = True
                for part in parts:
                    part.began = False
                continue
            self._note_deadlines(answer, checked=not repaired, full=full, look=look)
            repaired, look = True, False
            jobs += self._took(request, sent, answer)
            # Who is asked next: the queue that has been asked least, of those the one that stands first.
            places = {id(part): part.got * len(going) + n for n, part in enumerate(going)}
            going = sorted((part for part in going if not part.short), key=lambda part: places[id(part)])
            if len(jobs) >= request.limit or not going:
                break
        with memory.lock:
            for part in parts:
                leave(part)
            if jobs:
                memory.granted(now + request.lease_ms)
                memory.lease((job.token, job.seq) for job in jobs)
        return Claimed(jobs, now, None if len(jobs) == request.limit else await self._next_at(parts, now))

    def _note_deadlines(self, answer: _Answer, *, checked: bool, full: bool, look: bool) -> None:
        memory = self._memory
        with memory.lock:
            if checked:
                memory.reaped = answer.now
            if checked and full:
                memory.reap_looked = time.monotonic()
            if look:
                memory.next_deadline, memory.deadline_looked = answer.next_deadline, time.monotonic()

    async def _parts(self, tenant: str | None, queues: list[str]) -> list[Part]:
        memory = self._memory
        if tenant is not None:
            unknown = [queue for queue in queues if memory.find(tenant, queue) is None]
            if unknown:
                found = await self._link.rows("find_lanes", [tenant] * len(unknown), unknown, repeat=True)
                for row in found:
                    memory.learn(*row.values())
            lanes = {queue: memory.find(tenant, queue) for queue in queues}
            return [Part(queue, None, [lane] if lane is not None else []) for queue, lane in lanes.items()]
        for queue in queues:
            if is_due(memory.line(queue).looked):
                await self._look(queue)
        return [Part(queue, memory.line(queue)) for queue in queues]

    async def _look(self, queue: str) -> None:
        """See which lanes of a queue have work: others may have got some that we were not told of."""
        line = self._memory.line(queue)
        if line.number is None:
            line.number = await self._link.value("find_line", queue, repeat=True)
        looked = time.monotonic()
        if line.number is not None:
            for row in await self._link.rows("lanes_with_work", line.number, repeat=True):
                lane = self._memory.learn(*row.values())
                lane.next_at = 0 if lane.next_at is None else lane.next_at
        line.looked = looked

    def _deal(self, going: list[Part], left: int) -> list[Part]:
        """Share out what is wanted between the queues, one by one in rotation, and plan each one's part."""
        shares = [left // len(going) + (n < left % len(going)) for n in range(len(going))]
        now = None
        if self._real_clock and self._clock is not None:
            now = self._clock[0] + int(1000 * (time.monotonic() - self._clock[1])) + SOON_MS
        with self._memory.lock:
            for part, share in zip(going, shares, strict=True):
                part.got = 0
                if share:
                    plan(part, share, now)
        return going[:left]

    async def _send(
        self, request: ClaimRequest, sent: list[Part], limit: int, reaped: int | None, *, look: bool
    ) -> _Answer:
        lanes = [lane for part in sent for lane in part.lanes]
        tenants = {lane.tenant for lane in lanes} | {part.bound[1] for part in sent if part.bound}
        ties = {tenant: n for n, tenant in enumerate(sorted(tenants))}
        bounds: list[int | None] = []
        for part in sent:
            bounds += [None, None] if part.bound is None else [part.bound[0], ties[part.bound[1]]]
        found = await self._link.rows(
            "claim",
            [lane.number for lane in lanes],
            [lane.line for lane in lanes],
            [q for q, part in enumerate(sent) for _ in part.lanes],
            [lane.time for lane in lanes],
            [lane.in_turns for lane in lanes],
            [ties[lane.tenant] for lane in lanes],
            [wanted for part in sent for wanted in part.wanted],
            marks_of(lanes),
            [part.line.floor if part.line else 0 for part in sent],
            [part.share for part in sent],
            bounds,
            limit,
            request.lease_ms,
            request.worker_id,
            reaped,
            look,
        )
        info: Sequence[Any] = found[0]["info"]
        count = len(lanes)
        picked = sorted(found[1:], key=lambda row: row["token"])
        return _Answer(
            info[0], bool(info[1]), info[2], list(info[3 : 3 + count]), list(info[3 + count : 3 + 2 * count]),
            list(info[3 + 2 * count :]), [(row["lane"], row) for row in picked],
        )  # fmt: skip

    def _took(self, request: ClaimRequest, sent: list[Part], answer: _Answer) -> list[Job]:
        jobs: list[Job] = []
        taken: dict[int, int] = {}
        memory = self._memory
        with memory.lock:
            for number, row in answer.jobs:
                lane = memory.lane(number)
                taken[number] = taken.get(number, 0) + 1
                rank: int = row["rank"]
                lane.marks[rank] = max(lane.marks[rank], row["visible_at"])
                jobs.append(rows.to_claimed(row, lane.tenant, lane.queue, request.worker_id))
            at = 0
            short = len(answer.jobs) < sum(part.share for part in sent)
            for part in sent:
                end = at + len(part.lanes)
                settle(part, answer.founds[at:end], answer.costs[at:end], taken)
                part.got = sum(taken.get(lane.number, 0) for lane in part.lanes)
                part.short = part.got < part.share and not self._unsettled(part)
                for lane, next_at in zip(part.lanes, answer.soon[at:end], strict=True):
                    # Whoever still has visible jobs may be asked again at any time. A claim that got all it wished for
                    # did not look at what comes later.
                    lane.next_at = next_at if lane.number in part.exhausted and short else 0
                at = end
        return jobs

    @staticmethod
    def _unsettled(part: Part) -> bool:
        """Whether there may be more to take in this queue than a round could be certain of."""
        if part.line is None:
            return any(lane.number not in part.exhausted for lane in part.lanes)
        return any(lane.in_turns and lane.number not in part.exhausted for lane in part.line.lanes.values())

    async def _next_at(self, parts: list[Part], now: int) -> int | None:
        """When a claim that came back short should look again. [CLAIM-3]"""
        times: list[int] = []
        memory = self._memory
        if memory.next_deadline is not None and memory.next_deadline <= now:
            memory.next_deadline = await self._link.value("next_deadline", repeat=True)
        with memory.lock:
            if self._memory.next_deadline is not None:
                times.append(self._memory.next_deadline)
            for part in parts:
                lanes: list[Lane] = part.lanes if part.line is None else list(part.line.lanes.values())
                times += [lane.next_at for lane in lanes if lane.next_at is not None]
        return min((max(at, now + 1) for at in times), default=None)
