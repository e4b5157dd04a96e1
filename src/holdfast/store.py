"""The store contract: what every store does, atomically, for a batch at a time.

A store keeps jobs and decides by its own clock. Every operation names the tenant (inside each `JobKey`, or as
an argument), takes a list and answers item by item in the same order: a bad item spoils nothing else. [ENQ-4]
Refusals are values in the answer (instances of the errors in `core.errors`); exceptions are for the store
itself: StoreUnavailable, StoreBusy, StoreMismatch, Unsupported. A call that raised has acknowledged nothing.

`holdfast.testing.conformance` proves a store; `open_store(url)` finds one by the entry-point group
`holdfast.stores`, where ours are registered like anyone's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from holdfast.core import lifecycle
from holdfast.core.budgets import Budgets, Usage, merged
from holdfast.core.errors import (
    JobNotFound,
    NotReplayable,
    QuotaExceeded,
)
from holdfast.core.events import Event, EventColumns, Gap, fingerprint
from holdfast.core.job import (
    DAY,
    AlreadyCompleted,
    Cancel,
    CancelStatus,
    Claimed,
    ClaimRequest,
    Duplicate,
    Extend,
    Extended,
    Finish,
    Finished,
    Job,
    JobKey,
    JobState,
    Lease,
    NewJob,
    Purge,
    PurgeCount,
    PurgeStatus,
    Queued,
    Replayed,
    Report,
    Reported,
    SetResultTtl,
    TtlStatus,
)
from holdfast.core.lease import Refusal
from holdfast.core.policy import TypeInfo

EnqueueAnswer = Queued | Duplicate | AlreadyCompleted | QuotaExceeded
FinishAnswer = Finished | Refusal
ExtendAnswer = Extended | Refusal
ReportAnswer = Reported | Refusal
ReplayAnswer = Replayed | JobNotFound | NotReplayable | QuotaExceeded

EVENTS_BOUND = 1_000_000
"""Trimming waits for registered readers until the log is this long ... [EVENT-2]"""
EVENTS_BOUND_MS = 7 * DAY
"""... or this old, and then goes on."""

JOINING = "joining your transaction: postgresql:// does, elsewhere commit first and use an id or key of your own"
"""What a store without it says when it is asked to. [ENQ-7]"""

REPAIR_LIMIT = 100
"""How many expired leases a claim ends on its way. [LEASE-3]"""


class Capabilities(Struct, frozen=True):
    """Where stores may differ, each with what holds here. `notes` says in a sentence what a flag cannot."""

    name: str
    durable: bool
    """An acknowledged change survives the end of the process. [ENQ-1]"""
    survives_power_loss: bool
    """It survives a power cut too, as far as the disk keeps its word on fsync."""
    many_processes: bool
    """Several processes can share the store."""
    many_hosts: bool
    transactional_enqueue: bool
    """An enqueue can join the caller's own transaction. [ENQ-7]"""
    exact_turns: bool
    """Turns between tenants are exact over the whole store, not only within a shard. [TENANT-4]"""
    exact_quota: bool
    """A quota never overshoots. [TENANT-5]"""
    notes: dict[str, str]


class Hint(StrEnum):
    """What may have changed. Whoever gets one looks for himself."""

    READY = "ready"
    """A job may have become claimable."""
    DONE = "done"
    """A job reached a terminal state."""
    CANCELED = "canceled"
    """A job that was running was canceled."""
    EVENTS = "events"
    """The log grew."""

    __hash__ = str.__hash__


class Signal(Struct, frozen=True):
    """A hint with as much of the address as the store knows; "" stands for any."""

    hint: Hint
    tenant: str = ""
    queue: str = ""
    id: str = ""
    job: Job | None = None
    """With DONE, from a store that has it at hand: the job as it ended, which saves whoever waits for it the look."""


Listener = Callable[[Signal], None]
ALL_HINTS = frozenset(Hint)


class ListQuery(Struct, frozen=True):
    """Which jobs to list. Waiting ones come in claim order, leased by deadline, finished by time of ending.

    `type` and `error` filter while paging: a page may be empty and still have a cursor.
    """

    tenant: str
    queue: str
    states: frozenset[JobState] = frozenset(JobState)
    type: str | None = None
    error: str | None = None
    """An error's type or fingerprint, exactly, or a part of its message; the last error counts."""
    cursor: str | None = None
    limit: int = 100

    def matches(self, job: Job, now: int) -> bool:
        """Whether a job of this lane belongs in the list at `now`."""
        if lifecycle.forgotten(job, now) or lifecycle.shown(job, now) not in self.states:
            return False
        if self.type is not None and job.envelope.type != self.type:
            return False
        if self.error is None:
            return True
        last = job.errors[-1] if job.errors else None
        return last is not None and (self.error in (last.type, fingerprint(last)) or self.error in last.message)


class Page(Struct, frozen=True):
    """A page of jobs; `cursor` is None after the last."""

    jobs: list[Job]
    cursor: str | None
    now: int


class QueueStats(Struct, frozen=True):
    """Counts per state as shown at `now`, and since when the oldest visible job has been waiting."""

    queue: str
    counts: dict[JobState, int]
    oldest_ready_at: int | None
    paused: bool
    now: int


PAGE_LIMIT = 100
"""How many queues, tenants or workers are looked at for one page."""


class QueuePage(Struct, frozen=True):
    """Some of a tenant's queues, by name. One that is empty and has a cursor is not the last."""

    queues: list[QueueStats]
    cursor: str | None


class TenantPage(Struct, frozen=True):
    """Some of the tenants, by name. One that is empty and has a cursor is not the last."""

    tenants: list[str]
    cursor: str | None


class WorkerPage(Struct, frozen=True):
    """Some of the living workers, by id. One that is empty and has a cursor is not the last."""

    workers: list[WorkerInfo]
    cursor: str | None


class PurgePage(Struct, frozen=True):
    """Counts of purges of some tenants. One may come twice, then with the later count last."""

    counts: list[PurgeCount]
    cursor: str | None


class EventPage(Struct, frozen=True):
    """Events in order; resume with `after=next`, also when there were none."""

    events: list[Event]
    next: str
    more: bool
    gaps: list[Gap] = []
    """On a read of all tenants: what of single tenants is no longer kept between `after` and `next`."""


class LogPage(Struct, frozen=True):
    """The same of a piece of the log, column by column."""

    parts: list[EventColumns]
    next: str
    more: bool
    gaps: list[Gap] = []

    @property
    def events(self) -> list[Event]:
        """One by one."""
        return [event for part in self.parts for event in part.events()]


class Reader(Struct, frozen=True):
    """A registered reader: trimming waits for it, up to the stated bound. [EVENT-2]"""

    tenant: str | None
    name: str
    offset: str


class TenantSettings(Struct, frozen=True):
    """Settings of a tenant (`queue` None) or of one of its queues; None means: not set there."""

    queue: str | None = None
    weight: float | None = None
    max_waiting: int | None = None
    budgets: Budgets | None = None
    """Of a tenant alone, not of a queue. Setting some leaves the others as they are."""

    def updated(self, new: TenantSettings) -> TenantSettings:
        """These settings with what `new` sets."""
        return TenantSettings(
            self.queue,
            self.weight if new.weight is None else new.weight,
            self.max_waiting if new.max_waiting is None else new.max_waiting,
            merged(self.budgets, new.budgets),
        )


class WorkerInfo(Struct, frozen=True):
    """A worker as it last said it was. `tenant` None serves all."""

    worker_id: str
    tenant: str | None
    host: str
    pid: int
    queues: tuple[str, ...]
    concurrency: int
    held: int
    started_at: int = 0
    seen_at: int = 0
    types: tuple[TypeInfo, ...] = ()
    """What it runs; none: it does not say."""


class Reaped(Struct, frozen=True):
    """Expired leases that were ended. `next_at` is the earliest deadline still running."""

    jobs: list[JobKey]
    now: int
    next_at: int | None


class Pruned(Struct, frozen=True):
    """What was forgotten: jobs, and the blobs that held their results; `more` says that some are left."""

    jobs: int
    events: int
    blobs: list[str]
    more: bool


class Finding(Struct, frozen=True):
    """One line of `holdfast doctor`."""

    level: str
    """ok, warn or bad"""
    subject: str
    text: str
    cure: str = ""


@runtime_checkable
class Store(Protocol):
    """What a store is. All methods are atomic, safe to call concurrently, and callable from one event loop.

    For use from a second event loop (a heartbeat thread, say) ask for a `sibling`.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    async def open(self) -> None:
        """Connect, and create what is missing. Raises StoreMismatch on data that is not ours. Twice is harmless."""
        ...

    async def close(self) -> None:
        """Let go of everything held in this process. Twice is harmless."""
        ...

    async def sibling(self) -> Store:
        """A second handle on the same data, open, for another event loop. Close it when done."""
        ...

    async def now(self) -> int:
        """The store's clock in milliseconds. [TIME-1]"""
        ...

    async def shift_clock(self, ms: int) -> None:
        """Move the store's clock forward, for tests. Raises Unsupported unless opened with `test_clock`."""
        ...

    def listen(self, listener: Listener, hints: Collection[Hint] = ALL_HINTS) -> Callable[[], None]:
        """Call `listener` in the current event loop when something of `hints` may have changed; the answer ends it.

        Hints may come late, twice or for nothing, but after a change that was made anywhere one always comes,
        also after a lost connection (then one of each kind, with an empty address).
        """
        ...

    # Jobs -------------------------------------------------------------------------------------------------

    async def enqueue(
        self, items: Sequence[NewJob], *, connection: Any = None, under: Lease | None = None
    ) -> list[EnqueueAnswer]:
        """Take in new jobs. [ENQ-1 to ENQ-8, TENANT-5]

        `connection` joins the caller's own transaction where the store can; else Unsupported. `under` names a lease of
        the same tenant: once that is over, the call raises JobNotFound, LeaseLost, JobCanceled or LeaseExpired and
        takes in nothing, however late it arrives. [LEASE-1]
        """
        ...

    async def claim(self, request: ClaimRequest) -> Claimed:
        """Lease visible jobs, in order and in fair turns; first repair a bounded number of expired leases.

        Never waits: an empty answer says when to look again. [CLAIM-1 to CLAIM-5, TENANT-4, LEASE-3]
        """
        ...

    async def finish(self, items: Sequence[Finish], *, connection: Any = None) -> list[FinishAnswer]:
        """Complete, fail, retry or release leased jobs. [LEASE-1, RETRY-1 to RETRY-5, RESULT-1]"""
        ...

    async def extend(self, items: Sequence[Extend]) -> list[ExtendAnswer]:
        """Renew leases. [LEASE-1, LEASE-2]"""
        ...

    async def report(self, items: Sequence[Report]) -> list[ReportAnswer]:
        """Record progress of running jobs. [LEASE-1]"""
        ...

    async def cancel(self, items: Sequence[Cancel]) -> list[CancelStatus]:
        """Cancel jobs; cancel wins. [CANCEL-1 to CANCEL-3]"""
        ...

    async def replay(self, keys: Sequence[JobKey], *, under: Lease | None = None) -> list[ReplayAnswer]:
        """Start dead letters again. Of concurrent replays one wins. [DEAD-1, STATE-3]

        `under` as for an enqueue.
        """
        ...

    async def purge(self, items: Sequence[Purge]) -> list[PurgeStatus]:
        """Forget finished jobs now, with an event. [KEEP-1]"""
        ...

    async def set_result_ttl(self, items: Sequence[SetResultTtl]) -> list[TtlStatus]:
        """Change how long finished jobs are kept, counted from now. [RESULT-1]"""
        ...

    # Reading ----------------------------------------------------------------------------------------------

    async def get(self, keys: Sequence[JobKey]) -> list[Job | None]:
        """Jobs as they are, or None; the state is the one shown now. [TENANT-2]"""
        ...

    async def list(self, query: ListQuery) -> Page:
        """A page of one queue's jobs."""
        ...

    async def stats(self, tenant: str, queues: Sequence[str] | None = None) -> list[QueueStats]:
        """Counts of the named queues, or of those where the tenant has jobs or that are paused, by name.

        Where there are many, they are read a page at a time: not all at the same instant.
        """
        ...

    async def queue_page(self, tenant: str, cursor: str | None = None, limit: int = PAGE_LIMIT) -> QueuePage:
        """Counts of up to `limit` queues where the tenant has jobs or that are paused, by name, behind a cursor.

        A bounded look: where queues without jobs are in the way, a page may be short or empty and have a cursor.
        """
        ...

    async def tenants(self) -> list[str]:
        """The tenants that have ever enqueued here and still have jobs or settings, by name. For operators.

        Without `core.names.OPERATOR`: its jobs are records of Holdfast itself, keys among them.
        """
        ...

    async def tenant_page(self, cursor: str | None = None, limit: int = PAGE_LIMIT) -> TenantPage:
        """Up to `limit` of them behind a cursor. A bounded look, as for queues."""
        ...

    async def purge_counts(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> PurgePage:
        """How many jobs of a tenant, or with None of each tenant, were purged: about `limit` of them. [EVENT-1]

        A purge raises the count in the same atomic step, and its event has the number. A count is kept for
        PURGE_COUNT_MS after the last purge; the next purge begins another one then.
        """
        ...

    # Events -----------------------------------------------------------------------------------------------

    async def events(self, tenant: str | None, after: str | None, limit: int) -> EventPage:
        """Events after an offset (None: the oldest kept) of one tenant or, with None, of all. [EVENT-2, EVENT-3]

        Raises EventsTrimmed when some after `after` are gone: of the tenant, or, on a read of all, of every tenant.
        What is gone of single tenants is then said in the `gaps` of a page. Raises InvalidOption for no offset of ours.
        """
        ...

    async def last_offset(self) -> str:
        """The end of the log as it is now."""
        ...

    async def set_reader(self, reader: Reader) -> None:
        """Register a reader, or move it to an offset (never backwards)."""
        ...

    async def drop_reader(self, tenant: str | None, name: str) -> bool:
        """Forget a reader; whether there was one."""
        ...

    async def readers(self, tenant: str | None) -> list[Reader]:
        """The registered readers of a tenant, or those of no tenant."""
        ...

    # Settings, workers, upkeep ------------------------------------------------------------------------------

    async def pause(self, tenant: str, queue: str, *, paused: bool) -> None:
        """Stop or go on handing out a queue's jobs. [CLAIM-5]"""
        ...

    async def set_tenant(self, tenant: str, settings: TenantSettings) -> None:
        """Set what is not None. A quota on the tenant bounds all its queues together. [TENANT-4, TENANT-5]

        Budgets hold for this handle at once, for others 10 s later at most.
        """
        ...

    async def tenant_settings(self, tenant: str) -> Sequence[TenantSettings]:
        """The tenant's own settings first, then those of its queues by name."""
        ...

    async def usage(self, tenant: str) -> Usage:
        """What a tenant keeps, from counts that `prune` refreshes: a bounded look, whatever it keeps. [TENANT-5]

        What this handle enqueues from now on is judged by the answer, until there is a newer one.
        """
        ...

    async def beat(self, worker: WorkerInfo, ttl_ms: int) -> None:
        """Note that a worker lives; forgotten after `ttl_ms` without another beat. `ttl_ms` 0 signs it off."""
        ...

    async def workers(self, tenant: str | None) -> Sequence[WorkerInfo]:
        """Living workers that serve the tenant (None: any), by id."""
        ...

    async def worker_page(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> WorkerPage:
        """Some of them, of up to `limit` that were looked at behind a cursor."""
        ...

    async def reap(self, limit: int, random: float) -> Reaped:
        """End up to `limit` expired leases, oldest deadline first. [LEASE-3, RETRY-2]"""
        ...

    async def prune(self, limit: int, *, blobs: bool = True) -> Pruned:
        """Forget up to `limit` terminal jobs past their retention, and trim the log. [KEEP-1, EVENT-2]

        Names of blobs are handed out once; `blobs=False` leaves them to a caller who can delete them.
        """
        ...

    async def doctor(self) -> Sequence[Finding]:
        """Look the deployment over."""
        ...
