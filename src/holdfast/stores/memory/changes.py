"""Operations on named jobs, one item at a time. Each one looks the job up, judges the call and makes the transition."""

from __future__ import annotations

from holdfast.core import dedup, lease, lifecycle, requests
from holdfast.core.errors import JobNotFound
from holdfast.core.job import (
    Cancel,
    CancelStatus,
    Extend,
    Extended,
    Finish,
    Finished,
    JobKey,
    JobState,
    NewJob,
    Purge,
    PurgeStatus,
    Queued,
    Replayed,
    Report,
    Reported,
    SetResultTtl,
    TtlStatus,
)
from holdfast.store import EnqueueAnswer, ExtendAnswer, FinishAnswer, Hint, ReplayAnswer, ReportAnswer
from holdfast.stores.memory.tables import Tables


def enqueue(tables: Tables, new: NewJob, now: int) -> EnqueueAnswer:
    """Add a new job, unless its id or its idempotency key is taken. [ENQ-1 to ENQ-8, TENANT-5]"""
    tenant, queue, id_ = new.key
    tenant_queue = tables.jobs.tenant_queue(tenant, queue)
    existing = tenant_queue.jobs.get(id_)
    scope = dedup.scope_of(tenant, queue, new.envelope)
    binding = tables.keys.get(scope)
    holder = tenant_queue.jobs.get(binding.job_id) if binding else None
    answer = dedup.decide(new, existing, binding, holder, now) or tables.over_quota(tenant_queue)
    if answer is not None:
        return answer
    if existing is not None:
        tables.forget(existing)
    tables.last_seq += 1
    job, event = lifecycle.enqueue(new, tables.last_seq, now)
    tables.keys.bind(scope, dedup.bind(new, now))
    tables.add(job, tenant_queue, event, now)
    return Queued(id_, job.state)


def finish(tables: Tables, item: Finish, now: int) -> FinishAnswer:
    """Complete, fail, retry or release a leased job. [LEASE-1, RETRY-1 to RETRY-5, RESULT-1]"""
    job = tables.jobs.find(item.key, now)
    answer = lease.check(job, item.key, item.token, item.outcome, now)
    if job is None or answer is not None:
        return answer or JobNotFound(item.key.queue, item.key.id)
    tables.jobs.leave(job)
    tables.enter(job, lifecycle.finish(job, item, now, tables.options.retention), now)
    return Finished(job.state)


def extend(tables: Tables, item: Extend, now: int) -> ExtendAnswer:
    """Renew a lease. [LEASE-1, LEASE-2]"""
    job = tables.jobs.find(item.key, now)
    refusal = lease.check_live(job, item.key, item.token, now)
    if job is None or refusal is not None:
        return refusal or JobNotFound(item.key.queue, item.key.id)
    event = lifecycle.extend(job, item.lease_ms, now, logged=tables.options.all_events)
    tables.jobs.index_lease(job)
    if event is not None:
        tables.log.append(event)
    return Extended(job.deadline, now)


def report(tables: Tables, item: Report, now: int) -> ReportAnswer:
    """Record the progress of a running job. [LEASE-1]"""
    job = tables.jobs.find(item.key, now)
    refusal = lease.check_live(job, item.key, item.token, now)
    if job is None or refusal is not None:
        return refusal or JobNotFound(item.key.queue, item.key.id)
    event = lifecycle.report(job, item, now, logged=tables.options.all_events)
    if event is not None:
        tables.log.append(event)
    return Reported()


def cancel(tables: Tables, item: Cancel, now: int) -> CancelStatus:
    """Cancel a job, waiting or running. [CANCEL-1 to CANCEL-3]"""
    job = tables.jobs.find(item.key, now)
    answer = requests.check_cancel(job, item)
    if job is None or answer is not None:
        return answer or "not_found"
    if job.state is JobState.LEASED:
        tables.notifier.add(Hint.CANCELED, *job.key)
    tables.jobs.leave(job)
    tables.enter(job, lifecycle.cancel(job, now, tables.options.retention, item.by), now)
    tables.jobs.queues[job.queue].tidy(job.tenant)
    return "canceled"


def replay(tables: Tables, key: JobKey, now: int, by: str) -> ReplayAnswer:
    """Start a dead letter again. [DEAD-1, STATE-3, ENQ-3, TENANT-5]"""
    job = tables.jobs.find(key, now)
    refusal = requests.check_replay(job, key, now)
    if job is None or refusal is not None:
        return refusal or JobNotFound(key.queue, key.id)
    tenant_queue = tables.jobs.tenant_queue(key.tenant, key.queue)
    scope = dedup.scope_of(key.tenant, key.queue, job.envelope) if dedup.retakes_key(job) else None
    binding = tables.keys.get(scope)
    holder = tenant_queue.jobs.get(binding.job_id) if binding else None
    answer = dedup.check_retake(job, binding, holder, now) or tables.over_quota(tenant_queue)
    if answer is not None:
        return answer
    tables.keys.bind(scope, dedup.Binding(job.id, "until_terminal"))
    tables.jobs.leave(job)
    tables.enter(job, lifecycle.replay(job, now, by), now)
    return Replayed()


def purge(tables: Tables, item: Purge, now: int) -> PurgeStatus:
    """Forget a finished job now, with an event. [KEEP-1]"""
    job = tables.jobs.find(item.key, now)
    answer = requests.check_purge(job, item)
    if job is None or answer is not None:
        return answer or "not_found"
    tables.log.append(lifecycle.purge(job, now, tables.purges.count(job, now), item.by))
    tables.forget(job)
    return "purged"


def set_result_ttl(tables: Tables, item: SetResultTtl, now: int) -> TtlStatus:
    """Change how long a finished job is kept. [RESULT-1]"""
    job = tables.jobs.find(item.key, now)
    answer = requests.check_result_ttl(job, item)
    if job is None or answer is not None:
        return answer or "not_found"
    lifecycle.set_result_ttl(job, item.ttl_ms, now)
    tables.jobs.index_retention(job)
    return "updated"
