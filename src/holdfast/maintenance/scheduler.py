"""Enqueues the jobs of schedules, each at its tick. (docs/adr/0014-schedules-and-flows.md)"""

from __future__ import annotations

from holdfast.core import schedule as core
from holdfast.core.errors import QuotaExceeded
from holdfast.core.failpoint import hit
from holdfast.core.job import SECOND, AttemptError, Finish, Job, Queued, Result
from holdfast.maintenance.coordinator import Place
from holdfast.schedules import over_quota
from holdfast.store import Store
from holdfast.telemetry import metrics
from holdfast.telemetry.logging import get_logger
from holdfast.ticks import last_tick, next_tick

AGAIN_MS = 10 * SECOND
"""A tenant that has too much waiting gets the job of a tick later, until the next one is due."""
WORN = core.MAX_ATTEMPTS // 2
"""After so many leases that ended with their holder, a schedule is begun again: it must not die of its age."""

_log = get_logger(__name__)


async def tick(job: Job, at: Place) -> Finish:
    """Fire the last tick that has come, and come back for the next one.

    What is late is told by the store's clock at the claim; of several ticks that were missed, the last one is fired.
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
    """Let the attempts start again: the token is spent by that, and whoever claims next finds nothing to fire."""
    error = AttemptError("Worn", f"{job.attempts} leases ended with their holders; it starts again")
    await store.finish([Finish(job.key, job.token, "fail", error=error)])
    hit("scheduler.worn")
    await store.replay([job.key])
