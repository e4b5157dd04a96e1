"""The `Store` of Redis and Valkey. Each method is one script, on the shard of its tenant or on all shards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from msgspec.structs import replace

from holdfast.budgets import BudgetEnforcer
from holdfast.core.budgets import Usage
from holdfast.core.errors import StoreUnavailable, Unsupported
from holdfast.core.events import LEASE_EXPIRED, fingerprint
from holdfast.core.explain import Standing
from holdfast.core.job import (
    AttemptError,
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
from holdfast.stores.redis import changes, doctor, log, reads, tenants, upkeep
from holdfast.stores.redis.claims import ShardClaims
from holdfast.stores.redis.client import RedisClient
from holdfast.stores.redis.handoff import RedisInbox
from holdfast.stores.redis.messages import signals
from holdfast.stores.redis.notifications import RedisListener
from holdfast.stores.redis.payloads import filled_claim, with_payloads
from holdfast.stores.redis.records import encode
from holdfast.stores.redis.scripts import SCRIPTS
from holdfast.stores.redis.shards import Shards

_CLOSED = "the store is not open; use `async with Queue(...)` or await store.open()"
_EXPIRED_FINGERPRINT = fingerprint(AttemptError(LEASE_EXPIRED, ""))
_NOW = encode(("now",))


class RedisStore:
    """Jobs on a Redis or Valkey server, or on a cluster. Belongs to one event loop."""

    def __init__(
        self, client: RedisClient, options: CommonOptions, *, prefix: str = "hf", shards: int | None = None
    ) -> None:
        self.options = options
        self.enforcer = BudgetEnforcer(self, options)
        self._client = client
        self._wanted_shards = shards
        keep = options.retention
        settings = encode((keep.failed_ms, keep.canceled_ms, options.all_events, _EXPIRED_FINGERPRINT))
        self._shards = Shards(client, prefix, settings)
        self._claims = ShardClaims(self._shards)
        self._listener: RedisListener | None = None
        self._capabilities = _capabilities(
            1, doctor.Durability(durable=False, survives_power_loss=False, note="Not open yet.")
        )
        self._opening = asyncio.Lock()

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def calls_at_once(self) -> int:
        return self._client.connections

    @property
    def _opened(self) -> Shards:
        if self._listener is None:
            raise StoreUnavailable(_CLOSED)
        return self._shards

    async def open(self) -> None:
        async with self._opening:
            if self._listener is not None:
                return
            try:
                await self._connect()
            except BaseException:
                await self._client.drop_connections()  # A store that is not open is never closed.
                raise
            self._listener = RedisListener(self._client, self._shards.prefix, signals)

    async def _connect(self) -> None:
        """Connect, and check that the server is fit for jobs and the layout is the expected one. Raises StoreError."""
        await self._client.open()
        await doctor.refuse_eviction(self._client)
        # Without the right to PUBLISH, this store's changes would wake no worker: fail now.
        await self._client.command(b"", "PUBLISH", f"{self._shards.prefix}:hello", "")
        await self._shards.open(self._wanted_shards, frozen=self.options.test_clock == "frozen")
        self._capabilities = _capabilities(self._shards.count, await doctor.durability(self._client))

    async def close(self) -> None:
        listener, self._listener = self._listener, None
        async with AsyncExitStack() as closing:  # A close that is canceled closes the rest too.
            closing.push_async_callback(self._client.close)
            if listener is not None:
                closing.push_async_callback(listener.close)
            await self.enforcer.close()

    async def sibling(self) -> RedisStore:
        # It is open without a connection: connections belong to the event loop that will use it.
        client = self._client.sibling()
        other = RedisStore(client, self.options, prefix=self._shards.prefix, shards=self._opened.count)
        other._shards.set_count(self._opened.count)
        other._capabilities = self._capabilities
        other._listener = RedisListener(client, self._shards.prefix, signals)
        return other

    async def now(self) -> int:
        return (await self._opened.run("clock", 0, _NOW))[0]

    async def shift_clock(self, ms: int) -> None:
        if self.options.test_clock == "0":
            raise Unsupported("shifting the clock (open it with test_clock=1)", "redis")
        await self._opened.run_on_all("clock", encode(("shift", ms)), repeat=False)

    def listen(self, listener: Listener, hints: Collection[Hint] = ALL_HINTS) -> Callable[[], None]:
        if self._listener is None:
            raise StoreUnavailable(_CLOSED)
        return self._listener.listen(listener, hints)

    # Jobs -------------------------------------------------------------------------------------------------

    async def enqueue(
        self, items: Sequence[NewJob], *, connection: Any = None, under: Lease | None = None
    ) -> list[EnqueueAnswer]:
        if connection is not None:
            raise Unsupported(JOINING, "redis")
        if not self.enforcer.admits(items):
            return await self.enforcer.enqueue(items, lambda admitted: changes.enqueue(self._opened, admitted, under))
        return await changes.enqueue(self._opened, items, under)

    async def claim(self, request: ClaimRequest) -> Claimed:
        return await filled_claim(self._opened, await self._claims.claim(request))

    def open_inbox(self, deliver: Deliver) -> WorkerInbox | None:
        if self._listener is None:
            raise StoreUnavailable(_CLOSED)
        if self._shards.count > 1 or self._client.is_cluster:
            return None
        return RedisInbox(self._shards, self._listener, self, deliver)

    async def finish(self, items: Sequence[Finish], *, connection: Any = None) -> list[FinishAnswer]:
        if connection is not None:
            raise Unsupported(JOINING, "redis")
        return await changes.finish(self._opened, items)

    async def extend(self, items: Sequence[Extend]) -> list[ExtendAnswer]:
        return await changes.extend(self._opened, items)

    async def report(self, items: Sequence[Report]) -> list[ReportAnswer]:
        return await changes.report(self._opened, items)

    async def cancel(self, items: Sequence[Cancel]) -> list[CancelStatus]:
        return await changes.cancel(self._opened, items)

    async def replay(self, keys: Sequence[JobKey], *, under: Lease | None = None, by: str = "") -> list[ReplayAnswer]:
        return await self.enforcer.replay(keys, lambda admitted: changes.replay(self._opened, admitted, under, by))

    async def purge(self, items: Sequence[Purge]) -> list[PurgeStatus]:
        return await changes.purge(self._opened, items)

    async def set_result_ttl(self, items: Sequence[SetResultTtl]) -> list[TtlStatus]:
        return await changes.set_result_ttl(self._opened, items)

    # Reading ----------------------------------------------------------------------------------------------

    async def get(self, keys: Sequence[JobKey]) -> list[Job | None]:
        return await with_payloads(self._opened, await reads.get(self._opened, keys))

    async def standing(self, key: JobKey) -> Standing | None:
        found = await reads.standing(self._opened, key)
        (job,) = await with_payloads(self._opened, [found and found.job])
        return None if found is None or job is None else replace(found, job=job)

    async def key_holders(self, items: Sequence[NewJob]) -> list[str | None]:
        return await reads.key_holders(self._opened, items)

    async def list(self, query: ListQuery) -> Page:
        if not query.queue:
            return await list_across(self, query)
        page = await reads.list_jobs(self._opened, query)
        found = [job for job in await with_payloads(self._opened, page.jobs) if job is not None]
        return Page(found, page.cursor, page.now or await self.now())

    async def stats(self, tenant: str, queues: Sequence[str] | None = None) -> list[QueueStats]:
        if queues is None:
            return [stats async for page in pages(partial(self.queue_page, tenant)) for stats in page.queues]
        found: list[QueueStats] = []
        while len(found) < len(queues):
            found += await reads.stats(self._opened, tenant, queues[len(found) : len(found) + PAGE_LIMIT])
        return found

    async def queue_page(self, tenant: str, cursor: str | None = None, limit: int = PAGE_LIMIT) -> QueuePage:
        return await reads.queue_page(self._opened, tenant, cursor, limit)

    async def tenants(self) -> list[str]:
        return [name async for page in pages(self.tenant_page) for name in page.tenants]

    async def tenant_page(self, cursor: str | None = None, limit: int = PAGE_LIMIT) -> TenantPage:
        return await reads.tenant_page(self._opened, cursor, limit)

    async def purge_counts(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> PurgePage:
        return await reads.purge_counts(self._opened, tenant, cursor, limit)

    # Events -----------------------------------------------------------------------------------------------

    async def events(self, tenant: str | None, after: str | None, limit: int) -> EventPage:
        return await log.events(self._opened, tenant, after, limit)

    async def last_offset(self) -> str:
        return log.join_offset([last for _, last in await self._opened.run_on_all("clock", _NOW)])

    async def bounds(self, after: str | None, most: int | None = None, end: str | None = None) -> tuple[str, str]:
        return await log.bounds(self._opened, after, most, end)

    async def written(self) -> str:
        return await self.last_offset()

    async def split(self, after: str, end: str, size: int) -> Sequence[LogRange]:
        return await log.split(self._opened, after, end, size)

    async def read(self, log_range: LogRange, limit: int) -> LogPage:
        return await log.read(self._opened, log_range, limit)

    async def set_reader(self, reader: Reader) -> None:
        await log.set_reader(self._opened, reader)

    async def drop_reader(self, tenant: str | None, name: str) -> bool:
        return await log.drop_reader(self._opened, tenant, name)

    async def readers(self, tenant: str | None) -> list[Reader]:
        return await log.readers(self._opened, tenant)

    # Tenants and workers ----------------------------------------------------------------------------------

    async def pause(self, tenant: str, queue: str, *, paused: bool) -> None:
        await tenants.pause(self._opened, tenant, queue, paused=paused)

    async def set_tenant(self, tenant: str, settings: TenantSettings) -> None:
        await tenants.set_tenant(self._opened, tenant, settings)
        if settings.budgets is not None:
            await self.enforcer.refresh(tenant)

    async def tenant_settings(self, tenant: str) -> Sequence[TenantSettings]:
        return await tenants.tenant_settings(self._opened, tenant)

    async def usage(self, tenant: str) -> Usage:
        return await self.enforcer.take_usage(tenant, tenants.usage(self._opened, tenant))

    async def beat(self, worker: WorkerInfo, ttl_ms: int) -> None:
        await tenants.beat(self._opened, worker, ttl_ms)

    async def workers(self, tenant: str | None) -> Sequence[WorkerInfo]:
        return [worker async for page in pages(partial(self.worker_page, tenant)) for worker in page.workers]

    async def worker_page(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> WorkerPage:
        return await tenants.worker_page(self._opened, tenant, cursor, limit)

    # Upkeep -----------------------------------------------------------------------------------------------

    async def reap(self, limit: int, random: float) -> Reaped:
        return await upkeep.reap(self._opened, limit, random)

    async def prune(self, limit: int, *, blobs: bool = True) -> Pruned:
        return await upkeep.prune(self._opened, limit, self.options.keep_events, blobs=blobs)

    async def doctor(self) -> Sequence[Finding]:
        shards = self._opened
        keys = [shards.key(n) for n in range(shards.count)]
        layout = f"{shards.count} shard{'s' * (shards.count > 1)} under {shards.prefix!r}"
        return await doctor.findings(self._client, prefix=shards.prefix, shards=keys, scripts=SCRIPTS, layout=layout)

    async def erase(self) -> None:
        """Remove everything under this prefix, for tests. Raises Unsupported without `test_clock`."""
        if self.options.test_clock == "0":
            raise Unsupported("erasing everything (open it with test_clock=1)", "redis")
        await upkeep.erase(self._opened)


def _capabilities(shards: int, found: doctor.Durability) -> Capabilities:
    return Capabilities(
        name="redis",
        durable=found.durable,
        survives_power_loss=found.survives_power_loss,
        many_processes=True,
        many_hosts=True,
        transactional_enqueue=False,
        exact_turns=shards == 1,
        exact_quota=True,
        notes={
            "durable": found.note,
            "failover": "Replication is asynchronous: a failover can lose acknowledged changes. WAIT makes that rarer, "
            "not impossible.",
            "exact_turns": "Turns are exact within a shard; between shards each gets its share.",
            "clock": "The server's clock counts: if it is set back, leases and delays last longer by that much.",
        },
    )
