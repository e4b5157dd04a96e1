"""The transitions of a job, each defined once:

             run_at in the future                      claim (attempt + 1)
 enqueue ──> scheduled ──due──> ready ─────────────────────────────> leased ──complete──> completed
    └──────────────────────────> ready                                │  │
                                                                      │  ├─ retry, attempts left ──> retrying
                                                                      │  ├─ fail / retry, none left ──> failed
                     cancel: from every state that is not terminal ───┘  ├─ release ──> ready or scheduled
                                          ──> canceled                   └─ expire ──> retrying or failed
 replay: failed ──> ready

`TABLE` lists the transitions. Each function below makes one: it changes the job in place and returns the transition's
event. [STATE-1, STATE-2, STATE-3, EVENT-1] A job becomes due by the clock alone, without a transition: `shown` returns
its state at an instant. No job is BLOCKED: a step of a flow is shown as blocked before it is enqueued.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from holdfast.core import events
from holdfast.core.events import Event, EventKind
from holdfast.core.job import (
    DAY,
    ERRORS_KEPT,
    FLOW_HEADER,
    TERMINAL,
    WAITING,
    AttemptError,
    Finish,
    Job,
    JobState,
    NewJob,
    Progress,
    PurgeCount,
    Report,
)
from holdfast.core.retry import delay_ms

SCHEDULED, READY, LEASED = JobState.SCHEDULED, JobState.READY, JobState.LEASED
RETRYING, COMPLETED, FAILED, CANCELED = JobState.RETRYING, JobState.COMPLETED, JobState.FAILED, JobState.CANCELED


class Retention(Struct, frozen=True):
    """How long failed and canceled jobs are kept. A completed job has its own `result_ttl`. [KEEP-1]"""

    failed_ms: int = 7 * DAY
    canceled_ms: int = 1 * DAY


DEFAULT_RETENTION = Retention()

TABLE: dict[str, frozenset[tuple[JobState, JobState]]] = {
    "claim": frozenset((state, LEASED) for state in WAITING),
    "complete": frozenset({(LEASED, COMPLETED)}),
    "fail": frozenset({(LEASED, FAILED)}),
    "retry": frozenset({(LEASED, RETRYING), (LEASED, FAILED)}),
    "release": frozenset({(LEASED, READY), (LEASED, SCHEDULED)}),
    "expire": frozenset({(LEASED, RETRYING), (LEASED, FAILED)}),
    "cancel": frozenset((state, CANCELED) for state in (*WAITING, LEASED)),
    "replay": frozenset({(FAILED, READY)}),
}


def shown(job: Job, now: int) -> JobState:
    """The state to show at `now`. A waiting job that is due is ready."""
    if (job.state is SCHEDULED or job.state is RETRYING) and job.visible_at <= now:
        return READY
    return job.state


def stored(states: frozenset[JobState]) -> frozenset[JobState]:
    """The stored states of jobs that are shown in one of these. A scheduled job that is due is shown as ready."""
    return states | {SCHEDULED, RETRYING} if READY in states else states


def forgotten(job: Job, now: int) -> bool:
    """Whether the job's retention is over. Only terminal jobs have one. [KEEP-1]"""
    return job.expires_at is not None and job.expires_at <= now


def enqueue(new: NewJob, seq: int, now: int) -> tuple[Job, Event]:
    """Create a job: ready, or scheduled if it is due later. [ENQ-5]"""
    envelope = new.envelope
    due_at = now + new.delay_ms if new.run_at is None else new.run_at
    visible_at = max(now, due_at)
    tenant, queue, id_ = new.key
    job = Job(
        tenant, queue, id_, seq, envelope,
        SCHEDULED if visible_at > now else READY, visible_at, now,
        result_ttl_ms=envelope.result_ttl_ms,
    )  # fmt: skip
    data: dict[str, Any] = {
        "priority": envelope.priority, "max_attempts": envelope.max_attempts, "visible_at": visible_at
    }  # fmt: skip
    return job, events.append(job, "enqueued", now, data)


def claim(job: Job, token: int, deadline: int, worker_id: str, now: int) -> Event:
    """Grant a lease: a fresh token, a deadline, one more attempt. [CLAIM-1, RETRY-1]"""
    _transition(job, "claim", LEASED)
    job.attempts += 1
    job.token = token
    job.deadline = deadline
    job.worker_id = worker_id
    job.claimed_at = now
    job.spent = job.spent_state = ""
    job.progress = None
    return events.append(job, "claimed", now, {"visible_at": job.visible_at, "deadline": deadline})


def finish(job: Job, item: Finish, now: int, keep: Retention = DEFAULT_RETENTION) -> Event:
    """Apply an outcome to a job whose lease `core.lease` has checked."""
    if item.outcome == "complete":
        event = _complete(job, item, now)
    elif item.outcome == "fail":
        event = _fail(job, "fail", "timeout" if item.timed_out else "permanent", item.error, now, keep)
    elif item.outcome == "retry":
        event = _retry(job, item, now, keep)
    else:
        event = _release(job, item, now)
    job.spent = item.outcome
    job.spent_state = job.state
    return event


def expire(job: Job, random: float, now: int, keep: Retention = DEFAULT_RETENTION) -> Event:
    """End a lease whose deadline has passed. It counts as an attempt. [RETRY-2, LEASE-3]"""
    error = AttemptError(events.LEASE_EXPIRED, f"the lease of worker {job.worker_id} ran out", "", job.attempts, now)
    _remember(job, error)
    if job.attempts >= job.envelope.max_attempts:
        return _end_dead(job, "expire", "lease_expired", error, now, keep)
    delay = delay_ms(job.envelope.backoff, job.attempts, random)
    return _wait_again(job, "expire", RETRYING, "expired", now, delay, error)


def cancel(job: Job, now: int, keep: Retention = DEFAULT_RETENTION, by: str = "") -> Event:
    """Cancel a job. This ends its lease, if it has one. The event names the operator `by`, if one acts. [CANCEL-1]"""
    _transition(job, "cancel", CANCELED)
    _end(job, now, _kept_ms(job, keep.canceled_ms))
    return events.append(job, "canceled", now, _acting(by))


def replay(job: Job, now: int, by: str = "") -> Event:
    """Make a dead letter ready again under the same id, with 0 attempts and its history. [STATE-3, DEAD-1]"""
    _transition(job, "replay", READY)
    job.attempts = 0
    job.replays += 1
    job.visible_at = now
    job.finished_at = job.expires_at = None
    job.reason = job.released_for = ""
    job.first_released_at = 0
    job.progress = None
    return events.append(job, "replayed", now, {"visible_at": now, "replays": job.replays, **_acting(by)})


def extend(job: Job, lease_ms: int, now: int, *, logged: bool) -> Event | None:
    """Move a live lease's deadline to max(current, now + lease_ms). [LEASE-2]

    This is no transition: it makes an event only if `logged`.
    """
    job.deadline = max(job.deadline, now + lease_ms)
    if not logged:
        return None
    return events.append(job, "extended", now, {"deadline": job.deadline})


def report(job: Job, item: Report, now: int, *, logged: bool) -> Event | None:
    """Record a running job's progress. This is no transition: it makes an event only if `logged`."""
    job.progress = Progress(item.progress.fraction, item.progress.message)
    if not logged:
        return None
    return events.append(job, "progressed", now, {"fraction": item.progress.fraction, "message": item.progress.message})


def purge(job: Job, now: int, counted: PurgeCount, by: str = "") -> Event:
    """The last event of a purged job, with its number among the purges of the tenant. [KEEP-1]"""
    data: dict[str, Any] = {"purge": counted.count, "series": counted.series, **_acting(by)}
    return events.append(job, "purged", now, data)


def set_result_ttl(job: Job, ttl_ms: int, now: int) -> None:
    """Keep a terminal job for `ttl_ms` from now. This makes no event: the state does not change. [RESULT-1]"""
    job.result_ttl_ms = ttl_ms
    job.expires_at = now + ttl_ms


# Parts of transitions --------------------------------------------------------------------------------------


def _transition(job: Job, verb: str, to: JobState) -> None:
    if (job.state, to) not in TABLE[verb]:
        msg = f"{verb}: no transition from {job.state} to {to}"
        raise AssertionError(msg)
    job.state = to


def _acting(by: str) -> dict[str, Any]:
    return {"by": by} if by else {}


def _complete(job: Job, item: Finish, now: int) -> Event:
    _transition(job, "complete", COMPLETED)
    job.result = item.result
    _end(job, now, job.result_ttl_ms)
    return events.append(job, "completed", now, {})


def _retry(job: Job, item: Finish, now: int, keep: Retention) -> Event:
    error = item.error or AttemptError("Error", "")
    if job.attempts >= job.envelope.max_attempts:
        return _fail(job, "retry", "timeout" if item.timed_out else "max_attempts", error, now, keep)
    error = _stamped(job, error, now)
    _remember(job, error)
    delay = item.delay_ms
    if delay is None:
        delay = delay_ms(job.envelope.backoff, job.attempts, item.random)
    return _wait_again(job, "retry", RETRYING, "retried", now, delay, error)


def _release(job: Job, item: Finish, now: int) -> Event:
    # RETRY-5: the attempt does not count. The token stays used: only a new claim grants another.
    delay, reason = item.delay_ms or 0, item.reason
    since = job.first_released_at if reason == job.released_for else now
    event = _wait_again(job, "release", SCHEDULED if delay > 0 else READY, "released", now, delay, None)
    if reason:
        job.released_for, job.first_released_at = reason, since
        event.data["reason"] = reason
    job.attempts = 0 if item.forgive else job.attempts - 1
    return event


def _fail(job: Job, verb: str, reason: str, error: AttemptError | None, now: int, keep: Retention) -> Event:
    error = _stamped(job, error or AttemptError("Error", ""), now)
    _remember(job, error)
    return _end_dead(job, verb, reason, error, now, keep)


def _end_dead(job: Job, verb: str, reason: str, error: AttemptError, now: int, keep: Retention) -> Event:
    _transition(job, verb, FAILED)
    job.reason = reason
    _end(job, now, _kept_ms(job, keep.failed_ms))
    return events.append(job, "failed", now, {"reason": reason, "error": events.error_data(error)})


def _kept_ms(job: Job, keep_ms: int) -> int:
    """How long a failed or canceled job is kept. A step of a flow is kept at least as long as its result would be.

    A flow reads the outcome of its steps from their records. A step whose record is gone would run again.
    """
    return max(keep_ms, job.result_ttl_ms) if FLOW_HEADER in (job.envelope.headers or ()) else keep_ms


def _end(job: Job, now: int, keep_ms: int) -> None:
    job.finished_at = now
    job.expires_at = now + keep_ms
    job.deadline = 0


def _wait_again(
    job: Job, verb: str, state: JobState, kind: EventKind, now: int, delay: int, error: AttemptError | None
) -> Event:
    _transition(job, verb, state)
    job.visible_at = now + delay
    job.deadline = job.first_released_at = 0
    job.progress, job.released_for = None, ""
    data: dict[str, Any] = {"visible_at": job.visible_at}
    if error is not None:
        data["error"] = events.error_data(error)
    return events.append(job, kind, now, data)


def _stamped(job: Job, error: AttemptError, now: int) -> AttemptError:
    return AttemptError(error.type, error.message, error.traceback, job.attempts, now)


def _remember(job: Job, error: AttemptError) -> None:
    job.errors = [*job.errors, error][-ERRORS_KEPT:]


def is_life(job: Job, seq: int | None) -> bool:
    """Whether the job is the life of its id with sequence number `seq`. None matches any."""
    return seq is None or seq == job.seq


def is_terminal(job: Job) -> bool:
    """Whether the job has ended. [STATE-2]"""
    return job.state in TERMINAL
