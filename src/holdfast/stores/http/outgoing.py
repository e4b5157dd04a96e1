"""Converts the arguments of a store's calls to requests."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import msgspec
from msgspec import Raw

from holdfast.core.job import Backoff, ClaimRequest, Extend, Finish, JobKey, NewJob, Report
from holdfast.core.schedule import Target, Timing
from holdfast.protocol import requests
from holdfast.store import WorkerInfo

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
_PLAIN = Backoff()
_NO_BLOBS = "a worker's own blob store is not used over HTTP; the service has one: `holdfast serve --blobs`"
_TRACE = ("traceparent", "tracestate")


def instant(ms: int) -> datetime:
    """An instant. One beyond the year 9999 becomes the last millisecond of that year."""
    try:
        return EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return _LAST


def value(data: bytes, codec: str) -> Raw:
    """A payload or result: JSON as it is, the bytes of other codecs in base64."""
    return Raw(data) if codec == "json" else Raw(msgspec.json.encode(base64.b64encode(data).decode()))


def enqueue(item: NewJob) -> requests.Enqueue:
    """One job."""
    envelope, idempotency = item.envelope, item.envelope.idempotency
    by_ttl = idempotency is not None and idempotency.policy == "ttl"
    # In the order of the fields: msgspec searches for each keyword that is out of order.
    return requests.Enqueue(
        type=envelope.type,
        payload=value(envelope.payload, envelope.codec),
        priority=envelope.priority,
        max_attempts=envelope.max_attempts,
        result_ttl_s=envelope.result_ttl_ms / 1000,
        timeout_s=None if envelope.timeout_ms is None else envelope.timeout_ms / 1000,
        retry=None if envelope.backoff == _PLAIN else _retry(envelope.backoff),
        codec=envelope.codec,
        version=envelope.version,
        queue=item.key.queue,
        id=item.key.id,
        request_id=envelope.request_id or None,
        idempotency_key=None if idempotency is None else idempotency.key,
        idempotency=None if idempotency is None or idempotency.policy == "ttl" else idempotency.policy,
        idempotency_ttl_s=idempotency.ttl_ms / 1000 if idempotency is not None and by_ttl else None,
        delay_s=item.delay_ms / 1000 if item.delay_ms else None,
        run_at=None if item.run_at is None else instant(item.run_at),
        replace_failed=item.replace_failed,
    )


def schedule(timing: Timing, target: Target) -> requests.PutSchedule:
    """A schedule."""
    every_s = None if timing.every_ms is None else timing.every_ms / 1000
    fields = fields_of(NewJob(JobKey("", target.queue, ""), target.envelope), requests.PutSchedule)
    return requests.PutSchedule(cron=timing.cron, every_s=every_s, timezone=timing.timezone, **fields)


def fields_of(item: NewJob, type: type[requests.JobSpec]) -> dict[str, Any]:
    """The fields of a request of this type that describe a job as an enqueue does."""
    sent = enqueue(item)
    return {name: getattr(sent, name) for name in type.__struct_fields__ if name in sent.__struct_fields__}


def _retry(backoff: Backoff) -> requests.Retry:
    return requests.Retry(
        base_s=backoff.base_ms / 1000, factor=backoff.factor, cap_s=backoff.cap_ms / 1000, jitter=backoff.jitter
    )


def beat(worker: WorkerInfo, ttl_ms: int) -> requests.Beat:
    """The heartbeat of a worker."""
    types = [
        requests.KnownType(
            name=one.name, queue=one.queue, max_attempts=one.max_attempts, retry=_retry(one.backoff),
            timeout_s=None if one.timeout_ms is None else one.timeout_ms / 1000, priority=one.priority,
            result_ttl_s=one.result_ttl_ms / 1000,
        )
        for one in worker.types[: requests.BATCH_LIMIT]
    ]  # fmt: skip
    return requests.Beat(
        worker_id=worker.worker_id, queues=list(worker.queues), types=types, host=worker.host, pid=worker.pid,
        concurrency=worker.concurrency, held=worker.held, ttl_s=ttl_ms / 1000,
    )  # fmt: skip


def claim(request: ClaimRequest, wait_s: float) -> requests.Claim:
    """A claim."""
    return requests.Claim(
        queues=list(request.queues),
        limit=min(request.limit, requests.BATCH_LIMIT),
        lease_s=request.lease_ms / 1000,
        wait_s=wait_s,
        worker_id=request.worker_id or None,
    )


def finish(item: Finish) -> requests.Finish:
    """One acknowledgement. A result in the worker's own blob store fails the job: the service cannot read it."""
    result, error = item.result, item.error
    lost = result is not None and bool(result.blob)
    sent = requests.Finish(
        queue=item.key.queue,
        id=item.key.id,
        token=_token(item.token),
        outcome="fail" if lost else item.outcome,
        timed_out=item.timed_out,
        delay_s=None if item.delay_ms is None else item.delay_ms / 1000,
        reason=item.reason,
    )
    if lost:
        sent.error = requests.JobError(type="ResultTooLarge", message=_NO_BLOBS)
    elif result is not None:
        sent.result, sent.codec = value(result.data, result.codec), result.codec
    if error is not None:
        sent.error = requests.JobError(type=error.type, message=error.message, traceback=error.traceback)
    return sent


class Fence(int):
    """The number of a lease, with the service's proof. Arithmetic on it gives a plain number."""

    proof: str

    def __new__(cls, number: int, proof: str) -> Self:
        made = super().__new__(cls, number)
        made.proof = proof
        return made

    def __getnewargs__(self) -> tuple[int, str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return int(self), self.proof


def _token(token: int) -> str:
    """The proof of a lease. The service refuses a plain number, which proves nothing. [LEASE-1]"""
    return token.proof if isinstance(token, Fence) else str(token)


def trace(item: NewJob) -> dict[str, str]:
    """The trace context of a job, as the headers that carry it."""
    headers = item.envelope.headers or {}
    return {name: headers[name] for name in _TRACE if name in headers and headers[name].isascii()}


def extend(item: Extend) -> requests.Extend:
    """One renewal."""
    return requests.Extend(queue=item.key.queue, id=item.key.id, token=_token(item.token), lease_s=item.lease_ms / 1000)


def report(item: Report) -> requests.Report:
    """Progress of one job."""
    progress = requests.Progress(fraction=item.progress.fraction, message=item.progress.message)
    return requests.Report(queue=item.key.queue, id=item.key.id, token=_token(item.token), progress=progress)
