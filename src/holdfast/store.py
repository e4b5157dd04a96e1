"""The store contract: what every store does, atomically, a batch at a time.

A store keeps jobs, and its own clock decides. Every operation names the tenant, in each `JobKey` or as an argument. It
takes a list and answers item by item, in the same order: one bad item affects no other. [ENQ-4] Refusals are values in
the answer, instances of the errors in `core.errors`. Exceptions are about the store itself: StoreUnavailable,
StoreBusy, StoreMismatch, Unsupported. A call that raised has acknowledged nothing.

`core.lifecycle` has the transitions, `extensions` has what a store may do beyond this, `opening` finds the store of a
URL. `holdfast.testing.conformance` checks that a store keeps this contract.
"""

# A method of a protocol has no body but its docstring.
# pyright: reportReturnType=false
from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from holdfast.core.budgets import TenantSettings, Usage
from holdfast.core.errors import JobNotFound, NotReplayable, QuotaExceeded
from holdfast.core.events import Event, EventColumns, Gap
from holdfast.core.explain import Standing
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
)  # fmt: skip
from holdfast.core.lease import Refusal
from holdfast.core.listing import ListQuery
from holdfast.core.policy import TypeInfo

EnqueueAnswer = Queued | Duplicate | AlreadyCompleted | QuotaExceeded
FinishAnswer = Finished | Refusal
ExtendAnswer = Extended | Refusal
ReportAnswer = Reported | Refusal
ReplayAnswer = Replayed | JobNotFound | NotReplayable | QuotaExceeded

EVENTS_BOUND = 1_000_000
EVENTS_BOUND_MS = 7 * DAY
"""Trimming waits for registered readers until the log has this many events, or one this old. [EVENT-2]"""

JOINING = "joining your transaction, only postgresql:// does; commit first, then enqueue with an id or key of your own"
"""The refusal of a store that cannot join a transaction. [ENQ-7]"""

REPAIR_LIMIT = 100
"""The most expired leases that one claim ends before it looks for jobs. [LEASE-3]"""

PAGE_LIMIT = 100
"""The most queues, tenants or workers that one page reads."""


class Capabilities(Struct, frozen=True):
    """Where stores may differ, and what holds for this one. `notes` adds sentences where a flag says too little."""

    name: str
    durable: bool
    """An acknowledged change survives the end of the process. [ENQ-1]"""
    survives_power_loss: bool
    """It survives a power cut too, if the disk honours fsync."""
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
    """What may have changed. A hint carries no data: its receiver reads the store."""

    READY = "ready"
    """A job may have become claimable."""
    DONE = "done"
    """A job reached a terminal state."""
    CANCELED = "canceled"
    """A running job was canceled."""
    EVENTS = "events"
    """The log grew."""

    __hash__ = str.__hash__


class Signal(Struct, frozen=True):
    """A hint, and where it applies. An empty field means: any."""

    hint: Hint
    tenant: str = ""
    queue: str = ""
    id: str = ""
    job: Job | None = None
    """With DONE: the finished job, if the store has it at hand. Waiters then skip a read."""


Listener = Callable[[Signal], None]
ALL_HINTS = frozenset(Hint)


class Page(Struct, frozen=True):
    """A page of jobs. `cursor` is None after the last page."""

    jobs: list[Job]
    cursor: str | None
    now: int


class QueueStats(Struct, frozen=True):
    """Counts per state as shown at `now`, and since when the oldest claimable job has waited."""

    queue: str
    counts: dict[JobState, int]
    oldest_ready_at: int | None
    paused: bool
    now: int


class QueuePage(Struct, frozen=True):
    """Queues of a tenant, by name. A page may be empty and still have a cursor."""

    queues: list[QueueStats]
    cursor: str | None


class TenantPage(Struct, frozen=True):
    """Tenants, by name. A page may be empty and still have a cursor."""

    tenants: list[str]
    cursor: str | None


class WorkerPage(Struct, frozen=True):
    """Live workers, by id. A page may be empty and still have a cursor."""

    workers: list[WorkerInfo]
    cursor: str | None


class PurgePage(Struct, frozen=True):
    """Counts of purges, by tenant. If a tenant comes twice, its later count is the newer one."""

    counts: list[PurgeCount]
    cursor: str | None


class EventPage(Struct, frozen=True):
    """Events in order. Resume with `after=next`, also after an empty page."""

    events: list[Event]
    next: str
    more: bool
    gaps: list[Gap] = []
    """On a read of all tenants: the events of single tenants between `after` and `next` that are no longer kept."""


class LogPage(Struct, frozen=True):
    """Events of one part of the log, column by column."""

    parts: list[EventColumns]
    next: str
    more: bool
    gaps: list[Gap] = []

    @property
    def events(self) -> list[Event]:
        """The events one by one."""
        return [event for part in self.parts for event in part.events()]


class Reader(Struct, frozen=True):
    """A registered reader. Trimming waits for it, up to EVENTS_BOUND. [EVENT-2]"""

    tenant: str | None
    name: str
    offset: str


class WorkerInfo(Struct, frozen=True):
    """A worker, as in its last heartbeat. A worker with `tenant` None serves all tenants."""

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
    """The job types it runs. Empty if it does not report them."""


class Reaped(Struct, frozen=True):
    """Expired leases that were ended. `next_at` is the earliest deadline still running."""

    jobs: list[JobKey]
    now: int
    next_at: int | None


class Pruned(Struct, frozen=True):
    """How many jobs and events were forgotten, and the blobs that held results. `more`: call again."""

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
    """What a store does. Every method is atomic and safe to call concurrently, from one event loop.

    A second event loop, such as a heartbeat thread's, needs a `sibling`.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    async def open(self) -> None:
        """Connect, and create what is missing. Raises StoreMismatch on foreign data. Calling it twice is harmless."""

    async def close(self) -> None:
        """Release everything held in this process. Calling it twice is harmless."""

    async def sibling(self) -> Store:
        """A second handle on the same data, open, for another event loop. Close it when done."""

    async def now(self) -> int:
        """The store's clock in milliseconds. [TIME-1]"""

    async def shift_clock(self, ms: int) -> None:
        """Move the store's clock forward, for tests. Raises Unsupported unless opened with `test_clock`."""

    def listen(self, listener: Listener, hints: Collection[Hint] = ALL_HINTS) -> Callable[[], None]:
        """Call `listener` in the current event loop when something may have changed. Returns a function that stops it.

        Hints may come late, twice or without a change. After every change, by any process, at least one comes. After a
        lost connection one of each kind comes, with an empty address.
        """

    # Jobs -------------------------------------------------------------------------------------------------

    async def enqueue(
        self, items: Sequence[NewJob], *, connection: Any = None, under: Lease | None = None
    ) -> list[EnqueueAnswer]:
        """New -> ready, or scheduled if it runs later. [ENQ-1 to ENQ-8, TENANT-5]

        An id or idempotency key that is known answers with its job. `connection`, also of `finish`, joins the caller's
        own transaction; raises Unsupported if the store cannot. `under`, also of `replay`, names a lease of the same
        tenant: if it is over, the call raises JobNotFound, LeaseLost, JobCanceled or LeaseExpired and changes nothing,
        however late it arrives. [LEASE-1]
        """

    async def claim(self, request: ClaimRequest) -> Claimed:
        """Ready -> leased, in claim order and in fair turns. [CLAIM-1 to CLAIM-5, TENANT-4]

        First ends a bounded number of expired leases. [LEASE-3] Never waits: an empty answer says when to claim again.
        """

    async def finish(self, items: Sequence[Finish], *, connection: Any = None) -> list[FinishAnswer]:
        """Leased -> completed, failed, retrying, or released to ready. [LEASE-1, RETRY-1 to RETRY-5, RESULT-1]"""

    async def extend(self, items: Sequence[Extend]) -> list[ExtendAnswer]:
        """Leased -> leased, with a later deadline. The token stays the same. [LEASE-1, LEASE-2]"""

    async def report(self, items: Sequence[Report]) -> list[ReportAnswer]:
        """Record the progress of leased jobs. [LEASE-1]"""

    async def cancel(self, items: Sequence[Cancel]) -> list[CancelStatus]:
        """Any state that is not terminal -> canceled. Cancel wins over a running handler. [CANCEL-1 to CANCEL-3]"""

    async def replay(self, keys: Sequence[JobKey], *, under: Lease | None = None, by: str = "") -> list[ReplayAnswer]:
        """Failed -> ready, with attempts from 0. Of concurrent replays one wins. [DEAD-1, STATE-3, TENANT-5]"""

    async def purge(self, items: Sequence[Purge]) -> list[PurgeStatus]:
        """Terminal -> forgotten, now and with an event. [KEEP-1]"""

    async def set_result_ttl(self, items: Sequence[SetResultTtl]) -> list[TtlStatus]:
        """Change how long terminal jobs are kept, from now. [RESULT-1]"""

    # Reading ----------------------------------------------------------------------------------------------

    async def get(self, keys: Sequence[JobKey]) -> list[Job | None]:
        """Jobs as they are, or None. A job that has become due shows as ready. [TENANT-2]"""

    async def list(self, query: ListQuery) -> Page:
        """A page of one queue's jobs or, by time, of all queues of a tenant. A bounded read, whatever it finds."""

    async def standing(self, key: JobKey) -> Standing | None:
        """What a job waits for in its queue, at one instant; None if there is no such job. [TENANT-2]

        The work is bounded, whatever the backlog: see `core.explain.Standing` for how far it counts.
        """

    async def stats(self, tenant: str, queues: Sequence[str] | None = None) -> list[QueueStats]:
        """Counts of the named queues. Without names: of all queues that have jobs or are paused, by name.

        Many queues are read a page at a time, so not all at the same instant.
        """

    async def queue_page(self, tenant: str, cursor: str | None = None, limit: int = PAGE_LIMIT) -> QueuePage:
        """Counts of up to `limit` queues that have jobs or are paused, by name, after a cursor.

        A bounded read: queues without jobs may make a page short or empty while it still has a cursor.
        """

    async def tenants(self) -> list[str]:
        """The tenants that have jobs or settings, by name. Leaves out `core.names.OPERATOR`: Holdfast's own records."""

    async def tenant_page(self, cursor: str | None = None, limit: int = PAGE_LIMIT) -> TenantPage:
        """Up to `limit` tenants after a cursor. A bounded read, as for queues."""

    async def purge_counts(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> PurgePage:
        """How many jobs of a tenant, or of each tenant, were purged: about `limit` counts. [EVENT-1]

        A purge raises the count in the same atomic step, and its event carries the new count. A count is kept for
        PURGE_COUNT_MS after the last purge; then the next purge starts a new one.
        """

    # Events -----------------------------------------------------------------------------------------------

    async def events(self, tenant: str | None, after: str | None, limit: int) -> EventPage:
        """Events after an offset (None: from the oldest kept), of one tenant or, with None, of all. [EVENT-2, EVENT-3]

        Raises EventsTrimmed if events after `after` are gone: of this tenant, or, on a read of all, of every tenant.
        Events of single tenants that are gone are in the `gaps` of a page. Raises InvalidOption for a foreign offset.
        """

    async def last_offset(self) -> str:
        """The end of the log now."""

    async def set_reader(self, reader: Reader) -> None:
        """Register a reader, or move it to an offset. It never moves back."""

    async def drop_reader(self, tenant: str | None, name: str) -> bool:
        """Forget a reader. Returns whether there was one."""

    async def readers(self, tenant: str | None) -> list[Reader]:
        """The registered readers of a tenant, or those of no tenant."""

    # Settings, workers, upkeep ------------------------------------------------------------------------------

    async def pause(self, tenant: str, queue: str, *, paused: bool) -> None:
        """Stop handing out a queue's jobs, or start again. [CLAIM-5]"""

    async def set_tenant(self, tenant: str, settings: TenantSettings) -> None:
        """Set the fields that are not None. A quota on the tenant limits all its queues together. [TENANT-4, TENANT-5]

        Budgets apply to this handle at once, to others within 10 s.
        """

    async def tenant_settings(self, tenant: str) -> Sequence[TenantSettings]:
        """The tenant's own settings first, then those of its queues by name."""

    async def usage(self, tenant: str) -> Usage:
        """What a tenant keeps, from counts that `prune` refreshes. A bounded read, however much it keeps. [TENANT-5]

        This handle judges the tenant's enqueues by the answer until there is a newer one.
        """

    async def beat(self, worker: WorkerInfo, ttl_ms: int) -> None:
        """Record a worker's heartbeat. It counts as live for `ttl_ms`; 0 signs it off."""

    async def workers(self, tenant: str | None) -> Sequence[WorkerInfo]:
        """Live workers that serve the tenant (None: any), by id."""

    async def worker_page(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> WorkerPage:
        """Live workers among the next `limit` after a cursor."""

    async def reap(self, limit: int, random: float) -> Reaped:
        """Expired -> retrying, or failed if no attempts are left: up to `limit`, oldest first. [LEASE-3, RETRY-2]"""

    async def prune(self, limit: int, *, blobs: bool = True) -> Pruned:
        """Forget up to `limit` terminal jobs past their retention, and trim the log. [KEEP-1, EVENT-2]

        Returns the name of each blob once. With `blobs=False` the names wait for a caller that can delete the blobs.
        """

    async def doctor(self) -> Sequence[Finding]:
        """Check the deployment."""
