"""The store contract: what every store does, atomically, for a batch at a time.

A store keeps jobs and decides by its own clock. Every operation names the tenant (inside each `JobKey`, or as
an argument), takes a list and answers item by item in the same order: a bad item spoils nothing else. [ENQ-4]
Refusals are values in the answer (instances of the errors in `core.errors`); exceptions are for the store
itself: StoreUnavailable, StoreBusy, StoreMismatch, Unsupported. A call that raised has acknowledged nothing.

`holdfast.testing.conformance` proves a store; `open_store(url)` finds one by the entry-point group
`holdfast.stores`, where ours are registered like anyone's.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast, runtime_checkable
from urllib.parse import parse_qsl, quote, unquote

from msgspec import Struct

from holdfast.core import answers, lifecycle
from holdfast.core.budgets import DEFAULTS, MOST, RESULT_TTL_CEILING, STORED, Budgets, Usage
from holdfast.core.errors import (
    InvalidName,
    InvalidOption,
    JobNotFound,
    NotReplayable,
    QuotaExceeded,
)
from holdfast.core.events import Event, EventColumns, Gap, fingerprint
from holdfast.core.job import (
    DAY,
    LONGEST,
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
from holdfast.core.lifecycle import Retention
from holdfast.core.names import OPERATOR, check_queue, check_tenant, join_key
from holdfast.core.policy import KnownTypes, TypeInfo
from holdfast.core.schedule import Schedule, Target, Timing

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


class _Page(Protocol):
    @property
    def cursor(self) -> str | None: ...


P = TypeVar("P", bound=_Page)


async def pages(read: Callable[[str | None], Awaitable[P]]) -> AsyncIterator[P]:
    """One page after another, to the last."""
    cursor: str | None = None
    while True:
        page = await read(cursor)
        yield page
        cursor = page.cursor
        if cursor is None:
            return


QUEUES_LOOKED_AT = 1000
"""How many queues a page of tenants looks at, for one that has jobs."""


def name_cursor(cursor: str | None, check: Callable[[str], str] = check_queue) -> str:
    """The name that a list goes on behind; "" from the beginning. Raises InvalidOption."""
    try:
        return "" if cursor is None else check(cursor)
    except InvalidName:
        raise InvalidOption("cursor", f"{cursor!r} is not a cursor of this list") from None


def tenant_cursor(cursor: str | None) -> tuple[str, str]:
    """Where a list of tenants goes on: behind a tenant, or in it and behind one of its queues. Raises InvalidOption.

    It is `join_key(tenant, queue)`, the queue "" once the tenant is done.
    """
    if cursor is None:
        return "", ""
    found = _TENANT_CURSOR.fullmatch(cursor)
    tenant = found[2][: int(found[1])] if found else ""
    queue = found[2][len(tenant) :].partition(":")[2] if found else ""
    if join_key(tenant, queue) != cursor:
        raise InvalidOption("cursor", f"{cursor!r} is not a cursor of this list")
    return name_cursor(tenant, check_tenant), queue and name_cursor(queue)


def tenant_page_of(
    with_jobs: Sequence[str], with_settings: Sequence[str], stop: tuple[str, str] | None, limit: int
) -> TenantPage:
    """A page of the next tenants with jobs and of the next with settings, given where the look for jobs ended.

    That is behind a tenant, or in the middle of one: of that one it is not known yet whether it has jobs.
    """
    names = sorted({*with_jobs, *with_settings} - {OPERATOR})
    if stop is not None:
        names = [name for name in names if name < stop[0] or (name == stop[0] and not stop[1])]
    if len(names) > limit:
        names, stop = names[:limit], (names[limit - 1], "")
    return TenantPage(names, None if stop is None else join_key(*stop))


BEHIND_ALL = "\x7f"
"""A text behind the names of all queues."""

_TENANT_CURSOR = re.compile(r"([0-9]{1,3}):(.*)", re.ASCII)


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


Deliver = Callable[[Claimed, float], None]
"""Takes jobs that came unasked, and the moment by this process's clock from which their leases are to be counted."""


class Post(Protocol):
    """One worker's place at a store: it claims here, and what it has room for beyond that may be sent to it."""

    async def claim(self, request: ClaimRequest, free: int | None = None) -> Claimed:
        """As `Store.claim`. If it finds fewer jobs than wished for, others may be delivered until the next claim.

        A place is for one tenant, or all, and always the same queues, in whatever order.
        Claimed and delivered are together no more than `request.limit`; what is delivered is also no more than `free`,
        the jobs that could start at once, less what was claimed.
        """
        ...

    @property
    def low(self) -> bool:
        """Whether most of what can be delivered has been: it takes a claim to go on."""
        ...

    async def close(self) -> None:
        """Have nothing more delivered; what is on its way comes first. Twice is harmless."""
        ...


@runtime_checkable
class Posting(Protocol):
    """A store that can hand a new job to an idle worker as it comes, which saves the worker the way to it."""

    def post(self, deliver: Deliver) -> Post | None:
        """A place for one worker, in the current event loop; None where it cannot be done with this deployment."""
        ...


@runtime_checkable
class Pooled(Protocol):
    """A store whose calls need a connection of a pool: further calls wait."""

    @property
    def calls_at_once(self) -> int:
        """How many calls other than renewals one handle can have under way."""
        ...


class Stretch(Struct, frozen=True):
    """A piece of one shard's log: the events behind `after`, up to `end` and with it."""

    shard: int
    after: str
    end: str


@runtime_checkable
class Splitting(Protocol):
    """A store whose log can be read in pieces, side by side, between places that were fixed before. [EVENT-2]

    All raise EventsTrimmed when some of what they are to read is gone, InvalidOption for what is no offset.
    """

    async def reach(self, after: str | None, most: int | None = None, end: str | None = None) -> tuple[str, str]:
        """Where to read from (`after`, or the oldest kept), and up to where: about `most` events on, or the end.

        The end is that of the log now, or one that was found before.
        """
        ...

    async def written(self) -> str:
        """The end of what has been written: whoever reads up to there has the events of every change until now.

        `reach` may end before it, at a transaction that is still open, and comes there when that has ended.
        """
        ...

    async def split(self, after: str, end: str, size: int) -> Sequence[Stretch]:
        """What is between two offsets, in pieces of `size` events or so, in the order of the log within each shard."""
        ...

    async def read(self, stretch: Stretch, limit: int) -> LogPage:
        """The first `limit` events or so of a piece; go on with its `after` at `next` while there are `more`."""
        ...


@runtime_checkable
class Tenanted(Protocol):
    """A store that is one tenant's alone: a token says whose."""

    def use_token(self, token: str | Callable[[], str]) -> None:
        """Show this token, or the one that the function gives at the moment. Before `open`. Raises InvalidOption."""
        ...

    def bind(self, tenant: str | None) -> str:
        """The tenant, which must be this one if one is named. Raises InvalidOption."""
        ...


@runtime_checkable
class Scheduling(Protocol):
    """A store that keeps schedules by itself: a service, which also does what they say."""

    async def put_schedule(self, tenant: str, name: str, timing: Timing, target: Target) -> Schedule:
        """Have `target` enqueued at the ticks of `timing`, in place of what the name stood for."""
        ...

    async def get_schedule(self, tenant: str, name: str) -> Schedule | None:
        """A schedule as it is, or None. [TENANT-2]"""
        ...

    async def list_schedules(self, tenant: str) -> Sequence[Schedule]:
        """The tenant's schedules, by name."""
        ...

    async def remove_schedule(self, tenant: str, name: str) -> bool:
        """End a schedule; whether there was one."""
        ...


@runtime_checkable
class TypeListing(Protocol):
    """A store that tells by itself what the workers of a tenant run. See `known_types`."""

    async def known_types(self, tenant: str) -> KnownTypes:
        """What the living workers that serve this tenant run."""
        ...


async def known_types(store: Store, tenant: str) -> KnownTypes:
    """What the living workers that serve this tenant run: its own, and those for all tenants."""
    if isinstance(store, TypeListing):
        return await store.known_types(tenant)
    return KnownTypes.of(await store.workers(tenant))


@runtime_checkable
class FlowShowing(Protocol):
    """A store that can show a flow with all its steps in one go: a service."""

    async def flow(self, tenant: str, id: str) -> answers.Flow | None:
        """The flow as it is, or None. [TENANT-2]"""
        ...


class StoreUrl(Struct, frozen=True):
    """A store's address, taken apart: `scheme:rest?options`."""

    url: str
    scheme: str
    rest: str
    options: dict[str, str]


Opener = Callable[[StoreUrl], Store]


def parse_url(url: str) -> StoreUrl:
    """Take a store's URL apart. Raises InvalidOption with what to write instead."""
    head, _, query = url.partition("?")
    scheme, colon, rest = head.partition(":")
    if not colon or not scheme:
        # Not the URL itself: it may have a password in it.
        raise InvalidOption("store", "that is not a store URL; write for example 'file:./data' or 'redis://localhost'")
    if rest.startswith("//") and scheme not in _PLACES and "@" in query:
        reason = "an '@' stands after the '?': in a password write '?' as %3F, in an option '@' as %40"
        raise InvalidOption("store", f"{scheme}: {reason}")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        pairs = [("", "")]
    if not all(_OPTION.fullmatch(name) for name, _ in pairs):
        # Without what stands there: it may be a part of a password.
        reason = "the options are not name=value&name=value; in a password write '?' as %3F"
        raise InvalidOption("store", f"{scheme}: {reason}")
    options = dict(pairs)
    if len(options) != len(pairs):
        raise InvalidOption("store", f"an option stands twice in the URL of {scheme}:")
    return StoreUrl(url, scheme, unquote(rest), options)


async def open_store(url: str) -> Store:
    """Open the store at `url`, by the entry point named like its scheme."""
    store = make_store(url)
    await store.open()
    return store


def make_store(url: str) -> Store:
    """The store at `url`, not opened yet."""
    parsed = parse_url(url)
    return _opener(parsed.scheme)(parsed)


_MAKES = {"file": "create", "postgresql": "migrate", "postgres": "migrate"}
"""The option of a store that lets it be made where it is missing."""
_OPTION = re.compile(r"[a-zA-Z0-9_]+")
_PLACES = ("file", "memory")
"""Schemes whose URLs name no server: an `@` in them is a part of a name."""
_LOGIN = re.compile(r"([^:/?#]+://)(.*)@", re.DOTALL)
"""Up to the last `@`, wherever it stands: a password that should have been percent-encoded may have anything in it."""
_SECRETS = re.compile(r"([?&][a-z_]*password=)[^&]*", re.IGNORECASE)


def existing(url: str) -> str:
    """The same store, but not made where it is missing: a mistyped directory or database is no empty queue."""
    option = _MAKES.get(url.partition(":")[0], "")
    if not option or f"{option}=" in url.partition("?")[2]:
        return url
    return f"{url}{'&' if '?' in url else '?'}{option}=0"


def absolute(url: str) -> str:
    """The same store for processes that run in other directories: a directory is named from the root."""
    head, mark, query = url.partition("?")
    scheme, _, rest = head.partition(":")
    if scheme != "file" or not rest or rest.startswith("/"):
        return url
    return f"file:{quote(str(Path(unquote(rest)).expanduser().absolute()))}{mark}{query}"


def shown_url(url: str) -> str:
    """A store's URL without its passwords, for logs and reports."""
    found = None if url.partition(":")[0] in _PLACES else _LOGIN.match(url)
    if found is not None:
        user, colon, _ = found[2].partition(":")
        url = f"{found[1]}{user}{':***' if colon else ''}@{url[found.end() :]}"
    return _SECRETS.sub(r"\1***", url)


class CommonOptions(Struct, frozen=True):
    """What can be set on every store, by query parameters of its URL."""

    test_clock: str
    """"0": the real clock; "1": it can be shifted; "frozen": it stands still but for shifts."""
    all_events: bool
    """`events=all` also records `extended` and `progressed`."""
    keep_events: int
    """How many events are kept although no registered reader waits for them."""
    retention: Retention
    budgets: Budgets
    """What holds for a tenant that has no budgets of its own; 0: no limit. [TENANT-5]"""
    max_result_ttl_ms: int
    """The longest `result_ttl` and the longest life of an idempotency key; 0: no ceiling."""


class Options:
    """The options of a store URL: each is taken once by name, and what is left over is refused."""

    def __init__(self, url: StoreUrl) -> None:
        self._scheme = url.scheme
        self._left = dict(url.options)
        self._known: list[str] = []

    def text(self, name: str, default: str, allowed: Sequence[str] | None = None) -> str:
        self._known.append(name)
        value = self._left.pop(name, default)
        if allowed is not None and value not in allowed:
            raise InvalidOption(name, f"{value!r} is not one of {', '.join(map(repr, allowed))}")
        return value

    def number(self, name: str, default: int, least: int, most: int) -> int:
        text = self.text(name, str(default))
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise InvalidOption(name, f"{text!r} is not a whole number from {least} to {most}")
        return int(text)

    def common(self) -> CommonOptions:
        """The options that every store has."""
        return CommonOptions(
            test_clock=self.text("test_clock", "0", ("0", "1", "frozen")),
            all_events=self.text("events", "transitions", ("transitions", "all")) == "all",
            keep_events=self.number("keep_events", 100_000, 0, EVENTS_BOUND),
            retention=Retention(
                failed_ms=1000 * self.number("keep_failed_s", 7 * DAY // 1000, 0, 10 * 365 * DAY // 1000),
                canceled_ms=1000 * self.number("keep_canceled_s", DAY // 1000, 0, 10 * 365 * DAY // 1000),
            ),
            budgets=Budgets(**{name: self.number(name, getattr(DEFAULTS, name), 0, MOST) for name in STORED}),
            max_result_ttl_ms=1000 * self.number("max_result_ttl_s", RESULT_TTL_CEILING // 1000, 0, LONGEST // 1000),
        )

    def finish(self) -> None:
        """Raise InvalidOption for the first option that nobody asked for."""
        for name in self._left:
            known = ", ".join(sorted(self._known)) or "none"
            raise InvalidOption(name, f"{self._scheme}: has no such option; it has: {known}")


_EXTRAS = {"postgresql": "postgres", "rediss": "redis", "valkey": "redis", "valkeys": "redis", "https": "http"}


@cache
def _opener(scheme: str) -> Opener:
    from importlib.metadata import entry_points

    for point in entry_points(group="holdfast.stores"):
        if point.name == scheme:
            try:
                return cast("Opener", point.load())
            except ModuleNotFoundError as error:
                family = scheme.partition("+")[0]
                extra = _EXTRAS.get(family, family)
                reason = f"{scheme}: needs {error.name}; install it with: pip install 'holdfast[{extra}]'"
                raise InvalidOption("store", reason) from error
    family, plus, driver = scheme.partition("+")
    if plus and family in ("postgres", "postgresql"):
        reason = f"{scheme}: names {driver}, a driver for SQLAlchemy; Holdfast brings its own, so write {family}:"
        raise InvalidOption("store", reason)
    known = ", ".join(sorted(f"{point.name}:" for point in entry_points(group="holdfast.stores")))
    raise InvalidOption("store", f"no store is registered for {scheme}:; there are {known}")
