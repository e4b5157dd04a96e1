"""Converts requests to the types of a store, by the same rules as `Queue`."""

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
from holdfast.service.turns import MIN_COUNTED_BYTES, CheckTurns, is_simple
from holdfast.store import WorkerInfo
from holdfast.worker.outcome import MESSAGE_LIMIT, TRACEBACK_LIMIT, clean, clean_end, describe, unstorable

W = TypeVar("W")

PLAIN_TYPE = TypeInfo("")
SMALL_BYTES = 4 * 1024
"""A msgpack value up to this size is decoded at once."""


def new_job(
    tenant: str, item: requests.Enqueue, headers: dict[str, str] | None, payload: bytes, policy: TypeInfo = PLAIN_TYPE
) -> NewJob:
    """A job to enqueue, with a checked payload. `policy` has the options that the request leaves out.

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


async def schedule(tenant: str, item: requests.PutSchedule, turns: CheckTurns) -> tuple[Timing, Target]:
    """The timing and the target of a schedule. Raises InvalidName, InvalidOption, InvalidPayload or PayloadTooLarge."""
    when = timing(item.cron, item.every_s, item.timezone)
    return when, target_of(new_job(tenant, _enqueue(item), None, await payload_of(item, turns, tenant)))


async def flow(tenant: str, body: requests.NewFlow, headers: dict[str, str] | None, turns: CheckTurns) -> NewJob:
    """A flow to start. Raises InvalidName, InvalidOption, InvalidPayload or PayloadTooLarge."""
    by_name = {step.name: step for step in body.steps}
    if len(by_name) < len(body.steps):
        raise InvalidOption("steps", "two of them have the same name")
    after = {step.name: list(dict.fromkeys(step.after)) for step in body.steps}
    check_edges(sum(map(len, after.values())))
    order = in_order(after)
    places = {name: place for place, name in enumerate(order)}
    steps = [await _step(tenant, by_name[name], places, headers, turns) for name in order]
    request_id = new_id() if body.request_id is None else check_id(body.request_id, "request id")
    key = JobKey(tenant, FLOWS, new_id() if body.id is None else check_flow_id(body.id))
    ttl_ms = RESULT_TTL if body.result_ttl_s is None else duration_ms("result_ttl_s", body.result_ttl_s)
    return new_flow(key, Plan(VERSION, body.name, tuple(steps)), request_id, ttl_ms, headers)


async def _step(
    tenant: str, step: requests.NewStep, places: dict[str, int], headers: dict[str, str] | None, turns: CheckTurns
) -> Step:
    job = new_job(tenant, _enqueue(step), headers, await payload_of(step, turns, tenant))
    after = tuple(sorted({places[name] for name in step.after}))
    return Step(step.name, job.key.queue, replace(job.envelope, request_id=""), after, job.delay_ms, job.run_at)


def _enqueue(item: requests.NewStep | requests.PutSchedule) -> requests.Enqueue:
    """The enqueue that a step or a schedule describes."""
    known = requests.Enqueue.__struct_fields__
    return requests.Enqueue(**{name: getattr(item, name) for name in item.__struct_fields__ if name in known})


def finish(tenant: str, item: requests.Finish, fence: int, result: Result | AttemptError | None) -> Finish:
    """An acknowledgement with its checked result. Raises InvalidName or InvalidOption."""
    outcome, error = item.outcome, None
    if isinstance(result, AttemptError):
        outcome, error, result = "fail", result, None
    elif outcome in ("fail", "retry"):
        given = item.error or requests.JobError(type="Error")
        error = AttemptError(
            clean(given.type, MESSAGE_LIMIT),
            clean(given.message, MESSAGE_LIMIT),
            clean_end(given.traceback, TRACEBACK_LIMIT),
        )
    if item.reason and item.outcome != "release":
        raise InvalidOption("reason", f"only for the outcome release; {item.outcome} takes an `error`")
    reason = check_reason(item.reason) if item.reason else ""
    delay_ms = None if item.delay_s is None else duration_ms("delay_s", item.delay_s)
    chance = random.random()  # noqa: S311 - jitter, no secret
    return Finish(key_of(tenant, item), fence, outcome, result, error, item.timed_out, delay_ms, chance, reason=reason)


def small_result(item: requests.Finish, limit: int) -> Result | AttemptError | None:
    """The result of a completed job, or the error if it cannot be kept; None: use `large_result`.

    A result over the limit fails its job. If it were refused instead, the attempt would run again, although the handler
    has had its effect. [RESULT-1] Raises UnknownCodec.
    """
    try:
        data = small_value(item.result, item.codec, limit)
    except (PayloadTooLarge, InvalidPayload) as refusal:
        return _unkept(refusal, limit)
    return None if data is None else Result(data, item.codec)


async def large_result(item: requests.Finish, turns: CheckTurns, tenant: str, limit: int) -> Result | AttemptError:
    """The same for a large result, in turns of the event loop."""
    try:
        return Result(await large_value(item.result, item.codec, turns, tenant), item.codec)
    except InvalidPayload as refusal:
        return _unkept(refusal, limit)


def _unkept(refusal: PayloadTooLarge | InvalidPayload, limit: int) -> AttemptError:
    if isinstance(refusal, PayloadTooLarge):
        return describe(ResultTooLarge(refusal.size, limit))
    error = unstorable(refusal).error
    assert error is not None  # noqa: S101 - a result that is refused has one
    return error


def extend(tenant: str, item: requests.Extend, fence: int) -> Extend:
    """A renewal. Raises InvalidName or InvalidOption."""
    return Extend(key_of(tenant, item), fence, lease_ms(item.lease_s))


def report(tenant: str, item: requests.Report, fence: int) -> Report:
    """Progress. Raises InvalidName or InvalidOption."""
    message = clean(item.progress.message, MESSAGE_LIMIT)
    return Report(key_of(tenant, item), fence, Progress(item.progress.fraction, message))


def worker(tenant: str, item: requests.Beat) -> WorkerInfo:
    """A worker of this tenant. Its stored name has the tenant as a prefix. Raises InvalidName or InvalidOption."""
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
    """The values that a text lists, separated by commas. Raises a refusal for an unknown one."""
    values = {str(value): value for value in known}
    chosen = text.split(",")
    for name in chosen:
        if name not in values:
            raise invalid(f"{option}: {name[:80]!r} is none of {', '.join(values)}")
    return [values[name] for name in chosen]


def key_of(tenant: str, item: requests.LeaseItem) -> JobKey:
    """The job of a lease whose proof was verified: its id is one that the store gave. Raises InvalidName.

    The tenant is the caller's, whatever the request says. [TENANT-1]
    """
    return JobKey(tenant, check_own_queue(item.queue), item.id)


def lease_ms(lease_s: float) -> int:
    """A lease in milliseconds. Raises InvalidOption."""
    return check_lease_ms(duration_ms("lease_s", lease_s))


def _options(item: requests.Enqueue) -> EnqueueOptions:
    options: dict[str, Any] = {
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
        options["idempotency"] = timedelta(milliseconds=duration_ms("idempotency_ttl_s", item.idempotency_ttl_s))
    return cast("EnqueueOptions", options)


def _backoff(retry: requests.Retry) -> Backoff:
    base_ms, cap_ms = duration_ms("retry.base_s", retry.base_s), duration_ms("retry.cap_s", retry.cap_s)
    return check_backoff(Backoff(base_ms, float(retry.factor), cap_ms, retry.jitter))


def small_value(raw: Raw, codec: str, limit: int) -> bytes | None:
    """A checked payload or result, as a store keeps it; None: it is large, use `large_value`.

    The size is checked first. Values of other codecs than JSON are decoded. Raises UnknownCodec, InvalidPayload or
    PayloadTooLarge.
    """
    text = bytes(raw)
    if codec == "json":
        codecs.check_size(text, limit)
        return codecs.check_json_text(text) if len(text) <= MIN_COUNTED_BYTES or is_simple(text) else None
    reader = codecs.get(codec)
    data = _unpacked(text, codec)
    codecs.check_size(data, limit)
    if codec == "msgpack" and len(data) > SMALL_BYTES:
        return None
    value = codecs.decode(data, reader.name)
    codecs.check_value(value)
    # Most clients write the bytes that msgspec would write: then no key is duplicate.
    return data if codec != "msgpack" or reader.encode(value) == data else None


async def large_value(raw: Raw, codec: str, turns: CheckTurns, tenant: str) -> bytes:
    """The same for a large value, which is never decoded: one slice in each turn. Raises InvalidPayload."""
    text = bytes(raw)
    data = text if codec == "json" else _unpacked(text, codec)
    await turns.run(scan.json_text(text) if codec == "json" else scan.msgpack(data), tenant)
    return data


async def payload_of(item: requests.JobSpec, turns: CheckTurns, tenant: str) -> bytes:
    """The checked payload. Raises UnknownCodec, InvalidPayload or PayloadTooLarge."""
    data = small_value(item.payload, item.codec, PAYLOAD_LIMIT)
    return await large_value(item.payload, item.codec, turns, tenant) if data is None else data


def _unpacked(text: bytes, codec: str) -> bytes:
    try:
        return base64.b64decode(msgspec_json.decode(text, type=str), validate=True)
    except (ValueError, binascii.Error):
        raise InvalidPayload(f"a {codec} value must be its bytes in base64") from None
