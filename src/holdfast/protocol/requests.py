"""Requests to the HTTP service. `protocol.answers` has the answers.

All bodies are JSON. Instants are RFC 3339 with milliseconds and a time zone; durations are seconds (`*_s`). A payload
or result is any JSON. With another codec than `json` it is the base64 of its bytes, and `codec` names the codec.
Unknown fields are refused.

The rules for names and numbers are those of `core.names`, which checks them. The schemas repeat them for readers.
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
"""The most items in a batch, and jobs in a claim."""
CLAIM_QUEUES = 100
"""The most queues in a claim."""
PAGE_LIMIT = 1000
MAX_WAIT_S = 60.0
KINDS: tuple[str, ...] = get_args(EventKind)

_SPAN_S = 1000 * 365 * 86400
_CRON = r"^ *[^ ]+( +[^ ]+){4} *$"
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$"


def _list_of(words: Iterable[str]) -> str:
    """The pattern of a list of these words, separated by commas, which may be empty."""
    word = f"({'|'.join(words)})"
    return f"^$|^{word}(,{word})*$"


QueueName = Annotated[str, Meta(description="A queue.", extra_json_schema={"pattern": _NAME})]
JobType = Annotated[str, Meta(description='A job type; "": no type.', extra_json_schema={"pattern": f"^$|{_NAME}"})]
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
        description="Seconds, up to the store's limit, which is 30 days unless its operator raises it.",
        extra_json_schema={"minimum": 0, "maximum": RESULT_TTL_CEILING // 1000},
    ),
]
Span = Annotated[float, Meta(description="Seconds, at least 0.001.", ge=0.001, le=_SPAN_S)]
Lease = Annotated[float, Meta(description="Seconds.", extra_json_schema={"minimum": 1, "maximum": 43200})]
Wait = Annotated[
    float,
    Meta(description="Seconds to wait.", ge=0, le=MAX_WAIT_S),
]
Token = Annotated[
    str, Meta(description="The token of the lease, from the answer to the claim.", extra_json_schema={"maxLength": 200})
]
Limit = Annotated[int, Meta(ge=1, le=PAGE_LIMIT)]
States = Annotated[str, Meta(extra_json_schema={"pattern": _list_of(JobState)})]
Kinds = Annotated[str, Meta(extra_json_schema={"pattern": _list_of(KINDS)})]
Priority = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": 9})]
Attempts = Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": 100})]
Codec = Annotated[str, Meta(description="The codec of the bytes.", extra_json_schema={"enum": ["json", "msgpack"]})]


def _null() -> Raw:
    return Raw(b"null")


class Request(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all requests."""


# Enqueue --------------------------------------------------------------------------------------------------


class Retry(Request):
    """The delay before the next attempt. [RETRY-3]"""

    base_s: Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": 30 * 86400})] = 5.0
    factor: Annotated[float, Meta(extra_json_schema={"minimum": 1, "maximum": 100})] = 2.0
    cap_s: Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": 365 * 86400})] = 300.0
    jitter: Jitter = "full"


class JobSpec(Request):
    """What a job is, for an enqueue, a step of a flow and a schedule alike."""

    type: JobType = ""
    payload: Raw = field(default_factory=_null)
    priority: Priority | None = None
    max_attempts: Attempts | None = None
    result_ttl_s: Kept | None = None
    """For a step, this counts from the end of the flow."""
    timeout_s: Span | None = None
    retry: Retry | None = None
    codec: Codec = "json"
    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 1


class Enqueue(JobSpec):
    """One job to enqueue. [ENQ-1 to ENQ-8]

    Queue, attempts, retry, timeout, priority and result time default to those that live workers of this tenant report
    for the type.
    """

    queue: QueueName | None = None
    """Defaults to the queue of the type, else to `default`."""
    id: JobId | None = None
    request_id: JobId | None = None
    """Makes a repeat safe after a lost answer: the same request with the same id is answered `queued` again. [ENQ-8]"""
    idempotency_key: JobId | None = None
    idempotency: Literal["until_terminal", "until_started", "forever"] | None = None
    # Not `le`: it would win over the maximum of the schema.
    idempotency_ttl_s: (
        Annotated[float, Meta(ge=0.001, extra_json_schema={"maximum": RESULT_TTL_CEILING // 1000})] | None
    ) = None
    """How long the key is valid, instead of `idempotency`."""
    delay_s: Duration | None = None
    run_at: Instant | None = None
    replace_failed: bool = False


StepName = Annotated[
    str,
    Meta(
        description="1 to 100 bytes of UTF-8 without control characters and without `/`.",
        extra_json_schema={"minLength": 1, "maxLength": 100, "pattern": r"^[^/\u0000-\u001f\u007f-\u009f]+$"},
    ),
]


class NewStep(JobSpec, kw_only=True):
    """A step of a flow: its job, and the names of the steps that must complete first."""

    name: StepName
    after: Annotated[list[StepName], Meta(max_length=BATCH_LIMIT)] = []
    queue: QueueName = "default"
    delay_s: Duration | None = None
    """Counts from the completion of the steps before it."""
    run_at: Instant | None = None


class NewFlow(Request):
    """Jobs that wait for each other. The limit for all payloads together is 256 KiB."""

    name: Annotated[str, Meta(description="The kind of flow.", extra_json_schema={"pattern": _NAME})]
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
    """Makes a repeat safe after a lost answer: the same request with the same id is answered `queued` again. [ENQ-8]"""
    result_ttl_s: Kept | None = None


class EnqueueBatch(Request):
    """Up to 1000 jobs, answered item by item."""

    jobs: Annotated[list[Enqueue], Meta(max_length=BATCH_LIMIT)]


# Work -----------------------------------------------------------------------------------------------------


class Claim(Request):
    """Leases jobs. [CLAIM-1 to CLAIM-5]"""

    queues: Annotated[list[QueueName], Meta(min_length=1, max_length=CLAIM_QUEUES)]
    limit: Annotated[int, Meta(ge=1, le=BATCH_LIMIT)] = 1
    lease_s: Lease = 30.0
    wait_s: Wait = 0.0
    worker_id: JobId | None = None


class KnownType(Request):
    """A job type that a worker runs, with the defaults for its jobs. An empty `name` means jobs without a type."""

    name: JobType
    queue: QueueName = "default"
    max_attempts: Attempts = 4
    retry: Retry = field(default_factory=Retry)
    timeout_s: Span | None = None
    priority: Priority = 5
    result_ttl_s: Duration = 3600.0


class Beat(Request):
    """A worker reports that it is alive for `ttl_s` from now on; 0: it stops."""

    worker_id: JobId
    queues: Annotated[list[QueueName], Meta(min_length=1, max_length=CLAIM_QUEUES)]
    types: Annotated[list[KnownType], Meta(max_length=BATCH_LIMIT)] = []
    host: Annotated[str, Meta(max_length=200)] = ""
    pid: Annotated[int, Meta(ge=0, le=2**53)] = 0
    concurrency: Annotated[int, Meta(ge=0, le=10_000)] = 1
    held: Annotated[int, Meta(ge=0, le=2**53)] = 0
    ttl_s: Annotated[float, Meta(ge=0, le=300)] = 30.0


class JobError(Request):
    """Why an attempt failed."""

    type: Annotated[str, Meta(max_length=2048)]
    message: str = ""
    traceback: str = ""


class LeaseItem(Request):
    """Names a lease."""

    queue: QueueName
    id: JobId
    token: Token


class Finish(LeaseItem):
    """Ends one attempt. [LEASE-1]

    `complete` has a `result`. `retry`: the attempt failed, and the job fails if it was the last. `fail`: the job fails.
    `release`: the job waits again, and the attempt does not count.
    """

    outcome: Outcome
    result: Raw = field(default_factory=_null)
    codec: Codec = "json"
    error: JobError | None = None
    timed_out: bool = False
    delay_s: Duration | None = None
    reason: Annotated[str, Meta(description="Why it is released.", extra_json_schema={"pattern": f"^$|{_NAME}"})] = ""


class Extend(LeaseItem):
    """Renews a lease. [LEASE-2]"""

    lease_s: Lease = 30.0


class Progress(Request):
    """The progress of an attempt."""

    fraction: Annotated[float, Meta(ge=0, le=1)]
    message: Annotated[str, Meta(max_length=1024)] = ""


class Report(LeaseItem):
    """Reports the progress of a running job."""

    progress: Progress


class FinishBatch(Request):
    """Up to 1000 acknowledgements, answered item by item."""

    leases: Annotated[list[Finish], Meta(max_length=BATCH_LIMIT)]


class ExtendBatch(Request):
    """Up to 1000 renewals, answered item by item."""

    leases: Annotated[list[Extend], Meta(max_length=BATCH_LIMIT)]


class ReportBatch(Request):
    """Up to 1000 reports, answered item by item."""

    leases: Annotated[list[Report], Meta(max_length=BATCH_LIMIT)]


# Operators ------------------------------------------------------------------------------------------------


class Where(Request):
    """Selects dead letters. Without fields it selects all."""

    type: JobType | None = None
    error: str | None = None


class Replay(Request):
    """Replays dead letters: those with these ids, or up to 1000 that match, after `cursor`. [DEAD-1]"""

    ids: Annotated[list[JobId], Meta(max_length=BATCH_LIMIT)] | UnsetType = UNSET
    where: Where | UnsetType = UNSET
    dry_run: bool = False
    cursor: str | None = None


class Purge(Request):
    """Purges dead letters: up to 1000 that failed before an instant and match, after `cursor`."""

    before: Instant | None = None
    type: JobType | None = None
    error: str | None = None
    dry_run: bool = False
    cursor: str | None = None


class SetResultTtl(Request):
    """Keeps one finished job for this long from now. With `sequence`, no other job under the id. [RESULT-1]"""

    id: JobId
    result_ttl_s: Kept
    sequence: int | None = None


class Cancel(Request):
    """Cancels one job. With `only_waiting`, a running job is not canceled. [CANCEL-1 to CANCEL-3]

    With `sequence`, an earlier or later job under the id is not found.
    """

    id: JobId
    only_waiting: bool = False
    sequence: int | None = None


class CancelBatch(Request):
    """Up to 1000 jobs to cancel, answered item by item."""

    jobs: Annotated[list[Cancel], Meta(max_length=BATCH_LIMIT)]


class SetResultTtlBatch(Request):
    """Up to 1000 finished jobs, answered item by item."""

    jobs: Annotated[list[SetResultTtl], Meta(max_length=BATCH_LIMIT)]


class PurgeJob(Request):
    """Purges one finished job. With `finished_at`, only if it has not run again since. [KEEP-1]

    With `sequence`, an earlier or later job under the id is not found.
    """

    id: JobId
    finished_at: Instant | None = None
    sequence: int | None = None


class PurgeJobBatch(Request):
    """Up to 1000 finished jobs, answered item by item."""

    jobs: Annotated[list[PurgeJob], Meta(max_length=BATCH_LIMIT)]


# Schedules ------------------------------------------------------------------------------------------------


class PutSchedule(JobSpec):
    """A time by `cron` or `every_s`, and the job to enqueue. The time zone applies to `cron`."""

    cron: Annotated[str, Meta(description="Five fields.", extra_json_schema={"pattern": _CRON})] | None = None
    every_s: Annotated[float, Meta(extra_json_schema={"minimum": 1, "maximum": _SPAN_S})] | None = None
    timezone: Annotated[str, Meta(extra_json_schema={"pattern": r"^[A-Za-z0-9_+/-]+$"})] = "UTC"
    queue: QueueName = "default"


# Queries --------------------------------------------------------------------------------------------------


class NoQuery(Request):
    """No parameters."""


class WaitQuery(Request):
    """Waits for the end of a job."""

    wait_s: Wait = 0.0


class CancelQuery(Request):
    """Options of a cancel."""

    only_waiting: bool = False


class PageQuery(Request):
    """Selects a page."""

    cursor: str | None = None
    limit: Limit = 100


class ListQuery(PageQuery):
    """Selects jobs of a queue. Several states are separated by commas."""

    state: States | None = None
    type: JobType | None = None


class DeadQuery(PageQuery):
    """Selects dead letters. `error` is a type, a fingerprint or a part of a message."""

    type: JobType | None = None
    error: str | None = None


class EventQuery(Request):
    """Selects events after an offset."""

    after: str | None = None
    limit: Limit = 100


class StreamQuery(Request):
    """Selects events after an offset and of some kinds, separated by commas. `follow` waits for new events."""

    after: str | None = None
    follow: bool = True
    kinds: Kinds | None = None
