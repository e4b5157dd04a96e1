"""Every error Holdfast raises, in one tree:

    HoldfastError
    ├── InvalidName, InvalidOption, InvalidPayload     the call is wrong; nothing happened
    │     └── PayloadTooLarge (InvalidPayload)
    ├── QuotaExceeded                                  a tenant has used up a budget
    ├── PartlyRefused                                  some messages of a batch were refused, the others taken
    ├── JobNotFound, NotReplayable                     no such job / not one that can be replayed
    ├── LeaseError                                     the acknowledgement is not accepted
    │     ├── LeaseLost                                the job has a newer lease, or ended with another outcome
    │     ├── LeaseExpired                             the deadline passed
    │     └── JobCanceled                              the job was canceled
    ├── JobFailed, WaitTimeout, ResultExpired, ResultTooLarge        waiting for a result
    ├── EventsTrimmed                                  the events that the reader asked for are trimmed
    ├── UnknownJobType, UnknownCodec                   this process cannot run that job
    ├── Unsupported                                    the store does not have this feature
    ├── StoreError                                     the store itself
    │     ├── StoreUnavailable, StoreBusy              try again later
    │     ├── AccessRefused                            the service does not accept the token
    │     └── StoreMismatch                            the data was written with other options
    └── Permanent, RetryLater                          raised by handlers to choose the outcome

An error keeps its facts as fields and as `args`, so it survives pickling. `str()` makes the text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

_KEPT_AS_JOBS = {"holdfast:schedules": "schedule", "holdfast:flows": "flow"}
"""What messages call the jobs of these reserved queues."""


class HoldfastError(Exception):
    """The base of every error in this package. `code` is stable: match on it."""

    code: ClassVar[str] = "error"


class InvalidName(HoldfastError, ValueError):
    """A tenant, queue, job type or id that the naming rules refuse. [TENANT-3]"""

    code = "invalid_name"

    def __init__(self, what: str, name: str, reason: str) -> None:
        super().__init__(what, name, reason)
        self.what, self.name, self.reason = what, name, reason

    def __str__(self) -> str:
        return f"{self.what} {self.name[:80]!r} is not allowed: {self.reason}"


class InvalidOption(HoldfastError, ValueError):
    """An option outside its range, or two that exclude each other."""

    code = "invalid_option"

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(option, reason)
        self.option, self.reason = option, reason

    def __str__(self) -> str:
        return f"{self.option}: {self.reason}"


class InvalidPayload(HoldfastError, ValueError):
    """A payload or result that cannot be stored as it is."""

    code = "invalid_payload"

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason, path)
        self.reason, self.path = reason, path

    def __str__(self) -> str:
        return f"{self.reason} (at {self.path})" if self.path else self.reason


class PayloadTooLarge(InvalidPayload):
    """A payload over the limit. [ENQ-6]"""

    code = "payload_too_large"

    def __init__(self, size: int, limit: int) -> None:
        super().__init__("", "")
        self.args = (size, limit)
        self.size, self.limit = size, limit

    def __str__(self) -> str:
        return (
            f"payload is {self.size / 1024:.1f} KiB, the limit is {self.limit / 1024:.0f} KiB. "
            "Store it in a blob and pass a reference (docs/howto/large-payloads.md)."
        )


class QuotaExceeded(HoldfastError):
    """The tenant has used up a budget. Nothing of this item was stored. [TENANT-5]

    `budget` names it: `max_waiting`, which is exact and may be one queue's, or one of `core.budgets`.
    """

    code = "quota_exceeded"

    def __init__(self, queue: str | None, used: int, limit: int, budget: str = "max_waiting") -> None:
        super().__init__(queue, used, limit, budget)
        self.queue, self.used, self.limit, self.budget = queue, used, limit, budget

    @property
    def waiting(self) -> int:
        """How many jobs are waiting, where `budget` is `max_waiting`."""
        return self.used

    def __str__(self) -> str:
        thing, cure = _BUDGETS.get(self.budget, ("", ""))
        if thing:
            return f"the tenant has {self.used} {thing}, its budget {self.budget} is {self.limit}. {cure}"
        where = f"queue {self.queue!r}" if self.queue else "all queues of the tenant"
        return f"{self.used} jobs are waiting in {where}, max_waiting is {self.limit}. Try again when some have run."


_BUDGETS = {
    "max_jobs": ("jobs and kept keys", "Try again when some have been forgotten, or shorten result_ttl."),
    "max_bytes": ("bytes in jobs and results", "Try again when some have been forgotten, or shorten result_ttl."),
    "max_queues": ("queues", "Use one that has jobs, or try again when some are empty."),
    "max_schedules": ("schedules", "Remove some first."),
    "max_flows": ("flows under way", "Try again when some have ended."),
    "max_workers": ("workers", "Stop some first."),
    "max_types": ("queues and job types that its workers name", "Let its workers serve fewer."),
}
"""What each counts, and what to do."""


class PartlyRefused(HoldfastError):
    """Some messages of `enqueue_many` were refused; all the others were enqueued. [ENQ-4]

    `tickets` has one ticket for each message, in order. `refused` has those of the refused messages, each with its
    `error`.
    """

    code = "partly_refused"

    def __init__(self, tickets: Sequence[Any]) -> None:
        self.tickets = list(tickets)
        self.refused = [ticket for ticket in self.tickets if ticket.error is not None]
        super().__init__(len(self.refused), len(self.tickets))

    def __str__(self) -> str:
        kinds = Counter(type(ticket.error).__name__ for ticket in self.refused)
        count = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
        first = next(at for at, ticket in enumerate(self.tickets) if ticket.error is not None)
        return (
            f"{len(self.refused)} of {len(self.tickets)} messages were refused ({count}), the others were taken. "
            f"The first one is message {first + 1}: {self.tickets[first].error} Every ticket is in `tickets`, "
            "those refused are in `refused`; enqueue_many(..., on_refused='return') returns them instead."
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.tickets,)


class JobNotFound(HoldfastError, LookupError):
    """No job of that id in that queue of this tenant, whatever other tenants have. [TENANT-2]

    Schedules and flows are jobs, too; the text calls them schedule and flow.
    """

    code = "job_not_found"

    def __init__(self, queue: str, job_id: str) -> None:
        super().__init__(queue, job_id)
        self.queue, self.job_id = queue, job_id

    def __str__(self) -> str:
        kind = _KEPT_AS_JOBS.get(self.queue)
        return f"no job {self.job_id!r} in queue {self.queue!r}" if kind is None else f"no {kind} {self.job_id!r}"


class NotReplayable(HoldfastError):
    """The job is not a dead letter, or another job has its idempotency key by now. [DEAD-1, ENQ-3]"""

    code = "not_replayable"

    def __init__(self, queue: str, job_id: str, reason: str) -> None:
        super().__init__(queue, job_id, reason)
        self.queue, self.job_id, self.reason = queue, job_id, reason

    def __str__(self) -> str:
        return f"job {self.job_id!r} in queue {self.queue!r} cannot be replayed: {self.reason}"


class LeaseError(HoldfastError):
    """An acknowledgement that was not accepted. Nothing changed. [LEASE-1]"""

    code = "lease_error"
    text: ClassVar[str] = ""

    def __init__(self, queue: str, job_id: str) -> None:
        super().__init__(queue, job_id)
        self.queue, self.job_id = queue, job_id

    def __str__(self) -> str:
        return f"job {self.job_id!r} in queue {self.queue!r}: {self.text}"


class LeaseLost(LeaseError):
    """The token is not the last one granted, or another outcome has used it."""

    code = "lease_lost"
    text = "this lease is no longer the current one; drop the work: another run decides the outcome"


class LeaseExpired(LeaseError):
    """The deadline passed by the store's clock. Late acknowledgements are never accepted."""

    code = "lease_expired"
    text = "the lease ran out before this arrived; the job will run again or has failed"


class JobCanceled(LeaseError):
    """The job was canceled. Raised by late acknowledgements and by waiting for the result. [CANCEL-1]"""

    code = "job_canceled"
    text = "the job was canceled"


class JobFailed(HoldfastError):
    """The job whose result was awaited has failed for good."""

    code = "job_failed"

    def __init__(self, queue: str, job_id: str, reason: str, error_type: str = "", message: str = "") -> None:
        super().__init__(queue, job_id, reason, error_type, message)
        self.queue, self.job_id, self.reason = queue, job_id, reason
        self.error_type, self.message = error_type, message

    def __str__(self) -> str:
        cause = f": {self.error_type}: {self.message}" if self.error_type else ""
        return f"job {self.job_id!r} in queue {self.queue!r} failed ({self.reason}){cause}"


class WaitTimeout(HoldfastError, TimeoutError):
    """The wait ended before the job did. The job continues. [RESULT-2]"""

    code = "wait_timeout"

    def __init__(self, queue: str, job_id: str, timeout_s: float) -> None:
        super().__init__(queue, job_id, timeout_s)
        self.queue, self.job_id, self.timeout_s = queue, job_id, timeout_s

    def __str__(self) -> str:
        after = f"{round(self.timeout_s, 3):g} s"
        return f"job {self.job_id!r} in queue {self.queue!r} was not done after {after}; it continues"


class ResultExpired(HoldfastError, LookupError):
    """The job existed; its result is no longer kept. [RESULT-1]"""

    code = "result_expired"

    def __init__(self, queue: str, job_id: str) -> None:
        super().__init__(queue, job_id)
        self.queue, self.job_id = queue, job_id

    def __str__(self) -> str:
        return f"the result of job {self.job_id!r} in queue {self.queue!r} is no longer kept; raise its result_ttl"


class ResultTooLarge(HoldfastError):
    """A result over the limit, without a blob store to keep it. [RESULT-1]"""

    code = "result_too_large"

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(size, limit)
        self.size, self.limit = size, limit

    def __str__(self) -> str:
        return (
            f"result is {self.size / 1024:.1f} KiB, the limit is {self.limit / 1024:.0f} KiB. "
            "Open the queue with blobs=URL to keep large results."
        )


class EventsTrimmed(HoldfastError):
    """The reader asked for events that are no longer kept: the gap is (`from_`, `to`]. [EVENT-2]"""

    code = "events_trimmed"

    def __init__(self, from_: str, to: str) -> None:
        super().__init__(from_, to)
        self.from_, self.to = from_, to

    def __str__(self) -> str:
        return f"events after {self.from_!r} up to {self.to!r} are no longer kept; resume with after={self.to!r}"


class UnknownJobType(HoldfastError):
    """This worker has no handler for the job's type. The job is retried, so a rolling deploy recovers by itself."""

    code = "unknown_job_type"

    def __init__(self, job_type: str) -> None:
        super().__init__(job_type)
        self.job_type = job_type

    def __str__(self) -> str:
        if not self.job_type:
            return "the job has no type and this worker has no catch-all; pass Worker(handler=...)"
        return f"no handler for job type {self.job_type!r} here; add it to Worker(jobs=[...])"


class UnknownCodec(HoldfastError):
    """This process cannot read the payload's codec or version."""

    code = "unknown_codec"

    def __init__(self, codec: str, reason: str = "") -> None:
        super().__init__(codec, reason)
        self.codec, self.reason = codec, reason

    def __str__(self) -> str:
        return self.reason or f"no codec named {self.codec!r} here; register it with holdfast.jobs.codec.register()"


class Unsupported(HoldfastError):
    """The store does not have this feature. Its capabilities say so."""

    code = "unsupported"

    def __init__(self, feature: str, store: str) -> None:
        super().__init__(feature, store)
        self.feature, self.store = feature, store

    def __str__(self) -> str:
        return f"the {self.store} store does not support {self.feature}"


class StoreError(HoldfastError):
    """The store itself failed or refused."""

    code = "store_error"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class StoreUnavailable(StoreError):
    """The store cannot be reached or cannot write. Nothing of this call was acknowledged; try again later."""

    code = "store_unavailable"


class StoreBusy(StoreError):
    """The store is running but cannot take this call now; try again later."""

    code = "store_busy"


class AccessRefused(StoreError):
    """The service does not accept the token, or does not allow it this call; the reason says which. Nothing happened.

    `problem` is the service's own code, for example `token_expired` or `scope_missing`.
    """

    code = "access_refused"

    def __init__(self, reason: str, problem: str = "token_missing") -> None:
        super().__init__(reason)
        self.args = (reason, problem)
        self.problem = problem


class StoreMismatch(StoreError):
    """The data is not Holdfast's, is damaged, or was written with other options. It is left untouched."""

    code = "store_mismatch"


class Permanent(HoldfastError):
    """Raise it in a handler to fail the job at once, whatever attempts are left. [RETRY-4]"""

    code = "permanent"


class RetryLater(HoldfastError):
    """Raise it in a handler to release the job for `delay`. It is no error, and the attempt does not count."""

    code = "retry_later"

    def __init__(self, reason: str = "", *, delay: timedelta | float = timedelta(seconds=0)) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)

    def __reduce__(self) -> tuple[object, ...]:
        return (_retry_later, (self.reason, self.delay))

    def __str__(self) -> str:
        return self.reason or f"retry in {self.delay.total_seconds():g} s"


def _retry_later(reason: str, delay: timedelta) -> RetryLater:
    return RetryLater(reason, delay=delay)
