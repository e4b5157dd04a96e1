"""Records for callers: jobs, events, counts and workers, with datetimes in UTC and decoded values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from msgspec import Struct

from holdfast.core import events as core_events
from holdfast.core import schedule as core_schedule
from holdfast.core.errors import HoldfastError, InvalidOption
from holdfast.core.events import EventKind
from holdfast.core.job import CancelStatus, Job, JobState, Progress, Result
from holdfast.core.times import moment
from holdfast.jobs import codec
from holdfast.jobs.fields import JobFields
from holdfast.store import QueueStats, WorkerInfo


class ErrorRecord(Struct, frozen=True):
    """Why one attempt failed. [RETRY-4]"""

    type: str
    message: str
    traceback: str
    attempt: int
    at: datetime


class JobRecord(JobFields):
    """A job as it was when it was read. A snapshot: it does not change by itself."""

    def __init__(self, job: Job, blob: bytes | None = None) -> None:
        super().__init__(job)
        self._blob = blob

    @property
    def state(self) -> JobState:
        return self._job.state

    @property
    def attempts(self) -> int:
        """How many times the job was leased, without the leases that ended in a release. [RETRY-1]"""
        return self._job.attempts

    @property
    def priority(self) -> int:
        return self._job.envelope.priority

    @property
    def progress(self) -> Progress | None:
        return self._job.progress

    @property
    def reason(self) -> str | None:
        """Why the job failed: "permanent", "max_attempts", "lease_expired" or "timeout"."""
        return self._job.reason or None

    @property
    def released_for(self) -> str | None:
        """Why the last worker released the job, such as "unknown_type". [RETRY-6]"""
        return self._job.released_for or None

    @property
    def first_released_at(self) -> datetime | None:
        """Since when every release has had that reason."""
        return _moment(self._job.first_released_at or None)

    @property
    def replays(self) -> int:
        return self._job.replays

    @property
    def events(self) -> int:
        """The number of the job's last event. Events of a job are numbered from 1. 0: unknown."""
        return self._job.events

    @property
    def worker_id(self) -> str | None:
        """The worker that has the job's lease, or had it last."""
        return self._job.worker_id or None

    @property
    def idempotency_key(self) -> str | None:
        idempotency = self._job.envelope.idempotency
        return None if idempotency is None else idempotency.key

    @property
    def enqueued_at(self) -> datetime:
        return moment(self._job.enqueued_at)

    @property
    def visible_at(self) -> datetime:
        """When it became claimable, or will become so."""
        return moment(self._job.visible_at)

    @property
    def claimed_at(self) -> datetime | None:
        return _moment(self._job.claimed_at)

    @property
    def finished_at(self) -> datetime | None:
        return _moment(self._job.finished_at)

    @property
    def expires_at(self) -> datetime | None:
        """When a finished job will be removed. [KEEP-1]"""
        return _moment(self._job.expires_at)

    @property
    def deadline(self) -> datetime | None:
        """When the lease of a running job ends."""
        return _moment(self._job.deadline or None)

    @cached_property
    def errors(self) -> list[ErrorRecord]:
        """The last 10 failed attempts, oldest first."""
        return [
            ErrorRecord(error.type, error.message, error.traceback, error.attempt, moment(error.at))
            for error in self._job.errors
        ]

    @cached_property
    def payload(self) -> Any:
        """The payload, decoded. For `@job` functions: the arguments by name."""
        envelope = self._job.envelope
        return codec.decode(envelope.payload, envelope.codec)

    @cached_property
    def result(self) -> Any:
        """What the handler returned, decoded at each access. None if there is no result."""
        result = self._job.result
        return None if result is None else decode_result(result, self._blob)

    def as_dict(self) -> dict[str, Any]:
        """All fields as one dict, for programs.

        A payload or result that cannot be read here, by its codec or because it is in a blob, is left out.
        """
        fields: dict[str, Any] = {name: getattr(self, name) for name in _FIELDS}
        with contextlib.suppress(HoldfastError):
            fields["payload"] = self.payload
        if self._job.result is not None:
            with contextlib.suppress(HoldfastError):
                fields["result"] = self.result
        return fields

    def __repr__(self) -> str:
        return f"<JobRecord {self.queue}/{self.id} {self.state.value}>"


_FIELDS = (
    "id", "tenant", "queue", "type", "state", "attempts", "max_attempts", "priority", "progress", "errors",
    "reason", "replays", "worker_id", "idempotency_key", "enqueued_at", "visible_at", "claimed_at", "finished_at",
    "expires_at", "deadline", "released_for", "first_released_at", "events",
)  # fmt: skip


class Schedule:
    """A schedule as it was when it was read."""

    def __init__(self, schedule: core_schedule.Schedule) -> None:
        self._schedule = schedule
        self._definition = schedule.definition

    @property
    def name(self) -> str:
        return self._schedule.name

    @property
    def cron(self) -> str | None:
        """The cron expression, if it has one."""
        return self._definition.timing.cron

    @property
    def every(self) -> timedelta | None:
        """The time between two ticks, if it has no cron expression."""
        every_ms = self._definition.timing.every_ms
        return None if every_ms is None else timedelta(milliseconds=every_ms)

    @property
    def timezone(self) -> str:
        return self._definition.timing.timezone

    @property
    def next_at(self) -> datetime:
        """The tick that it waits for, or an overdue one."""
        return moment(self._schedule.next_at)

    @property
    def created_at(self) -> datetime:
        """When it was created or last changed."""
        return moment(self._schedule.created_at)

    @property
    def state(self) -> JobState:
        """The state of its job: `scheduled` while it waits; `failed` if it has stopped."""
        return self._schedule.state

    @property
    def queue(self) -> str:
        """The queue of its jobs."""
        return self._definition.target.queue

    @property
    def type(self) -> str:
        """The type of its jobs; "" for a payload without one."""
        return self._definition.target.envelope.type

    @property
    def priority(self) -> int:
        return self._definition.target.envelope.priority

    @property
    def max_attempts(self) -> int:
        return self._definition.target.envelope.max_attempts

    @cached_property
    def payload(self) -> Any:
        """The payload of its jobs, decoded."""
        envelope = self._definition.target.envelope
        return codec.decode(envelope.payload, envelope.codec)

    def as_dict(self) -> dict[str, Any]:
        """All fields as one dict, for programs. A payload that cannot be read here is left out."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in _SCHEDULE_FIELDS}
        fields["every_s"] = None if self.every is None else self.every.total_seconds()
        with contextlib.suppress(HoldfastError):
            fields["payload"] = self.payload
        return fields

    def __repr__(self) -> str:
        return f"<Schedule {self.name} of {self.queue}, next at {self.next_at.isoformat()}>"


_SCHEDULE_FIELDS = (
    "name", "cron", "timezone", "queue", "type", "priority", "max_attempts", "state", "next_at", "created_at",
)  # fmt: skip


class JobPage(list[JobRecord]):
    """A page of jobs: a list, with the `cursor` that continues it; None after the last page."""

    def __init__(self, jobs: Iterable[JobRecord], cursor: str | None) -> None:
        super().__init__(jobs)
        self.cursor = cursor


class Event(Struct, frozen=True):
    """One change of one job. Resume a stream with `after=event.offset`. [EVENT-1, EVENT-2]

    Instants inside `data` are milliseconds of the store's clock.
    """

    kind: EventKind
    job_id: str
    queue: str
    tenant: str
    type: str
    at: datetime
    attempt: int
    token: int
    worker_id: str
    offset: str
    data: dict[str, Any]
    number: int
    """Its number within its job's life, counted from 1 without a gap. 0: unknown."""


class Stats(Struct, frozen=True):
    """How many jobs of a queue are in each state, and for how long the oldest ready one has been waiting."""

    queue: str
    counts: dict[JobState, int]
    oldest_ready_age: timedelta | None
    paused: bool


class WorkerRecord(Struct, frozen=True):
    """A live worker. `tenant` None: it serves all tenants."""

    id: str
    tenant: str | None
    host: str
    pid: int
    queues: tuple[str, ...]
    concurrency: int
    held: int
    started_at: datetime
    seen_at: datetime


class Cancellation(Struct, frozen=True):
    """The outcome of a cancel. [CANCEL-3]"""

    status: CancelStatus


def event_of(event: core_events.Event) -> Event:
    """An event of the store as callers see it."""
    return Event(
        event.kind, event.job_id, event.queue, event.tenant, event.type, moment(event.at),
        event.attempt, event.token, event.worker_id, event.offset, event.data, event.number,
    )  # fmt: skip


def stats_of(stats: QueueStats) -> Stats:
    """Counts of the store as callers see them. Every state has a count."""
    oldest = stats.oldest_ready_at
    age = None if oldest is None else timedelta(milliseconds=max(0, stats.now - oldest))
    return Stats(stats.queue, {state: stats.counts.get(state, 0) for state in JobState}, age, stats.paused)


def worker_of(worker: WorkerInfo) -> WorkerRecord:
    """A worker as callers see it."""
    return WorkerRecord(
        worker.worker_id, worker.tenant, worker.host, worker.pid, worker.queues, worker.concurrency, worker.held,
        moment(worker.started_at), moment(worker.seen_at),
    )  # fmt: skip


def decode_result(result: Result, blob: bytes | None, type: Any = Any) -> Any:
    """A result's value. `blob` has the bytes of a result that is in the blob store."""
    if not result.blob:
        return codec.decode(result.data, result.codec, type)
    if blob is None:
        raise InvalidOption("blobs", "the result is in a blob store; use get() on a Queue opened with blobs=URL")
    return codec.decode(blob, result.codec, type)


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else moment(ms)
