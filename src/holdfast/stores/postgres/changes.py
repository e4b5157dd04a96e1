"""Finish, extend, report, cancel, replay, purge: the operations on named jobs, within a unit of work."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core import lease, lifecycle
from holdfast.core.dedup import Binding, by_key
from holdfast.core.errors import JobNotFound, NotReplayable
from holdfast.core.job import (
    PURGE_COUNT_MS,
    PURGE_COUNTS_DROPPED,
    TERMINAL,
    Cancel,
    CancelStatus,
    Extend,
    Extended,
    Finish,
    Finished,
    JobKey,
    JobState,
    Purge,
    PurgeCount,
    PurgeStatus,
    Replayed,
    Report,
    Reported,
    SetResultTtl,
    TtlStatus,
)
from holdfast.core.lifecycle import Retention
from holdfast.store import ExtendAnswer, FinishAnswer, ReplayAnswer, ReportAnswer
from holdfast.stores.postgres.quotas import Quotas
from holdfast.stores.postgres.unit_of_work import JobRow, UnitOfWork, scope_of


def finish(u: UnitOfWork, items: Sequence[Finish], keep: Retention) -> list[FinishAnswer]:
    """Complete, fail, retry or release. [LEASE-1, RETRY-1 to RETRY-5]"""
    answers: list[FinishAnswer] = []
    for item in items:
        row = u.find(item.key)
        answer = lease.check(row.job if row else None, item.key, item.token, item.outcome, u.now)
        if row is None or answer is not None:
            answers.append(answer or JobNotFound(item.key.queue, item.key.id))
            continue
        job = row.job
        u.move(row, lambda job=job, item=item: lifecycle.finish(job, item, u.now, keep))
        answers.append(Finished(job.state))
    return answers


def extend(u: UnitOfWork, items: Sequence[Extend], *, all_events: bool) -> list[ExtendAnswer]:
    """Renew leases. [LEASE-2]"""
    answers: list[ExtendAnswer] = []
    for item in items:
        row = u.find(item.key)
        refusal = lease.check_live(row.job if row else None, item.key, item.token, u.now)
        if row is None or refusal is not None:
            answers.append(refusal or JobNotFound(item.key.queue, item.key.id))
            continue
        event = lifecycle.extend(row.job, item.lease_ms, u.now, logged=all_events)
        row.changed = True
        if event is not None:
            u.log(event, row.lane)
        answers.append(Extended(row.job.deadline, u.now))
    return answers


def report(u: UnitOfWork, items: Sequence[Report], *, all_events: bool) -> list[ReportAnswer]:
    """Record progress."""
    answers: list[ReportAnswer] = []
    for item in items:
        row = u.find(item.key)
        refusal = lease.check_live(row.job if row else None, item.key, item.token, u.now)
        if row is None or refusal is not None:
            answers.append(refusal or JobNotFound(item.key.queue, item.key.id))
            continue
        event = lifecycle.report(row.job, item, u.now, logged=all_events)
        row.changed = True
        if event is not None:
            u.log(event, row.lane)
        answers.append(Reported())
    return answers


def cancel(u: UnitOfWork, items: Sequence[Cancel], keep: Retention) -> list[CancelStatus]:
    """Cancel wins. [CANCEL-1 to CANCEL-3]"""
    answers: list[CancelStatus] = []
    for item in items:
        row = u.find(item.key)
        if row is None or not lifecycle.is_life(row.job, item.seq):
            answers.append("not_found")
            continue
        job = row.job
        if job.state is JobState.COMPLETED or job.state is JobState.FAILED or job.state is JobState.CANCELED:
            answers.append(job.state.value)
        elif job.state is JobState.LEASED and item.only_waiting:
            answers.append("processing")
        else:
            if job.state is JobState.LEASED:
                u.effects.canceled.append(job.key)
            else:
                u.effects.withdrawn.add(row.lane.number)
            u.move(row, lambda job=job: lifecycle.cancel(job, u.now, keep))
            answers.append("canceled")
    return answers


def replay(
    u: UnitOfWork, keys: Sequence[JobKey], quotas: Quotas, bindings: dict[tuple[int, str, str], Binding]
) -> list[ReplayAnswer]:
    """Replay failed jobs. [DEAD-1, STATE-3, ENQ-3]"""
    return [_replay_one(u, key, quotas, bindings) for key in keys]


def _replay_one(
    u: UnitOfWork, key: JobKey, quotas: Quotas, bindings: dict[tuple[int, str, str], Binding]
) -> ReplayAnswer:
    row = u.find(key)
    if row is None:
        return JobNotFound(key.queue, key.id)
    job = row.job
    if job.state is not JobState.FAILED:
        return NotReplayable(key.queue, key.id, f"it is {lifecycle.shown(job, u.now)}, not failed")
    idempotency = job.envelope.idempotency
    retakes = idempotency is not None and idempotency.policy == "until_terminal"
    scope = scope_of(row.lane, job.envelope)
    binding = bindings.get(scope) if retakes else None
    if binding is not None:
        holder = u.find_any(JobKey(key.tenant, key.queue, binding.job_id))
        if by_key(binding, holder.job if holder else None, u.now) is not None:
            return NotReplayable(key.queue, key.id, f"job {binding.job_id!r} holds its idempotency key by now")
    refusal = quotas.over(key.tenant, key.queue)
    if refusal is not None:
        return refusal
    if retakes:
        u.bound[scope] = bindings[scope] = Binding(job.id, "until_terminal")
    u.move(row, lambda: lifecycle.replay(job, u.now))
    quotas.took(key.tenant, key.queue)
    return Replayed()


async def purge(u: UnitOfWork, items: Sequence[Purge]) -> list[PurgeStatus]:
    """Forget finished jobs, with an event. [KEEP-1]"""
    answers: list[PurgeStatus] = []
    purged: list[JobRow] = []
    for item in items:
        row = u.find(item.key)
        if row is None or not lifecycle.is_life(row.job, item.seq):
            answers.append("not_found")
        elif row.job.state not in TERMINAL or (
            item.finished_at is not None and item.finished_at != row.job.finished_at
        ):
            answers.append("not_terminal")
        else:
            u.forget(row)
            purged.append(row)
            answers.append("purged")
    if purged:
        await _log_purges(u, purged)
    return answers


async def _log_purges(u: UnitOfWork, purged: Sequence[JobRow]) -> None:
    """Count purged jobs and log them, each with its number among its tenant's purges. [EVENT-1]"""
    by_tenant: dict[str, list[JobRow]] = {}
    for row in purged:
        by_tenant.setdefault(row.lane.tenant, []).append(row)
    firsts = [mine[0].job.seq for mine in by_tenant.values()]
    more = [len(mine) for mine in by_tenant.values()]
    old = (u.now - PURGE_COUNT_MS, PURGE_COUNTS_DROPPED)
    for counted in await u.session.rows("count_purges", list(by_tenant), firsts, more, u.filed_under, u.now, *old):
        u.xid = max(u.xid, counted["filed_under"])
        mine = by_tenant[counted["tenant"]]
        for number, row in enumerate(mine, counted["count"] - len(mine) + 1):
            count = PurgeCount(counted["tenant"], counted["series"], number)
            u.log(lifecycle.purge(row.job, u.now, count), row.lane)


def set_result_ttl(u: UnitOfWork, items: Sequence[SetResultTtl]) -> tuple[list[TtlStatus], list[tuple[int, int, int]]]:
    """Change how long finished jobs are kept. Also answers, by job number, the TTL and the new expiry. [RESULT-1]"""
    answers: list[TtlStatus] = []
    kept: dict[int, tuple[int, int, int]] = {}
    for item in items:
        row = u.find(item.key)
        if row is None or not lifecycle.is_life(row.job, item.seq):
            answers.append("not_found")
        elif row.job.state not in TERMINAL:
            answers.append("not_terminal")
        else:
            lifecycle.set_result_ttl(row.job, item.ttl_ms, u.now)
            kept[row.job.seq] = (row.job.seq, item.ttl_ms, u.now + item.ttl_ms)
            answers.append("updated")
    return answers, list(kept.values())
