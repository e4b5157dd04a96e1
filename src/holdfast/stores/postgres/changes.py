"""Finish, extend, report, cancel, replay, purge: the operations on named jobs, within a unit of work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.core import dedup, lease, lifecycle, requests
from holdfast.core.dedup import Binding
from holdfast.core.errors import JobNotFound
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

X = TypeVar("X", Extend, Report)
A = TypeVar("A", Extended, Reported)


def finish(u: UnitOfWork, items: Sequence[Finish], keep: Retention) -> list[FinishAnswer]:
    """Complete, fail, retry or release. [LEASE-1, RETRY-1 to RETRY-5]"""
    return [_finish_one(u, item, keep) for item in items]


def _finish_one(u: UnitOfWork, item: Finish, keep: Retention) -> FinishAnswer:
    row = u.find(item.key)
    answer = lease.check(row and row.job, item.key, item.token, item.outcome, u.now)
    if row is None or answer is not None:
        return answer or JobNotFound(item.key.queue, item.key.id)
    u.move(row, lambda: lifecycle.finish(row.job, item, u.now, keep))
    return Finished(row.job.state)


def extend(u: UnitOfWork, items: Sequence[Extend], *, all_events: bool) -> list[ExtendAnswer]:
    """Renew leases. [LEASE-2]"""

    def change(job: Job, item: Extend) -> tuple[Event | None, Extended]:
        event = lifecycle.extend(job, item.lease_ms, u.now, logged=all_events)
        return event, Extended(job.deadline, u.now)

    return [_change_leased(u, item, change) for item in items]


def report(u: UnitOfWork, items: Sequence[Report], *, all_events: bool) -> list[ReportAnswer]:
    """Record progress."""

    def change(job: Job, item: Report) -> tuple[Event | None, Reported]:
        return lifecycle.report(job, item, u.now, logged=all_events), Reported()

    return [_change_leased(u, item, change) for item in items]


def _change_leased(u: UnitOfWork, item: X, change: Callable[[Job, X], tuple[Event | None, A]]) -> A | lease.Refusal:
    row = u.find(item.key)
    refusal = lease.check_live(row and row.job, item.key, item.token, u.now)
    if row is None or refusal is not None:
        return refusal or JobNotFound(item.key.queue, item.key.id)
    event, answer = change(row.job, item)
    row.changed = True
    if event is not None:
        u.log(event, row.lane)
    return answer


def cancel(u: UnitOfWork, items: Sequence[Cancel], keep: Retention) -> list[CancelStatus]:
    """Cancel wins. [CANCEL-1 to CANCEL-3]"""
    return [_cancel_one(u, item, keep) for item in items]


def _cancel_one(u: UnitOfWork, item: Cancel, keep: Retention) -> CancelStatus:
    row = u.find(item.key)
    answer = requests.check_cancel(row and row.job, item)
    if row is None or answer is not None:
        return answer or "not_found"
    if row.job.state is JobState.LEASED:
        u.effects.canceled.append(item.key)
    else:
        u.effects.withdrawn.add(row.lane.number)
    u.move(row, lambda: lifecycle.cancel(row.job, u.now, keep, item.by))
    return "canceled"


def replay(
    u: UnitOfWork, keys: Sequence[JobKey], quotas: Quotas, bindings: dict[tuple[int, str, str], Binding], by: str
) -> list[ReplayAnswer]:
    """Replay failed jobs. [DEAD-1, STATE-3, ENQ-3]"""
    return [_replay_one(u, key, quotas, bindings, by) for key in keys]


def _replay_one(
    u: UnitOfWork, key: JobKey, quotas: Quotas, bindings: dict[tuple[int, str, str], Binding], by: str
) -> ReplayAnswer:
    row = u.find(key)
    refusal = requests.check_replay(row and row.job, key, u.now)
    if row is None or refusal is not None:
        return refusal or JobNotFound(key.queue, key.id)
    retakes = dedup.retakes_key(row.job)
    scope = scope_of(row.lane, row.job.envelope)
    binding = bindings.get(scope) if retakes else None
    holder = u.find_any(JobKey(key.tenant, key.queue, binding.job_id)) if binding else None
    answer = dedup.check_retake(row.job, binding, holder and holder.job, u.now) or quotas.over(key.tenant, key.queue)
    if answer is not None:
        return answer
    if retakes:
        u.bound[scope] = bindings[scope] = Binding(key.id, "until_terminal")
    u.move(row, lambda: lifecycle.replay(row.job, u.now, by))
    quotas.took(key.tenant, key.queue)
    return Replayed()


async def purge(u: UnitOfWork, items: Sequence[Purge]) -> list[PurgeStatus]:
    """Forget finished jobs, with an event. [KEEP-1]"""
    answers: list[PurgeStatus] = []
    purged: list[tuple[JobRow, str]] = []
    for item in items:
        row = u.find(item.key)
        answer = requests.check_purge(row and row.job, item)
        if row is not None and answer is None:
            u.forget(row)
            purged.append((row, item.by))
        answers.append(answer or "purged")
    if purged:
        await _log_purges(u, purged)
    return answers


async def _log_purges(u: UnitOfWork, purged: Sequence[tuple[JobRow, str]]) -> None:
    """Count purged jobs and log them, each with who purged it and its number among its tenant's purges. [EVENT-1]"""
    by_tenant: dict[str, list[tuple[JobRow, str]]] = {}
    for row, by in purged:
        by_tenant.setdefault(row.lane.tenant, []).append((row, by))
    firsts = [mine[0][0].job.seq for mine in by_tenant.values()]
    more = [len(mine) for mine in by_tenant.values()]
    old = (u.now - PURGE_COUNT_MS, PURGE_COUNTS_DROPPED)
    for counted in await u.session.rows("count_purges", list(by_tenant), firsts, more, u.filed_under, u.now, *old):
        u.xid = max(u.xid, counted["filed_under"])
        mine = by_tenant[counted["tenant"]]
        for number, (row, by) in enumerate(mine, counted["count"] - len(mine) + 1):
            count = PurgeCount(counted["tenant"], counted["series"], number)
            u.log(lifecycle.purge(row.job, u.now, count, by), row.lane)


def set_result_ttl(u: UnitOfWork, items: Sequence[SetResultTtl]) -> tuple[list[TtlStatus], list[tuple[int, int, int]]]:
    """Change how long finished jobs are kept. Also answers, by job number, the TTL and the new expiry. [RESULT-1]"""
    answers: list[TtlStatus] = []
    kept: dict[int, tuple[int, int, int]] = {}
    for item in items:
        row = u.find(item.key)
        answer = requests.check_result_ttl(row and row.job, item)
        if row is not None and answer is None:
            lifecycle.set_result_ttl(row.job, item.ttl_ms, u.now)
            kept[row.job.seq] = (row.job.seq, item.ttl_ms, u.now + item.ttl_ms)
        answers.append(answer or "updated")
    return answers, list(kept.values())
