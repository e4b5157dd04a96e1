"""Jobs, events and acknowledgements between the wire and the library."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Raw, UnsetType

from holdfast.core import answers, wire
from holdfast.core.errors import HoldfastError
from holdfast.core.events import Event
from holdfast.core.job import (
    AlreadyCompleted,
    AttemptError,
    Duplicate,
    Envelope,
    Finish,
    IdempotencyKey,
    Job,
    NewJob,
    Progress,
    Queued,
    Result,
)
from holdfast.stores.http.link import error_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def ms(at: datetime) -> int:
    """An instant in milliseconds."""
    return round((at - _EPOCH) / _MS)


def instant(at: int) -> datetime:
    """Milliseconds as an instant."""
    return _EPOCH + at * _MS


def raw(data: bytes, codec: str) -> Raw:
    """A value on its way out."""
    return Raw(data) if codec == "json" else Raw(msgspec.json.encode(base64.b64encode(data).decode()))


def data(value: Raw, codec: str) -> bytes:
    """A value that came in."""
    return bytes(value) if codec == "json" else base64.b64decode(msgspec.json.decode(value, type=str))


def enqueue(new: NewJob) -> wire.Enqueue:
    """A job to enqueue."""
    envelope, key = new.envelope, new.envelope.idempotency
    backoff = envelope.backoff
    return wire.Enqueue(
        queue=new.key.queue,
        type=envelope.type,
        payload=raw(envelope.payload, envelope.codec),
        id=new.key.id,
        request_id=envelope.request_id or None,
        idempotency_key=None if key is None else key.key,
        idempotency=None if key is None or key.policy == "ttl" else key.policy,
        idempotency_ttl_s=key.ttl_ms / 1000 if key is not None and key.policy == "ttl" else None,
        delay_s=new.delay_ms / 1000 if new.run_at is None else None,
        run_at=None if new.run_at is None else instant(new.run_at),
        priority=envelope.priority,
        max_attempts=envelope.max_attempts,
        result_ttl_s=envelope.result_ttl_ms / 1000,
        timeout_s=None if envelope.timeout_ms is None else envelope.timeout_ms / 1000,
        retry=wire.Retry(
            base_s=backoff.base_ms / 1000,
            factor=backoff.factor,
            cap_s=backoff.cap_ms / 1000,
            jitter=backoff.jitter,
        ),
        replace_failed=new.replace_failed,
        codec=envelope.codec,
        version=envelope.version,
    )


class EnqueueItem(msgspec.Struct, kw_only=True):
    """One answer of a batch: a ticket, or an error."""

    status: str = ""
    id: str = ""
    state: Any = None
    result: Raw | UnsetType = msgspec.UNSET
    codec: str = "json"
    error: answers.ErrorInfo | None = None


def enqueued(item: EnqueueItem) -> Queued | Duplicate | AlreadyCompleted | HoldfastError:
    """What became of an enqueue."""
    if item.error is not None:
        return error_of(item.error.code, item.error.message, item.error.args)
    state = None if item.state is None else answers.JobState(item.state)
    if item.status == "queued" and state is not None:
        return Queued(item.id, state)
    if item.status == "completed" and not isinstance(item.result, UnsetType):
        return AlreadyCompleted(item.id, Result(data(item.result, item.codec), item.codec))
    return Duplicate(item.id, state)


def finish(item: Finish) -> wire.Finish:
    """An acknowledgement."""
    result, error = item.result, item.error
    said = wire.Finish(queue=item.key.queue, id=item.key.id, token=item.token, outcome=item.outcome)
    if result is not None and result.blob:
        # The service would not find it, and the job must not be acknowledged for ever.
        said.outcome = "fail"
        said.error = wire.JobError(type="ResultTooLarge", message="a worker's own blob store is not used over HTTP")
    elif result is not None:
        said.result, said.codec = raw(result.data, result.codec), result.codec
    if error is not None:
        said.error = wire.JobError(type=error.type, message=error.message, traceback=error.traceback)
    said.timed_out = item.timed_out
    said.delay_s = None if item.delay_ms is None else item.delay_ms / 1000
    return said


def claimed(job: answers.ClaimedJob, tenant: str, worker_id: str) -> Job:
    """A leased job, as far as a worker needs it."""
    envelope = Envelope(
        job.type,
        data(job.payload, job.codec),
        job.codec,
        job.version,
        job.priority,
        job.max_attempts,
        timeout_ms=None if job.timeout_s is None else round(job.timeout_s * 1000),
        headers=job.trace,
    )
    return Job(
        tenant, job.queue, job.id, 0, envelope, answers.JobState.LEASED, 0, 0,
        attempts=job.attempt, token=job.token, deadline=ms(job.deadline), worker_id=worker_id,
    )  # fmt: skip


def job(found: answers.Job) -> Job:
    """A job as it is."""
    key = found.idempotency_key
    envelope = Envelope(
        found.type,
        data(found.payload, found.codec),
        found.codec,
        found.version,
        found.priority,
        found.max_attempts,
        request_id=found.request_id,
        idempotency=None if key is None else IdempotencyKey(key),
    )
    return Job(
        found.tenant,
        found.queue,
        found.id,
        found.sequence,
        envelope,
        found.state,
        ms(found.visible_at),
        ms(found.enqueued_at),
        attempts=found.attempts,
        deadline=0 if found.deadline is None else ms(found.deadline),
        worker_id=found.worker_id or "",
        claimed_at=None if found.claimed_at is None else ms(found.claimed_at),
        finished_at=None if found.finished_at is None else ms(found.finished_at),
        reason=found.reason or "",
        result=None
        if isinstance(found.result, UnsetType)
        else Result(data(found.result, found.result_codec), found.result_codec),
        expires_at=None if found.expires_at is None else ms(found.expires_at),
        progress=None if found.progress is None else Progress(found.progress.fraction, found.progress.message),
        errors=[AttemptError(one.type, one.message, one.traceback, one.attempt, ms(one.at)) for one in found.errors],
        replays=found.replays,
    )


def event(found: answers.Event) -> Event:
    """One event."""
    return Event(
        found.kind, found.tenant, found.queue, found.job_id, found.type, ms(found.at), found.attempt, found.token,
        found.worker_id, found.data, found.offset,
    )  # fmt: skip
