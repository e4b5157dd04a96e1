"""What is sent to the HTTP service. `protocol.answers` is what comes back.

The two are the one description of what goes over HTTP, for the service and for clients written in Python.

All bodies are JSON. Instants are RFC 3339 with milliseconds and a time zone, durations seconds (`*_s`). A payload or
result is any JSON; in another codec than `json` it is the base64 of its bytes, and `codec` names the codec. What is not
said is left out. Fields that are not known are refused.

The rules for names and numbers are those of `core.names` and are checked there; the schemas state them for readers.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Literal, get_args

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from holdfast.core.budgets import RESULT_TTL_CEILING
from holdfast.core.events import EventKind
from holdfast.core.job import Jitter, JobState, Outcome

BATCH_LIMIT = 1000
"""Items in a batch, and jobs in a claim."""
CLAIM_QUEUES = 100
"""Queues in a claim."""
PAGE_LIMIT = 1000
LONGEST_WAIT_S = 60.0
KINDS: tuple[str, ...] = get_args(EventKind)

_SPAN_S = 1000 * 365 * 86400
_CRON = r"^ *[^ ]+( +[^ ]+){4} *$"
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$"


def _list_of(words: Iterable[str]) -> str:
    """Some of these words with commas between them, or nothing said."""
    word = f"({'|'.join(words)})"
    return f"^$|^{word}(,{word})*$"


QueueName = Annotated[str, Meta(description="A queue.", extra_json_schema={"pattern": _NAME})]
JobType = Annotated[str, Meta(description='A job type; "" has none.', extra_json_schema={"pattern": f"^$|{_NAME}"})]
JobId = Annotated[
    str,
    Meta(
        description="1 to 200 bytes of UTF-8 without control characters.",
        extra_json_schema={"minLength": 1, "maxLength": 200, "pattern": r"^[^\u0000-\u001f\u007f-\u009f]+$"},
    ),
]
ScheduleName = Annotated[
    str,
    Meta(
        description="1 to 170 bytes of UTF-8 without control characters.",
        extra_json_schema={"minLength": 1, "maxLength": 170, "pattern": r"^[^\u0000-\u001f\u007f-\u009f]+$"},
    ),
]
Instant = Annotated[datetime, Meta(tz=True)]
Duration = Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": _SPAN_S})]
Kept = Annotated[
    float,
    Meta(
        description="Seconds, up to the store's ceiling: 30 days unless its operator has raised it.",
        extra_json_schema={"minimum": 0, "maximum": RESULT_TTL_CEILING // 1000},
    ),
]
Span = Annotated[float, Meta(description="Seconds, a millisecond at least.", ge=0.001, le=_SPAN_S)]
Lease = Annotated[float, Meta(description="Seconds.", extra_json_schema={"minimum": 1, "maximum": 43200})]
Wait = Annotated[
    float,
    Meta(description="Seconds to wait while there is nothing.", ge=0, le=LONGEST_WAIT_S),
]
Token = Annotated[
    str, Meta(description="The lease's token, as the claim answered it.", extra_json_schema={"maxLength": 200})
]
Limit = Annotated[int, Meta(ge=1, le=PAGE_LIMIT)]
States = Annotated[str, Meta(extra_json_schema={"pattern": _list_of(JobState)})]
Kinds = Annotated[str, Meta(extra_json_schema={"pattern": _list_of(KINDS)})]
Codec = Annotated[str, Meta(description="The codec of the bytes.", extra_json_schema={"enum": ["json", "msgpack"]})]


def _null() -> Raw:
    return Raw(b"null")


class Wire(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is sent to the service."""


# Enqueue --------------------------------------------------------------------------------------------------


class Retry(Wire):
    """How long to wait before the next attempt. [RETRY-3]"""

    base_s: Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": 30 * 86400})] = 5.0
    factor: Annotated[float, Meta(extra_json_schema={"minimum": 1, "maximum": 100})] = 2.0
    cap_s: Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": 365 * 86400})] = 300.0
    jitter: Jitter = "full"


class Enqueue(Wire):
    """One job to take in. [ENQ-1 to ENQ-8]

    What is not said about queue, attempts, retry, timeout, priority and result is as the living workers of this tenant
    say of the type, if they do.
    """

    queue: QueueName | None = None
    """By default that of the type, else `default`."""
    type: JobType = ""
    payload: Raw = field(default_factory=_null)
    id: JobId | None = None
    request_id: JobId | None = None
    """Repeat it with the same request, and a lost reply costs nothing: the answer is `queued` again. [ENQ-8]"""
    idempotency_key: JobId | None = None
    idempotency: Literal["until_terminal", "until_started", "forever"] | None = None
    idempotency_ttl_s: (
        Annotated[float, Meta(ge=0.001, le=_SPAN_S, extra_json_schema={"maximum": RESULT_TTL_CEILING // 1000})] | None
    ) = None
    """How long a key holds, in place of `idempotency`."""
    delay_s: Duration | None = None
    run_at: Instant | None = None
    priority: Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": 9})] | None = None
    max_attempts: Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": 100})] | None = None
    result_ttl_s: Kept | None = None
    timeout_s: Span | None = None
    retry: Retry | None = None
    replace_failed: bool = False
    codec: Codec = "json"
    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 1


StepName = Annotated[
    str,
    Meta(
        description="1 to 100 bytes of UTF-8 without control characters and without `/`.",
        extra_json_schema={"minLength": 1, "maxLength": 100, "pattern": r"^[^/\u0000-\u001f\u007f-\u009f]+$"},
    ),
]


class NewStep(Wire):
    """A step of a flow: the job it is to be, and the names of the steps that must have completed before."""

    name: StepName
    after: Annotated[list[StepName], Meta(max_length=BATCH_LIMIT)] = []
    queue: QueueName = "default"
    type: JobType = ""
    payload: Raw = field(default_factory=_null)
    delay_s: Duration | None = None
    """Counts from its turn."""
    run_at: Instant | None = None
    priority: Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": 9})] | None = None
    max_attempts: Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": 100})] | None = None
    result_ttl_s: Kept | None = None
    """Counts from the end of the flow."""
    timeout_s: Span | None = None
    retry: Retry | None = None
    codec: Codec = "json"
    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 1


class NewFlow(Wire):
    """Jobs that wait for each other. Their payloads together are up to 256 KiB."""

    name: Annotated[str, Meta(description="What kind of flow it is.", extra_json_schema={"pattern": _NAME})]
    steps: Annotated[list[NewStep], Meta(min_length=1, max_length=BATCH_LIMIT)]
    id: (
        Annotated[
            str,
            Meta(
                description="1 to 99 bytes of UTF-8 without control characters.",
                extra_json_schema={"minLength": 1, "maxLength": 99, "pattern": r"^[^\u0000-\u001f\u007f-\u009f]+$"},
            ),
        ]
        | None
    ) = None
    request_id: JobId | None = None
    """Repeat it with the same request, and a lost reply costs nothing: the answer is `queued` again. [ENQ-8]"""
    result_ttl_s: Kept | None = None


class EnqueueBatch(Wire):
    """Up to 1000 jobs, answered item by item."""

    jobs: Annotated[list[Enqueue], Meta(max_length=BATCH_LIMIT)]


# Work -----------------------------------------------------------------------------------------------------


class Claim(Wire):
    """A wish for jobs. [CLAIM-1 to CLAIM-5]"""

    queues: Annotated[list[QueueName], Meta(min_length=1, max_length=CLAIM_QUEUES)]
    limit: Annotated[int, Meta(ge=1, le=BATCH_LIMIT)] = 1
    lease_s: Lease = 30.0
    wait_s: Wait = 0.0
    worker_id: JobId | None = None


class KnownType(Wire):
    """A job type that a worker runs, and what an enqueue of it gets that says nothing. `name` "": jobs without one."""

    name: JobType
    queue: QueueName = "default"
    max_attempts: Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": 100})] = 4
    retry: Retry = field(default_factory=Retry)
    timeout_s: Span | None = None
    priority: Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": 9})] = 5
    result_ttl_s: Duration = 3600.0


class Beat(Wire):
    """A worker that lives, for `ttl_s` from now on; 0: it signs off."""

    worker_id: JobId
    queues: Annotated[list[QueueName], Meta(min_length=1, max_length=CLAIM_QUEUES)]
    types: Annotated[list[KnownType], Meta(max_length=BATCH_LIMIT)] = []
    host: Annotated[str, Meta(max_length=200)] = ""
    pid: Annotated[int, Meta(ge=0, le=2**53)] = 0
    concurrency: Annotated[int, Meta(ge=0, le=10_000)] = 1
    held: Annotated[int, Meta(ge=0, le=2**53)] = 0
    ttl_s: Annotated[float, Meta(ge=0, le=300)] = 30.0


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
    reason: Annotated[str, Meta(description="Why it is released.", extra_json_schema={"pattern": f"^$|{_NAME}"})] = ""


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


# Operators ------------------------------------------------------------------------------------------------


class Where(Wire):
    """Which dead letters; nothing said: all."""

    type: JobType | None = None
    error: str | None = None


class Replay(Wire):
    """Dead letters to start again: those of these ids, or up to 1000 that match. [DEAD-1]"""

    ids: Annotated[list[JobId], Meta(max_length=BATCH_LIMIT)] | UnsetType = UNSET
    where: Where | UnsetType = UNSET


class Purge(Wire):
    """Dead letters to forget: those that ended before an instant and match."""

    before: Instant | None = None
    type: JobType | None = None
    error: str | None = None


class Retain(Wire):
    """How long to keep one finished job from now on; with `sequence` only that life of the id. [RESULT-1]"""

    id: JobId
    result_ttl_s: Kept
    sequence: int | None = None


class Cancel(Wire):
    """One job to cancel; with `only_waiting` a running one is left alone. [CANCEL-1 to CANCEL-3]

    With `sequence` only that life of the id is meant: any other one is not found.
    """

    id: JobId
    only_waiting: bool = False
    sequence: int | None = None


class CancelBatch(Wire):
    """Up to 1000 jobs to cancel, answered item by item."""

    jobs: Annotated[list[Cancel], Meta(max_length=BATCH_LIMIT)]


class RetainBatch(Wire):
    """Up to 1000 finished jobs, answered item by item."""

    jobs: Annotated[list[Retain], Meta(max_length=BATCH_LIMIT)]


class Forget(Wire):
    """One finished job to forget now; with `finished_at` only if it is still that same ending. [KEEP-1]

    With `sequence` only that life of the id is meant: any other one is not found.
    """

    id: JobId
    finished_at: Instant | None = None
    sequence: int | None = None


class ForgetBatch(Wire):
    """Up to 1000 finished jobs, answered item by item."""

    jobs: Annotated[list[Forget], Meta(max_length=BATCH_LIMIT)]


# Schedules ------------------------------------------------------------------------------------------------


class PutSchedule(Wire):
    """When, by `cron` or `every_s`, and the job that is enqueued then. A time zone is for cron."""

    cron: Annotated[str, Meta(description="Five fields.", extra_json_schema={"pattern": _CRON})] | None = None
    every_s: Annotated[float, Meta(extra_json_schema={"minimum": 1, "maximum": _SPAN_S})] | None = None
    timezone: Annotated[str, Meta(extra_json_schema={"pattern": r"^[A-Za-z0-9_+/-]+$"})] = "UTC"
    queue: QueueName = "default"
    type: JobType = ""
    payload: Raw = field(default_factory=_null)
    priority: Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": 9})] | None = None
    max_attempts: Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": 100})] | None = None
    result_ttl_s: Kept | None = None
    timeout_s: Span | None = None
    retry: Retry | None = None
    codec: Codec = "json"
    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 1


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


class PageQuery(Wire):
    """Which page."""

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
