"""The part of a store in one process that does not handle jobs."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, Self, TypeVar

from holdfast.budgets import BudgetEnforcer
from holdfast.core import lease
from holdfast.core.budgets import Usage
from holdfast.core.errors import Unsupported
from holdfast.core.job import Job, JobKey, Lease, NewJob
from holdfast.core.names import OPERATOR, join_key
from holdfast.opening import CommonOptions
from holdfast.paging import name_cursor, name_page, tenant_cursor
from holdfast.store import (
    ALL_HINTS,
    JOINING,
    PAGE_LIMIT,
    EnqueueAnswer,
    EventPage,
    Hint,
    Listener,
    ListQuery,
    Page,
    PurgePage,
    QueuePage,
    QueueStats,
    Reader,
    ReplayAnswer,
    TenantPage,
    TenantSettings,
    WorkerInfo,
    WorkerPage,
)
from holdfast.tables.clock import Clock
from holdfast.tables.keys import KeyTable
from holdfast.tables.log import TableLog
from holdfast.tables.notifications import LocalNotifier
from holdfast.tables.purges import PurgeTable
from holdfast.tables.settings import SettingsTable
from holdfast.tables.workers import WorkerTable

I = TypeVar("I")  # noqa: E741 - an item
A = TypeVar("A")


class SideTables:
    """What a store keeps besides its jobs. Use it only under the store's lock."""

    def __init__(self) -> None:
        self.keys = KeyTable()
        self.log = TableLog()
        self.settings = SettingsTable()
        self.workers = WorkerTable()
        self.purges = PurgeTable()
        self.notifier = LocalNotifier(self.log)
        self.last_seq = 0
        self.last_token = 0
        """One counter for all leases: no token is granted twice. [LEASE-5]"""
        self.dropped_blobs: list[str] = []
        """Blobs of the results of forgotten jobs. `prune` returns their names."""


class LocalStore(ABC):
    """The methods of `Store` for everything but jobs: clock, notifications, pages, events, settings, workers.

    They use `side`. The store itself adds the jobs: the abstract methods, and the rest of the `Store` protocol.
    """

    name: str

    def __init__(self, options: CommonOptions, side: SideTables) -> None:
        self.options = options
        self.enforcer = BudgetEnforcer(self, options)
        self.lock = threading.Lock()
        self.clock = Clock(frozen=options.test_clock == "frozen")
        self.side = side

    async def open(self) -> None:  # noqa: B027 - most have nothing to do here
        """Nothing to connect to."""

    async def close(self) -> None:
        """The data is kept until the process ends."""
        await self.enforcer.close()

    async def sibling(self) -> Self:
        return self

    async def now(self) -> int:
        return self.clock.now()

    async def shift_clock(self, ms: int) -> None:
        if self.options.test_clock == "0":
            raise Unsupported("shifting the clock (open it with test_clock=1)", self.name)
        with self.lock:
            self.clock.shift += ms
            self.side.notifier.add(Hint.READY)
            self.side.notifier.add(Hint.DONE)
            self.side.notifier.send()

    def listen(self, listener: Listener, hints: Collection[Hint] = ALL_HINTS) -> Callable[[], None]:
        return self.side.notifier.listen(listener, hints)

    # What the store adds ------------------------------------------------------------------------------------------

    @abstractmethod
    def find(self, key: JobKey, now: int) -> Job | None:
        """The job. None if there is none or its retention is over. Called under the lock. [TENANT-2]"""

    @abstractmethod
    def enqueue_one(self, new: NewJob, now: int) -> EnqueueAnswer:
        """Add a new job, unless its id or its idempotency key is taken. Called under the lock."""

    @abstractmethod
    def replay_one(self, key: JobKey, now: int, by: str) -> ReplayAnswer:
        """Replay a dead letter. Called under the lock."""

    @abstractmethod
    def queue_names(self, tenant: str) -> list[str]:
        """The queues in which a tenant has jobs, and the paused ones."""

    @abstractmethod
    def tenants_with_jobs(self) -> set[str]:
        """The tenants that have jobs."""

    @abstractmethod
    def count_usage(self, tenant: str) -> Usage:
        """What a tenant keeps. [TENANT-5]"""

    @abstractmethod
    async def get(self, keys: Sequence[JobKey]) -> list[Job | None]: ...

    @abstractmethod
    async def list(self, query: ListQuery) -> Page: ...

    @abstractmethod
    async def stats(self, tenant: str, queues: Sequence[str] | None = None) -> list[QueueStats]: ...

    # Jobs ---------------------------------------------------------------------------------------------------------

    def each(
        self, step: Callable[[I, int], A], items: Sequence[I], *, connection: Any = None, under: Lease | None = None
    ) -> list[A]:
        """Call `step` for each item, all at the same instant, and then notify the listeners."""
        if connection is not None:
            raise Unsupported(JOINING, self.name)
        with self.lock:
            now = self.clock.now()
            if under is not None:
                lease.check_under(self.find(under.key, now), under, now)
            answers = [step(item, now) for item in items]
            self.side.notifier.send()
            return answers

    async def enqueue(
        self, items: Sequence[NewJob], *, connection: Any = None, under: Lease | None = None
    ) -> list[EnqueueAnswer]:
        if connection is not None or self.enforcer.admits(items):
            return self.each(self.enqueue_one, items, connection=connection, under=under)

        async def enqueue_admitted(admitted: Sequence[NewJob]) -> list[EnqueueAnswer]:
            return self.each(self.enqueue_one, admitted, under=under)

        return await self.enforcer.enqueue(items, enqueue_admitted)

    async def replay(self, keys: Sequence[JobKey], *, under: Lease | None = None, by: str = "") -> list[ReplayAnswer]:
        async def replay_admitted(admitted: Sequence[JobKey]) -> list[ReplayAnswer]:
            return self.each(lambda key, now: self.replay_one(key, now, by), admitted, under=under)

        return await self.enforcer.replay(keys, replay_admitted)

    # Pages and counts -----------------------------------------------------------------------------------------------

    async def key_holders(self, items: Sequence[NewJob]) -> list[str | None]:
        return self.each(self.side.keys.holder, items)

    async def queue_page(self, tenant: str, cursor: str | None = None, limit: int = PAGE_LIMIT) -> QueuePage:
        with self.lock:
            names, following = name_page(self.queue_names(tenant), name_cursor(cursor), limit)
        return QueuePage(await self.stats(tenant, names), following)

    async def tenants(self) -> list[str]:
        with self.lock:
            return sorted(self.tenants_with_jobs().union(self.side.settings.tenants()) - {OPERATOR})

    async def tenant_page(self, cursor: str | None = None, limit: int = PAGE_LIMIT) -> TenantPage:
        names, following = name_page(await self.tenants(), tenant_cursor(cursor)[0], limit)
        return TenantPage(names, following and join_key(following, ""))

    async def purge_counts(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> PurgePage:
        with self.lock:
            return self.side.purges.page(tenant, cursor, limit)

    async def usage(self, tenant: str) -> Usage:
        return await self.enforcer.take_usage(tenant, self._usage(tenant))

    async def _usage(self, tenant: str) -> Usage:
        with self.lock:
            return self.count_usage(tenant)

    # Events ---------------------------------------------------------------------------------------------------------

    async def events(self, tenant: str | None, after: str | None, limit: int) -> EventPage:
        with self.lock:
            return self.side.log.read(tenant, after, limit)

    async def last_offset(self) -> str:
        with self.lock:
            return self.side.log.last_offset

    async def set_reader(self, reader: Reader) -> None:
        with self.lock:
            self.side.log.set_reader(reader)

    async def drop_reader(self, tenant: str | None, name: str) -> bool:
        with self.lock:
            return self.side.log.drop_reader(tenant, name)

    async def readers(self, tenant: str | None) -> list[Reader]:
        with self.lock:
            return self.side.log.readers(tenant)

    # Settings and workers -------------------------------------------------------------------------------------------

    async def set_tenant(self, tenant: str, settings: TenantSettings) -> None:
        with self.lock:
            self.side.settings.set(tenant, settings)
        if settings.budgets is not None:
            await self.enforcer.refresh(tenant)

    async def tenant_settings(self, tenant: str) -> Sequence[TenantSettings]:
        with self.lock:
            return self.side.settings.of(tenant)

    async def beat(self, worker: WorkerInfo, ttl_ms: int) -> None:
        with self.lock:
            self.side.workers.beat(worker, ttl_ms, self.clock.now())

    async def workers(self, tenant: str | None) -> Sequence[WorkerInfo]:
        with self.lock:
            return self.side.workers.serving(tenant, self.clock.now())

    async def worker_page(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> WorkerPage:
        with self.lock:
            return self.side.workers.page(tenant, cursor, limit, self.clock.now())
