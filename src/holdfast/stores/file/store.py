"""The file store: each method of `Store` is one change for the writer thread, or one concurrent read."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.budgets import BudgetEnforcer
from holdfast.core.budgets import Usage
from holdfast.core.errors import StoreMismatch, StoreUnavailable, Unsupported
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
from holdfast.extensions import Deliver, LogRange
from holdfast.opening import CommonOptions
from holdfast.paging import list_across, pages
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
    TenantSettings,
    WorkerInfo,
    WorkerPage,
)
from holdfast.stores.file import changes, claims, database, reads, upkeep
from holdfast.stores.file.engine import Engine
from holdfast.stores.file.handoff import FileInbox
from holdfast.stores.file.transaction import FileSettings, Transaction

CAPABILITIES = Capabilities(
    name="file",
    durable=True,
    survives_power_loss=True,
    many_processes=True,
    many_hosts=False,
    transactional_enqueue=False,
    exact_turns=True,
    exact_quota=True,
    notes={
        "durable": "Each acknowledged change was flushed to the disk (SQLite WAL, synchronous=FULL).",
        "survives_power_loss": "If the disk honors fsync. A lost disk loses the jobs on it.",
        "clock": "The machine's clock. If it is set back, leases and delays last longer by that much.",
        "frozen writer": "A process stopped during a write blocks the others until it continues or ends.",
    },
)


class FileStore:
    """Jobs in a directory on this machine."""

    def __init__(
        self,
        directory: str,
        options: CommonOptions,
        engine: Engine | None = None,
        *,
        create: bool = True,
        unsafe_fs: bool = False,
        group: bool = False,
    ) -> None:
        self._directory = Path(directory).expanduser().absolute()
        self._create = create
        self.created = False
        self._unsafe_fs = unsafe_fs
        self._group = group
        self.options = options
        self.enforcer = BudgetEnforcer(self, options)
        self._engine = engine
        self._opening = asyncio.Lock()
        self._inboxes: weakref.WeakSet[FileInbox] = weakref.WeakSet()

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    async def open(self) -> None:
        async with self._opening:
            if self._engine is None:
                frozen_at = time.time_ns() // 1_000_000 if self.options.test_clock == "frozen" else None
                starting = asyncio.ensure_future(asyncio.to_thread(self._start, frozen_at))
                try:
                    self._engine = await asyncio.shield(starting)
                except asyncio.CancelledError:
                    starting.add_done_callback(_close_unwanted)
                    raise

    def _start(self, frozen_at: int | None) -> Engine:
        if not self._create and not (self._directory / database.NAME).exists():
            reason = "check the path; the first enqueue or worker creates a store"
            raise StoreUnavailable(f"there is no store in {self._directory}: {reason}")
        self.created = database.prepare(
            self._directory, frozen_at=frozen_at, unsafe_fs=self._unsafe_fs, group=self._group
        )
        settings = FileSettings(self.options.retention, self.options.all_events, self.options.keep_events)
        engine = Engine(self._directory, settings)
        with contextlib.ExitStack() as undo:
            undo.callback(engine.close)
            if engine.is_frozen() != (self.options.test_clock == "frozen"):
                made = "without" if frozen_at else "with"
                raise StoreMismatch(f"{self._directory} was made {made} test_clock=frozen")
            undo.pop_all()
        return engine

    async def close(self) -> None:
        await self.enforcer.close()
        engine, self._engine = self._engine, None
        if engine is not None:
            # Other handles may keep the engine open: jobs must not be handed off to the inboxes of this one.
            for inbox in self._inboxes:
                inbox.end()
            await asyncio.to_thread(engine.leave)

    async def sibling(self) -> FileStore:
        # The engine serves any number of event loops; the last handle closes it.
        engine = self._opened
        engine.join()
        return FileStore(str(self._directory), self.options, engine)

    async def now(self) -> int:
        return await self._opened.read(reads.now)

    async def shift_clock(self, ms: int) -> None:
        if self.options.test_clock == "0":
            raise Unsupported("shifting the clock (open it with test_clock=1)", "file")
        await self._change(upkeep.shift_clock, ms)

    def listen(self, listener: Listener, hints: Collection[Hint] = ALL_HINTS) -> Callable[[], None]:
        return self._opened.listen(listener, hints)

    # Jobs -------------------------------------------------------------------------------------------------

    async def enqueue(
        self, items: Sequence[NewJob], *, connection: Any = None, under: Lease | None = None
    ) -> list[EnqueueAnswer]:
        if connection is not None:
            raise Unsupported(JOINING, "file")
        if not self.enforcer.admits(items):
            return await self.enforcer.enqueue(items, lambda admitted: self._enqueue(admitted, under))
        return await self._enqueue(items, under)

    def _enqueue(self, items: Sequence[NewJob], under: Lease | None) -> Awaitable[list[EnqueueAnswer]]:
        return self._opened.change(lambda t: changes.enqueue(t, items, under))

    async def claim(self, request: ClaimRequest) -> Claimed:
        return await self._change(claims.claim, request)

    def open_inbox(self, deliver: Deliver) -> FileInbox | None:
        inbox = self._opened.open_inbox(deliver)
        self._inboxes.add(inbox)
        return inbox

    async def finish(self, items: Sequence[Finish], *, connection: Any = None) -> list[FinishAnswer]:
        if connection is not None:
            raise Unsupported(JOINING, "file")
        return await self._change(changes.finish, items)

    async def extend(self, items: Sequence[Extend]) -> list[ExtendAnswer]:
        return await self._change(changes.extend, items)

    async def report(self, items: Sequence[Report]) -> list[ReportAnswer]:
        return await self._change(changes.report, items)

    async def cancel(self, items: Sequence[Cancel]) -> list[CancelStatus]:
        return await self._change(changes.cancel, items)

    async def replay(self, keys: Sequence[JobKey], *, under: Lease | None = None, by: str = "") -> list[ReplayAnswer]:
        return await self.enforcer.replay(keys, lambda admitted: self._replay(admitted, under, by))

    def _replay(self, keys: Sequence[JobKey], under: Lease | None, by: str) -> Awaitable[list[ReplayAnswer]]:
        return self._opened.change(lambda t: changes.replay(t, keys, under, by))

    async def purge(self, items: Sequence[Purge]) -> list[PurgeStatus]:
        return await self._change(changes.purge, items)

    async def set_result_ttl(self, items: Sequence[SetResultTtl]) -> list[TtlStatus]:
        return await self._change(changes.set_result_ttl, items)

    # Reads ----------------------------------------------------------------------------------------------

    async def get(self, keys: Sequence[JobKey]) -> list[Job | None]:
        return await self._opened.read(lambda db: reads.get(db, keys))

    async def standing(self, key: JobKey) -> Standing | None:
        return await self._opened.read(lambda db: reads.standing(db, key))

    async def key_holders(self, items: Sequence[NewJob]) -> list[str | None]:
        return await self._opened.read(lambda db: reads.key_holders(db, items))

    async def list(self, query: ListQuery) -> Page:
        if not query.queue:
            return await list_across(self, query)
        return await self._opened.read(lambda db: reads.list_jobs(db, query))

    async def stats(self, tenant: str, queues: Sequence[str] | None = None) -> list[QueueStats]:
        if queues is None:
            return [stats async for page in pages(partial(self.queue_page, tenant)) for stats in page.queues]
        return await self._opened.read(lambda db: reads.stats(db, tenant, queues))

    async def queue_page(self, tenant: str, cursor: str | None = None, limit: int = PAGE_LIMIT) -> QueuePage:
        return await self._opened.read(lambda db: reads.queue_page(db, tenant, cursor, limit))

    async def tenants(self) -> list[str]:
        return [name async for page in pages(self.tenant_page) for name in page.tenants]

    async def tenant_page(self, cursor: str | None = None, limit: int = PAGE_LIMIT) -> TenantPage:
        return await self._opened.read(lambda db: reads.tenant_page(db, cursor, limit))

    async def purge_counts(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> PurgePage:
        return await self._opened.read(lambda db: reads.purge_counts(db, tenant, cursor, limit))

    # Events -----------------------------------------------------------------------------------------------

    async def events(self, tenant: str | None, after: str | None, limit: int) -> EventPage:
        return await self._opened.read(lambda db: reads.events(db, tenant, after, limit))

    async def last_offset(self) -> str:
        return await self._opened.read(reads.last_offset)

    async def bounds(self, after: str | None, most: int | None = None, end: str | None = None) -> tuple[str, str]:
        return await self._opened.read(lambda db: reads.bounds(db, after, most, end))

    async def written(self) -> str:
        return await self.last_offset()

    async def split(self, after: str, end: str, size: int) -> Sequence[LogRange]:
        return await self._opened.read(lambda db: reads.split(db, after, end, size))

    async def read(self, log_range: LogRange, limit: int) -> LogPage:
        return await self._opened.read(lambda db: reads.read(db, log_range, limit))

    async def set_reader(self, reader: Reader) -> None:
        await self._change(upkeep.set_reader, reader)

    async def drop_reader(self, tenant: str | None, name: str) -> bool:
        return await self._opened.change(lambda t: upkeep.drop_reader(t, tenant, name))

    async def readers(self, tenant: str | None) -> list[Reader]:
        return await self._opened.read(lambda db: reads.readers(db, tenant))

    # Settings, workers, upkeep ------------------------------------------------------------------------------

    async def pause(self, tenant: str, queue: str, *, paused: bool) -> None:
        await self._opened.change(lambda t: upkeep.pause(t, tenant, queue, paused=paused))

    async def set_tenant(self, tenant: str, settings: TenantSettings) -> None:
        await self._opened.change(lambda t: upkeep.set_tenant(t, tenant, settings))
        if settings.budgets is not None:
            await self.enforcer.refresh(tenant)

    async def tenant_settings(self, tenant: str) -> Sequence[TenantSettings]:
        return await self._opened.read(lambda db: reads.settings(db, tenant))

    async def usage(self, tenant: str) -> Usage:
        return await self.enforcer.take_usage(tenant, self._opened.read(lambda db: reads.usage(db, tenant)))

    async def beat(self, worker: WorkerInfo, ttl_ms: int) -> None:
        await self._opened.change(lambda t: upkeep.beat(t, worker, ttl_ms))

    async def workers(self, tenant: str | None) -> Sequence[WorkerInfo]:
        return [worker async for page in pages(partial(self.worker_page, tenant)) for worker in page.workers]

    async def worker_page(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> WorkerPage:
        return await self._opened.read(lambda db: reads.worker_page(db, tenant, cursor, limit))

    async def reap(self, limit: int, random: float) -> Reaped:
        def change(t: Transaction) -> Reaped:
            keys = claims.reap(t, limit, random)
            t.flush()
            return Reaped(keys, t.now, t.one("next_deadline"))

        return await self._opened.change(change)

    async def prune(self, limit: int, *, blobs: bool = True) -> Pruned:
        return await self._opened.change(lambda t: upkeep.prune(t, limit, blobs=blobs))

    async def doctor(self) -> Sequence[Finding]:
        path = self._opened.path
        return await self._opened.read(lambda db: upkeep.doctor(db, path))

    @property
    def _opened(self) -> Engine:
        if self._engine is None:
            raise StoreUnavailable("the store is not open; use `async with Queue(...)` or await store.open()")
        return self._engine

    async def _change(self, change: Callable[[Transaction, Any], Any], argument: Any) -> Any:
        return await self._opened.change(lambda t: change(t, argument))


def _close_unwanted(starting: asyncio.Future[Engine]) -> None:
    """Close an engine whose opening was canceled."""
    if not starting.cancelled() and starting.exception() is None:
        starting.result().close()
