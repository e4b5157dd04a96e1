"""The `Store` methods. Each one takes the lock, reads the clock once, and calls one function on the tables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from holdfast.budgets import BudgetEnforcer
from holdfast.core import lease
from holdfast.core.budgets import Usage
from holdfast.core.errors import Unsupported
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
from holdfast.opening import CommonOptions
from holdfast.store import (
    ALL_HINTS,
    JOINING,
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
    TenantSettings,
    WorkerInfo,
    WorkerPage,
)
from holdfast.stores.memory import changes, claims, reads, upkeep
from holdfast.stores.memory.clock import Clock
from holdfast.stores.memory.tables import Tables

CAPABILITIES = Capabilities(
    name="memory",
    durable=False,
    survives_power_loss=False,
    many_processes=False,
    many_hosts=False,
    transactional_enqueue=False,
    exact_turns=True,
    exact_quota=True,
    notes={
        "durable": "Everything is gone when the process ends.",
        "clock": "The clock of the process when it started, plus monotonic time: it never jumps.",
    },
)

I = TypeVar("I")  # noqa: E741 - an item
A = TypeVar("A")


class MemoryStore:
    """Jobs in this process. Safe from several threads and event loops at once."""

    def __init__(self, options: CommonOptions) -> None:
        self.options = options
        self.enforcer = BudgetEnforcer(self, options)
        self._lock = threading.Lock()
        self._clock = Clock(frozen=options.test_clock == "frozen")
        self._tables = Tables(options)

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Jobs are kept until the process ends."""
        await self.enforcer.close()

    async def sibling(self) -> MemoryStore:
        return self

    async def now(self) -> int:
        return self._clock.now()

    async def shift_clock(self, ms: int) -> None:
        if self.options.test_clock == "0":
            raise Unsupported("shifting the clock (open it with test_clock=1)", "memory")
        with self._lock:
            self._clock.shift += ms
            self._tables.notifier.add(Hint.READY)
            self._tables.notifier.add(Hint.DONE)
            self._tables.notifier.send()

    def listen(self, listener: Listener, hints: Collection[Hint] = ALL_HINTS) -> Callable[[], None]:
        return self._tables.notifier.listen(listener, hints)

    # Jobs -----------------------------------------------------------------------------------------------------

    async def enqueue(
        self, items: Sequence[NewJob], *, connection: Any = None, under: Lease | None = None
    ) -> list[EnqueueAnswer]:
        if connection is not None:
            raise Unsupported(JOINING, "memory")
        if self.enforcer.admits(items):
            return self._each(changes.enqueue, items, under)

        async def enqueue_admitted(admitted: Sequence[NewJob]) -> list[EnqueueAnswer]:
            return self._each(changes.enqueue, admitted, under)

        return await self.enforcer.enqueue(items, enqueue_admitted)

    async def claim(self, request: ClaimRequest) -> Claimed:
        with self._lock:
            claimed = claims.claim(self._tables, request, self._clock.now())
            self._tables.notifier.send()
            return claimed

    async def finish(self, items: Sequence[Finish], *, connection: Any = None) -> list[FinishAnswer]:
        if connection is not None:
            raise Unsupported(JOINING, "memory")
        return self._each(changes.finish, items)

    async def extend(self, items: Sequence[Extend]) -> list[ExtendAnswer]:
        return self._each(changes.extend, items)

    async def report(self, items: Sequence[Report]) -> list[ReportAnswer]:
        return self._each(changes.report, items)

    async def cancel(self, items: Sequence[Cancel]) -> list[CancelStatus]:
        return self._each(changes.cancel, items)

    async def replay(self, keys: Sequence[JobKey], *, under: Lease | None = None) -> list[ReplayAnswer]:
        async def replay_admitted(admitted: Sequence[JobKey]) -> list[ReplayAnswer]:
            return self._each(changes.replay, admitted, under)

        return await self.enforcer.replay(keys, replay_admitted)

    async def purge(self, items: Sequence[Purge]) -> list[PurgeStatus]:
        return self._each(changes.purge, items)

    async def set_result_ttl(self, items: Sequence[SetResultTtl]) -> list[TtlStatus]:
        return self._each(changes.set_result_ttl, items)

    def _each(self, change: Callable[[Tables, I, int], A], items: Sequence[I], under: Lease | None = None) -> list[A]:
        """Make one change for each item, all at the same instant, and then notify the listeners."""
        with self._lock:
            now = self._clock.now()
            tables = self._tables
            if under is not None:
                lease.check_under(tables.jobs.find(under.key, now), under, now)
            answers = [change(tables, item, now) for item in items]
            tables.notifier.send()
            return answers

    # Reading --------------------------------------------------------------------------------------------------

    async def get(self, keys: Sequence[JobKey]) -> list[Job | None]:
        with self._lock:
            return reads.get(self._tables, keys, self._clock.now())

    async def key_holders(self, items: Sequence[NewJob]) -> list[str | None]:
        with self._lock:
            return reads.key_holders(self._tables, items, self._clock.now())

    async def list(self, query: ListQuery) -> Page:
        with self._lock:
            return reads.list_jobs(self._tables, query, self._clock.now())

    async def stats(self, tenant: str, queues: Sequence[str] | None = None) -> list[QueueStats]:
        with self._lock:
            return reads.stats(self._tables, tenant, queues, self._clock.now())

    async def queue_page(self, tenant: str, cursor: str | None = None, limit: int = PAGE_LIMIT) -> QueuePage:
        with self._lock:
            return reads.queue_page(self._tables, tenant, cursor, limit, self._clock.now())

    async def tenants(self) -> list[str]:
        with self._lock:
            return reads.tenants(self._tables)

    async def tenant_page(self, cursor: str | None = None, limit: int = PAGE_LIMIT) -> TenantPage:
        with self._lock:
            return reads.tenant_page(self._tables, cursor, limit)

    async def purge_counts(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> PurgePage:
        with self._lock:
            return reads.purge_counts(self._tables, tenant, cursor, limit)

    # Events ---------------------------------------------------------------------------------------------------

    async def events(self, tenant: str | None, after: str | None, limit: int) -> EventPage:
        with self._lock:
            return self._tables.log.read(tenant, after, limit)

    async def last_offset(self) -> str:
        with self._lock:
            return self._tables.log.last_offset

    async def set_reader(self, reader: Reader) -> None:
        with self._lock:
            self._tables.log.set_reader(reader)

    async def drop_reader(self, tenant: str | None, name: str) -> bool:
        with self._lock:
            return self._tables.log.drop_reader(tenant, name)

    async def readers(self, tenant: str | None) -> list[Reader]:
        with self._lock:
            return self._tables.log.readers(tenant)

    # Settings, workers, upkeep ----------------------------------------------------------------------------------

    async def pause(self, tenant: str, queue: str, *, paused: bool) -> None:
        with self._lock:
            upkeep.pause(self._tables, tenant, queue, paused=paused)
            self._tables.notifier.send()

    async def set_tenant(self, tenant: str, settings: TenantSettings) -> None:
        with self._lock:
            self._tables.settings.set(tenant, settings)
        if settings.budgets is not None:
            await self.enforcer.refresh(tenant)

    async def tenant_settings(self, tenant: str) -> Sequence[TenantSettings]:
        with self._lock:
            return self._tables.settings.of(tenant)

    async def usage(self, tenant: str) -> Usage:
        return await self.enforcer.take_usage(tenant, self._usage(tenant))

    async def _usage(self, tenant: str) -> Usage:
        with self._lock:
            return reads.usage(self._tables, tenant)

    async def beat(self, worker: WorkerInfo, ttl_ms: int) -> None:
        with self._lock:
            self._tables.workers.beat(worker, ttl_ms, self._clock.now())

    async def workers(self, tenant: str | None) -> Sequence[WorkerInfo]:
        with self._lock:
            return self._tables.workers.serving(tenant, self._clock.now())

    async def worker_page(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> WorkerPage:
        with self._lock:
            return reads.worker_page(self._tables, tenant, cursor, limit, self._clock.now())

    async def reap(self, limit: int, random: float) -> Reaped:
        with self._lock:
            reaped = claims.reap(self._tables, limit, random, self._clock.now())
            self._tables.notifier.send()
            return reaped

    async def prune(self, limit: int, *, blobs: bool = True) -> Pruned:
        with self._lock:
            return upkeep.prune(self._tables, limit, self._clock.now(), blobs=blobs)

    async def doctor(self) -> Sequence[Finding]:
        with self._lock:
            count = sum(len(tenant_queue.jobs) for tenant_queue in self._tables.jobs.tenant_queues())
        return [
            Finding("ok", "store", f"{count} jobs in this process"),
            Finding("warn", "durability", "everything is gone when the process ends", "use file:DIR or a server"),
        ]
