"""Schedules as stored: each is a job in the tenant's queue `holdfast:schedules`. Its id is the schedule's name.

Its payload is a `Definition`: when to enqueue, and what. The job is scheduled for its next tick.
"""

from __future__ import annotations

import base64

import msgspec
from msgspec import Raw, Struct

from holdfast.core.job import DAY, SECOND, Backoff, Envelope, IdempotencyKey, JobKey, JobState, NewJob
from holdfast.core.names import SCHEDULES
from holdfast.core.times import moment

TYPE = "holdfast:schedule"
"""The job type of a schedule."""
WAKER = "holdfast:waker"
"""The type of a job in the same queue. It wakes a schedule that waits too long; see `waker_of`."""
MAX_ATTEMPTS = 100
SOON = Backoff(SECOND, 1.0, SECOND)
"""The backoff after a worker's death. It is constant, as a schedule collects attempts over a long life."""
NAME_BYTES = 170
"""The longest name: with the time of a tick appended, it must still be a valid id."""
KEPT = frozenset(JobState) - {JobState.CANCELED, JobState.COMPLETED}
"""The states of an existing schedule. A failed schedule is listed, too: an operator must see it."""
OPEN = KEPT - {JobState.FAILED}


class Timing(Struct, frozen=True):
    """When a schedule is due: by a cron expression in a time zone, or at an interval in milliseconds."""

    cron: str | None = None
    every_ms: int | None = None
    timezone: str = "UTC"


class Target(Struct, frozen=True):
    """What is enqueued at each tick."""

    queue: str
    envelope: Envelope


class Definition(Struct, frozen=True):
    """A schedule. `anchor` is the instant from which `every_ms` counts."""

    timing: Timing
    anchor: int
    target: Target


class Schedule(Struct, frozen=True):
    """A schedule as it is now. `next_at` is the tick that it waits for, or an overdue one."""

    name: str
    definition: Definition
    state: JobState
    next_at: int
    created_at: int


class _Document(Struct, frozen=True, omit_defaults=True):
    """A definition as the payload of a job: JSON. A target's payload that is JSON itself is embedded as it is."""

    anchor: int
    queue: str
    envelope: Envelope
    payload: Raw
    cron: str | None = None
    every_ms: int | None = None
    timezone: str = "UTC"
    format: int = 1


_read = msgspec.json.Decoder(_Document).decode


def write(definition: Definition) -> bytes:
    """The payload of a schedule's job."""
    timing, target = definition.timing, definition.target
    payload, codec = target.envelope.payload, target.envelope.codec
    if codec != "json":
        payload = msgspec.json.encode(base64.b64encode(payload).decode())
    bare = msgspec.structs.replace(target.envelope, payload=b"")
    document = _Document(
        definition.anchor, target.queue, bare, Raw(payload), timing.cron, timing.every_ms, timing.timezone
    )
    return msgspec.json.encode(document)


def read(payload: bytes) -> Definition:
    """Parse the payload of a schedule's job. Raises ValueError for a format that this version cannot read."""
    document = _read(payload)
    if document.format != 1:
        raise ValueError(f"the schedule is written in format {document.format}; this version knows 1")
    data = bytes(document.payload)
    if document.envelope.codec != "json":
        data = base64.b64decode(msgspec.json.decode(data, type=str))
    timing = Timing(document.cron, document.every_ms, document.timezone)
    envelope = msgspec.structs.replace(document.envelope, payload=data)
    return Definition(timing, document.anchor, Target(document.queue, envelope))


def to_job(tenant: str, name: str, definition: Definition, run_at: int, request_id: str) -> NewJob:
    """The job of a schedule."""
    envelope = Envelope(
        TYPE, write(definition), max_attempts=MAX_ATTEMPTS, backoff=SOON, result_ttl_ms=0, request_id=request_id
    )
    return NewJob(JobKey(tenant, SCHEDULES, name), envelope, run_at=run_at, replace_failed=True)


def waker_key(schedule: JobKey) -> JobKey:
    """The key of the job that wakes a schedule. It has a control character, which no schedule's name has."""
    return schedule._replace(id=f"\x1f{schedule.id}")


def woken_key(waker: JobKey) -> JobKey:
    """The schedule that this job wakes."""
    return waker._replace(id=waker.id[1:])


def waker_of(schedule: JobKey, definition: Definition, request_id: str) -> NewJob:
    """The job that wakes a schedule. If its worker dies, another process runs it again."""
    envelope = Envelope(
        WAKER, write(definition), max_attempts=MAX_ATTEMPTS, backoff=SOON, result_ttl_ms=0, request_id=request_id
    )
    return NewJob(waker_key(schedule), envelope, replace_failed=True)


def target_of(new: NewJob) -> Target:
    """The job to enqueue at each tick, without the fields that belong to a single enqueue."""
    envelope = msgspec.structs.replace(new.envelope, request_id="", idempotency=None, headers=None)
    return Target(new.key.queue, envelope)


def job_of(tenant: str, name: str, target: Target, tick: int, next_tick: int | None) -> NewJob:
    """The job of one tick. Every call makes the same job, so a tick has at most one.

    While the job is kept, its id and request id identify it in any state. After that its idempotency key does, until
    the next tick has passed.
    """
    id = f"{name}@{tick_text(tick)}"
    ttl_ms = DAY + (0 if next_tick is None else next_tick - tick)
    envelope = msgspec.structs.replace(target.envelope, request_id=id, idempotency=IdempotencyKey(id, "ttl", ttl_ms))
    return NewJob(JobKey(tenant, target.queue, id), envelope)


def tick_text(tick: int) -> str:
    """A tick as written in the id of its job: 2026-11-16T01:30:00Z, with milliseconds if there are any."""
    at = moment(tick)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{tick % 1000:03}Z" if tick % 1000 else f"{at:%Y-%m-%dT%H:%M:%S}Z"
