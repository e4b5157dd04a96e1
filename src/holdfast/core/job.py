"""The terms of the contract as types: what is submitted, what is stored, and the requests to a store.

Instants are whole milliseconds of the store's clock (`*_at`), durations whole milliseconds (`*_ms`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, NamedTuple

from msgspec import Struct, field

PAYLOAD_LIMIT = 256 * 1024
RESULT_LIMIT = 256 * 1024
ERRORS_KEPT = 10

SECOND = 1_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
LONGEST = 1_000 * 365 * DAY
"""The longest duration. It keeps times below 2^53 on every store."""

RESULT_TTL = HOUR
FLOW_HEADER = "holdfast-flow"
"""The header of a flow's step that has the id of the flow."""
LEASE_MIN = 1 * SECOND
LEASE_MAX = 12 * HOUR


class JobState(StrEnum):
    """The state of a job: exactly one at every instant. [STATE-1]"""

    BLOCKED = "blocked"
    """Shown for a step of a flow before it is enqueued. No stored job is in this state."""
    SCHEDULED = "scheduled"
    READY = "ready"
    LEASED = "leased"
    RETRYING = "retrying"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"

    # Enum.__hash__ is written in Python; states are hashed in every transition.
    __hash__ = str.__hash__


WAITING = frozenset({JobState.SCHEDULED, JobState.READY, JobState.RETRYING})
"""The states in which a worker can claim the job, now or when it is due."""
TERMINAL = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELED})

Outcome = Literal["complete", "fail", "retry", "release"]
DeadReason = Literal["permanent", "max_attempts", "lease_expired", "timeout"]
KeyPolicy = Literal["until_terminal", "until_started", "ttl", "forever"]
Jitter = Literal["full", "equal", "none"]


class JobKey(NamedTuple):
    """The address of a job. It always has a tenant. [TENANT-1]"""

    tenant: str
    queue: str
    id: str


class Backoff(Struct, frozen=True, array_like=True, gc=False):
    """How long to wait before the next attempt. It is part of the envelope. [RETRY-3]"""

    base_ms: int = 5 * SECOND
    factor: float = 2.0
    cap_ms: int = 300 * SECOND
    jitter: Jitter = "full"


class IdempotencyKey(Struct, frozen=True, array_like=True, gc=False):
    """A caller's key for "this work, once". [ENQ-3]"""

    key: str
    policy: KeyPolicy = "until_terminal"
    ttl_ms: int = 0


class Envelope(Struct, frozen=True, array_like=True, gc=False):
    """The message: all that the producer decides. It never changes."""

    type: str
    payload: bytes
    codec: str = "json"
    version: int = 1
    priority: int = 5
    max_attempts: int = 4
    backoff: Backoff = Backoff()
    timeout_ms: int | None = None
    result_ttl_ms: int = RESULT_TTL
    request_id: str = ""
    idempotency: IdempotencyKey | None = None
    headers: dict[str, str] | None = None


class AttemptError(Struct, frozen=True, array_like=True, gc=False):
    """Why one attempt failed. The last 10 are kept. [RETRY-4]"""

    type: str
    message: str
    traceback: str = ""
    attempt: int = 0
    at: int = 0


class Result(Struct, frozen=True, array_like=True, gc=False):
    """What a handler returned: bytes in a codec, or `blob`, the name of a blob that has them."""

    data: bytes
    codec: str = "json"
    blob: str = ""


class Progress(Struct, frozen=True, array_like=True, gc=False):
    """The progress that a handler reports."""

    fraction: float
    message: str = ""


class Job(Struct, gc=False):
    """The record of one job: its envelope and its state. Only `core.lifecycle` changes the state."""

    tenant: str
    queue: str
    id: str
    seq: int
    envelope: Envelope
    state: JobState
    visible_at: int
    enqueued_at: int
    attempts: int = 0
    token: int = 0
    deadline: int = 0
    worker_id: str = ""
    claimed_at: int | None = None
    finished_at: int | None = None
    # The outcome that used the current token, and the state in its answer. A repeated acknowledgement gets the first
    # answer again. [LEASE-1]
    spent: str = ""
    spent_state: str = ""
    reason: str = ""
    result: Result | None = None
    result_ttl_ms: int = RESULT_TTL
    expires_at: int | None = None
    progress: Progress | None = None
    errors: list[AttemptError] = field(default_factory=list[AttemptError])
    replays: int = 0
    events: int = 0
    """The number of its last event. 0: unknown."""
    # Why the last worker released it, and since when every release has had this reason. [RETRY-6]
    released_for: str = ""
    first_released_at: int = 0

    @property
    def key(self) -> JobKey:
        return JobKey(self.tenant, self.queue, self.id)

    def snapshot(self) -> Job:
        """A copy of the record, which later changes do not affect."""
        return self.__copy__()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]


# Requests to a store, item by item. ----------------------------------------------------------------


class NewJob(Struct, frozen=True, gc=False):
    """One enqueue. `delay_ms` counts from the store's clock, `run_at` is an instant of it. [ENQ-5, TIME-1]"""

    key: JobKey
    envelope: Envelope
    delay_ms: int = 0
    run_at: int | None = None
    replace_failed: bool = False


class Finish(Struct, frozen=True, gc=False):
    """One acknowledgement. `random` in [0, 1) feeds the jitter: equal inputs, equal delays. [LEASE-1, RETRY-3]"""

    key: JobKey
    token: int
    outcome: Outcome
    result: Result | None = None
    error: AttemptError | None = None
    timed_out: bool = False
    delay_ms: int | None = None
    random: float = 0.0
    forgive: bool = False
    """For a release: earlier attempts do not count either."""
    reason: str = ""
    """Why a job is released. "": no particular reason. [RETRY-6]"""


class Extend(Struct, frozen=True, gc=False):
    """Hold a lease for `lease_ms` more. [LEASE-2]"""

    key: JobKey
    token: int
    lease_ms: int


class Lease(Struct, frozen=True):
    """The lease under which a call is made. The call does nothing unless the lease is live in the same atomic step."""

    key: JobKey
    token: int


class Report(Struct, frozen=True):
    """Progress of a running job."""

    key: JobKey
    token: int
    progress: Progress


class Cancel(Struct, frozen=True):
    """Cancel one job; `only_waiting` leaves a running one alone. [CANCEL-1, CANCEL-2]

    With `seq`, only the life of the id with this sequence number is found.
    """

    key: JobKey
    only_waiting: bool = False
    seq: int | None = None
    by: str = ""
    """The operator who acts. "": a program. [EVENT-1]"""


class PurgeCount(Struct, frozen=True):
    """How many jobs of a tenant were purged. [EVENT-1]

    The record of a purged job is gone: without this count, a `purged` that is missing in the log would not be noticed.
    """

    tenant: str
    series: int
    """Identifies the count: the sequence number of the first job in it. A new count starts after one was dropped."""
    count: int


PURGE_COUNT_MS = 30 * DAY
"""How long a count is kept after the last purge. The log waits for no reader that long."""
PURGE_COUNTS_DROPPED = 100
"""The most old counts that a purge drops."""


class Purge(Struct, frozen=True):
    """Remove one finished job now. With `finished_at`: only if it ended at that instant.

    With `seq`, only the life of the id with this sequence number is found.
    """

    key: JobKey
    finished_at: int | None = None
    seq: int | None = None
    by: str = ""
    """The operator who acts. "": a program. [EVENT-1]"""


class SetResultTtl(Struct, frozen=True):
    """Keep a finished job for `ttl_ms` from now. [RESULT-1]

    With `seq`, only the life of the id with this sequence number is found.
    """

    key: JobKey
    ttl_ms: int
    seq: int | None = None


class ClaimRequest(Struct, frozen=True):
    """A request for up to `limit` jobs. `tenant=None` serves every tenant in fair turns. [CLAIM-1, TENANT-4]

    The claim takes from the queues in rotation, starting with the first. The caller rotates the list.
    """

    tenant: str | None
    queues: tuple[str, ...]
    limit: int
    lease_ms: int
    worker_id: str
    random: float = 0.0


# Answers of a store, item by item. ---------------------------------------------------------------------


class Queued(Struct, frozen=True, gc=False):
    """A new job, or the same request again. [ENQ-8]"""

    id: str
    state: JobState


class Duplicate(Struct, frozen=True, gc=False):
    """The job already exists. `state` is None if only its key is left. [ENQ-2, ENQ-3]"""

    id: str
    state: JobState | None


class AlreadyCompleted(Struct, frozen=True, gc=False):
    """The job has already completed; this is its result. [ENQ-2]"""

    id: str
    result: Result


class Finished(Struct, frozen=True, gc=False):
    """The acknowledgement was accepted, now or before. `state` is the job's new state."""

    state: JobState


class Extended(Struct, frozen=True, gc=False):
    """The lease holds until `deadline`. `now` is the store's clock at that moment."""

    deadline: int
    now: int


class Reported(Struct, frozen=True, gc=False):
    """The progress was recorded."""


class Replayed(Struct, frozen=True, gc=False):
    """The dead letter is a waiting job again."""


CancelStatus = Literal["canceled", "processing", "completed", "failed", "not_found"]
PurgeStatus = Literal["purged", "not_terminal", "not_found"]
TtlStatus = Literal["updated", "not_terminal", "not_found"]


class Claimed(Struct, frozen=True):
    """A claim's jobs. If they are fewer than asked for, `next_at` is when to claim again (None: no job waits)."""

    jobs: list[Job]
    now: int
    next_at: int | None = None
