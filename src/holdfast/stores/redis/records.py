"""Jobs as records, and the requests that make and finish jobs. `layout.py` has the layout of a record."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal, TypeVar, cast

from msgspec import msgpack
from msgspec.structs import replace

from holdfast.core.codes import KEY_POLICIES, KEY_POLICY_CODES, OUTCOME_CODES, OUTCOMES, REASONS, STATES
from holdfast.core.events import ERROR_TEXT_LIMIT, fingerprint
from holdfast.core.job import (
    FLOW_HEADER,
    AttemptError,
    Backoff,
    Envelope,
    Finish,
    IdempotencyKey,
    Job,
    Lease,
    NewJob,
    Progress,
    Result,
)
from holdfast.stores.redis.keys import lane_of
from holdfast.stores.redis.layout import (
    FLAG_REQUEST_IS_ID,
    FLAG_SEPARATE_PAYLOAD,
    HEAD,
    KEY,
    NONE,
    ErrorArgument,
    RecordExtra,
    Static,
)

T = TypeVar("T")

MAX_INLINE_PAYLOAD = 2048
"""Larger payloads are kept apart from the record, which is rewritten at every transition."""
SEPARATE = bytes(bytearray(b"(separate)"))
"""Stands for a payload that is kept apart from its record. Compared by identity."""

encode = msgpack.Encoder().encode
_decode_result = msgpack.Decoder(Result).decode
_decode_extra = msgpack.Decoder(RecordExtra).decode
_NO_ERROR = AttemptError("Error", "")
_OUTCOMES = ("", *OUTCOMES)
_REASONS = ("", *REASONS)

# Requests -------------------------------------------------------------------------------------------------------


def parent_lease(under: Lease | None) -> tuple[str, str, int] | Literal[False]:
    """The lease that a call is made under, as scripts get it."""
    return False if under is None else (lane_of(under.key.tenant, under.key.queue), under.key.id, under.token)


def enqueue_request(items: Iterable[NewJob], under: Lease | None = None) -> tuple[bytes, bytes, bytes]:
    """The arguments of `enqueue.lua`: the items, the constant parts of their records, and their large payloads."""
    lanes: list[str] = []
    rows: list[tuple[Any, ...]] = []
    any_key = False
    steps: dict[int, int] = {}
    bodies: list[bytes] = []
    large: list[bytes] = []
    for new in items:
        e = new.envelope
        tenant, queue, id_ = new.key
        type_ = e.type.encode()
        if e.headers is None:
            static = _static(e.codec, e.version, e.backoff, e.timeout_ms, e.result_ttl_ms)
        else:
            static = encode(Static(e.codec, e.version, e.backoff, e.timeout_ms, e.result_ttl_ms, e.headers))
            if FLOW_HEADER in e.headers:
                steps[len(rows) + 1] = 1
        request_is_id = e.request_id == id_
        request_id = b"" if request_is_id else e.request_id.encode()
        key = b"" if e.idempotency is None else _pack_key(e.idempotency)
        payload, large_size = e.payload, 0
        if len(payload) > MAX_INLINE_PAYLOAD:
            large.append(payload)
            payload, large_size = b"", len(payload)
        rows.append((
            id_, len(type_), len(static), len(request_id), len(key), len(payload), large_size,
            e.priority, e.max_attempts, new.delay_ms, NONE if new.run_at is None else new.run_at, e.result_ttl_ms,
            new.replace_failed, request_is_id,
        ))  # fmt: skip
        lanes.append(lane_of(tenant, queue))
        any_key = any_key or bool(key)
        bodies += (type_, static, request_id, key, payload)
    plain = not any_key and _all_different(lanes, rows)
    request = (shared(lanes), *zip(*rows, strict=True), plain, parent_lease(under), steps or False)
    return encode(request), b"".join(bodies), b"".join(large)


def finish_request(items: Iterable[Finish]) -> tuple[bytes, bytes]:
    """The arguments of `finish.lua`: the items, and their results."""
    lanes: list[str] = []
    rows: list[tuple[Any, ...]] = []
    results: list[bytes] = []
    in_blob: dict[int, int] = {}
    details: dict[int, Any] = {}
    for n, item in enumerate(items, 1):
        tenant, queue, id_ = item.key
        lanes.append(lane_of(tenant, queue))
        result = b""
        if item.outcome == "complete":
            if item.result is not None:
                result = encode(item.result)
                if item.result.blob:
                    in_blob[n] = 1
            results.append(result)
        else:
            error = False if item.outcome == "release" else _error_argument(item.error or _NO_ERROR)
            delay_ms = NONE if item.delay_ms is None else item.delay_ms
            details[n] = (error, item.timed_out, delay_ms, item.random, item.forgive, item.reason)
        rows.append((id_, item.token, OUTCOME_CODES[item.outcome], len(result)))
    plain = _all_different(lanes, rows)
    return encode((shared(lanes), *zip(*rows, strict=True), in_blob, details, plain)), b"".join(results)


def shared(values: list[T]) -> list[T]:
    """A column of a batch: one value if all are equal."""
    return values[:1] if values.count(values[0]) == len(values) else values


def key_field(envelope: Envelope) -> str:
    """The field of an idempotency key in its lane's hash of keys."""
    key = envelope.idempotency.key if envelope.idempotency else ""
    return f"{len(envelope.type.encode())}:{envelope.type}{key}"


def _all_different(lanes: list[str], rows: list[tuple[Any, ...]]) -> bool:
    return len({(lane, row[0]) for lane, row in zip(lanes, rows, strict=True)}) == len(rows)


def _error_argument(error: AttemptError) -> ErrorArgument:
    return ErrorArgument(
        error.type, error.message, error.traceback, error.message[:ERROR_TEXT_LIMIT], fingerprint(error)
    )


def _pack_key(key: IdempotencyKey) -> bytes:
    return KEY.pack(KEY_POLICY_CODES[key.policy], key.ttl_ms) + key.key.encode()


@lru_cache(maxsize=4096)
def _static(codec: str, version: int, backoff: Backoff, timeout_ms: int | None, result_ttl_ms: int) -> bytes:
    return encode(Static(codec, version, backoff, timeout_ms, result_ttl_ms, None))


# Records --------------------------------------------------------------------------------------------------------


def to_job(tenant: str, queue: str, id_: str, raw: bytes) -> Job:
    """The job of a record. A payload that is kept apart is `SEPARATE`."""
    head: tuple[int, ...] = HEAD.unpack_from(raw)
    (
        state, attempts, spent, spent_state, events, reason, flags, worker_size, priority, extra_size,
        visible_at, token, deadline, claimed_at, finished_at, expires_at, ttl,
        max_attempts, type_size, key_size, static_size, request_size, payload_size, seq, enqueued_at,
    ) = head  # fmt: skip
    at = HEAD.size + type_size
    static = _read_static(raw[at : at + static_size])
    at += static_size
    request_id = id_ if flags & FLAG_REQUEST_IS_ID else raw[at : at + request_size].decode()
    at += request_size
    key = _unpack_key(raw[at : at + key_size]) if key_size else None
    at += key_size
    payload = SEPARATE if flags & FLAG_SEPARATE_PAYLOAD else raw[at : at + payload_size]
    at += payload_size
    envelope = Envelope(
        raw[HEAD.size : HEAD.size + type_size].decode(), payload, static.codec, static.version, priority, max_attempts,
        static.backoff, static.timeout_ms, static.result_ttl_ms, request_id, key, static.headers,
    )  # fmt: skip
    job = Job(tenant, queue, id_, seq, envelope, STATES[state], visible_at, enqueued_at, attempts, token, deadline)
    job.result_ttl_ms, job.events = ttl, events
    if token:
        job.worker_id = raw[at : at + worker_size].decode()
        job.claimed_at = claimed_at
        job.spent = _OUTCOMES[spent]
        job.spent_state = STATES[spent_state] if spent else ""
        if extra_size:
            _add_extra(job, raw[at + worker_size : at + worker_size + extra_size])
        at += worker_size + extra_size
        if len(raw) > at:
            job.result = _decode_result(raw[at:])
    if finished_at:
        job.finished_at, job.expires_at, job.reason = finished_at, expires_at, _REASONS[reason]
    return job


def with_payload(job: Job, payload: bytes) -> Job:
    """The job with its payload that was kept apart."""
    job.envelope = replace(job.envelope, payload=payload)
    return job


def to_result(raw: bytes) -> Result:
    """The result of a completed job's record; null if there is none."""
    return _decode_result(raw) if raw else Result(b"null")


def _unpack_key(raw: bytes) -> IdempotencyKey:
    numbers: tuple[int, int] = KEY.unpack_from(raw)
    policy, ttl_ms = numbers
    return IdempotencyKey(raw[KEY.size :].decode(), KEY_POLICIES[policy - 1], ttl_ms)


def _add_extra(job: Job, raw: bytes) -> None:
    extra = _decode_extra(raw)
    job.replays, job.errors = extra.replays, extra.errors
    job.released_for, job.first_released_at = extra.released_for, extra.first_released_at
    if extra.fraction is not False:
        job.progress = Progress(cast("float", extra.fraction), extra.message)


@lru_cache(maxsize=4096)
def _read_static(raw: bytes) -> Static:
    return msgpack.decode(raw, type=Static)
