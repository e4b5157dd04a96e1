"""Operations on named jobs, a batch in one transaction: read the jobs, judge each item, make the transitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from secrets import token_bytes
from typing import TypeVar

from holdfast.core import dedup, lease, lifecycle, requests
from holdfast.core.dedup import Scope
from holdfast.core.errors import JobNotFound, QuotaExceeded
from holdfast.core.events import Event
from holdfast.core.job import (
    PURGE_COUNT_MS,
    PURGE_COUNTS_DROPPED,
    Cancel,
    CancelStatus,
    Extend,
    Extended,
    Finish,
    Finished,
    Job,
    JobKey,
    Lease,
    NewJob,
    Purge,
    PurgeCount,
    PurgeStatus,
    Queued,
    Replayed,
    Report,
    Reported,
    SetResultTtl,
    TtlStatus,
)
from holdfast.store import EnqueueAnswer, ExtendAnswer, FinishAnswer, ReplayAnswer, ReportAnswer
from holdfast.stores.foundationdb import records
from holdfast.stores.foundationdb.awaiting import together
from holdfast.stores.foundationdb.keyspace import pack, span
from holdfast.stores.foundationdb.records import Purges, number
from holdfast.stores.foundationdb.unit_of_work import Work

X = TypeVar("X", Extend, Report)
A = TypeVar("A", Extended, Reported)


async def check_under(work: Work, under: Lease | None) -> None:
    """Raise the refusal unless the lease that a call is made under is live."""
    if under is not None:
        await work.load([under.key])
        lease.check_under(work.find(under.key), under, work.now)


async def enqueue(work: Work, items: Sequence[NewJob], under: Lease | None) -> list[EnqueueAnswer]:
    """Add new jobs, except where the id or the idempotency key is taken. [ENQ-1 to ENQ-8, TENANT-5]"""
    await check_under(work, under)
    scopes = [dedup.scope_of(new.key.tenant, new.key.queue, new.envelope) for new in items]
    await together(work.load(new.key for new in items), work.load_bindings(_some(scopes)))
    await work.load(_holders(work, _some(scopes)))
    quotas = await _QuotaCounts.read(work, {(new.key.tenant, new.key.queue) for new in items})
    numbers = work.numbers(len(items))
    answers: list[EnqueueAnswer] = []
    for new, scope, seq in zip(items, scopes, numbers, strict=True):
        tenant, queue, id_ = new.key
        existing, binding = work.any(new.key), work.binding(scope)
        holder = work.any(JobKey(tenant, queue, binding.job_id)) if binding else None
        answer = dedup.decide(new, existing, binding, holder, work.now) or quotas.exceeded(tenant, queue)
        if answer is not None:
            answers.append(answer)
            continue
        if existing is not None:
            work.forget(existing)
        job, event = lifecycle.enqueue(new, seq, work.now)
        work.bind(scope, dedup.bind(new, work.now))
        work.add(job)
        work.append(event)
        quotas.count(tenant, queue)
        answers.append(Queued(id_, job.state))
    return answers


def _some(scopes: Sequence[Scope | None]) -> list[Scope]:
    return [scope for scope in scopes if scope is not None]


def _holders(work: Work, scopes: Sequence[Scope]) -> list[JobKey]:
    bound = ((scope, work.binding(scope)) for scope in scopes)
    return [JobKey(scope[0], scope[1], binding.job_id) for scope, binding in bound if binding is not None]


class _QuotaCounts:
    """The quotas that bound an enqueue or a replay. Calls under the quota of one tenant conflict: it is exact."""

    def __init__(self) -> None:
        self._limits: list[tuple[str, str | None, int]] = []
        self._waiting: dict[tuple[str, str | None], int] = {}

    @classmethod
    async def read(cls, work: Work, lanes: set[tuple[str, str]]) -> _QuotaCounts:
        quotas = cls()
        for tenant, queue in sorted(lanes):
            for scope in (queue, None):
                settings = await work.setting(tenant, scope or "")
                if settings is None or settings.max_waiting is None or (tenant, scope) in quotas._waiting:
                    continue
                quotas._limits.append((tenant, scope, settings.max_waiting))
                key = work.keys.kept(tenant, "waiting")
                if scope is not None:
                    key = work.keys.lane_counts(tenant, scope) + pack(records.WAITING_COUNT)
                _, waiting = await together(work.tr.get(work.keys.quota(tenant)), work.tr.get(key, snapshot=True))
                work.set(work.keys.quota(tenant), token_bytes(8))
                quotas._waiting[tenant, scope] = number(waiting)
        return quotas

    def exceeded(self, tenant: str, queue: str) -> QuotaExceeded | None:
        """The refusal if a queue, or its tenant as a whole, has all the waiting jobs that it may. [TENANT-5]"""
        for owner, scope, limit in self._limits:
            if owner == tenant and scope in (queue, None) and self._waiting[owner, scope] >= limit:
                return QuotaExceeded(scope, self._waiting[owner, scope], limit)
        return None

    def count(self, tenant: str, queue: str) -> None:
        """A job was added to these."""
        for place in ((tenant, queue), (tenant, None)):
            if place in self._waiting:
                self._waiting[place] += 1


async def finish(work: Work, items: Sequence[Finish]) -> list[FinishAnswer]:
    """Complete, fail, retry or release leased jobs. [LEASE-1, RETRY-1 to RETRY-5, RESULT-1]"""
    await work.load(item.key for item in items)
    answers: list[FinishAnswer] = []
    changed: list[Job] = []
    for item in items:
        job = work.find(item.key)
        answer = lease.check(job, item.key, item.token, item.outcome, work.now)
        if job is None or answer is not None:
            answers.append(answer or JobNotFound(item.key.queue, item.key.id))
            continue
        work.append(lifecycle.finish(job, item, work.now, work.rules.retention))
        work.changed(job)
        changed.append(job)
        answers.append(Finished(job.state))
    await work.release_keys(changed)
    return answers


async def extend(work: Work, items: Sequence[Extend]) -> list[ExtendAnswer]:
    """Renew leases. [LEASE-1, LEASE-2]"""

    def change(job: Job, item: Extend) -> tuple[Event | None, Extended]:
        event = lifecycle.extend(job, item.lease_ms, work.now, logged=work.rules.all_events)
        return event, Extended(job.deadline, work.now)

    return await _change_leased(work, items, change)


async def report(work: Work, items: Sequence[Report]) -> list[ReportAnswer]:
    """Record the progress of running jobs. [LEASE-1]"""

    def change(job: Job, item: Report) -> tuple[Event | None, Reported]:
        return lifecycle.report(job, item, work.now, logged=work.rules.all_events), Reported()

    return await _change_leased(work, items, change)


async def _change_leased(
    work: Work, items: Sequence[X], change: Callable[[Job, X], tuple[Event | None, A]]
) -> list[A | lease.Refusal]:
    await work.load(item.key for item in items)
    answers: list[A | lease.Refusal] = []
    for item in items:
        job = work.find(item.key)
        refusal = lease.check_live(job, item.key, item.token, work.now)
        if job is None or refusal is not None:
            answers.append(refusal or JobNotFound(item.key.queue, item.key.id))
            continue
        event, answer = change(job, item)
        work.changed(job)
        if event is not None:
            work.append(event)
        answers.append(answer)
    return answers


async def cancel(work: Work, items: Sequence[Cancel]) -> list[CancelStatus]:
    """Cancel jobs, waiting or running. [CANCEL-1 to CANCEL-3]"""
    await work.load(item.key for item in items)
    answers: list[CancelStatus] = []
    changed: list[Job] = []
    for item in items:
        job = work.find(item.key)
        answer = requests.check_cancel(job, item)
        if job is None or answer is not None:
            answers.append(answer or "not_found")
            continue
        work.append(lifecycle.cancel(job, work.now, work.rules.retention, item.by))
        work.changed(job)
        changed.append(job)
        answers.append("canceled")
    await work.release_keys(changed)
    return answers


async def replay(work: Work, keys: Sequence[JobKey], under: Lease | None, by: str) -> list[ReplayAnswer]:
    """Start dead letters again. [DEAD-1, STATE-3, ENQ-3, TENANT-5]"""
    await check_under(work, under)
    await work.load(keys)
    jobs = [job for key in keys if (job := work.find(key)) is not None and dedup.retakes_key(job)]
    scopes = _some([dedup.scope_of(job.tenant, job.queue, job.envelope) for job in jobs])
    await work.load_bindings(scopes)
    await work.load(_holders(work, scopes))
    quotas = await _QuotaCounts.read(work, {(key.tenant, key.queue) for key in keys})
    return [_replay(work, key, quotas, by) for key in keys]


def _replay(work: Work, key: JobKey, quotas: _QuotaCounts, by: str) -> ReplayAnswer:
    job = work.find(key)
    refusal = requests.check_replay(job, key, work.now)
    if job is None or refusal is not None:
        return refusal or JobNotFound(key.queue, key.id)
    scope = dedup.scope_of(key.tenant, key.queue, job.envelope) if dedup.retakes_key(job) else None
    binding = work.binding(scope)
    holder = work.any(JobKey(key.tenant, key.queue, binding.job_id)) if binding else None
    answer = dedup.check_retake(job, binding, holder, work.now) or quotas.exceeded(key.tenant, key.queue)
    if answer is not None:
        return answer
    work.bind(scope, dedup.Binding(job.id, "until_terminal"))
    work.append(lifecycle.replay(job, work.now, by))
    work.changed(job)
    quotas.count(key.tenant, key.queue)
    return Replayed()


async def purge(work: Work, items: Sequence[Purge]) -> list[PurgeStatus]:
    """Forget finished jobs now, with an event. [KEEP-1]"""
    await work.load(item.key for item in items)
    answers: list[PurgeStatus] = []
    counted: dict[str, Purges | None] = {}
    for item in items:
        job = work.find(item.key)
        answer = requests.check_purge(job, item)
        if job is None or answer is not None:
            answers.append(answer or "not_found")
            continue
        if not counted:
            await _drop_old_counts(work)
        if job.tenant not in counted:
            counted[job.tenant] = await _purges(work, job.tenant)
        before = counted[job.tenant] or Purges(job.seq, 0, work.now)
        after = counted[job.tenant] = Purges(before.series, before.count + 1, work.now)
        count = PurgeCount(job.tenant, after.series, after.count)
        work.append(lifecycle.purge(job, work.now, count, item.by))
        work.forget(job)
        answers.append("purged")
    for tenant, purges in counted.items():
        if purges is not None:
            work.set(work.keys.purge(tenant), records.encode(purges))
            work.set(work.keys.purge_time(work.now, tenant), b"")
    return answers


async def _purges(work: Work, tenant: str) -> Purges | None:
    raw = await work.tr.get(work.keys.purge(tenant))
    if raw is None:
        return None
    purges = records.to_purges(raw)
    work.clear(work.keys.purge_time(purges.at, tenant))
    return purges


async def _drop_old_counts(work: Work) -> None:
    prefix = work.keys.purge_times
    end = prefix + pack(max(0, work.now - PURGE_COUNT_MS))
    rows = await work.tr.get_range(span(prefix)[0], end, limit=PURGE_COUNTS_DROPPED)
    for key, _ in rows:
        _, tenant = work.keys.parts(key, prefix)
        work.clear(key)
        work.clear(work.keys.purge(tenant))


async def set_result_ttl(work: Work, items: Sequence[SetResultTtl], expiries: dict[JobKey, int]) -> list[TtlStatus]:
    """Change how long finished jobs are kept. [RESULT-1]

    `expiries` has what earlier tries set: with a TTL of 0 the job is forgotten at once, also for a repetition.
    """
    await work.load(item.key for item in items)
    answers: list[TtlStatus] = []
    for item in items:
        job = work.find(item.key)
        if job is None and (ended := work.any(item.key)) and ended.expires_at == expiries.get(item.key):
            answers.append("updated")
            continue
        answer = requests.check_result_ttl(job, item)
        if job is None or answer is not None:
            answers.append(answer or "not_found")
            continue
        lifecycle.set_result_ttl(job, item.ttl_ms, work.now)
        expiries[item.key] = work.now + item.ttl_ms
        work.changed(job)
        answers.append("updated")
    return answers
