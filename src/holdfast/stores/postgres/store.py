"""The `Store` contract on PostgreSQL. Each operation is passed on to the part that carries it out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, ClassVar

import msgspec

from holdfast.budgets import BudgetEnforcer
from holdfast.core.budgets import Budgets, Usage
from holdfast.core.errors import JobNotFound, StoreMismatch, Unsupported
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
from holdfast.extensions import Deliver, LogRange, WorkerInbox
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
    TenantSettings,
    WorkerInfo,
    WorkerPage,
)
from holdfast.stores.postgres import changes, doctor, enqueue, lanes, reads, schema, upkeep, usage
from holdfast.stores.postgres.address import PostgresAddress
from holdfast.stores.postgres.claims import Claims
from holdfast.stores.postgres.connection import PostgresClient, PostgresSession
from holdfast.stores.postgres.enqueueing import Enqueueing
from holdfast.stores.postgres.errors import DRIVER_ERRORS, translate
from holdfast.stores.postgres.event_log import EventLog
from holdfast.stores.postgres.finishing import Finishing
from holdfast.stores.postgres.handoff import PostgresInbox
from holdfast.stores.postgres.notifications import LOGGED
from holdfast.stores.postgres.quotas import Quotas
from holdfast.stores.postgres.transactions import Transactions, retry_stale
from holdfast.stores.postgres.unit_of_work import Effects, UnitOfWork

_encode_json = msgspec.json.Encoder().encode
_decode_budgets = msgspec.json.Decoder(Budgets).decode


class PostgresStore:
    """Jobs in a schema of a PostgreSQL database. Belongs to one event loop."""

    examines_closed: ClassVar[bool] = True
    """`doctor` needs no `open`: it can examine a replica, and a schema that is not up to date."""

    def __init__(
        self, address: PostgresAddress, make_client: Callable[[PostgresAddress], PostgresClient] = PostgresClient
    ) -> None:
        self.address = address
        self.options = address.common
        self.enforcer = BudgetEnforcer(self, self.options)
        self._make_client = make_client
        self._client = make_client(address)
        self._cache = lanes.cache_of(address.identity)
        self._transactions = Transactions(self._client, self._cache)
        self._enqueueing = Enqueueing(self._transactions, self.options.retention)
        self._finishing = Finishing(self._transactions, self.options)
        self._log = EventLog(self._transactions)
        self._claims = Claims(self._client, self._cache, self.reap, real_clock=self.options.test_clock == "0")
        self._capabilities = doctor.capabilities(durable=True, note="Not open yet.")
        self._opening = asyncio.Lock()

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def calls_at_once(self) -> int:
        return self.address.connections - 1

    async def open(self) -> None:
        async with self._opening:
            if self._transactions.is_open:
                return
            frozen = self.options.test_clock == "frozen"
            try:
                await schema.prepare(self._client, time.time_ns() // 1_000_000 if frozen else None)
                (meta,) = await self._client.rows("meta", repeat=True)
                self._check_clock(frozen=meta["frozen"])
                self._client.on_data = self._cache.set_data
                await self._client.check_data()
                self._capabilities = await doctor.durability(self._client)
            except BaseException:
                self._client.drop_idle()  # A store that was never open is never closed.
                raise
            self._transactions.open()

    def _check_clock(self, *, frozen: bool) -> None:
        if frozen != (self.options.test_clock == "frozen"):
            made = "with" if frozen else "without"
            raise StoreMismatch(f"the schema {self.address.schema!r} was made {made} test_clock=frozen")

    async def close(self) -> None:
        self._log.close()
        async with AsyncExitStack() as closing:  # A close that is canceled closes the rest too.
            closing.push_async_callback(self._transactions.close)
            await self.enforcer.close()

    async def sibling(self) -> PostgresStore:
        # It is open but not connected: its connections belong to the event loop that will use it.
        _ = self._opened
        other = PostgresStore(self.address, self._make_client)
        other._capabilities = self._capabilities
        other._cache.set_data(self._cache.data_id)
        other._client.on_data = other._cache.set_data
        other._transactions.open()
        return other

    @property
    def _opened(self) -> PostgresClient:
        return self._transactions.client

    async def now(self) -> int:
        return await self._opened.value("now", repeat=True)

    async def shift_clock(self, ms: int) -> None:
        if self.options.test_clock == "0":
            raise Unsupported("shifting the clock (open it with test_clock=1)", "postgres")
        await self._opened.rows("shift_clock", ms)
        self._cache.forget_low_water()
        self._transactions.notify([(Hint.READY, "", "", ""), (Hint.DONE, "", "", "")])

    def listen(self, listener: Listener, hints: Collection[Hint] = ALL_HINTS) -> Callable[[], None]:
        return self._transactions.listener.listen(listener, hints)

    # Jobs -------------------------------------------------------------------------------------------------

    async def enqueue(
        self, items: Sequence[NewJob], *, connection: Any = None, under: Lease | None = None
    ) -> list[EnqueueAnswer]:
        if self.enforcer.admits(items):
            return await self._enqueueing.enqueue(items, connection, under)
        return await self.enforcer.enqueue(
            items, lambda admitted: self._enqueueing.enqueue(admitted, connection, under)
        )

    async def claim(self, request: ClaimRequest) -> Claimed:
        _ = self._opened
        claimed = await retry_stale(lambda: self._claims.claim(request))
        if claimed.jobs:
            self._transactions.notify([LOGGED])
        return claimed

    def open_inbox(self, deliver: Deliver) -> WorkerInbox | None:
        client, listener = self._opened, self._transactions.listener
        return PostgresInbox(client, self._cache, listener, self, deliver) if self.address.listen else None

    async def finish(self, items: Sequence[Finish], *, connection: Any = None) -> list[FinishAnswer]:
        return await self._finishing.finish(items, connection)

    async def extend(self, items: Sequence[Extend]) -> list[ExtendAnswer]:
        return await self._finishing.extend(items)

    async def report(self, items: Sequence[Report]) -> list[ReportAnswer]:
        all_events = self.options.all_events
        return await self._transactions.change_jobs(
            items, lambda unit: changes.report(unit, items, all_events=all_events), repeat=True
        )

    async def cancel(self, items: Sequence[Cancel]) -> list[CancelStatus]:
        keep = self.options.retention
        return await self._transactions.change_jobs(
            items, lambda unit: changes.cancel(unit, items, keep), repeat=True, same_jobs=True
        )

    async def replay(self, keys: Sequence[JobKey], *, under: Lease | None = None, by: str = "") -> list[ReplayAnswer]:
        return await self.enforcer.replay(keys, lambda admitted: retry_stale(lambda: self._replay(admitted, under, by)))

    async def _replay(self, keys: Sequence[JobKey], under: Lease | None, by: str) -> list[ReplayAnswer]:
        found = await self._transactions.lanes(keys)
        (leader,) = (None,) if under is None else await self._transactions.lanes([under.key])
        if not any(found):
            return [JobNotFound(key.queue, key.id) for key in keys]
        cache, name = self._cache, self.address.schema
        pairs = [(lane, key.id) for key, lane in zip(keys, found, strict=True) if lane is not None]

        async def work(session: PostgresSession) -> tuple[list[ReplayAnswer] | None, Effects]:
            if under is not None:
                await self._enqueueing.lock_lease(session, under, leader)
            # Lock keys, then ids, then tenants, in the order of an enqueue.
            seen = UnitOfWork(session, cache, [lane for lane, _ in pairs])
            await seen.read([lane.number for lane, _ in pairs], [id_ for _, id_ in pairs])
            scopes = enqueue.scopes_of(seen)
            if scopes:
                await session.rows("lock_keys", enqueue.key_locks(name, scopes))
            unit = await UnitOfWork.begin(session, cache, pairs)
            if not enqueue.scopes_of(unit) <= scopes:
                return None, Effects()  # An id has another job by now, with another key.
            quotas = await Quotas.read(session, cache, [key.tenant for key in keys], name, wait=True)
            bindings = await enqueue.bindings_of(unit, scopes)
            return changes.replay(unit, keys, quotas, bindings, by), await unit.save()

        while True:
            answers = await self._transactions.change(work)
            if answers is not None:
                return answers

    async def purge(self, items: Sequence[Purge]) -> list[PurgeStatus]:
        return await self._transactions.change_jobs(items, lambda unit: changes.purge(unit, items))

    async def set_result_ttl(self, items: Sequence[SetResultTtl]) -> list[TtlStatus]:
        async def step(unit: UnitOfWork) -> list[TtlStatus]:
            answers, kept = changes.set_result_ttl(unit, items)
            if kept:
                await unit.session.rows("save_expiry", *(list(column) for column in zip(*kept, strict=True)))
            return answers

        return await self._transactions.change_jobs(items, step, repeat=True, same_jobs=True)

    # Reading ----------------------------------------------------------------------------------------------

    async def get(self, keys: Sequence[JobKey]) -> list[Job | None]:
        return await retry_stale(lambda: reads.get(self._opened, self._cache, keys))

    async def standing(self, key: JobKey) -> Standing | None:
        return await retry_stale(lambda: reads.standing(self._opened, self._cache, key))

    async def key_holders(self, items: Sequence[NewJob]) -> list[str | None]:
        return await retry_stale(lambda: reads.key_holders(self._opened, self._cache, items))

    async def list(self, query: ListQuery) -> Page:
        if not query.queue:
            return await list_across(self, query)
        return await retry_stale(lambda: reads.list_jobs(self._opened, self._cache, query))

    async def stats(self, tenant: str, queues: Sequence[str] | None = None) -> list[QueueStats]:
        if queues is None:
            return [stats async for page in pages(partial(self.queue_page, tenant)) for stats in page.queues]
        firsts = range(0, len(queues), PAGE_LIMIT)
        parts = [await self._stats(tenant, queues[first : first + PAGE_LIMIT]) for first in firsts]
        return [stats for part in parts for stats in part]

    async def _stats(self, tenant: str, queues: Sequence[str]) -> list[QueueStats]:
        return await retry_stale(lambda: reads.stats(self._opened, self._cache, tenant, queues))

    async def queue_page(self, tenant: str, cursor: str | None = None, limit: int = PAGE_LIMIT) -> QueuePage:
        return await retry_stale(lambda: reads.queue_page(self._opened, self._cache, tenant, cursor, limit))

    async def tenants(self) -> list[str]:
        return [name async for page in pages(self.tenant_page) for name in page.tenants]

    async def tenant_page(self, cursor: str | None = None, limit: int = PAGE_LIMIT) -> TenantPage:
        return await reads.tenant_page(self._opened, cursor, limit)

    async def purge_counts(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> PurgePage:
        return await reads.purge_counts(self._opened, tenant, cursor, limit)

    # Events -----------------------------------------------------------------------------------------------

    async def events(self, tenant: str | None, after: str | None, limit: int) -> EventPage:
        return await self._log.events(tenant, after, limit)

    async def last_offset(self) -> str:
        return await self._log.last_offset()

    async def bounds(self, after: str | None, most: int | None = None, end: str | None = None) -> tuple[str, str]:
        return await self._log.bounds(after, most, end)

    async def written(self) -> str:
        return await self._log.written()

    async def split(self, after: str, end: str, size: int) -> Sequence[LogRange]:
        return await self._log.split(after, end, size)

    async def read(self, log_range: LogRange, limit: int) -> LogPage:
        return await self._log.read(log_range, limit)

    async def set_reader(self, reader: Reader) -> None:
        await self._log.set_reader(reader)

    async def drop_reader(self, tenant: str | None, name: str) -> bool:
        return await self._log.drop_reader(tenant, name)

    async def readers(self, tenant: str | None) -> list[Reader]:
        return await self._log.readers(tenant)

    # Settings, workers, upkeep ------------------------------------------------------------------------------

    async def pause(self, tenant: str, queue: str, *, paused: bool) -> None:
        await retry_stale(lambda: self._pause(tenant, queue, paused=paused))
        if not paused:
            self._transactions.notify([(Hint.READY, tenant, queue, "")])

    async def _pause(self, tenant: str, queue: str, *, paused: bool) -> None:
        lane = await enqueue.add_lane(self._opened, self._cache, tenant, queue)
        await self._opened.rows("pause", lane.number, paused, self._cache.fingerprint([lane]), repeat=True)
        with self._cache.lock:
            lane.pause(paused=paused)

    async def set_tenant(self, tenant: str, settings: TenantSettings) -> None:
        budgets = None if settings.budgets is None else _encode_json(settings.budgets).decode()
        request = (tenant, settings.queue or "", settings.weight, settings.max_waiting, budgets)
        await self._opened.rows("set_settings", *request, repeat=True)
        if settings.budgets is not None:
            await self.enforcer.refresh(tenant)

    async def tenant_settings(self, tenant: str) -> Sequence[TenantSettings]:
        found = await self._opened.rows("settings", tenant, repeat=True)
        return [
            TenantSettings(
                row["queue"] or None,
                row["weight"],
                row["max_waiting"],
                None if row["budgets"] is None else _decode_budgets(row["budgets"]),
            )
            for row in found
        ]

    async def usage(self, tenant: str) -> Usage:
        return await self.enforcer.take_usage(tenant, usage.usage(self._opened, tenant))

    async def beat(self, worker: WorkerInfo, ttl_ms: int) -> None:
        if ttl_ms > 0:
            info = _encode_json(worker)
            await self._opened.rows("beat", worker.worker_id, ttl_ms, info, repeat=True, urgent=True)
        else:
            await self._opened.rows("sign_off", worker.worker_id, repeat=True, urgent=True)

    async def workers(self, tenant: str | None) -> Sequence[WorkerInfo]:
        return [worker async for page in pages(partial(self.worker_page, tenant)) for worker in page.workers]

    async def worker_page(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> WorkerPage:
        return await reads.worker_page(self._opened, tenant, cursor, limit)

    async def reap(self, limit: int, random: float) -> Reaped:
        return await retry_stale(lambda: self._reap(limit, random))

    async def _reap(self, limit: int, random: float) -> Reaped:
        client, cache = self._opened, self._cache
        keep = self.options.retention
        while True:
            reaped, effects, unknown = await client.change(
                lambda session: upkeep.reap(session, cache, limit, random, keep)
            )
            if not unknown:
                break
            fingerprint = cache.fingerprint()
            for row in await client.rows("lanes_by_number", unknown, fingerprint, repeat=True):
                cache.learn(fingerprint, *row.values())
        await self._transactions.publish(effects, None)
        return reaped

    async def prune(self, limit: int, *, blobs: bool = True) -> Pruned:
        keep = self.options.keep_events
        return await retry_stale(lambda: upkeep.prune(self._opened, self._cache, limit, keep, blobs=blobs))

    async def doctor(self) -> Sequence[Finding]:
        return await doctor.findings(self._client)

    async def migrate(self, on_step: Callable[[str], None] | None = None) -> int:
        """Bring the schema up to date. Needs no `open`. Returns the number of steps; `on_step` gets each name."""
        connection = await self._client.connect()
        try:
            names = await schema.migrate(connection, self.address)
            if on_step is not None:
                for name in names:
                    on_step(name)
            return len(names)
        except DRIVER_ERRORS as error:
            raise translate(error, self.address.shown, self.address.timeout_s) from error
        finally:
            await connection.close(timeout=2)

    @asynccontextmanager
    async def own_transaction(self) -> AsyncGenerator[Any]:
        """A transaction on a connection of its own, like a caller's. For tests of joining. [ENQ-7]"""
        connection = await self._client.connect()
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close(timeout=2)

    async def erase(self) -> None:
        """Remove the whole schema. For tests: raises Unsupported without `test_clock`."""
        if self.options.test_clock == "0":
            raise Unsupported("erasing everything (open it with test_clock=1)", "postgres")
        await schema.erase(self._opened)
        lanes.forget(self.address.identity)
