"""Enqueue, finish, extend, report, cancel, replay, purge: the operations on named jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.core import dedup, lease, lifecycle, requests
from holdfast.core.budgets import varying
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
from holdfast.store import EnqueueAnswer, ExtendAnswer, FinishAnswer, Hint, ReplayAnswer, ReportAnswer
from holdfast.stores.file import rows
from holdfast.stores.file.notifications import MAX_RECORDS
from holdfast.stores.file.sql import SQL
from holdfast.stores.file.transaction import Transaction

X = TypeVar("X", Extend, Report)
A = TypeVar("A", Extended, Reported)

_COMPLETED = Finished(JobState.COMPLETED)


def check_under(t: Transaction, under: Lease | None) -> None:
    """Raise the refusal if the call names a lease and that lease is not live."""
    if under is not None:
        t.flush()
        job, _ = t.find(under.key)
        lease.check_under(job, under, t.now)


def enqueue(t: Transaction, items: Sequence[NewJob], under: Lease | None = None) -> list[EnqueueAnswer]:
    """Add new jobs: in one statement if every id is new, else one by one. [ENQ-1 to ENQ-8]"""
    check_under(t, under)
    return _enqueue_fresh(t, items) or [_enqueue_one(t, item) for item in items]


def _enqueue_fresh(t: Transaction, items: Sequence[NewJob]) -> list[EnqueueAnswer] | None:
    """The common case: no keys, no quotas, and only new ids. Otherwise returns None and changes nothing."""
    lanes: dict[tuple[str, str], int] = {}
    for item in items:
        names = item.key[:2]
        if item.envelope.idempotency is not None:
            return None
        if names not in lanes:
            if t.has_quota(*names):
                return None
            lanes[names] = t.lane(*names)
    first = t.next_seq()
    made = [lifecycle.enqueue(item, n, t.now) for n, item in enumerate(items, first)]
    if len(made) == 1:
        job, event = made[0]
        if t.hand_off(job, event, lanes[job.tenant, job.queue]):
            t.seq = first
            return [Queued(job.id, job.state)]
    t.db.execute("SAVEPOINT fresh")
    if t.add_jobs([rows.new_row(job, lanes[job.tenant, job.queue]) for job, _ in made]) != len(items):
        t.db.execute("ROLLBACK TO fresh")
        t.db.execute("RELEASE fresh")
        return None
    t.add_payloads([job for job, _ in made])
    t.db.execute("RELEASE fresh")
    t.seq = first + len(made) - 1
    for job, event in made:
        t.arrive(job, event, lanes[job.tenant, job.queue])
    return [Queued(job.id, job.state) for job, _ in made]


def _enqueue_one(t: Transaction, new: NewJob) -> EnqueueAnswer:
    tenant, queue, id_ = new.key
    lane = t.lane(tenant, queue)
    existing = t.find_any(new.key, lane)
    binding = t.binding(new.envelope, lane)
    holder = t.find_any(JobKey(tenant, queue, binding.job_id), lane) if binding else None
    answer = dedup.decide(new, existing, binding, holder, t.now)
    if answer is not None:
        return answer
    refusal = t.over_quota(tenant, queue, lane)
    if refusal is not None:
        return refusal
    if existing is not None:
        t.forget_job(existing, lane)
    t.seq = t.next_seq()
    job, event = lifecycle.enqueue(new, t.seq, t.now)
    t.db.execute(SQL["add_job"], rows.new_row(job, lane))
    t.add_payloads([job])
    bound = dedup.bind(new, t.now)
    if bound is not None:
        t.bind(new.envelope, lane, bound, binding)
    t.arrive(job, event, lane)
    return Queued(id_, job.state)


def finish(t: Transaction, items: Sequence[Finish]) -> list[FinishAnswer]:
    """Complete, fail, retry or release. [LEASE-1, RETRY-1 to RETRY-5]"""
    quick = _complete_at_once(t, items)
    answers: list[FinishAnswer] = []
    done: set[JobKey] = set()
    for item in items:
        if item.key in done:
            t.flush()  # The same job twice in a batch: the second read must see the first change.
        done.add(item.key)
        completed = quick.get(item.key)
        if completed is not None:
            t.append(*completed)
            answers.append(_COMPLETED)
        else:
            answers.append(_finish_one(t, item))
    return answers


def _finish_one(t: Transaction, item: Finish) -> FinishAnswer:
    job, lane = t.find(item.key)
    answer = lease.check(job, item.key, item.token, item.outcome, t.now)
    if job is None or answer is not None:
        return answer or JobNotFound(item.key.queue, item.key.id)
    t.append(t.change(job, lane, lambda: lifecycle.finish(job, item, t.now, t.settings.retention)), lane)
    return Finished(job.state)


def _complete_at_once(t: Transaction, items: Sequence[Finish]) -> dict[JobKey, tuple[Event, int]]:
    """Complete the jobs that this process leased, in one statement.

    Their leases are cached, so no row is read; the statement itself checks that each lease is live. Returns the events
    by key, or nothing if any lease is over.
    """
    cached: dict[JobKey, tuple[Job, int, Finish]] = {}
    for item in items:
        job, lane = t.leases.get(item.key) or (None, 0)
        if job is None or lane != t.find_lane(item.key.tenant, item.key.queue):
            continue  # Not leased here, or the database was restored since.
        if item.outcome == "complete" and item.token == job.token and item.key not in cached:
            cached[item.key] = (job, lane, item)
    if len({item.key for item in items}) < len(items):
        return {}
    if not cached or not t.save_completed([(job, item.result) for job, _, item in cached.values()]):
        return {}
    events: dict[JobKey, tuple[Event, int]] = {}
    for key, (job, lane, item) in cached.items():
        t.leases.pop(key, None)
        t.count(lane, job.state, -1)
        before = varying(job)
        events[key] = (lifecycle.finish(job, item, t.now, t.settings.retention), lane)
        t.delta(lane).bytes += varying(job) - before
        t.ended(job, lane, job if len(cached) <= MAX_RECORDS and _is_plain(t, job) else None)
    return events


def _is_plain(t: Transaction, job: Job) -> bool:
    """Whether the cached record of a completed job is as complete as its row."""
    return rows.pack_extra(job) is None and t.one("extra_of", job.seq) is None


def extend(t: Transaction, items: Sequence[Extend]) -> list[ExtendAnswer]:
    """Renew leases. [LEASE-2]"""

    def change(job: Job, item: Extend) -> tuple[Event | None, Extended]:
        event = lifecycle.extend(job, item.lease_ms, t.now, logged=t.settings.all_events)
        t.db.execute(SQL["save_deadline"], (job.deadline, job.events, job.seq))
        return event, Extended(job.deadline, t.now)

    return [_change_leased(t, item, change) for item in items]


def report(t: Transaction, items: Sequence[Report]) -> list[ReportAnswer]:
    """Record progress."""

    def change(job: Job, item: Report) -> tuple[Event | None, Reported]:
        event = lifecycle.report(job, item, t.now, logged=t.settings.all_events)
        t.db.execute(SQL["save_progress"], (rows.pack_extra(job), job.events, job.seq))
        return event, Reported()

    return [_change_leased(t, item, change) for item in items]


def _change_leased(t: Transaction, item: X, change: Callable[[Job, X], tuple[Event | None, A]]) -> A | lease.Refusal:
    job, lane = t.find(item.key)
    refusal = lease.check_live(job, item.key, item.token, t.now)
    if job is None or refusal is not None:
        return refusal or JobNotFound(item.key.queue, item.key.id)
    event, answer = change(job, item)
    if event is not None:
        t.leases.pop(job.key, None)  # The cached record lacks this event.
        t.append(event, lane)
    return answer


def cancel(t: Transaction, items: Sequence[Cancel]) -> list[CancelStatus]:
    """Cancel jobs, also leased ones. [CANCEL-1 to CANCEL-3]"""
    return [_cancel_one(t, item) for item in items]


def _cancel_one(t: Transaction, item: Cancel) -> CancelStatus:
    t.flush()
    job, lane = t.find(item.key)
    answer = requests.check_cancel(job, item)
    if job is None or answer is not None:
        return answer or "not_found"
    if job.state is JobState.LEASED:
        t.signal(Hint.CANCELED, *item.key)
    t.append(t.change(job, lane, lambda: lifecycle.cancel(job, t.now, t.settings.retention, item.by)), lane)
    return "canceled"


def replay(t: Transaction, keys: Sequence[JobKey], under: Lease | None, by: str) -> list[ReplayAnswer]:
    """Requeue dead letters. [DEAD-1, STATE-3, ENQ-3]"""
    check_under(t, under)
    return [_replay_one(t, key, by) for key in keys]


def _replay_one(t: Transaction, key: JobKey, by: str) -> ReplayAnswer:
    t.flush()
    job, lane = t.find(key)
    refusal = requests.check_replay(job, key, t.now)
    if job is None or refusal is not None:
        return refusal or JobNotFound(key.queue, key.id)
    retakes = dedup.retakes_key(job)
    binding = t.binding(job.envelope, lane) if retakes else None
    holder = t.find_any(JobKey(key.tenant, key.queue, binding.job_id), lane) if binding else None
    answer = dedup.check_retake(job, binding, holder, t.now) or t.over_quota(key.tenant, key.queue, lane)
    if answer is not None:
        return answer
    if retakes:
        t.bind(job.envelope, lane, dedup.Binding(job.id, "until_terminal"), binding)
    t.append(t.change(job, lane, lambda: lifecycle.replay(job, t.now, by)), lane)
    return Replayed()


def purge(t: Transaction, items: Sequence[Purge]) -> list[PurgeStatus]:
    """Delete finished jobs, and log an event for each. [KEEP-1]"""
    answers: list[PurgeStatus] = []
    for item in items:
        job, lane = t.find(item.key)
        answer = requests.check_purge(job, item)
        if job is not None and answer is None:
            t.append(lifecycle.purge(job, t.now, _count_purge(t, job), item.by), lane)
            t.forget_job(job, lane)
        answers.append(answer or "purged")
    if "purged" in answers:
        t.db.execute(SQL["drop_purge_counts"], (t.now - PURGE_COUNT_MS, PURGE_COUNTS_DROPPED))
    return answers


def _count_purge(t: Transaction, job: Job) -> PurgeCount:
    # Fetch all rows: an open statement prevents a rollback to a savepoint.
    ((tenant, series, count),) = t.db.execute(SQL["count_purge"], (job.tenant, job.seq, t.now)).fetchall()
    return PurgeCount(tenant, series, count)


def set_result_ttl(t: Transaction, items: Sequence[SetResultTtl]) -> list[TtlStatus]:
    """Change how long finished jobs are kept. [RESULT-1]"""
    answers: list[TtlStatus] = []
    for item in items:
        job, _ = t.find(item.key)
        answer = requests.check_result_ttl(job, item)
        if job is not None and answer is None:
            lifecycle.set_result_ttl(job, item.ttl_ms, t.now)
            t.db.execute(SQL["save_expiry"], (job.expires_at, rows.pack_extra(job), job.seq))
        answers.append(answer or "updated")
    return answers
