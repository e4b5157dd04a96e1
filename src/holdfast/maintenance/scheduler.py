"""Enqueues the jobs of schedules, one at each tick. (docs/adr/0014-schedules-and-flows.md)"""

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
from holdfast.maintenance.system_jobs import SystemContext
from holdfast.schedules.schedules import SLACK_MS, definition_of, over_quota, renewed, sleeps_too_long
from holdfast.schedules.ticks import last_tick, next_tick
from holdfast.store import ListQuery, Page, Store
from holdfast.telemetry import metrics
from holdfast.telemetry.logging import get_logger

RETRY_MS = 10 * SECOND
"""How often to retry the enqueue of a tenant that is over its quota, until the next tick."""
RENEW_AFTER = core.MAX_ATTEMPTS // 2
"""After this many expired leases the attempts of a schedule are reset: an old schedule must not run out of them."""
ATTEMPTS_RESET = "AttemptsReset"
"""The error type of a schedule that fails for a moment while its attempts are reset."""
RESCAN_S = 3600.0
"""How often to look for schedules that a crash left failed during the reset. Also at the start of maintenance."""
TENANT_PAUSE_S = 0.01
"""The pause between two tenants of a scan, as there may be very many."""
CRASH_LOOP_MS = HOUR
"""A schedule that lost its last ten leases within this time may crash the processes that serve it."""

_FAILED = frozenset({JobState.FAILED})
_log = get_logger(__name__)


async def serve(job: Job, context: SystemContext) -> Finish:
    """Serve a job of the schedules queue: a schedule, or a waker, which wakes one after the clock was set back."""
    return await (_wake(job, context.store) if job.envelope.type == core.WAKER else tick(job, context))


async def tick(job: Job, context: SystemContext) -> Finish:
    """Enqueue the job of the latest due tick, and release the schedule until the next one.

    The store's clock at the claim decides which ticks are due; of several missed ticks the last one fires. The same
    tick always makes the same job, so a crash at any point loses nothing and repeats nothing.
    """
    definition = core.read(job.envelope.payload)
    now = job.claimed_at or job.visible_at
    due = last_tick(definition.timing, definition.anchor, now)
    following = next_tick(definition.timing, definition.anchor, now)
    has_room = True
    if due is not None:
        has_room = await _fire(job, definition.target, due, following, context.store)
        hit("scheduler.after_enqueue")
    if following is None and has_room:
        return Finish(job.key, job.token, "complete", Result(b"null"))
    if job.attempts >= RENEW_AFTER and await over_quota(context.store, job.tenant) is None:
        await _reset_attempts(job, context.store)
    # Read the store's clock just before the release: the next tick is late by the time between the two.
    delay_ms = RETRY_MS if following is None else max(0, following - await context.store.now())
    if following is not None and delay_ms > following - now + SLACK_MS:
        delay_ms = 0  # The clock was set back meanwhile, so the next tick is a different one.
    return Finish(job.key, job.token, "release", delay_ms=delay_ms if has_room else min(delay_ms, RETRY_MS))


async def _fire(job: Job, target: core.Target, due: int, following: int | None, store: Store) -> bool:
    """Enqueue the job of a tick, unless it exists. Returns whether the tenant's quota had room for it. [TENANT-5]"""
    new = core.job_of(job.tenant, job.id, target, due, following)
    answer = (await store.enqueue([new]))[0]
    if isinstance(answer, QuotaExceeded):
        _log.warning(
            "a schedule waits for its tenant's quota",
            tenant=job.tenant,
            schedule=job.id,
            job_id=new.key.id,
            error=answer,
        )
        return False
    if metrics.current is not None:
        metrics.current.enqueued(target.queue, "queued" if isinstance(answer, Queued) else "duplicate")
    return True


async def _reset_attempts(job: Job, store: Store) -> None:
    """Fail the job and replay it, which resets its attempts. The next claim has no tick to fire."""
    error = AttemptError(ATTEMPTS_RESET, f"{job.attempts} leases expired; the attempts are reset")
    await store.finish([Finish(job.key, job.token, "fail", error=error)])
    hit("scheduler.reset")
    await store.replay([job.key])


async def _wake(waker: Job, store: Store) -> Finish:
    """Make a schedule wait for its next tick by the corrected clock: cancel its job and enqueue a new one. [TIME-1]

    After a crash in between, the next process finds the canceled job and enqueues the new one.
    """
    key = core.woken_key(waker.key)
    (found,), now = await store.get([key]), await store.now()
    definition = core.read(waker.envelope.payload)
    done = Finish(waker.key, waker.token, "complete", Result(b"null"))
    if found is not None and sleeps_too_long(found, core.read(found.envelope.payload), now):
        # `seq` names this job only: the schedule may have been removed and created again since it was read.
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
    # Under the waker's lease: if the schedule was removed meanwhile, so was its waker, and nothing is enqueued.
    new = core.to_job(key.tenant, key.id, definition, at, waker.envelope.request_id)
    await store.enqueue([new], under=Lease(waker.key, waker.token))
    _log.warning("the clock was set back: a schedule waits for its next tick again", tenant=key.tenant,
                 schedule=key.id)  # fmt: skip
    return done


async def wake_up(store: Store, tenant: str | None) -> None:
    """After the clock was set back, wake schedules that would sleep past their next tick. [TIME-1]"""
    async for page in _pages(store, tenant, WAITING):
        wakers = [
            core.waker_of(job.key, definition, new_id())
            for job in page.jobs
            if (definition := definition_of(job)) is not None and sleeps_too_long(job, definition, page.now)
        ]
        if wakers:
            await store.enqueue(wakers)  # Of several processes that do this, one succeeds. [ENQ-2]


async def mend(store: Store, tenant: str | None) -> float:
    """Replay schedules that failed only because they lost many leases over a long time.

    The process that resets the attempts may crash before it is done, and no schedule is reset while its tenant is over
    quota. Returns in how many seconds to scan again.
    """
    async for page in _pages(store, tenant, _FAILED):
        exhausted = [job.key for job in page.jobs if _attempts_exhausted(job)]
        if exhausted:
            # Of several processes that do this, one succeeds. [DEAD-1]
            await store.replay(exhausted)
            _log.warning(
                "failed schedules are replayed", tenant=exhausted[0].tenant, schedules=[key.id for key in exhausted]
            )
    return RESCAN_S * random.uniform(0.8, 1.2)  # noqa: S311 - no secret; a fleet must not scan in step


async def _pages(store: Store, tenant: str | None, states: frozenset[JobState]) -> AsyncIterator[Page]:
    """The schedules in these states, a page at a time."""
    for number, name in enumerate([tenant] if tenant is not None else await store.tenants()):
        if number:
            await asyncio.sleep(TENANT_PAUSE_S)
        cursor: str | None = None
        while True:
            page = await store.list(ListQuery(name, SCHEDULES, states, cursor=cursor))
            yield page
            cursor = page.cursor
            if cursor is None:
                break


def _attempts_exhausted(job: Job) -> bool:
    """Whether a failed schedule was being reset, or lost its leases too slowly to have caused the losses. [RETRY-2]"""
    if not job.errors:
        return False
    first, last = job.errors[0], job.errors[-1]
    return last.type == ATTEMPTS_RESET or (job.reason == "lease_expired" and last.at - first.at > CRASH_LOOP_MS)
