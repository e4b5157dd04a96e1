"""Claiming jobs, and ending expired leases. [CLAIM-1 to CLAIM-5, TENANT-4, LEASE-3]

A claim searches in snapshot reads, and has read conflicts only on the jobs that it leases. So claims conflict only if
they lease the same job. After two conflicts in a row, claims skip a random number of jobs at first. This number then
shrinks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from random import random as chance

from msgspec.structs import replace

from holdfast.core import lifecycle
from holdfast.core.errors import StoreError
from holdfast.core.job import WAITING, Claimed, ClaimRequest, Job, JobKey
from holdfast.core.retry import spread
from holdfast.store import REPAIR_LIMIT, Reaped
from holdfast.stores.foundationdb import lanes, records
from holdfast.stores.foundationdb.awaiting import together
from holdfast.stores.foundationdb.clock import LAG_MS
from holdfast.stores.foundationdb.keyspace import pack, span
from holdfast.stores.foundationdb.lanes import Waiting
from holdfast.stores.foundationdb.numbers import LeaseTokens
from holdfast.stores.foundationdb.picking import LanePicker, Picker, TurnsPicker, pick, read_pointers
from holdfast.stores.foundationdb.transactions import TooMuch, Transactions
from holdfast.stores.foundationdb.turns import KnownTurns
from holdfast.stores.foundationdb.unit_of_work import Work

PROMOTE = 100
"""The most lanes that get a pointer in one transaction because their time has come."""
LEAVE = 50
"""The most lanes that lose their pointers in one transaction."""
LEAVE_AFTER_S = 0.05
"""How long lanes without work keep their pointers."""
LEAVE_FOR_S = 1.0
MAX_BYTES = 2_000_000
"""About the most bytes of records that one claim writes."""
MAX_CROWD, CALM = 64, 0.97
"""The most jobs that a claim skips after conflicts, as a multiple of its size; and how that shrinks with each claim."""


class Claims:
    """The claims of one handle, and what it knows about the turns."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._turns: dict[str, KnownTurns] = {}
        self._crowd = 0.0
        """How many jobs claims may skip, as a multiple of their size. 0 without recent conflicts."""
        self._leaving: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Stop background tasks."""
        task, self._leaving = self._leaving, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def claim(self, request: ClaimRequest) -> Claimed:
        """Lease up to `limit` visible jobs: in one transaction, or in several if they are too many for one."""
        jobs: list[Job] = []
        most = request.limit
        while True:
            part = replace(request, limit=min(most, request.limit - len(jobs)), queues=_after(request.queues, jobs))
            try:
                claimed = await self._claim_part(part)
            except TooMuch:
                most = max(1, part.limit // 2)
                continue
            except StoreError:
                if not jobs:
                    raise
                return Claimed(jobs, claimed.now, claimed.now)  # pyright: ignore[reportPossiblyUnboundVariable]
            jobs += claimed.jobs
            if len(claimed.jobs) < part.limit or len(jobs) == request.limit:
                break
        if request.tenant is None:
            self._leave_soon()
        return replace(claimed, jobs=jobs)

    async def _claim_part(self, request: ClaimRequest) -> Claimed:
        repaired, ticked = 0, False
        while True:
            tokens = self._transactions.tokens
            attempt = _Attempt(request, tokens, self._turns, self._crowd, repairs=repaired < REPAIR_LIMIT)
            self._crowd = self._crowd * CALM if self._crowd > 1 else 0.0
            claimed = await self._transactions.change(
                attempt.run,
                conflicted=lambda: self._conflicted(attempt),  # noqa: B023 - called in this round
                can_split=request.limit > 1,
            )
            if attempt.needs_repair:
                repaired += max(1, len((await self._expire(REPAIR_LIMIT - repaired, request.random)).jobs))
            elif attempt.needs_promotion:
                await self._promote(attempt.needs_promotion)
            elif not claimed.jobs and not ticked and self._lags(claimed, attempt):
                ticked = True
                await self._transactions.tick()
            else:
                break
        for picker in attempt.pickers:
            picker.learn()
        return claimed

    def _conflicted(self, attempt: _Attempt) -> None:
        attempt.conflicts += 1
        if attempt.conflicts > 1 or self._crowd:  # A single conflict may be chance: it changes no order.
            self._crowd = attempt.crowd = min(MAX_CROWD, self._crowd * 2 + 2)

    def _lags(self, claimed: Claimed, attempt: _Attempt) -> bool:
        """Whether a job has become due by this process's clock, but not by the last version of an idle cluster."""
        if claimed.next_at is None or attempt.work is None or not 0 < claimed.next_at - claimed.now <= LAG_MS:
            return False
        return self._transactions.witness.is_due(attempt.work.anchor, claimed.next_at)

    async def _promote(self, queues: list[str]) -> None:
        async def promote(work: Work) -> None:
            for queue in queues:
                await lanes.promote(work, queue, PROMOTE)

        await self._transactions.change(promote)

    # Expired leases -----------------------------------------------------------------------------------------------

    async def reap(self, limit: int, random: float) -> Reaped:
        """End up to `limit` expired leases, earliest deadline first. [LEASE-3, RETRY-2]"""
        found: list[JobKey] = []
        while True:
            part = await self._expire(min(REPAIR_LIMIT, limit - len(found)), random, len(found))
            found += part.jobs
            if len(part.jobs) < REPAIR_LIMIT or len(found) >= limit:
                return Reaped(found, part.now, part.next_at)

    async def _expire(self, limit: int, random: float, place: int = 0) -> Reaped:
        async def expire(work: Work) -> Reaped:
            prefix = work.keys.deadlines
            begin, end = span(prefix)
            rows = await work.tr.get_range(begin, prefix + pack(work.now + 1), limit=limit, snapshot=True)
            keys = [JobKey(*work.keys.parts(key, prefix)[2:]) for key, _ in rows]
            await work.load(keys)
            jobs = [work.any(key) for key in keys]
            for number, job in enumerate(jobs, place):
                if job is not None:
                    event = lifecycle.expire(job, spread(random, number), work.now, work.rules.retention)
                    work.changed(job)
                    work.append(event)
            await work.release_keys(job for job in jobs if job is not None)
            begin = rows[-1][0] + b"\x00" if rows else begin
            first = await work.tr.get_range(begin, end, limit=1, snapshot=True)
            return Reaped(keys, work.now, work.keys.parts(first[0][0], prefix)[0] if first else None)

        return await self._transactions.change(expire)

    # Lanes without work -------------------------------------------------------------------------------------------

    def _leave_soon(self) -> None:
        """Remove the pointers of lanes without work, a moment later."""
        if self._leaving is None or self._leaving.done():
            idle = any(not lane.fresh for turns in self._turns.values() for lane in turns.outside.values())
            if idle:
                self._leaving = asyncio.get_running_loop().create_task(self._leave())

    async def _leave(self) -> None:
        await asyncio.sleep(LEAVE_AFTER_S)
        with contextlib.suppress(StoreError):  # They stay for the next time.
            for queue, turns in list(self._turns.items()):
                await self._leave_turns(queue, turns)

    async def _leave_turns(self, queue: str, turns: KnownTurns) -> None:
        while idle := [lane for lane in turns.outside.values() if not lane.fresh][:LEAVE]:

            async def leave(work: Work) -> dict[str, bool]:
                await read_pointers(work, turns, queue)
                going = [lane for lane in idle if not lane.fresh]
                left = await together(*(lanes.leave(work, one.tenant, queue, one.stamps) for one in going))
                return {lane.tenant: gone for lane, gone in zip(going, left, strict=True)}

            for tenant, gone in (await self._transactions.change(leave, give_up_s=LEAVE_FOR_S)).items():
                lane = turns.lanes.get(tenant)
                if lane is None:
                    continue
                if not gone:
                    lane.fresh = True
                elif not lane.fresh:
                    turns.drop(tenant)


def _after(queues: tuple[str, ...], jobs: list[Job]) -> tuple[str, ...]:
    """The queues in rotation, from the one after that of the last job on."""
    at = queues.index(jobs[-1].queue) + 1 if jobs else 0
    return queues[at:] + queues[:at]


class _Attempt:
    """One claim, as far as it goes without repairs."""

    def __init__(
        self, request: ClaimRequest, tokens: LeaseTokens, turns: dict[str, KnownTurns], crowd: float, *, repairs: bool
    ) -> None:
        self.request = request
        self.crowd = crowd
        self.conflicts = 0
        self.pickers: list[Picker] = []
        self.needs_repair = False
        self.needs_promotion: list[str] = []
        self.work: Work | None = None
        self._tokens = tokens
        self._turns = turns
        self._repairs = repairs
        self._queues = list(dict.fromkeys(request.queues))
        """A queue named twice counts once. [CLAIM-1]"""

    async def run(self, work: Work) -> Claimed:
        """Lease jobs in this transaction. If something must be repaired first, only report that."""
        self.work = work
        prefix = work.keys.deadlines
        looks = [lanes.next_later(work, queue) for queue in self._queues if self.request.tenant is None]
        first, later = await together(work.tr.get_range(*span(prefix), limit=1, snapshot=True), together(*looks))
        deadline = work.keys.parts(first[0][0], prefix)[0] if first else None
        self.needs_repair = self._repairs and deadline is not None and deadline <= work.now
        due = zip(self._queues, later, strict=False)
        self.needs_promotion = [queue for queue, at in due if at is not None and at <= work.now]
        if self.needs_repair or self.needs_promotion:
            return Claimed([], work.now)
        self.pickers = self._make_pickers(work)
        picked = await pick(self.request, self.pickers)
        jobs, taken_all = await self._lease(work, picked)
        if len(jobs) == self.request.limit:
            return Claimed(jobs, work.now)
        if not taken_all or any(picker.is_cut for picker in self.pickers):
            return Claimed(jobs, work.now, work.now)
        times = [deadline, *later, *(at for picker in self.pickers for at in picker.next_due())]
        if jobs:
            times.append(work.now + self.request.lease_ms)
        return Claimed(jobs, work.now, min((at for at in times if at is not None), default=None))

    def _make_pickers(self, work: Work) -> list[Picker]:
        request = self.request
        share = max(1, math.ceil(request.limit / max(1, len(self._queues))))
        skip = int(chance() * self.crowd * share)  # noqa: S311 - no secret
        if request.tenant is not None:
            return [LanePicker(work, request.tenant, queue, share, skip) for queue in self._queues]
        return [
            TurnsPicker(work, self._turns.setdefault(queue, KnownTurns()), queue, share, skip) for queue in self._queues
        ]

    async def _lease(self, work: Work, picked: list[Waiting]) -> tuple[list[Job], bool]:
        await work.load(waiting.key for waiting in picked)
        found = [work.find(waiting.key) for waiting in picked]
        waiting = [job for job in found if job is not None and job.state in WAITING]
        above = max((work.last_token, *(job.token for job in waiting)))
        tokens = await self._tokens.take(len(waiting), above) if waiting else ()
        deadline = work.now + self.request.lease_ms
        jobs: list[Job] = []
        size = 0
        for job, token in zip(waiting, tokens, strict=True):
            event = lifecycle.claim(job, token, deadline, self.request.worker_id, work.now)
            work.changed(job)
            work.append(event)
            jobs.append(job)
            apart = work.apart(job.key)
            size += records.weight(job, apart) - (apart or 0)
            if size > MAX_BYTES:
                break
        await work.release_keys(jobs)
        await work.fill(jobs)
        return [job.snapshot() for job in jobs], len(jobs) == len(picked)
