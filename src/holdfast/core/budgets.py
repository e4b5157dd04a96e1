"""A tenant's budgets: what it may keep in a store and request from a service; and its usage. [TENANT-5]

Budgets are checked against counts that are at most 10 s old, plus what this process has enqueued since. A tenant can
exceed them by what other processes enqueue in that time. In return, no enqueue is slower because of budgets. Only an
explicit `max_waiting` is exact.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import asdict, replace

from holdfast.core.errors import InvalidOption
from holdfast.core.job import DAY, SECOND, Envelope, Job

MAX_BUDGET = 2**53
RECORD_BYTES = 256
"""What a job or key counts besides its payload, result and errors: about the size of its record and indexes."""
RESULT_TTL_CEILING = 30 * DAY
"""The longest `result_ttl` and the longest life of an idempotency key, unless the operator raises it."""


class Budgets(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an operator has set for a tenant. None: the default applies. 0: no limit."""

    max_jobs: int | None = None
    """Jobs of any state, and idempotency keys that outlive their job."""
    max_bytes: int | None = None
    """Bytes of these jobs and keys: payloads, results, errors and records."""
    max_queues: int | None = None
    """Queues that have jobs."""
    max_schedules: int | None = None
    max_flows: int | None = None
    """Running flows."""
    max_workers: int | None = None
    """Live workers that report through the HTTP service."""
    max_types: int | None = None
    """Queues and job types that those workers name, added up over the workers."""
    requests_per_s: int | None = None
    """Requests to one process of the HTTP service."""
    changes_per_s: int | None = None
    """Jobs and leases changed by requests to one process of the HTTP service. Each change makes an event or more."""
    max_connections: int | None = None
    """Connections to one process of the HTTP service, except those on which a request waits."""
    max_streams: int | None = None
    """Event streams of one process of the HTTP service."""
    max_waiting_claims: int | None = None
    """Claims and calls for results that wait in one process of the HTTP service."""

    def check(self) -> Budgets:
        """Return these budgets if each is a whole number from 0 to 2^53. Raises InvalidOption."""
        for name in FIELDS:
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_BUDGET:
                raise InvalidOption(name, f"{value!r} is not a whole number from 0 (no limit) to 2^53")
        return self


FIELDS: tuple[str, ...] = Budgets.__struct_fields__

DEFAULTS = Budgets(
    max_jobs=10_000_000, max_bytes=4 * 1024**3, max_queues=10_000, max_schedules=1_000, max_flows=10_000,
    max_workers=1_000, max_types=10_000,
)  # fmt: skip
"""The defaults of a store. Those of a service are options of `holdfast serve`.

2,700 jobs a second leave 10 million jobs in the hour that results are kept by default. With 170 bytes of payload and
result each, these take 4 GiB. A queue costs every store a few hundred bytes for good.
"""

STORED = tuple(name for name in FIELDS if getattr(DEFAULTS, name) is not None)
"""The budgets of what a store keeps. The others are the service's."""


class Usage(Struct, frozen=True):
    """What a tenant keeps, at most 10 s old where maintenance runs. `jobs` and `bytes` include reserved queues."""

    jobs: int = 0
    """Waiting, leased and finished."""
    keys: int = 0
    """Idempotency keys that outlive their job: for a time or forever. They count from the enqueue on."""
    bytes: int = 0
    """Payloads, results and errors, and RECORD_BYTES for each job and key."""
    queues: int = 0
    """Queues that have jobs or are paused."""
    events: int = 0
    """Events kept in the log."""


class TenantSettings(Struct, frozen=True):
    """Settings of a tenant (`queue` is None) or of one of its queues. None: not set there."""

    queue: str | None = None
    weight: float | None = None
    max_waiting: int | None = None
    budgets: Budgets | None = None
    """Only for a tenant, not for a queue. Setting some leaves the others as they are."""


def merged(old: Budgets | None, new: Budgets | None) -> Budgets | None:
    """The budgets after setting `new`. A budget that `new` leaves out stays as it was."""
    if old is None or new is None:
        return new or old
    return replace(old, **{name: value for name, value in asdict(new).items() if value is not None})


def left_out(own: Budgets | None, others: Budgets | None) -> Budgets | None:
    """The budgets of `others` that `own` does not set. None if it sets them all."""
    if own is None or others is None:
        return others
    missing = {name: value for name, value in asdict(others).items() if getattr(own, name) is None}
    return Budgets(**missing) if any(value is not None for value in missing.values()) else None


def weight(job: Job) -> int:
    """What a job counts in `Usage.bytes`."""
    return RECORD_BYTES + len(job.envelope.payload) + varying(job)


def varying(job: Job) -> int:
    """The part of its weight that changes: its result and its errors."""
    size = 0 if job.result is None else len(job.result.data)
    if not job.errors:
        return size
    for error in job.errors:
        size += sum(len(text.encode(errors="replace")) for text in (error.type, error.message, error.traceback))
    return size


class BudgetUse(Struct, frozen=True):
    """One budget of a tenant."""

    budget: str
    used: int | None
    """None: each process of the service counts it for itself, so it is not known here."""
    limit: int | None
    """0: no limit. None: the service's default."""
    is_set: bool
    """Set for this tenant; else it is the default."""


class TenantUsage(Struct, frozen=True):
    """What a tenant keeps and may keep."""

    tenant: str
    budgets: list[BudgetUse]
    keys: int
    """Idempotency keys that outlive their job; they count as jobs do."""
    events: int
    """Events kept in the log."""

    def of(self, budget: str) -> BudgetUse:
        """The budget of that name. Raises KeyError."""
        for one in self.budgets:
            if one.budget == budget:
                return one
        raise KeyError(budget)


def check_kept(option: str, ms: int, ceiling_ms: int) -> int:
    """Return how long to keep something, if that is within the ceiling; 0 is none. Raises InvalidOption."""
    if 0 < ceiling_ms < ms:
        longest = f"{ceiling_ms / DAY:g} days" if ceiling_ms >= DAY else f"{ceiling_ms / SECOND:g} s"
        reason = f"{ms / SECOND:.12g} s are over the ceiling of {longest}, which the store's operator sets"
        raise InvalidOption(option, f"{reason} (max_result_ttl_s)")
    return ms


def check_envelope(envelope: Envelope, ceiling_ms: int) -> Envelope:
    """Return `envelope` if it keeps its result and its key within the ceiling. Raises InvalidOption. [KEEP-1]"""
    check_kept("result_ttl", envelope.result_ttl_ms, ceiling_ms)
    if envelope.idempotency is not None:
        check_kept("idempotency", envelope.idempotency.ttl_ms, ceiling_ms)
    return envelope
