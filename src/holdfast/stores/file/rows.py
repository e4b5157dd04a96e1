"""Rows of the `jobs` and `events` tables, and the structs that they stand for."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import msgspec
from msgspec import msgpack

from holdfast.core.events import Event, EventKind
from holdfast.core.job import AttemptError, Envelope, IdempotencyKey, Job, JobState, Progress, Result

JOB_COLUMNS = (
    "seq, lane, id, state, rank, visible_at, enqueued_at, attempts, token, deadline, worker_id, claimed_at, "
    "finished_at, expires_at, spent, spent_state, reason, result_ttl_ms, replays, progress, errors, result, "
    "head, request_id, idempotency"
)

# The order is part of the file: < 4 waiting, = 4 leased, > 4 ended. New states go to the end of their range.
STATES = (
    JobState.BLOCKED, JobState.SCHEDULED, JobState.READY, JobState.RETRYING,
    JobState.LEASED, JobState.COMPLETED, JobState.FAILED, JobState.CANCELED,
)  # fmt: skip
CODES = {state: code for code, state in enumerate(STATES)}

Row = tuple[Any, ...]

_encode = msgpack.Encoder().encode
_decode_envelope = msgpack.Decoder(Envelope).decode
_decode_idempotency = msgpack.Decoder(IdempotencyKey).decode
_decode_errors = msgpack.Decoder(list[AttemptError]).decode
_decode_result = msgpack.Decoder(Result).decode
_decode_progress = msgpack.Decoder(Progress).decode
_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder(dict[str, Any]).decode


def new_row(job: Job, lane: int) -> Row:
    """A fresh job as a row to insert."""
    e = job.envelope
    return (
        job.seq, lane, job.id, CODES[job.state], 9 - e.priority, job.visible_at, job.enqueued_at, job.attempts,
        job.token, job.deadline, job.worker_id, job.claimed_at, job.finished_at, job.expires_at, job.spent,
        job.spent_state, job.reason, job.result_ttl_ms, job.replays, None, None, None,
        _head(e.type, e.codec, e.version, e.priority, e.max_attempts, e.backoff, e.timeout_ms, e.result_ttl_ms)
        if e.headers is None else _encode(msgspec.structs.replace(e, payload=b"", request_id="", idempotency=None)),
        e.request_id, None if e.idempotency is None else _encode(e.idempotency),
    )  # fmt: skip


def changed_row(job: Job) -> Row:
    """A job's changing columns, and last its seq."""
    return (
        CODES[job.state], job.visible_at, job.attempts, job.token, job.deadline, job.worker_id, job.claimed_at,
        job.finished_at, job.expires_at, job.spent, job.spent_state, job.reason, job.result_ttl_ms, job.replays,
        None if job.progress is None else _encode(job.progress),
        _encode(job.errors) if job.errors else None,
        None if job.result is None else _encode(job.result),
        job.seq,
    )  # fmt: skip


def to_job(row: Row, tenant: str, queue: str) -> Job:
    """A row of JOB_COLUMNS, with or without a payload at its end, as a job."""
    (
        seq, _, id_, state, _, visible_at, enqueued_at, attempts, token, deadline, worker_id, claimed_at,
        finished_at, expires_at, spent, spent_state, reason, result_ttl_ms, replays, progress, errors, result,
        head, request_id, idempotency, *payload,
    ) = row  # fmt: skip
    envelope = _read_head(head)
    if payload or idempotency is not None or request_id:
        e = envelope
        envelope = Envelope(
            e.type, payload[0] if payload else b"", e.codec, e.version, e.priority, e.max_attempts, e.backoff,
            e.timeout_ms, e.result_ttl_ms, request_id,
            None if idempotency is None else _decode_idempotency(idempotency), e.headers,
        )  # fmt: skip
    return Job(
        tenant, queue, id_, seq, envelope, STATES[state], visible_at, enqueued_at, attempts, token, deadline,
        worker_id, claimed_at, finished_at, spent, spent_state, reason,
        None if result is None else _decode_result(result), result_ttl_ms, expires_at,
        None if progress is None else _decode_progress(progress),
        [] if errors is None else _decode_errors(errors), replays,
    )  # fmt: skip


def event_row(n: int, event: Event, lane: int) -> Row:
    """An event as a row to insert."""
    return (
        n, event.at, event.kind, lane, event.job_id, event.type, event.attempt, event.token, event.worker_id,
        _encode_json(event.data) if event.data else None,
    )  # fmt: skip


def to_event(row: Row) -> Event:
    """A row of the events queries as an event."""
    n, at, kind, tenant, queue, id_, type_, attempt, token, worker_id, data = row
    return Event(
        cast("EventKind", kind), tenant, queue, id_, type_, at, attempt, token, worker_id,
        {} if data is None else _decode_json(data), str(n),
    )  # fmt: skip


def encode_progress(progress: Progress | None) -> bytes | None:
    """Progress as it is stored."""
    return None if progress is None else _encode(progress)


@lru_cache(maxsize=4096)
def _head(*parts: Any) -> bytes:
    type_, codec, version, priority, max_attempts, backoff, timeout_ms, result_ttl_ms = parts
    return _encode(
        Envelope(type_, b"", codec, version, priority, max_attempts, backoff, timeout_ms, result_ttl_ms)
    )


@lru_cache(maxsize=4096)
def _read_head(head: bytes) -> Envelope:
    return _decode_envelope(head)
