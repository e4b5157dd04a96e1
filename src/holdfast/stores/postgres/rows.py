"""Converts rows of `jobs` and `done` to jobs, and back."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

from msgspec import Struct, field, msgpack
from msgspec.structs import replace

from holdfast.core.codes import STATE_CODES, STATES
from holdfast.core.job import AttemptError, Envelope, IdempotencyKey, Job, JobState, Progress, Result

COLUMNS = (
    "seq", "lane", "id", "state", "rank", "visible_at", "enqueued_at", "request_id", "type", "key", "head", "payload",
    "extra", "attempts", "events", "token", "deadline", "claimed_at", "worker", "result_ttl", "logged", "finished_at",
    "expires_at", "result",
)  # fmt: skip


Row = Mapping[str, Any]
Record = tuple[int, int, int, int, int, int, int, int, int, str, str, str, str, str, str | None, str | None]
"""The record of a finished job that complete_one() in migrations/ sends along."""

_encode = msgpack.Encoder().encode
_decode_envelope = msgpack.Decoder(Envelope).decode
_decode_result = msgpack.Decoder(Result).decode


class _Extra(Struct, array_like=True):
    """Fields that most jobs do not have. Packed as bytes: a text column cannot hold NUL."""

    reason: str = ""
    replays: int = 0
    progress: Progress | None = None
    errors: list[AttemptError] = field(default_factory=list[AttemptError])
    idempotency: IdempotencyKey | None = None
    # The outcome that spent the token. Empty for a completion, which the state shows. [LEASE-1]
    spent_token: int = 0
    spent: str = ""
    spent_state: str = ""
    released_for: str = ""
    first_released_at: int = 0


_decode_extra = msgpack.Decoder(_Extra).decode


def to_job(row: Row, tenant: str, queue: str) -> Job:
    """A row of COLUMNS as a job."""
    x = None if row["extra"] is None else _decode_extra(row["extra"])
    job = Job(
        tenant, queue, row["id"], row["seq"], _envelope(row["head"], row["type"], row["payload"], row["request_id"], x),
        STATES[cast("int", row["state"])], row["visible_at"], row["enqueued_at"], row["attempts"], row["token"],
        row["deadline"], row["worker"], row["claimed_at"], row["finished_at"], result_ttl_ms=row["result_ttl"],
        expires_at=row["expires_at"], events=row["events"],
    )  # fmt: skip
    if row["result"] is not None:
        job.result = to_result(row["result"])
    if x is not None:
        _add_extra(job, x)
        if x.spent_token == job.token:
            job.spent, job.spent_state = x.spent, x.spent_state
    if job.state is JobState.COMPLETED:
        job.spent, job.spent_state = "complete", "completed"
    return job


def to_claimed(row: Row, tenant: str, queue: str, worker_id: str) -> Job:
    """A row that the function claim() returned, as a job."""
    # All columns at once: looking them up by name takes longer than everything else here.
    (
        _, seq, visible_at, enqueued_at, result_ttl, token, deadline, claimed_at, _, attempts, events, _, id_,
        type_, request_id, _, head, payload, extra,
    ) = row.values()  # fmt: skip
    x = None if extra is None else _decode_extra(extra)
    job = Job(
        tenant, queue, id_, seq, _envelope(head, type_, payload, request_id, x), JobState.LEASED, visible_at,
        enqueued_at, attempts, token, deadline, worker_id, claimed_at, result_ttl_ms=result_ttl, events=events,
    )  # fmt: skip
    if x is not None:
        _add_extra(job, x)
    return job


def to_handed_off(  # noqa: PLR0917 - the columns of a row
    tenant: str, queue: str, id_: str, seq: int, token: int, now: int, deadline: int, ttl: int, type_: str,
    request_id: str, head: bytes, payload: bytes, worker_id: str,
) -> Job:  # fmt: skip
    """A job from the message of a direct hand-off."""
    return Job(
        tenant, queue, id_, seq, _envelope(head, type_, payload, request_id, None), JobState.LEASED, now, now, 1, token,
        deadline, worker_id, now, result_ttl_ms=ttl, events=2,
    )  # fmt: skip


def to_ended(record: Record, tenant: str, queue: str, id_: str) -> Job:
    """A completed job from the record in a notification."""
    *numbers, type_, request_id, worker, head, payload, extra, result = record
    seq, visible_at, enqueued_at, ttl, token, claimed_at, finished_at, attempts, events = numbers
    return to_job(
        {
            "id": id_, "seq": seq, "head": bytes.fromhex(head), "type": type_, "payload": b64decode(payload),
            "request_id": request_id, "state": STATE_CODES[JobState.COMPLETED], "visible_at": visible_at,
            "enqueued_at": enqueued_at, "attempts": attempts, "events": events, "token": token, "deadline": 0,
            "worker": worker, "claimed_at": claimed_at, "finished_at": finished_at, "result_ttl": ttl,
            "expires_at": finished_at + ttl,
            "extra": None if extra is None else b64decode(extra),
            "result": None if result is None else b64decode(result),
        },
        tenant,
        queue,
    )  # fmt: skip


def _add_extra(job: Job, x: _Extra) -> None:
    job.reason, job.replays, job.progress, job.errors = x.reason, x.replays, x.progress, x.errors
    job.released_for, job.first_released_at = x.released_for, x.first_released_at


def _envelope(head: bytes, type_: str, payload: bytes, request_id: str, extra: _Extra | None) -> Envelope:
    e = _read_head(head)
    return Envelope(
        type_, payload, e.codec, e.version, e.priority, e.max_attempts, e.backoff, e.timeout_ms, e.result_ttl_ms,
        request_id, extra.idempotency if extra else None, e.headers,
    )  # fmt: skip


def pack_extra(job: Job) -> bytes | None:
    """The rarely used fields of a job, as one column. None: it has none of them."""
    key = job.envelope.idempotency
    spent = job.spent if job.state is not JobState.COMPLETED else ""
    if not (job.reason or job.replays or job.progress or job.errors or key or spent or job.released_for):
        return None
    return _encode(
        _Extra(
            job.reason, job.replays, job.progress, job.errors, key, job.token, spent, job.spent_state,
            job.released_for, job.first_released_at,
        )
    )  # fmt: skip


def pack_result(result: Result | None) -> bytes | None:
    """A result for its column."""
    return None if result is None else _encode(result)


def to_result(data: bytes) -> Result:
    """A result from its column."""
    return _decode_result(data)


def pack_head(e: Envelope) -> bytes:
    """The envelope without the fields that have columns of their own. Many jobs have the same."""
    if e.headers is None:
        return _head(e.codec, e.version, e.priority, e.max_attempts, e.backoff, e.timeout_ms, e.result_ttl_ms)
    return _encode(replace(e, type="", payload=b"", request_id="", idempotency=None))


@lru_cache(maxsize=4096)
def _head(*parts: Any) -> bytes:
    codec, version, priority, max_attempts, backoff, timeout_ms, result_ttl_ms = parts
    return _encode(Envelope("", b"", codec, version, priority, max_attempts, backoff, timeout_ms, result_ttl_ms))


@lru_cache(maxsize=4096)
def _read_head(head: bytes) -> Envelope:
    return _decode_envelope(head)
