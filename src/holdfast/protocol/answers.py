"""What the HTTP service answers; `protocol.requests` is what is sent to it, and says how values are written."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from msgspec import UNSET, Raw, Struct, UnsetType

from holdfast.core.events import EventKind
from holdfast.core.job import CancelStatus, Jitter, JobState, PurgeStatus, TtlStatus

T = TypeVar("T")


class Answer(Struct, kw_only=True, omit_defaults=True):
    """What the service answers. Clients must take fields that they do not know."""


class Problem(Struct, kw_only=True, omit_defaults=True):
    """An error, by RFC 9457. `code` is stable and safe to match on."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    args: list[Any] | UnsetType = UNSET
    """The facts of an error of the library, in the order in which its class takes them."""
    budget: str | UnsetType = UNSET
    """What the tenant has used up, for example `max_jobs` or `requests_per_s`. [TENANT-5]"""


class ErrorInfo(Struct, kw_only=True, omit_defaults=True):
    """Why one item of a batch was refused. The codes are those of problems."""

    code: str
    message: str
    args: list[Any] | UnsetType = UNSET
    budget: str | UnsetType = UNSET


class Refused(Struct, kw_only=True):
    """One item of a batch that was refused; the others are as if it had not been there. [ENQ-4]"""

    error: ErrorInfo


class Items(Struct, Generic[T], kw_only=True):
    """Answers item by item, in the order of the request."""

    items: list[T]
    tenant: str | UnsetType = UNSET
    """On whom an operator acted."""


# Enqueue --------------------------------------------------------------------------------------------------


class Ticket(Answer):
    """A job that was taken in, or was found to be there. [ENQ-2]"""

    status: Literal["queued", "duplicate", "completed"]
    id: str
    queue: str
    state: JobState | None
    result: Raw | UnsetType = UNSET
    codec: str = "json"
    warnings: list[str] = []
    """Why it may not run soon: no living worker serves its queue, or none there knows its type."""


class KnownType(Answer):
    """A job type that living workers run, and what an enqueue gets that says nothing about it."""

    name: str
    queue: str
    max_attempts: int
    retry: RetryInfo
    timeout_s: float | None
    priority: int
    result_ttl_s: float


class ServedQueue(Answer):
    """A queue that living workers serve, and the types that they know; null: one of them does not say."""

    queue: str
    types: list[str] | None


class Types(Answer):
    """A page of what the living workers that serve this tenant run: queues first, then types, both by name."""

    types: list[KnownType]
    queues: list[ServedQueue]
    cursor: str | None


class Beaten(Answer):
    """The worker is known to live."""

    status: Literal["noted"] = "noted"


# Flows ----------------------------------------------------------------------------------------------------


class Step(Answer):
    """A step of a flow. One that is no job yet is `blocked`, or `ready` if its turn has come."""

    name: str
    id: str
    queue: str
    type: str
    after: list[str]
    state: JobState
    attempts: int = 0
    error: str | None = None
    enqueued_at: datetime | None = None
    finished_at: datetime | None = None


class Flow(Answer):
    """A flow and its steps as they are."""

    id: str
    name: str
    tenant: str
    state: JobState
    steps: list[Step]
    enqueued_at: datetime
    finished_at: datetime | None = None
    replays: int = 0
    error: str | None = None
    """Of a failed flow: which steps did not complete."""


# Work -----------------------------------------------------------------------------------------------------


class Released(Answer):
    """Why the last worker released a job, and since when every worker that had it has given this reason. [RETRY-6]"""

    reason: str
    since: datetime


class ClaimedJob(Answer):
    """A job, leased. Show the `token` to finish, extend or report; it is opaque, and proves this lease alone."""

    queue: str
    id: str
    type: str
    payload: Raw
    token: str
    fence: int
    """Grows with every lease of a job, for what a handler does elsewhere. [LEASE-5]"""
    attempt: int
    max_attempts: int
    deadline: datetime
    priority: int
    enqueued_at: datetime
    visible_at: datetime
    """Since when it could be claimed."""
    codec: str = "json"
    version: int = 1
    timeout_s: float | None = None
    trace: dict[str, str] | None = None
    """The producer's trace context, as headers."""
    released: Released | None = None
    events: int = 0
    """The number of its last event, which is this claim."""


class Claimed(Answer):
    """What a claim got; `now` is the store's clock, which the deadlines are of."""

    jobs: list[ClaimedJob]
    now: datetime
    waited_s: float = 0.0
    """For so long at least there was nothing: the leases began after that."""


class Finished(Answer):
    """An acknowledgement that was accepted: the state that the job is in by it."""

    status: JobState


class Extended(Answer):
    """The lease holds until `deadline`; `now` is the store's clock at that moment."""

    status: Literal["extended"]
    deadline: datetime
    now: datetime


class Reported(Answer):
    """The progress was recorded."""

    status: Literal["reported"]


# Reading --------------------------------------------------------------------------------------------------


class AttemptInfo(Answer):
    """One failed attempt."""

    type: str
    message: str
    traceback: str
    attempt: int
    at: datetime


class ProgressInfo(Answer):
    """How far a handler says it is."""

    fraction: float
    message: str


class Job(Answer):
    """A job as it is."""

    id: str
    tenant: str
    queue: str
    type: str
    state: JobState
    attempts: int
    max_attempts: int
    priority: int
    replays: int
    sequence: int
    request_id: str
    enqueued_at: datetime
    visible_at: datetime
    payload: Raw
    codec: str = "json"
    version: int = 1
    claimed_at: datetime | None = None
    finished_at: datetime | None = None
    expires_at: datetime | None = None
    deadline: datetime | None = None
    worker_id: str | None = None
    idempotency_key: str | None = None
    reason: str | None = None
    progress: ProgressInfo | None = None
    errors: list[AttemptInfo] = []
    result: Raw | UnsetType = UNSET
    result_codec: str = "json"
    fence: int = 0
    """Of the last lease."""
    timeout_s: float | None = None
    trace: dict[str, str] | None = None
    events: int = 0
    """The number of its last event."""
    released: Released | None = None


class Jobs(Answer):
    """A page. It goes on at `cursor`, which is null after the last; a page may be empty and still have one."""

    jobs: list[Job]
    cursor: str | None


class FailedWith(Answer):
    """Why a job failed for good."""

    reason: str
    type: str
    message: str


class Outcomes(Answer):
    """How a job ended, or, with status 202, the state that it is in."""

    state: JobState
    result: Raw | UnsetType = UNSET
    codec: str = "json"
    error: FailedWith | None = None


class Canceled(Answer):
    """What a cancel came to. [CANCEL-3]"""

    status: CancelStatus


class QueueStats(Answer):
    """Counts by state."""

    queue: str
    counts: dict[str, int]
    oldest_ready_age_s: float | None
    paused: bool
    oldest_ready_at: datetime | None = None
    """Since when that one has been visible, by the store's clock."""


class Queues(Answer):
    """A page of the queues that have jobs or are paused, by name; with a cursor it is not the last, even if empty."""

    queues: list[QueueStats]
    cursor: str | None


class Event(Answer):
    """One thing that happened to one job. Instants inside `data` are milliseconds since 1970. [EVENT-1]"""

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
    number: int = 0
    """Its number within its job's life, counted from 1 without a gap."""


class Events(Answer):
    """A page of events. It goes on at `cursor`, which is null at the end of the log."""

    events: list[Event]
    cursor: str | None


class Retained(Answer):
    """Whether a finished job is kept for that long now."""

    status: TtlStatus


# Operators ------------------------------------------------------------------------------------------------


class Paused(Answer):
    """Whether a queue hands out jobs."""

    tenant: str
    queue: str
    paused: bool


class DeadLetters(Answer):
    """A page of failed jobs, oldest first. [DEAD-1]"""

    tenant: str
    jobs: list[Job]
    cursor: str | None


class ReplayItem(Answer):
    """What became of one dead letter: a status or an error."""

    id: str
    status: Literal["replayed"] | None = None
    error: ErrorInfo | None = None


class Replays(Answer):
    """Item by item. `more` says that others match."""

    tenant: str
    items: list[ReplayItem]
    more: bool


class Purged(Answer):
    """How many dead letters were forgotten."""

    tenant: str
    purged: int


class Forgotten(Answer):
    """Whether a finished job was forgotten."""

    status: PurgeStatus


class RetryInfo(Answer):
    """How long to wait before the next attempt. [RETRY-3]"""

    base_s: float
    factor: float
    cap_s: float
    jitter: Jitter


class Schedule(Answer):
    """A schedule as it is. `next_at` is the tick that it waits for, or that is overdue."""

    tenant: str
    name: str
    state: JobState
    next_at: datetime
    created_at: datetime
    queue: str
    type: str
    payload: Raw
    priority: int
    max_attempts: int
    result_ttl_s: float
    cron: str | None = None
    every_s: float | None = None
    timezone: str = "UTC"
    codec: str = "json"
    version: int = 1
    timeout_s: float | None = None
    retry: RetryInfo | None = None


class Schedules(Answer):
    """A page. It goes on at `cursor`, which is null after the last; a page may be empty and still have one."""

    tenant: str
    schedules: list[Schedule]
    cursor: str | None


class Unscheduled(Answer):
    """A schedule that is no more."""

    tenant: str
    name: str
    status: Literal["removed"]


class Session(Answer):
    """Whose token it is, what it is good for, and how the store behind the service keeps its promises."""

    tenant: str
    scopes: list[str]
    expires_at: datetime
    now: datetime
    store: dict[str, Any]
    """Its capabilities."""
    offset: str | None = None
    """The end of the log as it is now, for a token that may read."""
    queues: list[str] | None = None
    """The only ones it is good for."""


class Health(Answer):
    """All is well."""

    status: Literal["ok"]
