"""What goes over HTTP, both ways: the one description of it, for the service and for clients written in Python.

All bodies are JSON. Instants are RFC 3339 with milliseconds and a time zone, durations seconds (`*_s`). A payload or
result is any JSON; in another codec than `json` it is the base64 of its bytes, and `codec` names the codec. What is not
said is left out. Fields that are not known are refused.

The rules for names and numbers are those of `core.names` and are checked there; the schemas state them for readers.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from holdfast.core.events import EventKind
from holdfast.core.job import CancelStatus, Jitter, JobState, Outcome, PurgeStatus, TtlStatus

BATCH_LIMIT = 1000
"""Items in a batch, and jobs in a claim."""
CLAIM_QUEUES = 100
"""Queues in a claim."""
PAGE_LIMIT = 1000
LONGEST_WAIT_S = 60.0
KINDS: tuple[str, ...] = get_args(EventKind)

T = TypeVar("T")

_SPAN_S = 1000 * 365 * 86400
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$"


def _one_of(words: Iterable[str]) -> str:
    return "|".join(words)


QueueName = Annotated[str, Meta(description="A queue.", extra_json_schema={"pattern": _NAME})]
JobType = Annotated[str, Meta(description='A job type; "" has none.', extra_json_schema={"pattern": f"^$|{_NAME}"})]
JobId = Annotated[
    str,
    Meta(
        description="1 to 200 bytes of UTF-8 without control characters.",
        extra_json_schema={"minLength": 1, "maxLength": 200, "pattern": r"^[^\u0000-\u001f\u007f-\u009f]+$"},
    ),
]
Instant = Annotated[datetime, Meta(tz=True)]
Duration = Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": _SPAN_S})]
Lease = Annotated[float, Meta(description="Seconds.", extra_json_schema={"minimum": 1, "maximum": 43200})]
Wait = Annotated[
    float,
    Meta(description="Seconds to wait while there is nothing.", ge=0, le=LONGEST_WAIT_S),
]
Token = Annotated[int, Meta(description="The lease's token.", ge=0, le=2**53)]
Limit = Annotated[int, Meta(ge=1, le=PAGE_LIMIT)]
States = Annotated[str, Meta(extra_json_schema={"pattern": f"^({_one_of(JobState)})(,({_one_of(JobState)}))*$"})]
Kinds = Annotated[str, Meta(extra_json_schema={"pattern": f"^({_one_of(KINDS)})(,({_one_of(KINDS)}))*$"})]
Codec = Annotated[str, Meta(description="The codec of the bytes.", extra_json_schema={"enum": ["json", "msgpack"]})]


def _null() -> Raw:
    return Raw(b"null")


class Wire(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is sent to the service."""


class Answer(Struct, kw_only=True, omit_defaults=True):
    """What the service answers. Clients must take fields that they do not know."""


class Problem(Struct, kw_only=True, omit_defaults=True):
    """An error, by RFC 9457. `code` is stable and safe to match on."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    facts: dict[str, Any] | UnsetType = UNSET
    """What the detail says, for programs. Which facts go with which code: `FACTS`."""


class ErrorInfo(Struct, kw_only=True):
    """Why one item of a batch was refused. The codes are those of problems."""

    code: str
    message: str
    facts: dict[str, Any] | UnsetType = UNSET


FACTS: dict[str, tuple[str, ...]] = {
    "invalid_name": ("what", "name", "reason"),
    "invalid_option": ("option", "reason"),
    "invalid_payload": ("reason", "path"),
    "unknown_codec": ("codec", "reason"),
    "payload_too_large": ("size", "limit"),
    "quota_exceeded": ("queue", "waiting", "limit"),
    "not_replayable": ("queue", "id", "reason"),
    "events_trimmed": ("from", "to"),
}
"""The facts of an error, in the order in which the error takes them."""


class Refused(Struct, kw_only=True):
    """One item of a batch that was refused; the others are as if it had not been there. [ENQ-4]"""

    error: ErrorInfo


class Items(Struct, Generic[T], kw_only=True):
    """Answers item by item, in the order of the request."""

    items: list[T]


# Enqueue --------------------------------------------------------------------------------------------------


class Retry(Wire):
    """How long to wait before the next attempt. [RETRY-3]"""

    base_s: Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": 30 * 86400})] = 5.0
    factor: Annotated[float, Meta(extra_json_schema={"minimum": 1, "maximum": 100})] = 2.0
    cap_s: Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": 365 * 86400})] = 300.0
    jitter: Jitter = "full"


class Enqueue(Wire):
    """One job to take in. [ENQ-1 to ENQ-8]"""

    queue: QueueName = "default"
    type: JobType = ""
    payload: Raw = field(default_factory=_null)
    id: JobId | None = None
    request_id: JobId | None = None
    """Repeat it with the same request, and a lost reply costs nothing: the answer is `queued` again. [ENQ-8]"""
    idempotency_key: JobId | None = None
    idempotency: Literal["until_terminal", "until_started", "forever"] | None = None
    idempotency_ttl_s: Annotated[float, Meta(gt=0, le=_SPAN_S)] | None = None
    """How long a key holds, in place of `idempotency`."""
    delay_s: Duration | None = None
    run_at: Instant | None = None
    priority: Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": 9})] | None = None
    max_attempts: Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": 100})] | None = None
    result_ttl_s: Duration | None = None
    timeout_s: Annotated[float, Meta(gt=0, le=_SPAN_S)] | None = None
    retry: Retry | None = None
    replace_failed: bool = False
    codec: Codec = "json"
    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 1


class EnqueueBatch(Wire):
    """Up to 1000 jobs, answered item by item."""

    jobs: Annotated[list[Enqueue], Meta(max_length=BATCH_LIMIT)]


class Ticket(Answer):
    """A job that was taken in, or was found to be there. [ENQ-2]"""

    status: Literal["queued", "duplicate", "completed"]
    id: str
    queue: str
    state: JobState | None
    result: Raw | UnsetType = UNSET
    codec: str = "json"


# Work -----------------------------------------------------------------------------------------------------


class Claim(Wire):
    """A wish for jobs. [CLAIM-1 to CLAIM-5]"""

    queues: Annotated[list[QueueName], Meta(min_length=1, max_length=CLAIM_QUEUES)]
    limit: Annotated[int, Meta(ge=1, le=BATCH_LIMIT)] = 1
    lease_s: Lease = 30.0
    wait_s: Wait = 0.0
    worker_id: JobId | None = None


class ClaimedJob(Answer):
    """A job, leased. The `token` is also a fence: it grows with every lease of a job. [LEASE-5]"""

    queue: str
    id: str
    type: str
    payload: Raw
    token: int
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


class Claimed(Answer):
    """What a claim got; `now` is the store's clock, which the deadlines are of.

    If it got less than it wished for, `next_at` is when the next job becomes visible, as far as is known.
    """

    jobs: list[ClaimedJob]
    now: datetime
    next_at: datetime | None = None
    waited_s: float = 0.0
    """For so long at least there was nothing: the leases began after that."""


class JobError(Wire):
    """Why an attempt failed."""

    type: Annotated[str, Meta(max_length=2048)]
    message: str = ""
    traceback: str = ""


class Lot(Wire):
    """Which lease."""

    queue: QueueName
    id: JobId
    token: Token


class Finish(Lot):
    """The end of one attempt. [LEASE-1]

    `complete` with a `result`; `retry`: the attempt failed, and the job is dead when none are left; `fail`: for good;
    `release`: given back, the attempt is not counted.
    """

    outcome: Outcome
    result: Raw = field(default_factory=_null)
    codec: Codec = "json"
    error: JobError | None = None
    timed_out: bool = False
    delay_s: Duration | None = None


class Extend(Lot):
    """Hold a lease for longer. [LEASE-2]"""

    lease_s: Lease = 30.0


class Progress(Wire):
    """How far an attempt is."""

    fraction: Annotated[float, Meta(ge=0, le=1)]
    message: Annotated[str, Meta(max_length=1024)] = ""


class Report(Lot):
    """Progress of a running job."""

    progress: Progress


class FinishBatch(Wire):
    """Up to 1000 acknowledgements, answered item by item."""

    leases: Annotated[list[Finish], Meta(max_length=BATCH_LIMIT)]


class ExtendBatch(Wire):
    """Up to 1000 renewals, answered item by item."""

    leases: Annotated[list[Extend], Meta(max_length=BATCH_LIMIT)]


class ReportBatch(Wire):
    """Up to 1000 reports, answered item by item."""

    leases: Annotated[list[Report], Meta(max_length=BATCH_LIMIT)]


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
    request_id: str | None = None
    """Of the enqueue that made it."""
    token: int = 0
    """Of the last lease."""
    timeout_s: float | None = None
    trace: dict[str, str] | None = None


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
    now: datetime
    """The store's clock."""


class Queues(Answer):
    """Every queue that has jobs or is paused, by name."""

    queues: list[QueueStats]


class Event(Answer):
    """One thing that happened to one job. Instants inside `data` are milliseconds since 1970. [EVENT-1]"""

    kind: str
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


class Offset(Answer):
    """The end of the log as it is now: a stream from here shows only what is still to come."""

    offset: str


class Events(Answer):
    """A page of events. It goes on at `cursor`, which is null at the end of the log."""

    events: list[Event]
    cursor: str | None


class Retain(Wire):
    """How long to keep one finished job from now on. [RESULT-1]"""

    id: JobId
    result_ttl_s: Duration


class RetainBatch(Wire):
    """Up to 1000 finished jobs, answered item by item."""

    jobs: Annotated[list[Retain], Meta(max_length=BATCH_LIMIT)]


class Retained(Answer):
    """What came of it."""

    status: TtlStatus


class TokenInfo(Answer):
    """What a token is good for; `now` is the store's clock."""

    tenant: str
    scopes: list[str]
    queues: list[str] | None
    """The only queues; null: all of the tenant's."""
    expires_at: datetime
    now: datetime
    durable: bool
    """What is acknowledged survives the end of the store's process."""
    survives_power_loss: bool
    exact_quota: bool


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


class Where(Wire):
    """Which dead letters; nothing said: all."""

    type: JobType | None = None
    error: str | None = None


class Replay(Wire):
    """Dead letters to start again: those of these ids, or up to 1000 that match. [DEAD-1]"""

    ids: Annotated[list[JobId], Meta(max_length=BATCH_LIMIT)] | UnsetType = UNSET
    where: Where | UnsetType = UNSET


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


class Purge(Wire):
    """Dead letters to forget: those that ended before an instant and match."""

    before: Instant | None = None
    type: JobType | None = None
    error: str | None = None


class Purged(Answer):
    """How many dead letters were forgotten."""

    tenant: str
    purged: int


class Forget(Wire):
    """One finished job to forget now; with `finished_at` only if it is still that same ending. [KEEP-1]"""

    id: JobId
    finished_at: Instant | None = None


class ForgetBatch(Wire):
    """Up to 1000 finished jobs, answered item by item."""

    jobs: Annotated[list[Forget], Meta(max_length=BATCH_LIMIT)]


class Forgotten(Answer):
    """What came of it."""

    status: PurgeStatus


class Health(Answer):
    """All is well."""

    status: Literal["ok"]


# Queries --------------------------------------------------------------------------------------------------


class NoQuery(Wire):
    """No parameters."""


class WaitQuery(Wire):
    """How long to wait for the end of a job."""

    wait_s: Wait = 0.0


class CancelQuery(Wire):
    """Whether to leave a running job alone."""

    only_waiting: bool = False


class ListQuery(Wire):
    """Which jobs of a queue; several states stand with commas between them."""

    state: States | None = None
    type: JobType | None = None
    cursor: str | None = None
    limit: Limit = 100


class DeadQuery(Wire):
    """Which dead letters; `error` is a type, a fingerprint or a part of a message."""

    type: JobType | None = None
    error: str | None = None
    cursor: str | None = None
    limit: Limit = 100


class EventQuery(Wire):
    """From which offset on."""

    after: str | None = None
    limit: Limit = 100


class StreamQuery(Wire):
    """From which offset on, whether to go on with what comes, and of which kinds (with commas between them)."""

    after: str | None = None
    follow: bool = True
    kinds: Kinds | None = None
