"""Answers of the HTTP service. `protocol.requests` says how values are written."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from msgspec import UNSET, Raw, Struct, UnsetType

from holdfast.core.events import EventKind
from holdfast.core.job import CancelStatus, Jitter, JobState, PurgeStatus, TtlStatus
from holdfast.protocol.problems import ErrorInfo

T = TypeVar("T")


class Answer(Struct, kw_only=True, omit_defaults=True):
    """Base of all answers. Clients must ignore unknown fields."""


class Items(Struct, Generic[T], kw_only=True):
    """Answers item by item, in the order of the request."""

    items: list[T]
    tenant: str | UnsetType = UNSET
    """The tenant that an operator acted on."""


# Enqueue --------------------------------------------------------------------------------------------------


class Ticket(Answer):
    """A job that was enqueued, or existed already. [ENQ-2]"""

    status: Literal["queued", "duplicate", "completed"]
    id: str
    queue: str
    state: JobState | None
    result: Raw | UnsetType = UNSET
    codec: str = "json"
    warnings: list[str] = []
    """Why it may not run soon: no live worker serves its queue, or none of them runs its type."""


class KnownType(Answer):
    """A job type that live workers run, with the defaults for its jobs."""

    name: str
    queue: str
    max_attempts: int
    retry: RetryInfo
    timeout_s: float | None
    priority: int
    result_ttl_s: float


class ServedQueue(Answer):
    """A queue that live workers serve, with their types; null: a worker does not report its types."""

    queue: str
    types: list[str] | None


class Types(Answer):
    """A page of the live workers' queues and types, for this tenant: queues first, then types, both by name."""

    types: list[KnownType]
    queues: list[ServedQueue]
    cursor: str | None


class Beaten(Answer):
    """The heartbeat was recorded."""

    status: Literal["noted"] = "noted"


# Flows ----------------------------------------------------------------------------------------------------


class Step(Answer):
    """A step of a flow. Before it is a job it is `blocked`, or `ready` if the steps before it are complete."""

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
    """A flow with its steps."""

    id: str
    name: str
    tenant: str
    state: JobState
    steps: list[Step]
    enqueued_at: datetime
    finished_at: datetime | None = None
    replays: int = 0
    error: str | None = None
    """The steps of a failed flow that did not complete."""


# Work -----------------------------------------------------------------------------------------------------


class Released(Answer):
    """The reason of the last release, and the first of the consecutive releases with this reason. [RETRY-6]"""

    reason: str
    since: datetime


class ClaimedJob(Answer):
    """A leased job. The `token` proves this lease to finish, extend and report. It is opaque."""

    queue: str
    id: str
    type: str
    payload: Raw
    token: str
    fence: int
    """Grows with every lease of a job. Handlers pass it to other systems as a fencing token. [LEASE-5]"""
    attempt: int
    max_attempts: int
    deadline: datetime
    priority: int
    enqueued_at: datetime
    visible_at: datetime
    """When it became claimable."""
    codec: str = "json"
    version: int = 1
    timeout_s: float | None = None
    trace: dict[str, str] | None = None
    """The producer's trace context, as headers."""
    released: Released | None = None
    events: int = 0
    """The number of its last event, which is this claim."""


class Claimed(Answer):
    """The leased jobs. `now` and the deadlines are by the store's clock."""

    jobs: list[ClaimedJob]
    now: datetime
    waited_s: float = 0.0
    """The claim waited at least this long. The leases began after that."""


class Finished(Answer):
    """An accepted acknowledgement, with the new state of the job."""

    status: JobState


class Extended(Answer):
    """The lease is valid until `deadline`. `now` is the store's clock at the renewal."""

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
    """The progress that a handler reported."""

    fraction: float
    message: str


class Job(Answer):
    """A job."""

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
    """The fence of the last lease."""
    timeout_s: float | None = None
    trace: dict[str, str] | None = None
    events: int = 0
    """The number of its last event."""
    released: Released | None = None


class Jobs(Answer):
    """A page. The next one begins at `cursor`; null: this is the last. An empty page may have a cursor."""

    jobs: list[Job]
    cursor: str | None


class FailedWith(Answer):
    """Why a job failed."""

    reason: str
    type: str
    message: str


class Outcomes(Answer):
    """The outcome of a job; with status 202, its current state."""

    state: JobState
    result: Raw | UnsetType = UNSET
    codec: str = "json"
    error: FailedWith | None = None


class Canceled(Answer):
    """The answer to a cancel. [CANCEL-3]"""

    status: CancelStatus


class QueueStats(Answer):
    """Counts by state."""

    queue: str
    counts: dict[str, int]
    oldest_ready_age_s: float | None
    paused: bool
    oldest_ready_at: datetime | None = None
    """When the oldest ready job became visible, by the store's clock."""


class Queues(Answer):
    """A page of the queues that have jobs or are paused, by name. An empty page may have a cursor."""

    queues: list[QueueStats]
    cursor: str | None


class Event(Answer):
    """One event of a job. Instants in `data` are milliseconds since 1970. [EVENT-1]"""

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
    """Its number among the events of its job, from 1 without gaps."""


class Events(Answer):
    """A page of events. The next one begins at `cursor`, which is null at the end of the log."""

    events: list[Event]
    cursor: str | None


class ResultTtlSet(Answer):
    """The answer to a new result time of one job."""

    status: TtlStatus


# Operators ------------------------------------------------------------------------------------------------


class Paused(Answer):
    """Whether a queue is paused."""

    tenant: str
    queue: str
    paused: bool


class DeadLetters(Answer):
    """A page of failed jobs, oldest first. [DEAD-1]"""

    tenant: str
    jobs: list[Job]
    cursor: str | None


class ReplayItem(Answer):
    """The answer for one dead letter: a status or an error."""

    id: str
    status: Literal["replayed"] | None = None
    error: ErrorInfo | None = None


class DeadStep(Answer):
    """A step over dead letters. `more` says that further ones may match: continue with `cursor`.

    A dry run says how many match (if there are more, at least as many), with a sample of ids.
    """

    tenant: str
    more: bool
    cursor: str | None
    matching: int | UnsetType = UNSET
    sample: list[str] | UnsetType = UNSET


class Replays(DeadStep, kw_only=True):
    """Answers item by item. In a dry run there are no items."""

    items: list[ReplayItem]


class Purged(DeadStep, kw_only=True):
    """The number of purged dead letters."""

    purged: int


class JobPurged(Answer):
    """The answer to the purge of one finished job."""

    status: PurgeStatus


class RetryInfo(Answer):
    """The delay before the next attempt. [RETRY-3]"""

    base_s: float
    factor: float
    cap_s: float
    jitter: Jitter


class Schedule(Answer):
    """A schedule. `next_at` is its next tick, or an overdue one."""

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
    """A page. The next one begins at `cursor`; null: this is the last. An empty page may have a cursor."""

    tenant: str
    schedules: list[Schedule]
    cursor: str | None


class Unscheduled(Answer):
    """A removed schedule."""

    tenant: str
    name: str
    status: Literal["removed"]


class Session(Answer):
    """The tenant and the rights of a token, and the capabilities of the store."""

    tenant: str
    scopes: list[str]
    expires_at: datetime
    now: datetime
    store: dict[str, Any]
    """Its capabilities, as `Queue.capabilities`."""
    offset: str | None = None
    """The current end of the log, for a token that may read."""
    queues: list[str] | None = None
    """The queues that the token is limited to."""


class Health(Answer):
    """Healthy."""

    status: Literal["ok"]
