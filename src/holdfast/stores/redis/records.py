"""Records of jobs and chunks of the log as the server keeps them, and the structs that they stand for.

`lua/jobs.lua` reads and writes the same bytes: a head of fixed size, then type, settings, request id, idempotency key
and payload, which never change, then worker, extra and result.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Literal, TypeVar, cast

from msgspec import Struct, msgpack
from msgspec.structs import replace

from holdfast.core.events import ERROR_TEXT_LIMIT, Event, EventColumns, EventKind, Numbered, fingerprint
from holdfast.core.job import (
    FLOW_HEADER,
    AttemptError,
    Backoff,
    Envelope,
    Finish,
    IdempotencyKey,
    Job,
    JobState,
    KeyPolicy,
    Lease,
    NewJob,
    Progress,
    Result,
)
from holdfast.stores.redis.keys import lane_of, names_of

T = TypeVar("T")

HEAD = struct.Struct("<4BI4BI7QBBHIHI2Q")
KEY = struct.Struct("<BQ")

STATES = (
    JobState.BLOCKED, JobState.SCHEDULED, JobState.READY, JobState.RETRYING,
    JobState.LEASED, JobState.COMPLETED, JobState.FAILED, JobState.CANCELED,
)  # fmt: skip
OUTCOMES = {"complete": 1, "fail": 2, "retry": 3, "release": 4}
_SPENT = ("", *OUTCOMES)
_REASONS = ("", "permanent", "max_attempts", "lease_expired", "timeout")
_POLICIES: tuple[KeyPolicy, ...] = ("until_terminal", "until_started", "ttl", "forever")
_KINDS: tuple[EventKind, ...] = (
    "enqueued", "claimed", "extended", "progressed", "retried", "released", "expired",
    "completed", "failed", "canceled", "replayed", "purged", "released",
)  # fmt: skip
_SIZES = (3, 2, 1, 2, 4, 1, 4, 0, 4, 0, 2, 2, 2)
"""How many values belong to an event of each kind alone."""
_PAYLOAD_ELSEWHERE = 1
_REQUEST_IS_ID = 4

SMALL = 2048
"""Payloads up to this size stand in the record, which is written anew at every move."""
ELSEWHERE = bytes(bytearray(b"(elsewhere)"))
"""Stands for a payload that did not come with its record; compared by identity."""

encode = msgpack.Encoder().encode
_decode_result = msgpack.Decoder(Result).decode
_decode_chunk = msgpack.Decoder(tuple[list[str], list[Any]]).decode
_NO_ERROR = AttemptError("Error", "")


Chunk = tuple[int, int, int, bytes]
"""Of the log: the number of its last event, how many there are, when, and the events."""
_Row = tuple[int, int, str, int, int, int, int, int]
_COMMON = 8
"""Kind, lane, id, type, attempt, token, worker and number of an event; lane, type and worker as numbers of words."""


class _Static(Struct, array_like=True, frozen=True):
    """What many jobs have in common. Lua reads the backoff, in the third place."""

    codec: str
    version: int
    backoff: Backoff
    timeout_ms: int | None
    result_ttl_ms: int
    headers: dict[str, str] | None


class _Extra(Struct, array_like=True):
    """What most jobs do not have. Lua writes it too, and writes 1.0 as 1."""

    replays: int
    fraction: float | bool
    message: str
    errors: list[AttemptError]
    released_for: str = ""
    first_released_at: int = 0


_decode_extra = msgpack.Decoder(_Extra).decode


def under_request(under: Lease | None) -> tuple[str, str, int] | Literal[False]:
    """The lease that a call is made under, for `refused_under` in `jobs.lua`."""
    return False if under is None else (lane_of(under.key.tenant, under.key.queue), under.key.id, under.token)


def enqueue_request(items: Iterable[NewJob], under: Lease | None = None) -> tuple[bytes, bytes, bytes]:
    """The arguments of `enqueue.lua`: the items, what never changes of them, and their large payloads."""
    lanes: list[str] = []
    metas: list[tuple[Any, ...]] = []
    keyed = False
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
            static = encode(_Static(e.codec, e.version, e.backoff, e.timeout_ms, e.result_ttl_ms, e.headers))
            if FLOW_HEADER in e.headers:
                steps[len(metas) + 1] = 1
        same = e.request_id == id_
        request = b"" if same else e.request_id.encode()
        key = b"" if e.idempotency is None else _pack_key(e.idempotency)
        payload, elsewhere = e.payload, 0
        if len(payload) > SMALL:
            large.append(payload)
            payload, elsewhere = b"", len(payload)
        metas.append((
            id_, len(type_), len(static), len(request), len(key), len(payload), elsewhere,
            e.priority, e.max_attempts, new.delay_ms, -1 if new.run_at is None else new.run_at, e.result_ttl_ms,
            new.replace_failed, same,
        ))  # fmt: skip
        lanes.append(lane_of(tenant, queue))
        keyed = keyed or bool(key)
        bodies += (type_, static, request, key, payload)
    plain = not keyed and _all_different(lanes, metas)
    request = (_column(lanes), *zip(*metas, strict=True), plain, under_request(under), steps or False)
    return encode(request), b"".join(bodies), b"".join(large)


def finish_request(items: Iterable[Finish]) -> tuple[bytes, bytes]:
    """The arguments of `finish.lua`: the items, and their results."""
    lanes: list[str] = []
    metas: list[tuple[Any, ...]] = []
    results: list[bytes] = []
    in_blob: dict[int, int] = {}
    details: dict[int, Any] = {}
    for n, item in enumerate(items, 1):
        tenant, queue, id_ = item.key
        lanes.append(lane_of(tenant, queue))
        if item.outcome == "complete":
            result = b""
            if item.result is not None:
                result = encode(item.result)
                if item.result.blob:
                    in_blob[n] = 1
            metas.append((id_, item.token, 1, len(result)))
            results.append(result)
        else:
            error = False if item.outcome == "release" else _pack_error(item.error or _NO_ERROR)
            delay_ms = -1 if item.delay_ms is None else item.delay_ms
            details[n] = (error, item.timed_out, delay_ms, item.random, item.forgive, item.reason)
            metas.append((id_, item.token, OUTCOMES[item.outcome], 0))
    plain = _all_different(lanes, metas)
    return encode((_column(lanes), *zip(*metas, strict=True), in_blob, details, plain)), b"".join(results)


def _column(values: list[T]) -> list[T]:
    """What stands in a column of a batch: one value for all if there is but one."""
    return values[:1] if values.count(values[0]) == len(values) else values


def _all_different(lanes: list[str], metas: list[tuple[Any, ...]]) -> bool:
    return len({(lane, meta[0]) for lane, meta in zip(lanes, metas, strict=True)}) == len(metas)


def to_job(tenant: str, queue: str, id_: str, raw: bytes) -> Job:
    """A record as a job; a payload that stands elsewhere is left there (see `ELSEWHERE`)."""
    head: tuple[int, ...] = HEAD.unpack_from(raw)
    (
        state, attempts, spent, spent_state, events, reason, flags, worker_size, priority, extra_size,
        visible_at, token, deadline, claimed_at, finished_at, expires_at, ttl,
        max_attempts, type_size, key_size, static_size, request_size, payload_size, seq, enqueued_at,
    ) = head  # fmt: skip
    at = HEAD.size + type_size
    static = _read_static(raw[at : at + static_size])
    at += static_size
    request_id = id_ if flags & _REQUEST_IS_ID else raw[at : at + request_size].decode()
    at += request_size
    key = _unpack_key(raw[at : at + key_size]) if key_size else None
    at += key_size
    payload = ELSEWHERE if flags & _PAYLOAD_ELSEWHERE else raw[at : at + payload_size]
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
        job.spent = _SPENT[spent]
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
    """The job with the payload that did not come with its record."""
    job.envelope = replace(job.envelope, payload=payload)
    return job


def to_result(raw: bytes) -> Result:
    """A result as it stands in a record; a completed job without one has null."""
    return _decode_result(raw) if raw else Result(b"null")


def to_events(number: int, count: int, at: int, raw: bytes) -> Iterator[tuple[int, Event]]:
    """The events of a chunk whose last has this number, each with its own."""
    words, flat = _decode_chunk(raw)
    place = 0
    for n in range(number - count + 1, number + 1):
        kind, lane, id_, type_, attempt, token, worker, nth = cast("_Row", tuple(flat[place : place + _COMMON]))
        size = _SIZES[kind]
        data = flat[place + _COMMON : place + _COMMON + size]
        place += _COMMON + size
        tenant, queue = names_of(words[lane - 1])
        name = _KINDS[kind]
        event_data = _event_data(name, data)
        yield (
            n,
            Event(
                name,
                tenant,
                queue,
                id_,
                words[type_ - 1],
                at,
                attempt,
                token,
                words[worker - 1],
                event_data,
                number=nth,
            ),
        )


def to_columns(offset: Numbered, count: int, at: int, raw: bytes) -> Iterator[EventColumns]:
    """The events of a chunk, in parts that are each of one kind."""
    words, flat = _decode_chunk(raw)
    for number, columns in _uniform(flat, count) or _mixed(flat, count):
        lanes, ids, types, attempts, tokens, workers, numbers, *more = columns
        size = len(ids)
        kind = _KINDS[number]
        lanes, types, workers, attempts, numbers = map(_column, (lanes, types, workers, attempts, numbers))
        names = {lane: names_of(words[lane - 1]) for lane in set(cast("list[int]", lanes))}
        yield EventColumns(
            size, offset, [kind], [names[lane][0] for lane in lanes], [names[lane][1] for lane in lanes], ids,
            [words[type_ - 1] for type_ in types], [at], attempts, tokens, [words[worker - 1] for worker in workers],
            _columns_data(kind, more), numbers,
        )  # fmt: skip
        offset = replace(offset, first=offset.first + size)


_Part = tuple[int, list[list[Any]]]
"""A kind, and the columns behind it of events that follow on each other and are all of this kind."""


def _uniform(flat: list[Any], count: int) -> list[_Part] | None:
    """A chunk whose events are all of one kind, as those of most calls are; None: they are not."""
    kind: int = flat[0]
    step = _COMMON + _SIZES[kind]
    if len(flat) != count * step or flat[::step].count(kind) != count:
        return None
    return [(kind, [flat[n::step] for n in range(1, step)])]


def _mixed(flat: list[Any], count: int) -> list[_Part]:
    parts: list[_Part] = []
    place = 0
    for _ in range(count):
        kind: int = flat[place]
        step = _COMMON + _SIZES[kind]
        values = flat[place + 1 : place + step]
        if parts and parts[-1][0] == kind:
            for column, value in zip(parts[-1][1], values, strict=True):
                column.append(value)
        else:
            parts.append((kind, [[value] for value in values]))
        place += step
    return parts


def _columns_data(kind: EventKind, more: list[list[Any]]) -> list[dict[str, Any]]:
    """What they say: once if they all say the same."""
    more = [_column(values) for values in more]
    if all(len(values) == 1 for values in more):
        return [_event_data(kind, [values[0] for values in more])]
    size = max(map(len, more))
    rows = zip(*(values if len(values) == size else values * size for values in more), strict=True)
    if kind == "enqueued":
        return [{"priority": priority, "max_attempts": most, "visible_at": at} for priority, most, at in rows]
    if kind == "claimed":
        return [{"visible_at": at, "deadline": deadline} for at, deadline in rows]
    return [_event_data(kind, list(values)) for values in rows]


def _event_data(kind: EventKind, data: list[Any]) -> dict[str, Any]:
    match kind:
        case "enqueued":
            return {"priority": data[0], "max_attempts": data[1], "visible_at": data[2]}
        case "claimed":
            return {"visible_at": data[0], "deadline": data[1]}
        case "extended":
            return {"deadline": data[0]}
        case "progressed":
            return {"fraction": float(data[0]), "message": data[1]}
        case "retried" | "expired":
            return {"visible_at": data[0], "error": _error_data(data)}
        case "released":
            return {"visible_at": data[0]} if len(data) == 1 else {"visible_at": data[0], "reason": data[1]}
        case "failed":
            return {"reason": _REASONS[data[0]], "error": _error_data(data)}
        case "replayed":
            return {"visible_at": data[0], "replays": data[1]}
        case "purged":
            return {"purge": data[0], "series": data[1]}
        case _:
            return {}


def _error_data(data: list[Any]) -> dict[str, str]:
    return {"type": data[1], "message": data[2], "fingerprint": data[3]}


def _pack_error(error: AttemptError) -> tuple[str, str, str, str, str]:
    return (error.type, error.message, error.traceback, error.message[:ERROR_TEXT_LIMIT], fingerprint(error))


def key_field(envelope: Envelope) -> str:
    """The field of an idempotency key in its lane's hash of keys."""
    key = envelope.idempotency.key if envelope.idempotency else ""
    return f"{len(envelope.type.encode())}:{envelope.type}{key}"


def _pack_key(key: IdempotencyKey) -> bytes:
    return KEY.pack(_POLICIES.index(key.policy) + 1, key.ttl_ms) + key.key.encode()


def _unpack_key(raw: bytes) -> IdempotencyKey:
    numbers: tuple[int, int] = KEY.unpack_from(raw)
    policy, ttl_ms = numbers
    return IdempotencyKey(raw[KEY.size :].decode(), _POLICIES[policy - 1], ttl_ms)


def _add_extra(job: Job, raw: bytes) -> None:
    extra = _decode_extra(raw)
    job.replays, job.errors = extra.replays, extra.errors
    job.released_for, job.first_released_at = extra.released_for, extra.first_released_at
    if extra.fraction is not False:
        job.progress = Progress(cast("float", extra.fraction), extra.message)


@lru_cache(maxsize=4096)
def _static(codec: str, version: int, backoff: Backoff, timeout_ms: int | None, result_ttl_ms: int) -> bytes:
    return encode(_Static(codec, version, backoff, timeout_ms, result_ttl_ms, None))


@lru_cache(maxsize=4096)
def _read_static(raw: bytes) -> _Static:
    return msgpack.decode(raw, type=_Static)
