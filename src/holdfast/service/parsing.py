"""Values on their way in: from the wire to what a store takes, by the same rules as a Queue's."""

from __future__ import annotations

import base64
import binascii
import random
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, TypeVar, cast

from msgspec import Raw
from msgspec import json as msgspec_json
from msgspec.structs import replace

from holdfast.core import names
from holdfast.core.errors import InvalidOption, InvalidPayload, PayloadTooLarge, ResultTooLarge
from holdfast.core.flow import VERSION, Plan, Step, check_edges, check_flow_id, in_order
from holdfast.core.job import (
    PAYLOAD_LIMIT,
    RESULT_TTL,
    AttemptError,
    Backoff,
    Envelope,
    Extend,
    Finish,
    JobKey,
    NewJob,
    Progress,
    Report,
    Result,
)
from holdfast.core.lease import check_lease_ms
from holdfast.core.names import FLOWS, check_id, check_reason
from holdfast.core.policy import TypeInfo
from holdfast.core.retry import check_backoff
from holdfast.core.schedule import Target, Timing, target_of
from holdfast.flows.flow import new_flow
from holdfast.ids import new_id
from holdfast.jobs import codec as codecs
from holdfast.jobs.options import EnqueueOptions, check_own_queue, check_type, duration_ms, resolve
from holdfast.protocol import requests
from holdfast.schedules.ticks import timing
from holdfast.service import scan
from holdfast.service.errors import invalid
from holdfast.service.turns import FEW_BYTES, Turns, is_simple
from holdfast.store import WorkerInfo
from holdfast.worker.outcome import MESSAGE_LIMIT, TRACEBACK_LIMIT, clean, clean_end, describe, unstorable

W = TypeVar("W")

PLAIN_TYPE = TypeInfo("")
SMALL_BYTES = 4 * 1024
"""A msgpack value of no more is decoded at once."""


def new_job(
    tenant: str, item: requests.Enqueue, headers: dict[str, str] | None, payload: bytes, policy: TypeInfo = PLAIN_TYPE
) -> NewJob:
    """A job to enqueue, with a payload that was checked; `policy` is what holds where it says nothing.

    Raises InvalidName or InvalidOption.
    """
    options = resolve(_options(item))
    request_id = new_id() if item.request_id is None else check_id(item.request_id, "request id")
    if item.type:
        check_type(item.type)
    envelope = Envelope(
        item.type,
        payload,
        item.codec,
        item.version,
        policy.priority if options.priority is None else options.priority,
        options.max_attempts or policy.max_attempts,
        policy.backoff if item.retry is None else _backoff(item.retry),
        policy.timeout_ms if item.timeout_s is None else duration_ms("timeout_s", item.timeout_s),
        policy.result_ttl_ms if options.result_ttl_ms is None else options.result_ttl_ms,
        request_id,
        options.idempotency,
        headers,
    )
    queue = policy.queue if item.queue is None else item.queue
    key = JobKey(tenant, check_own_queue(queue), options.id or request_id)
    return NewJob(key, envelope, options.delay_ms, options.run_at, options.replace_failed)


async def schedule(tenant: str, item: requests.PutSchedule, turns: Turns) -> tuple[Timing, Target]:
    """When, and what. Raises InvalidName, InvalidOption, InvalidPayload or PayloadTooLarge."""
    when = timing(item.cron, item.every_s, item.timezone)
    said = requests.Enqueue(
        queue=item.queue,
        type=item.type,
        payload=item.payload,
        priority=item.priority,
        max_attempts=item.max_attempts,
        result_ttl_s=item.result_ttl_s,
        timeout_s=item.timeout_s,
        retry=item.retry,
        codec=item.codec,
        version=item.version,
    )
    return when, target_of(new_job(tenant, said, None, await payload_of(item, turns, tenant)))


async def flow(tenant: str, body: requests.NewFlow, headers: dict[str, str] | None, turns: Turns) -> NewJob:
    """A flow to start. Raises InvalidName, InvalidOption, InvalidPayload or PayloadTooLarge."""
    said = {step.name: step for step in body.steps}
    if len(said) < len(body.steps):
        raise InvalidOption("steps", "two have the same name")
    after = {step.name: list(dict.fromkeys(step.after)) for step in body.steps}
    check_edges(sum(map(len, after.values())))
    order = in_order(after)
    places = {name: place for place, name in enumerate(order)}
    steps = [await _step(tenant, said[name], places, headers, turns) for name in order]
    request_id = new_id() if body.request_id is None else check_id(body.request_id, "request id")
    key = JobKey(tenant, FLOWS, new_id() if body.id is None else check_flow_id(body.id))
    ttl_ms = RESULT_TTL if body.result_ttl_s is None else duration_ms("result_ttl_s", body.result_ttl_s)
    return new_flow(key, Plan(VERSION, body.name, tuple(steps)), request_id, ttl_ms, headers)


async def _step(
    tenant: str, step: requests.NewStep, places: dict[str, int], headers: dict[str, str] | None, turns: Turns
) -> Step:
    fields = {name: getattr(step, name) for name in requests.NewStep.__struct_fields__ if name not in ("name", "after")}
    job = new_job(tenant, requests.Enqueue(**fields), headers, await payload_of(step, turns, tenant))
    after = tuple(sorted({places[name] for name in step.after}))
    return Step(step.name, job.key.queue, replace(job.envelope, request_id=""), after, job.delay_ms, job.run_at)


def finish(tenant: str, item: requests.Finish, fence: int, result: Result | AttemptError | None) -> Finish:
    """An acknowledgement, with what became of its result. Raises InvalidName or InvalidOption."""
    outcome, error = item.outcome, None
    if isinstance(result, AttemptError):
        outcome, error, result = "fail", result, None
    elif outcome in ("fail", "retry"):
        said = item.error or requests.JobError(type="Error")
        error = AttemptError(
            clean(said.type, MESSAGE_LIMIT),
            clean(said.message, MESSAGE_LIMIT),
            clean_end(said.traceback, TRACEBACK_LIMIT),
        )
    if item.reason and item.outcome != "release":
        raise InvalidOption("reason", f"goes with the outcome release; {item.outcome} has its `error`")
    reason = check_reason(item.reason) if item.reason else ""
    delay_ms = None if item.delay_s is None else duration_ms("delay_s", item.delay_s)
    chance = random.random()  # noqa: S311 - jitter, no secret
    return Finish(key_of(tenant, item), fence, outcome, result, error, item.timed_out, delay_ms, chance, reason=reason)


def small_result(item: requests.Finish, limit: int) -> Result | AttemptError | None:
    """The result of a job that was completed, or why it cannot be kept; None: it needs turns of its own.

    A result over the limit fails its job, unread: refused, the attempt would be made again, and the handler has had its
    effect. [RESULT-1] Raises UnknownCodec.
    """
    try:
        data = small_value(item.result, item.codec, limit)
    except (PayloadTooLarge, InvalidPayload) as refusal:
        return _unkept(refusal, limit)
    return None if data is None else Result(data, item.codec)


async def large_result(item: requests.Finish, turns: Turns, tenant: str, limit: int) -> Result | AttemptError:
    """The same for one that needs turns."""
    try:
        return Result(await large_value(item.result, item.codec, turns, tenant), item.codec)
    except InvalidPayload as refusal:
        return _unkept(refusal, limit)


def _unkept(refusal: PayloadTooLarge | InvalidPayload, limit: int) -> AttemptError:
    if isinstance(refusal, PayloadTooLarge):
        return describe(ResultTooLarge(refusal.size, limit))
    error = unstorable(refusal).error
    assert error is not None  # noqa: S101 - it says why
    return error


def extend(tenant: str, item: requests.Extend, fence: int) -> Extend:
    """A renewal. Raises InvalidName or InvalidOption."""
    return Extend(key_of(tenant, item), fence, lease_ms(item.lease_s))


def report(tenant: str, item: requests.Report, fence: int) -> Report:
    """Progress. Raises InvalidName or InvalidOption."""
    message = clean(item.progress.message, MESSAGE_LIMIT)
    return Report(key_of(tenant, item), fence, Progress(item.progress.fraction, message))


def worker(tenant: str, item: requests.Beat) -> WorkerInfo:
    """A worker of this tenant. Its name is kept apart from those of others. Raises InvalidName or InvalidOption."""
    name = f"{tenant}/{check_id(item.worker_id, 'worker id')}"
    queues = tuple(dict.fromkeys(map(check_own_queue, item.queues)))
    types = tuple(map(_type, item.types))
    return WorkerInfo(name, tenant, item.host, item.pid, queues, item.concurrency, item.held, types=types)


def _type(item: requests.KnownType) -> TypeInfo:
    return TypeInfo(
        check_type(item.name) if item.name else "",
        check_own_queue(item.queue),
        names.check_max_attempts(item.max_attempts),
        _backoff(item.retry),
        None if item.timeout_s is None else duration_ms("timeout_s", item.timeout_s),
        names.check_priority(item.priority),
        duration_ms("result_ttl_s", item.result_ttl_s),
    )


def chosen(option: str, text: str, known: Iterable[W]) -> list[W]:
    """Words with commas between them, each one that is known. Raises a refusal."""
    words = {str(word): word for word in known}
    said = text.split(",")
    for word in said:
        if word not in words:
            raise invalid(f"{option}: {word[:80]!r} is none of {', '.join(words)}")
    return [words[word] for word in said]


def key_of(tenant: str, item: requests.Lot) -> JobKey:
    """The job of a lease whose proof was verified: its id is one that the store gave. Raises InvalidName.

    The tenant is the caller's, whatever the request says. [TENANT-1]
    """
    return JobKey(tenant, check_own_queue(item.queue), item.id)


def lease_ms(lease_s: float) -> int:
    """A lease in milliseconds. Raises InvalidOption."""
    return check_lease_ms(duration_ms("lease_s", lease_s))


def _options(item: requests.Enqueue) -> EnqueueOptions:
    said: dict[str, Any] = {
        "id": item.id,
        "delay": item.delay_s,
        "run_at": item.run_at,
        "priority": item.priority,
        "max_attempts": item.max_attempts,
        "result_ttl": item.result_ttl_s,
        "idempotency_key": item.idempotency_key,
        "idempotency": item.idempotency,
        "replace_failed": item.replace_failed or None,
    }
    if item.idempotency_ttl_s is not None:
        if item.idempotency is not None:
            raise InvalidOption("idempotency", "give idempotency or idempotency_ttl_s, not both")
        said["idempotency"] = timedelta(seconds=item.idempotency_ttl_s)
    return cast("EnqueueOptions", said)


def _backoff(retry: requests.Retry) -> Backoff:
    base_ms, cap_ms = duration_ms("retry.base_s", retry.base_s), duration_ms("retry.cap_s", retry.cap_s)
    return check_backoff(Backoff(base_ms, float(retry.factor), cap_ms, retry.jitter))


def small_value(raw: Raw, codec: str, limit: int) -> bytes | None:
    """A payload or result as a store keeps it, checked; None: it needs turns of its own, by `large_value`.

    Its size is looked at first. A codec other than JSON must be known here and able to read it. Raises UnknownCodec,
    InvalidPayload or PayloadTooLarge.
    """
    text = bytes(raw)
    if codec == "json":
        codecs.check_size(text, limit)
        return codecs.check_json_text(text) if len(text) <= FEW_BYTES or is_simple(text) else None
    reader = codecs.get(codec)
    data = _unpacked(text, codec)
    codecs.check_size(data, limit)
    if codec == "msgpack" and len(data) > SMALL_BYTES:
        return None
    value = codecs.decode(data, reader.name)
    codecs.check_value(value)
    # Most write what msgspec would write: then no key stands twice.
    return data if codec != "msgpack" or reader.encode(value) == data else None


async def large_value(raw: Raw, codec: str, turns: Turns, tenant: str) -> bytes:
    """The same for one that is never decoded, a slice in a turn. Raises InvalidPayload."""
    text = bytes(raw)
    data = text if codec == "json" else _unpacked(text, codec)
    await turns.run(scan.json_text(text) if codec == "json" else scan.msgpack(data), tenant)
    return data


async def payload_of(
    item: requests.Enqueue | requests.NewStep | requests.PutSchedule, turns: Turns, tenant: str
) -> bytes:
    """The payload, checked. Raises UnknownCodec, InvalidPayload or PayloadTooLarge."""
    data = small_value(item.payload, item.codec, PAYLOAD_LIMIT)
    return await large_value(item.payload, item.codec, turns, tenant) if data is None else data


def _unpacked(text: bytes, codec: str) -> bytes:
    try:
        return base64.b64decode(msgspec_json.decode(text, type=str), validate=True)
    except (ValueError, binascii.Error):
        raise InvalidPayload(f"a value in {codec} is the base64 of its bytes") from None
