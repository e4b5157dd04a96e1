"""The FoundationDB store: each method of `Store` is one transaction, or a few that each take a part of a batch."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from holdfast.budgets import BudgetEnforcer
from holdfast.core.budgets import TenantSettings, Usage
from holdfast.core.errors import StoreUnavailable, Unsupported
from holdfast.core.explain import Standing
from holdfast.core.job import (
    Cancel,
    CancelStatus,
    Claimed,
    ClaimRequest,
    Extend,
    Finish,
    Job,
    JobKey,
    Lease,
    NewJob,
    Purge,
    PurgeStatus,
    Report,
    SetResultTtl,
    TtlStatus,
)
from holdfast.extensions import LogRange
from holdfast.opening import CommonOptions
from holdfast.paging import list_across, pages
from holdfast.store import (
    ALL_HINTS,
    PAGE_LIMIT,
    Capabilities,
    EnqueueAnswer,
    EventPage,
    ExtendAnswer,
    Finding,
    FinishAnswer,
    Hint,
    Listener,
    ListQuery,
    LogPage,
    Page,
    Pruned,
    PurgePage,
    QueuePage,
    QueueStats,
    Reader,
    Reaped,
    ReplayAnswer,
    ReportAnswer,
    TenantPage,
    WorkerInfo,
    WorkerPage,
)
from holdfast.stores.foundationdb import changes, doctor, joining, listing, log, reads, upkeep
from holdfast.stores.foundationdb.address import FdbAddress, open_database
from holdfast.stores.foundationdb.claims import Claims
from holdfast.stores.foundationdb.database import Database, FdbTransaction
from holdfast.stores.foundationdb.keyspace import Keyspace
from holdfast.stores.foundationdb.notifications import Notifications
from holdfast.stores.foundationdb.transactions import TooMuch, Transactions
from holdfast.stores.foundationdb.unit_of_work import Rules, Work

PART_ITEMS = 500
"""The most items of a batch in one transaction."""
PART_BYTES = 1_000_000
"""About the most bytes of payloads, results and errors in one transaction."""
PART_TENANTS = 100
"""Each tenant costs some reads: with many, a transaction on a busy machine would come near 5 s."""
READ_ITEMS = 100
"""The most jobs that one transaction reads by name."""

CAPABILITIES = Capabilities(
    name="fdb",
    durable=True,
    survives_power_loss=True,
    many_processes=True,
    many_hosts=True,
    transactional_enqueue=True,
    exact_turns=False,
    exact_quota=True,
    notes={
        "durable": "What the cluster keeps: each commit is on the disks of several processes.",
        "survives_power_loss": "If the disks honor fsync.",
        "clock": "A stored anchor plus the cluster's versions, kept close to the wall clocks of all processes.",
        "transactional_enqueue": "The caller's transaction sees nothing newer than its own first read.",
        "exact_turns": "Turns between tenants are exact within a process, and in proportion between processes.",
    },
)

I = TypeVar("I")  # noqa: E741 - an item
A = TypeVar("A")
T = TypeVar("T")


class FdbStore:
    """Jobs in a FoundationDB cluster."""

    def __init__(self, address: FdbAddress, database: Database | None = None) -> None:
        self._address = address
        self._given = database
        self.options: CommonOptions = address.common
        self.enforcer = BudgetEnforcer(self, address.common)
        self._opened: Transactions | None = None
        self._claims: Claims | None = None
        self._notifications: Notifications | None = None

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    async def open(self) -> None:
        if self._opened is not None:
            return
        address, common = self._address, self.options
        database = await open_database(address) if self._given is None else self._given
        rules = Rules(common.retention, common.all_events, common.keep_events)
        opened = Transactions(database, Keyspace(address.prefix), rules, address.place)
        await opened.create(frozen=common.test_clock == "frozen")
        self._opened = opened
        self._claims = Claims(opened)
        self._notifications = Notifications(opened)

    async def close(self) -> None:
        await self.enforcer.close()
        opened, self._opened = self._opened, None
        if opened is not None and self._claims is not None and self._notifications is not None:
            await self._claims.close()
            await self._notifications.close()
            if self._given is None:
                await opened.database.close()

    @asynccontextmanager
    async def own_transaction(self) -> AsyncGenerator[FdbTransaction]:
        """A transaction on the cluster of this store, to join: it commits at the end, unless there was an exception."""
        database = await open_database(self._address) if self._given is None else self._given
        transaction = database.transaction()
        yield transaction
        await transaction.commit()

    async def sibling(self) -> FdbStore:
        store = FdbStore(self._address, self._given)
        await store.open()
        return store

    async def erase(self) -> None:
        """Remove all data of this store. Raises Unsupported unless it was opened with `test_clock`."""
        if self.options.test_clock == "0":
            raise Unsupported("erasing a store (open it with test_clock=1)", "fdb")
        await self._transactions.erase()

    async def now(self) -> int:
        return await self._read(_now)

    async def shift_clock(self, ms: int) -> None:
        if self.options.test_clock == "0":
            raise Unsupported("shifting the clock (open it with test_clock=1)", "fdb")
        await self._transactions.shift(ms)

    def listen(self, listener: Listener, hints: Collection[Hint] = ALL_HINTS) -> Callable[[], None]:
        if self._notifications is None or self._opened is None:
            raise _not_open()
        return self._notifications.listen(listener, hints)

    # Jobs ---------------------------------------------------------------------------------------------------------

    async def enqueue(
        self, items: Sequence[NewJob], *, connection: Any = None, under: Lease | None = None
    ) -> list[EnqueueAnswer]:
        async def enqueue_admitted(admitted: Sequence[NewJob]) -> list[EnqueueAnswer]:
            def step(work: Work, part: Sequence[NewJob]) -> Awaitable[list[EnqueueAnswer]]:
                return changes.enqueue(work, part, under)

            return await self._each(step, admitted, connection, _new_size)

        if self.enforcer.admits(items):
            return await enqueue_admitted(items)
        return await self.enforcer.enqueue(items, enqueue_admitted)

    async def claim(self, request: ClaimRequest) -> Claimed:
        if self._claims is None or self._opened is None:
            raise _not_open()
        return await self._claims.claim(request)

    async def finish(self, items: Sequence[Finish], *, connection: Any = None) -> list[FinishAnswer]:
        return await self._each(changes.finish, items, connection, _finish_size)

    async def extend(self, items: Sequence[Extend]) -> list[ExtendAnswer]:
        return await self._each(changes.extend, items)

    async def report(self, items: Sequence[Report]) -> list[ReportAnswer]:
        return await self._each(changes.report, items)

    async def cancel(self, items: Sequence[Cancel]) -> list[CancelStatus]:
        return await self._each(changes.cancel, items)

    async def replay(self, keys: Sequence[JobKey], *, under: Lease | None = None, by: str = "") -> list[ReplayAnswer]:
        async def replay_admitted(admitted: Sequence[JobKey]) -> list[ReplayAnswer]:
            def step(work: Work, part: Sequence[JobKey]) -> Awaitable[list[ReplayAnswer]]:
                return changes.replay(work, part, under, by)

            return await self._each(step, admitted)

        return await self.enforcer.replay(keys, replay_admitted)

    async def purge(self, items: Sequence[Purge]) -> list[PurgeStatus]:
        return await self._each(changes.purge, items)

    async def set_result_ttl(self, items: Sequence[SetResultTtl]) -> list[TtlStatus]:
        expiries: dict[JobKey, int] = {}

        def step(work: Work, part: Sequence[SetResultTtl]) -> Awaitable[list[TtlStatus]]:
            return changes.set_result_ttl(work, part, expiries)

        return await self._each(step, items)

    async def _each(
        self,
        step: Callable[[Work, Sequence[I]], Awaitable[list[A]]],
        items: Sequence[I],
        connection: Any = None,
        size_of: Callable[[I], int] | None = None,
    ) -> list[A]:
        """Make the step for parts of a batch, each in a transaction, one after another. Parts too large are halved."""
        transactions = self._transactions
        if connection is not None:
            return await joining.join(transactions, connection, lambda work: step(work, items))
        answers: list[A] = []
        parts = list(_parts(items, size_of))
        while parts:
            part = parts.pop(0)
            try:
                answers += await transactions.change(lambda work: step(work, part), can_split=len(part) > 1)  # noqa: B023
            except TooMuch:
                half = len(part) // 2
                parts[:0] = [part[:half], part[half:]]
        return answers

    # Reads --------------------------------------------------------------------------------------------------------

    async def get(self, keys: Sequence[JobKey]) -> list[Job | None]:
        found: list[Job | None] = []
        while len(found) < len(keys):
            rest = keys[len(found) :]
            part, _ = await self._transactions.read_some(
                lambda work, count: reads.shown(work, rest[:count]),  # noqa: B023 - awaited in this round
                READ_ITEMS,
            )
            found += part
        return found

    async def standing(self, key: JobKey) -> Standing | None:
        return await self._read(lambda work: reads.standing(work, key))

    async def key_holders(self, items: Sequence[NewJob]) -> list[str | None]:
        return await self._read(lambda work: reads.key_holders(work, items))

    async def list(self, query: ListQuery) -> Page:
        if not query.queue:
            return await list_across(self, query)
        return await listing.list_jobs(self._transactions, query)

    async def stats(self, tenant: str, queues: Sequence[str] | None = None) -> list[QueueStats]:
        if queues is None:
            return [stats async for page in pages(partial(self.queue_page, tenant)) for stats in page.queues]
        return await self._read(lambda work: reads.stats(work, tenant, queues))

    async def queue_page(self, tenant: str, cursor: str | None = None, limit: int = PAGE_LIMIT) -> QueuePage:
        return await self._read(lambda work: reads.queue_page(work, tenant, cursor, limit))

    async def tenants(self) -> list[str]:
        return [name async for page in pages(self.tenant_page) for name in page.tenants]

    async def tenant_page(self, cursor: str | None = None, limit: int = PAGE_LIMIT) -> TenantPage:
        return await self._read(lambda work: reads.tenant_page(work, cursor, limit))

    async def purge_counts(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> PurgePage:
        return await self._read(lambda work: reads.purge_counts(work, tenant, cursor, limit))

    # Events -------------------------------------------------------------------------------------------------------

    async def events(self, tenant: str | None, after: str | None, limit: int) -> EventPage:
        return await self._read(lambda work: log.events(work, tenant, after, limit))

    async def last_offset(self) -> str:
        return await self._read(log.last_offset)

    async def written(self) -> str:
        return await self.last_offset()

    async def bounds(self, after: str | None, most: int | None = None, end: str | None = None) -> tuple[str, str]:
        return await log.bounds(self._transactions, after, most, end)

    async def split(self, after: str, end: str, size: int) -> Sequence[LogRange]:
        return await log.split(self._transactions, after, end, size)

    async def read(self, log_range: LogRange, limit: int) -> LogPage:
        return await self._read(lambda work: log.read(work, log_range, limit))

    async def set_reader(self, reader: Reader) -> None:
        await self._transactions.change(lambda work: log.set_reader(work, reader))

    async def drop_reader(self, tenant: str | None, name: str) -> bool:
        async def was_dropped(transaction: FdbTransaction, was_there: bool) -> bool:  # noqa: FBT001 - the answer
            return was_there and await transaction.get(transactions.keys.reader(tenant or "", name)) is None

        transactions = self._transactions
        return await transactions.change(lambda work: log.drop_reader(work, tenant, name), was_made=was_dropped)

    async def readers(self, tenant: str | None) -> Sequence[Reader]:
        return await self._read(lambda work: log.readers(work, tenant))

    # Settings, workers, upkeep --------------------------------------------------------------------------------------

    async def pause(self, tenant: str, queue: str, *, paused: bool) -> None:
        await self._transactions.change(lambda work: upkeep.pause(work, tenant, queue, paused=paused))

    async def set_tenant(self, tenant: str, settings: TenantSettings) -> None:
        await self._transactions.change(lambda work: upkeep.set_tenant(work, tenant, settings))
        if settings.budgets is not None:
            await self.enforcer.refresh(tenant)

    async def tenant_settings(self, tenant: str) -> Sequence[TenantSettings]:
        return await self._read(lambda work: reads.settings(work, tenant))

    async def usage(self, tenant: str) -> Usage:
        return await self.enforcer.take_usage(tenant, self._read(lambda work: reads.usage(work, tenant)))

    async def beat(self, worker: WorkerInfo, ttl_ms: int) -> None:
        await self._transactions.change(lambda work: upkeep.beat(work, worker, ttl_ms))

    async def workers(self, tenant: str | None) -> Sequence[WorkerInfo]:
        return [worker async for page in pages(partial(self.worker_page, tenant)) for worker in page.workers]

    async def worker_page(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> WorkerPage:
        return await self._read(lambda work: reads.worker_page(work, tenant, cursor, limit))

    async def reap(self, limit: int, random: float) -> Reaped:
        if self._claims is None or self._opened is None:
            raise _not_open()
        return await self._claims.reap(limit, random)

    async def prune(self, limit: int, *, blobs: bool = True) -> Pruned:
        return await upkeep.prune(self._transactions, limit, blobs=blobs)

    async def doctor(self) -> Sequence[Finding]:
        return await doctor.findings(self._transactions, self._address)

    @property
    def _transactions(self) -> Transactions:
        if self._opened is None:
            raise _not_open()
        return self._opened

    async def _read(self, body: Callable[[Work], Awaitable[T]]) -> T:
        return await self._transactions.read(body)


def _not_open() -> StoreUnavailable:
    return StoreUnavailable("the store is not open; use `async with Queue(...)` or await store.open()")


async def _now(work: Work) -> int:
    return work.now


def _parts(items: Sequence[I], size_of: Callable[[I], int] | None) -> Iterator[Sequence[I]]:
    """A batch in parts of limited size."""
    start, size = 0, 0
    tenants: set[str] = set()
    for at, item in enumerate(items):
        here = 0 if size_of is None else size_of(item)
        tenants.add(_tenant(item))
        if at > start and (at - start == PART_ITEMS or size + here > PART_BYTES or len(tenants) > PART_TENANTS):
            yield items[start:at]
            start, size, tenants = at, 0, {_tenant(item)}
        size += here
    if start < len(items):
        yield items[start:]


def _tenant(item: Any) -> str:
    key: JobKey = item if isinstance(item, JobKey) else item.key
    return key.tenant


def _new_size(item: NewJob) -> int:
    return len(item.envelope.payload)


def _finish_size(item: Finish) -> int:
    error = item.error
    return (0 if item.result is None else len(item.result.data)) + (
        0 if error is None else 4 * len(error.message) + 4 * len(error.traceback)
    )
