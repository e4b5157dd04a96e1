"""What one tenant may keep in a store, and what it keeps. [TENANT-5]

Budgets are judged from counts that upkeep refreshes, at most 10 s old: a tenant may overshoot by what it enqueues in
that time, and no enqueue takes a slower path because of them. Only an explicit `max_waiting` is exact.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import asdict, replace

from holdfast.core.job import Job


class Budgets(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an operator has set for a tenant. None: the default holds."""

    max_jobs: int | None = None
    """Jobs of any state, and idempotency keys that outlive their job."""
    max_bytes: int | None = None
    """Bytes of payloads, results, errors and records, of jobs of any state, and of such keys."""
    max_queues: int | None = None
    max_schedules: int | None = None
    max_flows: int | None = None
    """Flows under way."""
    requests_per_s: int | None = None
    """Requests to one process of the HTTP service."""
    changes_per_s: int | None = None
    """Jobs and leases changed by requests to one process of the HTTP service: each makes an event or more."""
    max_connections: int | None = None
    """Connections to one process of the HTTP service."""
    max_streams: int | None = None
    """Event streams of one process of the HTTP service."""
    max_waiting_claims: int | None = None
    """Claims and results that wait in one process of the HTTP service."""


class Usage(Struct, frozen=True):
    """What a tenant keeps, at most 10 s old where upkeep runs. Reserved queues count in `bytes` and `jobs` too."""

    jobs: int = 0
    """Waiting, leased and finished."""
    keys: int = 0
    """Idempotency keys of the kinds that outlive their job: for a time or for ever. From the enqueue on."""
    bytes: int = 0
    """Payloads, results and errors, and RECORD_BYTES for each job and key."""
    queues: int = 0
    """Where it has jobs, or that are paused."""
    events: int = 0
    """Kept in the log."""


RECORD_BYTES = 256
"""What a job or key counts beside its payload, result and errors: about what its record and indexes take."""


def merged(old: Budgets | None, new: Budgets | None) -> Budgets | None:
    """What holds once `new` is set: what that leaves out stays as it was."""
    if old is None or new is None:
        return new or old
    return replace(old, **{name: value for name, value in asdict(new).items() if value is not None})


def left_out(own: Budgets | None, others: Budgets | None) -> Budgets | None:
    """Those of the others that are not set here, None for none."""
    if own is None or others is None:
        return others
    missing = {name: value for name, value in asdict(others).items() if getattr(own, name) is None}
    return Budgets(**missing) if any(value is not None for value in missing.values()) else None


def weight(job: Job) -> int:
    """What a job counts in `Usage.bytes`."""
    return RECORD_BYTES + len(job.envelope.payload) + varying(job)


def varying(job: Job) -> int:
    """What of it changes with the job: its result and its errors."""
    size = 0 if job.result is None else len(job.result.data)
    if not job.errors:
        return size
    for error in job.errors:
        size += sum(len(text.encode(errors="replace")) for text in (error.type, error.message, error.traceback))
    return size
