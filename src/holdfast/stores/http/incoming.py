"""Converts the service's answers to the types of a store."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec import Raw, UnsetType

from holdfast.core import events as core_events
from holdfast.core.job import (
    AlreadyCompleted,
    AttemptError,
    Backoff,
    Claimed,
    Duplicate,
    Envelope,
    IdempotencyKey,
    Job,
    JobKey,
    JobState,
    Progress,
    Queued,
    Result,
)
from holdfast.core.policy import KnownTypes, TypeInfo
from holdfast.protocol import answers, operating
from holdfast.store import QueueStats, WorkerInfo
from holdfast.stores.http.outgoing import EPOCH, Fence

_ONE_MS = timedelta(milliseconds=1)


def ms(at: datetime) -> int:
    """An instant in milliseconds since 1970."""
    return (at - EPOCH) // _ONE_MS


def _ms(at: datetime | None) -> int | None:
    return None if at is None else ms(at)


def data(value: Raw, codec: str) -> bytes:
    """A payload or result as bytes: JSON as it is, other codecs from base64."""
    return bytes(value) if codec == "json" else base64.b64decode(msgspec.json.decode(value, type=str))


def _result(value: Raw | UnsetType, codec: str) -> Result | None:
    return None if isinstance(value, UnsetType) else Result(data(value, codec), codec)


def ticket(answer: answers.Ticket) -> Queued | Duplicate | AlreadyCompleted:
    """The answer to one enqueue."""
    if answer.status == "queued":
        return Queued(answer.id, answer.state or JobState.READY)
    if answer.status == "duplicate":
        return Duplicate(answer.id, answer.state)
    return AlreadyCompleted(answer.id, _result(answer.result, answer.codec) or Result(b"null"))


def known_types(found: Sequence[answers.KnownType], served: Sequence[answers.ServedQueue]) -> KnownTypes:
    """The job types that workers run."""
    types = [
        TypeInfo(
            one.name, one.queue, one.max_attempts, backoff(one.retry),
            None if one.timeout_s is None else round(one.timeout_s * 1000), one.priority,
            round(one.result_ttl_s * 1000),
        )
        for one in found
    ]  # fmt: skip
    queues = {one.queue: None if one.types is None else frozenset(one.types) for one in served}
    return KnownTypes({one.name: one for one in types}, queues)


def backoff(retry: answers.RetryInfo) -> Backoff:
    """How long to wait before the next attempt."""
    return Backoff(round(retry.base_s * 1000), retry.factor, round(retry.cap_s * 1000), retry.jitter)


def claimed(tenant: str, worker_id: str, answer: answers.Claimed) -> Claimed:
    """The answer to a claim."""
    now = ms(answer.now)
    return Claimed([_leased(tenant, worker_id, job, now) for job in answer.jobs], now)


def _leased(tenant: str, worker_id: str, job: answers.ClaimedJob, now: int) -> Job:
    return Job(
        tenant,
        job.queue,
        job.id,
        0,
        _envelope(job),
        JobState.LEASED,
        ms(job.visible_at),
        ms(job.enqueued_at),
        job.attempt,
        Fence(job.fence, job.token),
        ms(job.deadline),
        worker_id,
        now,
        released_for=job.released.reason if job.released else "",
        first_released_at=ms(job.released.since) if job.released else 0,
        events=job.events,
    )


def job(found: answers.Job) -> Job:
    """A job. Fields that HTTP does not carry have their defaults."""
    idempotency = None if found.idempotency_key is None else IdempotencyKey(found.idempotency_key)
    envelope = _envelope(found, found.request_id, idempotency)
    progress = found.progress
    return Job(
        found.tenant,
        found.queue,
        found.id,
        found.sequence,
        envelope,
        found.state,
        ms(found.visible_at),
        ms(found.enqueued_at),
        found.attempts,
        found.fence,
        0 if found.deadline is None else ms(found.deadline),
        found.worker_id or "",
        _ms(found.claimed_at),
        _ms(found.finished_at),
        reason=found.reason or "",
        result=_result(found.result, found.result_codec),
        expires_at=_ms(found.expires_at),
        progress=None if progress is None else Progress(progress.fraction, progress.message),
        errors=[AttemptError(one.type, one.message, one.traceback, one.attempt, ms(one.at)) for one in found.errors],
        replays=found.replays,
        released_for=found.released.reason if found.released else "",
        first_released_at=ms(found.released.since) if found.released else 0,
        events=found.events,
    )


def outcome(key: JobKey, found: answers.Outcomes) -> Job:
    """A job with its state and outcome. All other fields have their defaults."""
    error = found.error
    return Job(
        *key,
        0,
        Envelope("", b"null"),
        found.state,
        0,
        0,
        reason=error.reason if error else "",
        result=_result(found.result, found.codec),
        errors=[AttemptError(error.type, error.message)] if error else [],
    )


def _envelope(
    found: answers.ClaimedJob | answers.Job, request_id: str = "", idempotency: IdempotencyKey | None = None
) -> Envelope:
    return Envelope(
        found.type,
        data(found.payload, found.codec),
        found.codec,
        found.version,
        found.priority,
        found.max_attempts,
        timeout_ms=None if found.timeout_s is None else round(found.timeout_s * 1000),
        request_id=request_id,
        idempotency=idempotency,
        headers=found.trace,
    )


def stats(found: answers.QueueStats) -> QueueStats:
    """Counts of one queue. `now` matters only if there is a ready job."""
    oldest = _ms(found.oldest_ready_at)
    now = (oldest or 0) + round((found.oldest_ready_age_s or 0.0) * 1000)
    counts = {state: found.counts.get(state, 0) for state in JobState}
    return QueueStats(found.queue, counts, oldest, found.paused, now)


def worker(found: operating.LivingWorker) -> WorkerInfo:
    """A worker. Of one that serves all tenants, a tenant does not learn where it is and what it holds."""
    return WorkerInfo(
        found.id, found.tenant, found.host or "", found.pid or 0, tuple(found.queues), found.concurrency,
        found.held or 0, ms(found.started_at), ms(found.seen_at),
    )  # fmt: skip


def event(found: answers.Event) -> core_events.Event:
    """One event."""
    return core_events.Event(
        found.kind,
        found.tenant,
        found.queue,
        found.job_id,
        found.type,
        ms(found.at),
        found.attempt,
        found.token,
        found.worker_id,
        found.data,
        found.offset,
        found.number,
    )
