"""Schedules: each is a job in the tenant's queue `holdfast:schedules`. `maintenance.scheduler` fires the ticks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import MsgspecError, Struct

from holdfast.budgets import ceiling_ms, check_schedules
from holdfast.core import schedule as core
from holdfast.core.budgets import check_envelope
from holdfast.core.errors import HoldfastError, InvalidOption, QuotaExceeded, StoreBusy
from holdfast.core.job import SECOND, WAITING, Cancel, Job, JobKey, JobState, Purge, Queued
from holdfast.core.names import SCHEDULES
from holdfast.core.schedule import KEPT, OPEN, Definition, Target, Timing
from holdfast.extensions import ScheduleKeeper
from holdfast.ids import new_id
from holdfast.jobs import codec
from holdfast.jobs.options import Resolved
from holdfast.schedules.ticks import last_tick, next_tick
from holdfast.store import ListQuery, Store

TRIES = 10
PAGE = 1000
SLACK_MS = 60 * SECOND
"""A schedule that waits this long past its next tick is woken. A shorter wait is the backoff after a failure."""
_LATEST = 2**53


def scheduling(store: Store) -> ScheduleKeeper:
    """How a store keeps schedules: in its own way, or as jobs."""
    return store if isinstance(store, ScheduleKeeper) else AsJobs(store)


def check_plain(options: Resolved) -> Resolved:
    """Return the options of a schedule's jobs if many jobs can share them. Raises InvalidOption."""
    single = {
        "id": options.id is not None,
        "delay": options.delay_ms > 0,
        "run_at": options.run_at is not None,
        "idempotency_key": options.idempotency is not None,
        "replace_failed": options.replace_failed,
    }
    for name, is_set in single.items():
        if is_set:
            raise InvalidOption(name, "is for one job; a schedule makes many, each with an id and a time of its own")
    return options


class AsJobs:
    """Schedules as jobs of any store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def put_schedule(self, tenant: str, name: str, timing: Timing, target: Target) -> core.Schedule:
        """Create or replace a schedule. An equal one is left as it is.

        Not atomic: the old schedule is canceled first, if there is room for the new one. Of concurrent calls, the
        last one wins.
        Raises PayloadTooLarge, InvalidOption, QuotaExceeded, and StoreBusy if others keep changing it.
        """
        codec.check_size(core.write(Definition(timing, _LATEST, target)))
        check_envelope(target.envelope, ceiling_ms(self._store))
        key = JobKey(tenant, SCHEDULES, name)
        refusal: HoldfastError = _busy(name)
        old: tuple[Job, Definition] | None = None
        for attempt in range(TRIES):
            await asyncio.sleep(0.02 * attempt)
            job = (await self._store.get([key]))[0]
            if job is not None and job.state in KEPT:
                found = definition_of(job)
                old = None if found is None else (job, found)
                if job.state in OPEN:
                    same = found is not None and (found.timing, found.target) == (timing, target)
                    if found is not None and same and not sleeps_too_long(job, found, await self._store.now()):
                        return _shown(job, found)
                    full = await over_quota(self._store, tenant, less=1 if job.state in WAITING else 0)
                    if full is not None:
                        raise full  # The old schedule is still there. [TENANT-5]
                    await self._store.cancel([Cancel(key)])
            if old is None or old[0].state not in OPEN:
                await check_schedules(self._store, tenant, len(target.envelope.payload))
            now = await self._store.now()
            new, tick = renewed(timing, target, old, now)
            answer = (await self._store.enqueue([core.to_job(tenant, name, new, tick, new_id())]))[0]
            if isinstance(answer, Queued):
                return core.Schedule(name, new, answer.state, tick, now)
            if isinstance(answer, QuotaExceeded):
                if old is None:
                    raise answer
                # The old schedule is canceled, and another enqueue has taken its room.
                refusal = answer
        raise refusal

    async def get_schedule(self, tenant: str, name: str) -> core.Schedule | None:
        job = (await self._store.get([JobKey(tenant, SCHEDULES, name)]))[0]
        if job is None or job.state not in KEPT or (definition := definition_of(job)) is None:
            return None
        return _shown(job, definition)

    async def list_schedules(self, tenant: str) -> Sequence[core.Schedule]:
        found: list[core.Schedule] = []
        cursor: str | None = None
        while True:
            page = await self._store.list(ListQuery(tenant, SCHEDULES, KEPT, cursor=cursor, limit=PAGE))
            found += shown(page.jobs)
            cursor = page.cursor
            if cursor is None:
                # A schedule that moved between two reads is in both pages.
                return sorted({one.name: one for one in found}.values(), key=lambda one: one.name)

    async def remove_schedule(self, tenant: str, name: str) -> bool:
        """Cancel wins: a tick that is being fired may still enqueue its job, but no later tick does. [CANCEL-1]"""
        key = JobKey(tenant, SCHEDULES, name)
        for _ in range(TRIES):
            job, waker = await self._store.get([key, core.waker_key(key)])
            if waker is not None and waker.state in OPEN:
                # A tick may have ended the old job and not yet enqueued the new one: without its lease it cannot.
                await self._store.cancel([Cancel(waker.key), Cancel(key)])
                return True
            if job is None or job.state not in KEPT:
                return False
            if job.state is JobState.FAILED:
                if (await self._store.purge([Purge(key, job.finished_at)]))[0] == "purged":
                    return True
            elif (await self._store.cancel([Cancel(key)]))[0] == "canceled":
                return True
        raise _busy(name)


class SchedulePage(Struct, frozen=True):
    """A page of schedules: what runs next comes first, failed ones last. `now` is the store's clock."""

    schedules: list[core.Schedule]
    cursor: str | None
    now: int


async def schedule_page(
    store: Store, tenant: str, states: frozenset[JobState] = KEPT, cursor: str | None = None, limit: int = 100
) -> SchedulePage:
    """A page of schedules in these states, after a cursor. A store that keeps schedules itself is asked for all."""
    if isinstance(store, ScheduleKeeper):
        found = [one for one in await store.list_schedules(tenant) if one.state in states and one.name > (cursor or "")]
        following = found[limit - 1].name if len(found) > limit else None
        return SchedulePage(found[:limit], following, await store.now())
    page = await store.list(ListQuery(tenant, SCHEDULES, states, cursor=cursor, limit=limit))
    return SchedulePage(shown(page.jobs), page.cursor, page.now)


async def run_now(store: Store, tenant: str, schedule: core.Schedule) -> JobKey:
    """Enqueue the job of a schedule as if it were due now. Its ticks stay as they are. Raises QuotaExceeded."""
    new = core.job_of(tenant, schedule.name, schedule.definition.target, await store.now(), None)
    answer = (await store.enqueue([new]))[0]
    if isinstance(answer, QuotaExceeded):
        raise answer
    return new.key


async def over_quota(store: Store, tenant: str, less: int = 0) -> QuotaExceeded | None:
    """The refusal of one more schedule, if `less` fewer were waiting. None: there is room. [TENANT-5]"""
    limits = [
        one
        for one in await store.tenant_settings(tenant)
        if one.max_waiting is not None and one.queue in (None, SCHEDULES)
    ]
    if not limits:
        return None
    named = None if any(one.queue is None for one in limits) else [SCHEDULES]
    counts = {one.queue: sum(one.counts.get(state, 0) for state in WAITING) for one in await store.stats(tenant, named)}
    for one in limits:
        waiting = (sum(counts.values()) if one.queue is None else counts.get(SCHEDULES, 0)) - less
        if one.max_waiting is not None and waiting >= one.max_waiting:
            return QuotaExceeded(one.queue, waiting, one.max_waiting)
    return None


def shown(jobs: Sequence[Job]) -> list[core.Schedule]:
    """The schedules of these jobs. Those that this version cannot read are left out."""
    read = [(job, definition_of(job)) for job in jobs]
    return [_shown(job, definition) for job, definition in read if definition is not None]


def definition_of(job: Job) -> Definition | None:
    """The definition in a schedule's job. None if a newer version wrote it, and for a job that wakes a schedule."""
    if job.envelope.type != core.TYPE:
        return None
    try:
        return core.read(job.envelope.payload)
    except (ValueError, MsgspecError):
        return None


def _shown(job: Job, definition: Definition) -> core.Schedule:
    return core.Schedule(job.id, definition, job.state, _waits_for(job, definition) or job.visible_at, job.enqueued_at)


def _waits_for(job: Job, definition: Definition) -> int | None:
    """The tick that a schedule fires next: its job becomes visible at the tick or shortly after."""
    try:
        return last_tick(definition.timing, definition.anchor, job.visible_at)
    except InvalidOption:
        return None  # The cron library or the time zone is missing.


def sleeps_too_long(job: Job, definition: Definition, now: int) -> bool:
    """Whether a schedule waits past its next tick: an earlier clock was ahead of this one. [TIME-1]"""
    return job.state in WAITING and _is_late(job, definition, now)


def _is_late(job: Job, definition: Definition, now: int) -> bool:
    try:
        following = next_tick(definition.timing, min(definition.anchor, now), now)
    except InvalidOption:
        return False  # The cron library or the time zone is missing.
    return following is not None and job.visible_at > following + SLACK_MS


def renewed(timing: Timing, target: Target, old: tuple[Job, Definition] | None, now: int) -> tuple[Definition, int]:
    """The new definition and its first tick. With the same timing, it is the tick that the old one waited for."""
    if old is not None and old[1].timing == timing:
        anchor, tick = old[1].anchor, _waits_for(*old)
        if _is_late(*old, now):
            anchor = min(anchor, now)
            tick = next_tick(timing, anchor, now)
        elif tick is not None and tick <= now and old[1].target.queue != target.queue:
            # The tick may have been fired into the old queue: the same id in the new queue would be another job.
            tick = next_tick(timing, anchor, now)
        if tick is not None:
            return Definition(timing, anchor, target), tick
    tick = next_tick(timing, now, now)
    if tick is None:
        raise InvalidOption("cron", f"{timing.cron!r} is never due from now on")
    return Definition(timing, now, target), tick


def _busy(name: str) -> StoreBusy:
    return StoreBusy(f"others keep changing the schedule {name!r}; try again")
