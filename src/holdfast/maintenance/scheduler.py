"""Enqueues the jobs of schedules, each at its tick. (docs/adr/0014-schedules-and-flows.md)"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

from holdfast.core import schedule as core
from holdfast.core.errors import QuotaExceeded
from holdfast.core.failpoint import hit
from holdfast.core.job import HOUR, SECOND, WAITING, AttemptError, Cancel, Finish, Job, JobState, Lease, Queued, Result
from holdfast.core.names import SCHEDULES
from holdfast.ids import new_id
from holdfast.maintenance.coordinator import DutyContext
from holdfast.schedules.schedules import SLACK_MS, definition_of, over_quota, renewed, sleeps_too_long
from holdfast.schedules.ticks import last_tick, next_tick
from holdfast.store import ListQuery, Page, Store
from holdfast.telemetry import metrics
from holdfast.telemetry.logging import get_logger

AGAIN_MS = 10 * SECOND
"""A tenant that has too much waiting gets the job of a tick later, until the next one is due."""
WORN = core.MAX_ATTEMPTS // 2
"""After this many expired leases a schedule is started again: attempts must not run out with age."""
RENEWED = "Worn"
"""The type of the error with which it fails on the way."""
LOOK_S = 3600.0
"""So often it is looked for schedules that were left failed on that way, and whenever upkeep begins."""
BETWEEN_S = 0.01
"""From one tenant to the next: there may be very many."""
SUDDEN_MS = HOUR
"""A schedule that lost its last ten leases within this time may be what kills its holders."""

_FAILED = frozenset({JobState.FAILED})
_log = get_logger(__name__)


async def serve(job: Job, at: DutyContext) -> Finish:
    """Take care of a job of the queue of schedules: a schedule, or what wakes one up."""
    return await (_wake(job, at.store) if job.envelope.type == core.WAKER else tick(job, at))


async def tick(job: Job, at: DutyContext) -> Finish:
    """Fire the last tick that has come, and come back for the next one.

    The store's clock at the claim decides what is late; of several missed ticks the last one fires.
    Twice the same tick makes the same job, so a crash at any point costs nothing and repeats nothing.
    """
    definition = core.read(job.envelope.payload)
    now = job.claimed_at or job.visible_at
    due = last_tick(definition.timing, definition.anchor, now)
    following = next_tick(definition.timing, definition.anchor, now)
    has_room = True
    if due is not None:
        has_room = await _fire(job, definition.target, due, following, at.store)
        hit("scheduler.after_enqueue")
    if following is None and has_room:
        return Finish(job.key, job.token, "complete", Result(b"null"))
    if job.attempts >= WORN and await over_quota(at.store, job.tenant) is None:
        await _renew(job, at.store)
    # By the store's clock again, as near to the release as can be: what is left until then is all it is late by.
    delay_ms = AGAIN_MS if following is None else max(0, following - await at.store.now())
    if following is not None and delay_ms > following - now + SLACK_MS:
        delay_ms = 0  # The clock was set back meanwhile: by it the next tick is another one.
    return Finish(job.key, job.token, "release", delay_ms=delay_ms if has_room else min(delay_ms, AGAIN_MS))


async def _fire(job: Job, target: core.Target, due: int, following: int | None, store: Store) -> bool:
    """Enqueue the job of a tick, unless it is there; whether the tenant had room for it. [TENANT-5]"""
    new = core.job_of(job.tenant, job.id, target, due, following)
    answer = (await store.enqueue([new]))[0]
    if isinstance(answer, QuotaExceeded):
        _log.warning("a schedule waits for room", tenant=job.tenant, schedule=job.id, job_id=new.key.id, error=answer)
        return False
    if metrics.current is not None:
        metrics.current.enqueued(target.queue, "queued" if isinstance(answer, Queued) else "duplicate")
    return True


async def _renew(job: Job, store: Store) -> None:
    """Let the attempts start again: that spends the token, and the next claim finds nothing to fire."""
    error = AttemptError(RENEWED, f"{job.attempts} leases ended with their holders; it starts again")
    await store.finish([Finish(job.key, job.token, "fail", error=error)])
    hit("scheduler.worn")
    await store.replay([job.key])


async def _wake(waker: Job, store: Store) -> Finish:
    """Let a schedule wait for its next tick: its job is canceled, and a new one put. [TIME-1]

    After a crash, the next process finds the canceled one and puts the new one.
    """
    key = core.woken_key(waker.key)
    (found,), now = await store.get([key]), await store.now()
    definition = core.read(waker.envelope.payload)
    done = Finish(waker.key, waker.token, "complete", Result(b"null"))
    if found is not None and sleeps_too_long(found, core.read(found.envelope.payload), now):
        # This life alone: the schedule may have been removed and put anew since we looked.
        if (await store.cancel([Cancel(key, only_waiting=True, seq=found.seq)]))[0] != "canceled":
            return done
        hit("scheduler.woken")
    elif waker.attempts == 1 or not (found is None or found.state is JobState.CANCELED):
        return done
    if found is not None:
        definition = core.read(found.envelope.payload)
        definition, at = renewed(definition.timing, definition.target, (found, definition), now)
    else:
        definition, at = renewed(definition.timing, definition.target, None, now)
    # Under the waker's lease: a schedule that was removed meanwhile, and its waker with it, is not put again.
    new = core.to_job(key.tenant, key.id, definition, at, waker.envelope.request_id)
    await store.enqueue([new], under=Lease(waker.key, waker.token))
    _log.warning("a schedule that slept past its next tick wakes up: the clock was set back", tenant=key.tenant,
                 schedule=key.id)  # fmt: skip
    return done


async def wake_up(store: Store, tenant: str | None) -> None:
    """Wake up schedules that sleep past their next tick, of one tenant or of all: the clock was set back. [TIME-1]"""
    async for page in _pages(store, tenant, WAITING):
        wakers = [
            core.waker_of(job.key, definition, new_id())
            for job in page.jobs
            if (definition := definition_of(job)) is not None and sleeps_too_long(job, definition, page.now)
        ]
        if wakers:
            await store.enqueue(wakers)  # Of several processes that do this one succeeds. [ENQ-2]


async def mend(store: Store, tenant: str | None) -> float:
    """Start schedules again that died of their age, of one tenant or of all. Returns in how many seconds to look again.

    The process that renews one may die half-way; and under a full quota none is renewed.
    """
    async for page in _pages(store, tenant, _FAILED):
        worn = [job.key for job in page.jobs if _died_of_age(job)]
        if worn:
            # Several processes may do this: one succeeds. [DEAD-1]
            await store.replay(worn)
            _log.warning("schedules start again", tenant=worn[0].tenant, schedules=[key.id for key in worn])
    return LOOK_S * random.uniform(0.8, 1.2)  # noqa: S311 - no secret; a fleet does not look in step


async def _pages(store: Store, tenant: str | None, states: frozenset[JobState]) -> AsyncIterator[Page]:
    """The schedules in these states, a page at a time."""
    for number, name in enumerate([tenant] if tenant is not None else await store.tenants()):
        if number:
            await asyncio.sleep(BETWEEN_S)
        cursor: str | None = None
        while True:
            page = await store.list(ListQuery(name, SCHEDULES, states, cursor=cursor))
            yield page
            cursor = page.cursor
            if cursor is None:
                break


def _died_of_age(job: Job) -> bool:
    """Whether a failed schedule was being renewed, or lost its leases so slowly that it is not to blame. [RETRY-2]"""
    if not job.errors:
        return False
    first, last = job.errors[0], job.errors[-1]
    return last.type == RENEWED or (job.reason == "lease_expired" and last.at - first.at > SUDDEN_MS)
