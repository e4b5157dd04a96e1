"""The columns of jobs and of payloads, for `columns.BatchBuilder`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.events import fingerprint
from holdfast.core.job import Job


def _of_job(value: Callable[[Job], Any]) -> Callable[[Sequence[Job]], list[Any]]:
    return lambda jobs: [value(job) for job in jobs]


JOB_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "tenant": _of_job(lambda job: job.tenant),
    "queue": _of_job(lambda job: job.queue),
    "id": _of_job(lambda job: job.id),
    "state": _of_job(lambda job: job.state.value),
    "type": _of_job(lambda job: job.envelope.type),
    "priority": _of_job(lambda job: job.envelope.priority),
    "attempts": _of_job(lambda job: job.attempts),
    "max_attempts": _of_job(lambda job: job.envelope.max_attempts),
    "replays": _of_job(lambda job: job.replays),
    "events": _of_job(lambda job: job.events),
    "token": _of_job(lambda job: job.token),
    "worker_id": _of_job(lambda job: job.worker_id),
    "enqueued_at": _of_job(lambda job: job.enqueued_at),
    "visible_at": _of_job(lambda job: job.visible_at),
    "claimed_at": _of_job(lambda job: job.claimed_at),
    "deadline": _of_job(lambda job: job.deadline or None),
    "finished_at": _of_job(lambda job: job.finished_at),
    "expires_at": _of_job(lambda job: job.expires_at),
    "reason": _of_job(lambda job: job.reason or None),
    "error_type": _of_job(lambda job: job.errors[-1].type if job.errors else None),
    "error_message": _of_job(lambda job: job.errors[-1].message if job.errors else None),
    "fingerprint": _of_job(lambda job: fingerprint(job.errors[-1]) if job.errors else None),
    "idempotency_key": _of_job(lambda job: job.envelope.idempotency.key if job.envelope.idempotency else None),
    "codec": _of_job(lambda job: job.envelope.codec),
    "version": _of_job(lambda job: job.envelope.version),
    "size": _of_job(lambda job: len(job.envelope.payload)),
    "payload": _of_job(lambda job: job.envelope.payload),
}


def payload_columns(*, full: bool) -> dict[str, Callable[[Any], Any]]:
    """The columns of the table `payloads`. Their source is pairs of a job and its `enqueued` event."""

    def of(value: Callable[[Job], Any]) -> Callable[[Any], Any]:
        return lambda pairs: [value(job) for job, _ in pairs]

    return {
        "tenant": of(lambda job: job.tenant),
        "queue": of(lambda job: job.queue),
        "job_id": of(lambda job: job.id),
        "enqueued_at": of(lambda job: job.enqueued_at),
        "type": of(lambda job: job.envelope.type),
        "codec": of(lambda job: job.envelope.codec),
        "version": of(lambda job: job.envelope.version),
        "payload": of(lambda job: job.envelope.payload if full else None),
        "payload_sha256": of(lambda job: None if full else hashlib.sha256(job.envelope.payload).hexdigest()),
        "size": of(lambda job: len(job.envelope.payload)),
        "date": lambda pairs: [row["date"] for _, row in pairs],
        "batch": lambda pairs: [row["batch"] for _, row in pairs],
    }
