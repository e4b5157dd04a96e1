"""Converts between jobs and rows of `jobs`, and between events and chunks of the log."""

from __future__ import annotations

import sqlite3
import zlib
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter
from typing import Any, cast

from msgspec import Struct, field, msgpack
from msgspec.structs import replace

from holdfast.core.codes import STATE_CODES, STATES
from holdfast.core.events import Event, EventColumns, EventKind, Numbered
from holdfast.core.job import AttemptError, Envelope, IdempotencyKey, Job, JobState, Progress, Result

JOB_COLUMNS = (
    "seq, lane, id, state, rank, visible_at, origin, head, payload, extra, "
    "attempts, events, token, deadline, held, finished_at, expires_at, result"
)
COLUMN = {name: n for n, name in enumerate(JOB_COLUMNS.split(", "))}

SMALL = 1024
"""Payloads up to this size are in the row of their job."""
ELSEWHERE = bytes(bytearray(b"(in payloads)"))
"""Placeholder for a payload that was not read with its row; compared by identity."""

Row = tuple[Any, ...]
LoggedEvent = tuple[int, str, int, str, str, int, int, str, int, dict[str, Any]]
_Chunk = tuple[
    int, list[int], list[str], list[int], list[str], list[str], list[int], list[int], list[str], list[int],
    list[dict[str, Any]],
]  # fmt: skip
"""The number of events, and their columns. A column of one value has that value for all events."""

_lane_of = itemgetter(2)
"""The lane of a logged event."""

_encode = msgpack.Encoder().encode
_decode_envelope = msgpack.Decoder(Envelope).decode
_decode_result = msgpack.Decoder(Result).decode
_decode_chunk = msgpack.Decoder(_Chunk).decode


class _Extra(Struct, array_like=True):
    """Fields that most jobs do not use."""

    reason: str = ""
    replays: int = 0
    progress: Progress | None = None
    errors: list[AttemptError] = field(default_factory=list[AttemptError])
    idempotency: IdempotencyKey | None = None
    result_ttl_ms: int | None = None
    # The last spent token and its outcome. Not stored for a completion, which the state shows. [LEASE-1]
    spent_token: int = 0
    spent: str = ""
    spent_state: str = ""
    released_for: str = ""
    first_released_at: int = 0


_decode_extra = msgpack.Decoder(_Extra).decode
_NO_EXTRA = _Extra()


def new_row(job: Job, lane: int) -> Row:
    """A new job as a row to insert."""
    e = job.envelope
    return (
        job.seq, lane, job.id, STATE_CODES[job.state], 9 - e.priority, job.visible_at,
        f"{job.enqueued_at}:{e.request_id}",
        _head(e.type, e.codec, e.version, e.priority, e.max_attempts, e.backoff, e.timeout_ms, e.result_ttl_ms)
        if e.headers is None else _encode(replace(e, payload=b"", request_id="", idempotency=None)),
        e.payload if len(e.payload) <= SMALL else None, None if e.idempotency is None else pack_extra(job),
    )  # fmt: skip


def full_row(job: Job, lane: int) -> Row:
    """All columns of a job, for `to_job`, without a large payload."""
    return (
        *new_row(job, lane)[:-1], pack_extra(job), job.attempts, job.events, job.token, job.deadline,
        pack_held(job), job.finished_at, job.expires_at, None if job.result is None else _encode(job.result),
    )  # fmt: skip


def is_small(job: Job) -> bool:
    """Whether the payload has been read and is in the row."""
    return job.envelope.payload is not ELSEWHERE and len(job.envelope.payload) <= SMALL


def changed_row(job: Job) -> Row:
    """A job's columns that change, then its seq."""
    return (
        STATE_CODES[job.state], job.visible_at, pack_extra(job), job.attempts, job.events, job.token, job.deadline,
        pack_held(job), job.finished_at, job.expires_at, None if job.result is None else _encode(job.result), job.seq,
    )  # fmt: skip


def pack_held(job: Job) -> str | None:
    """The time and the worker of the last lease."""
    return None if job.claimed_at is None else f"{job.claimed_at}:{job.worker_id}"


def pack_extra(job: Job) -> bytes | None:
    """The fields that most jobs do not use, as one column; None if all are unused."""
    key = job.envelope.idempotency
    ttl = None if job.result_ttl_ms == job.envelope.result_ttl_ms else job.result_ttl_ms
    spent = job.spent if job.state is not JobState.COMPLETED else ""
    if not (
        job.reason or job.replays or job.progress or job.errors or key or spent or job.released_for or ttl is not None
    ):
        return None
    return _encode(
        _Extra(
            job.reason, job.replays, job.progress, job.errors, key, ttl, job.token, spent, job.spent_state,
            job.released_for, job.first_released_at,
        )
    )  # fmt: skip


def to_job(row: Row, tenant: str, queue: str) -> Job:
    """A row of JOB_COLUMNS as a job, without a large payload (see `fill_payload`)."""
    seq, _, id_, code, _, visible_at, origin, head, payload, more, attempts, events, token, deadline, held, *ends = row
    e = _read_head(head)
    x = _NO_EXTRA if more is None else _decode_extra(more)
    enqueued_at, _, request_id = cast("str", origin).partition(":")
    envelope = Envelope(
        e.type, ELSEWHERE if payload is None else payload, e.codec, e.version, e.priority, e.max_attempts, e.backoff,
        e.timeout_ms, e.result_ttl_ms, request_id, x.idempotency, e.headers,
    )  # fmt: skip
    job = Job(
        tenant, queue, id_, seq, envelope, STATES[cast("int", code)], visible_at, int(enqueued_at), attempts, token
    )
    job.events = events
    job.result_ttl_ms = e.result_ttl_ms if x.result_ttl_ms is None else x.result_ttl_ms
    if held is not None:
        claimed_at, _, job.worker_id = cast("str", held).partition(":")
        job.claimed_at = int(claimed_at)
        job.deadline = deadline
        job.finished_at, job.expires_at, result = ends
        job.result = None if result is None else _decode_result(result)
    else:
        job.finished_at, job.expires_at, _ = ends
    if more is not None:
        _add_extra(job, x)
        if x.spent_token == token:
            job.spent, job.spent_state = x.spent, x.spent_state
    if job.state is JobState.COMPLETED:
        job.spent, job.spent_state = "complete", "completed"
    return job


def _add_extra(job: Job, x: _Extra) -> None:
    job.reason, job.replays, job.progress, job.errors = x.reason, x.replays, x.progress, x.errors
    job.released_for, job.first_released_at = x.released_for, x.first_released_at


def fill_payload(db: sqlite3.Connection, job: Job) -> Job:
    """Read the payload if it is not in the job's row."""
    if job.envelope.payload is ELSEWHERE:
        payload = db.execute("SELECT payload FROM payloads WHERE seq = ?", (job.seq,)).fetchone()[0]
        job.envelope = replace(job.envelope, payload=payload)
    return job


def pack_result(result: Result) -> bytes:
    """A result as its column stores it."""
    return _encode(result)


def logged(event: Event, lane: int) -> LoggedEvent:
    """An event as a chunk stores it."""
    return (
        event.at, event.kind, lane, event.job_id, event.type, event.attempt, event.token, event.worker_id,
        event.number, event.data,
    )  # fmt: skip


def pack_events(chunk: list[LoggedEvent]) -> bytes:
    """Events as one value, by columns: a value that all events share is stored once."""
    columns = (column[:1] if column.count(column[0]) == len(chunk) else column for column in zip(*chunk, strict=True))
    return _encode((len(chunk), *columns))


def chunk_row(first: int, events: list[LoggedEvent], mark: int | None = None) -> Row:
    """A row of the log. `mark` is the check value of the larger chunk that the events were first written in, if any."""
    lanes = set(map(_lane_of, events))
    packed = pack_events(events)
    return (
        first + len(events) - 1, first, events[-1][0], lanes.pop() if len(lanes) == 1 else None,
        check_of(packed) if mark is None else mark, packed,
    )  # fmt: skip


def unpack_events(chunk: bytes) -> list[LoggedEvent]:
    """The events of a chunk."""
    count, *columns, data = _decode_chunk(chunk)
    whole = (column if len(column) == count else column * count for column in columns)
    # A copy for each event: a change to one must not change the others.
    all_data = data if len(data) == count else [dict(data[0]) for _ in range(count)]
    return list(zip(*whole, all_data, strict=True))


def count_lanes(events: list[LoggedEvent]) -> Counter[int]:
    """The number of events of each lane."""
    return Counter(map(_lane_of, events))


def lanes_of(chunk: bytes) -> list[int]:
    """The lane of each event of a chunk."""
    count, _, _, lanes, *_ = _decode_chunk(chunk)
    return lanes if len(lanes) == count else lanes * count


def check_of(chunk: bytes) -> int:
    """A check value that tells a chunk from another one with the same numbers."""
    return zlib.crc32(chunk)


def to_event(offset: str, logged: LoggedEvent, tenant: str, queue: str) -> Event:
    """The event at an offset."""
    at, kind, _, id_, type_, attempt, token, worker_id, number, data = logged
    return Event(
        cast("EventKind", kind), tenant, queue, id_, type_, at, attempt, token, worker_id, data, offset, number
    )


def to_columns(first: int, mark: int, chunk: bytes, names: Callable[[int], tuple[str, str]]) -> EventColumns:
    """The events of a chunk as columns; `first` is the number of its first event."""
    count, at, kind, lanes, id_, type_, attempt, token, worker_id, number, data = _decode_chunk(chunk)
    known = {lane: names(lane) for lane in set(lanes)}
    tenant, queue = [known[lane][0] for lane in lanes], [known[lane][1] for lane in lanes]
    kinds, offset = cast("list[EventKind]", kind), Numbered("", first, f".{mark}")
    return EventColumns(count, offset, kinds, tenant, queue, id_, type_, at, attempt, token, worker_id, data, number)


@lru_cache(maxsize=4096)
def _head(*parts: Any) -> bytes:
    type_, codec, version, priority, max_attempts, backoff, timeout_ms, result_ttl_ms = parts
    return _encode(Envelope(type_, b"", codec, version, priority, max_attempts, backoff, timeout_ms, result_ttl_ms))


@lru_cache(maxsize=4096)
def _read_head(head: bytes) -> Envelope:
    return _decode_envelope(head)
