"""What all requests of one process share: the open store, waiting claims, and a connection for each tenant."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.blobs import Blobs, result_name
from holdfast.budgets import ceiling_ms, enforcer_of, usage_of
from holdfast.core.budgets import Budgets, BudgetUse, TenantUsage
from holdfast.core.errors import StoreError
from holdfast.core.failpoint import hit
from holdfast.core.job import (
    RESULT_LIMIT,
    Claimed,
    ClaimRequest,
    Finish,
    Job,
    NewJob,
    Result,
)
from holdfast.ids import new_id
from holdfast.maintenance.runner import Maintenance
from holdfast.queue.claims import Claimer
from holdfast.queue.connection import Connection
from holdfast.service.answer_size import AnswerSize, LargestJobs, count_that_fit
from holdfast.service.audit import TrailQueue
from holdfast.service.event_cache import EventCaches
from holdfast.service.fair import fair
from holdfast.service.keys import Keys
from holdfast.service.limits import TenantRates, TokenRates
from holdfast.service.proofs import Proofs
from holdfast.service.revoked import Revoked
from holdfast.service.settings import ServiceSettings
from holdfast.service.shares import Hold, Shares
from holdfast.service.tokens import Tokens
from holdfast.service.turns import Activity, CheckTurns, PieceTurns
from holdfast.service.types import TypeCache
from holdfast.store import EnqueueAnswer, FinishAnswer, ListQuery, Page, QueuePage, QueueStats, Store
from holdfast.telemetry import http as http_metrics
from holdfast.telemetry.logging import get_logger

_log = get_logger(__name__)

MAX_TENANTS = 10_000
"""The most tenants whose connection is kept."""
QUEUES_IN_PIECE = 50
"""Queues that one call to the store counts."""


class _Tenant(NamedTuple):
    """What the requests of one tenant share. Tenants share no round trips: one may be blocked. [TENANT-4]"""

    connection: Connection
    largest: LargestJobs


class ServiceContext:
    """One process of the service, without HTTP.

    Concurrent requests of a tenant share round trips. The tenant always comes from a token. [TENANT-1]
    """

    def __init__(self, settings: ServiceSettings, store: Store) -> None:
        self.settings = settings
        self.store = fair(store)
        """Fair between tenants. The service's own reads use `store` directly: there is one of each kind at a time."""
        self._enforcer = enforcer_of(store)
        self.ceiling_ms = ceiling_ms(store)
        self.blobs = None if settings.blobs is None else Blobs.open(settings.blobs)
        self.keys = Keys(settings.tokens.hs256_key, settings.tokens.jwks)
        self.tokens = Tokens(settings.tokens.check(), self.keys, settings.limits)
        self.token_rates = TokenRates(settings.limits.rate)
        self.proofs = Proofs(store)
        self.revoked = Revoked(store)
        self.claimer = Claimer(self.store)
        self.activity = Activity()
        self.turns = CheckTurns(self.activity)
        self.pieces = PieceTurns(self.activity)
        self.event_caches = EventCaches(self.store, self.pieces)
        self.types = TypeCache(self.store)
        self.trail = TrailQueue(store) if settings.audit_queue else None
        limits = settings.limits
        self.memory = Shares(
            "bytes in flight", process=limits.memory, tenant=limits.tenant_memory, address=limits.address_memory
        )
        self.connections = Shares(
            "connections",
            process=limits.connections,
            tenant=self._budget("max_connections", limits.share_of_connections(limits.tenant_connections, 10)),
            budget="max_connections",
            address=limits.share_of_connections(limits.address_connections, 5),
            full="too_many_connections",
        )
        quarter = limits.share_of_connections(None, 4)
        self.waits = Shares(
            "waiting requests",
            process=quarter,
            tenant=self._budget("max_waiting_claims", limits.share_of_connections(limits.tenant_waits, 10)),
            budget="max_waiting_claims",
        )
        self.streams = Shares(
            "event streams",
            process=quarter,
            tenant=self._budget("max_streams", limits.share_of_connections(limits.tenant_streams, 10)),
            budget="max_streams",
        )
        self.requests = TenantRates("requests_per_s", "requests", self._budget("requests_per_s", limits.tenant_rate))
        self.changes = TenantRates("changes_per_s", "changes", self._budget("changes_per_s", limits.tenant_changes))
        self.stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the service stops: waiting requests then answer at once."""
        self._own = store
        self._tenants: dict[str, _Tenant] = {}
        self._upkeep: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the store, read the keys, start maintenance."""
        await self.keys.open()
        await self.store.open()
        await self.proofs.renew()
        await self.revoked.renew()
        if self.trail is not None:
            await self.trail.open()
        self.claimer.start()
        if self.settings.upkeep:
            self._upkeep = asyncio.create_task(Maintenance(self._own, blobs=self.blobs).run())

    def peaks(self) -> tuple[int, int, int, int]:
        """The highest values so far of bytes, connections, waits, and work in a turn."""
        return self.memory.peak, self.connections.peak, self.waits.peak + self.streams.peak, self.turns.peak

    def budgets(self, tenant: str) -> Budgets:
        """The budgets that an operator has set for a tenant, or for all, as last read. [TENANT-5]"""
        return Budgets() if self._enforcer is None else self._enforcer.budgets(tenant)

    def _budget(self, name: str, default: int) -> Callable[[str], int]:
        """A function that returns a tenant's limit in this process; 0: no limit."""

        def limit(tenant: str) -> int:
            budget = getattr(self.budgets(tenant), name)
            return default if budget is None else budget

        return limit

    async def usage(self, tenant: str) -> TenantUsage:
        """What a tenant uses in the store and in this process, with its limits."""
        found = await usage_of(self.store, tenant)
        here = {
            "max_connections": (self.connections.used_by(tenant), self.connections.limit_of(tenant)),
            "max_streams": (self.streams.used_by(tenant), self.streams.limit_of(tenant)),
            "max_waiting_claims": (self.waits.used_by(tenant), self.waits.limit_of(tenant)),
            "requests_per_s": (None, self.requests.rate_of(tenant)),
            "changes_per_s": (None, self.changes.rate_of(tenant)),
        }
        budgets = [
            BudgetUse(one.budget, *here.get(one.budget, (one.used, one.limit)), one.is_set) for one in found.budgets
        ]
        return replace(found, budgets=budgets)

    def stop(self) -> None:
        """Let waiting requests answer now."""
        if not self.stopping.done():
            self.stopping.set_result(None)

    async def close(self) -> None:
        """Close everything. Call it when no request is in progress."""
        self.stop()
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.wait([self._upkeep])
        for tenant in self._tenants.values():
            await tenant.connection.close()
        if self.trail is not None:
            await self.trail.close()
        self.claimer.close()
        await self.keys.close()
        await self.proofs.close()
        await self.revoked.close()
        await self.store.close()

    def connection(self, tenant: str) -> Connection:
        """What a Queue of this tenant works with: shared round trips, waits, blobs."""
        return self._tenant(tenant).connection

    def _tenant(self, name: str) -> _Tenant:
        tenant = self._tenants.pop(name, None)
        if tenant is None:
            if len(self._tenants) >= MAX_TENANTS:
                del self._tenants[next(iter(self._tenants))]
            tenant = _Tenant(Connection(None, self.store, tenant=name, blobs=self.blobs), {})
        self._tenants[name] = tenant
        return tenant

    async def enqueue(self, item: NewJob) -> EnqueueAnswer:
        """Enqueue one job, in one round trip with others of its tenant."""
        hit("service.before_enqueue")
        return _enqueued([await self.connection(item.key.tenant).enqueues(item)])[0]

    async def enqueue_many(self, items: Sequence[NewJob]) -> Sequence[EnqueueAnswer]:
        """Enqueue the batch of one request, in its own round trip."""
        hit("service.before_enqueue")
        return _enqueued(await self.connection(items[0].key.tenant).enqueue_batch(items))

    async def claim(
        self, request: ClaimRequest, wait_s: float, gone: asyncio.Future[None] | None, hold: Hold
    ) -> tuple[Claimed, float]:
        """Claim, and wait until there is a job or `gone` is done. Returns the claim, and how long it waited.

        Raises a refusal before it leases a job, if there is no memory for the answer.
        """
        started = looked = time.monotonic()

        def look() -> None:
            nonlocal looked
            looked = time.monotonic()
            hold.check()

        hold.check()
        steps = AnswerSize(self._tenant(request.tenant or "").largest, "claim", request.limit, hold)
        step = steps.waiting() if wait_s else steps.next()
        first = request if step == request.limit else replace(request, limit=step)
        claimed = await self.claimer.claim(first, wait_s=wait_s, gone=gone, on_look=look)
        fits = steps.add(claimed.jobs)
        jobs = claimed.jobs
        while fits and len(claimed.jobs) == step < request.limit and not (gone and gone.done()):
            if not (step := steps.next()):
                break
            try:
                claimed = await self.store.claim(replace(request, limit=step))
            except StoreError:
                break  # Answer with the jobs that are leased.
            fits = steps.add(claimed.jobs)
            jobs = [*jobs, *claimed.jobs]
        if not fits:
            # Larger jobs than before. Release those that do not fit; the attempt does not count. [RETRY-5]
            kept = count_that_fit(jobs)
            with contextlib.suppress(StoreError):
                await self.release(jobs[kept:])
            jobs = jobs[:kept]
        if jobs is not claimed.jobs:
            claimed = replace(claimed, jobs=jobs)
        hit("service.after_claim")
        if http_metrics.current is not None:
            http_metrics.current.jobs("claim", claimed.jobs)
        return claimed, looked - started

    async def page(self, query: ListQuery, hold: Hold) -> Page:
        """A page of jobs, shorter than requested if they are large. Raises a refusal if there is no memory."""
        hold.check()
        steps = AnswerSize(self._tenant(query.tenant).largest, "page", query.limit, hold)
        jobs: list[Job] = []
        step = steps.next()
        while True:
            page = await self.pieces.run(query.tenant, self.store.list, replace(query, limit=step))
            if steps.add(page.jobs):
                jobs = [*jobs, *page.jobs]
                # A shorter step means that the store has scanned its maximum.
                if page.cursor is None or len(page.jobs) < step:
                    return replace(page, jobs=jobs)
                query = replace(query, cursor=page.cursor)
            else:
                # Larger jobs than before. Ask again for as many as certainly fit.
                steps.drop(page.jobs)
            step = steps.next()
            if not step:
                return replace(page, jobs=jobs, cursor=query.cursor)

    async def queue_page(self, tenant: str, cursor: str | None, limit: int) -> QueuePage:
        """A page of queues with their counts."""
        found: list[QueueStats] = []
        while True:
            step = min(limit, QUEUES_IN_PIECE)
            page = await self.pieces.run(tenant, self.store.queue_page, tenant, cursor, step)
            found += page.queues
            limit, cursor = limit - step, page.cursor
            if cursor is None or not limit:
                return QueuePage(found, cursor)

    async def queue_stats(self, tenant: str, queues: Sequence[str]) -> list[QueueStats]:
        """The counts of these queues."""
        found: list[QueueStats] = []
        for start in range(0, len(queues), QUEUES_IN_PIECE):
            some = queues[start : start + QUEUES_IN_PIECE]
            found += await self.pieces.run(tenant, self.store.stats, tenant, some)
        return found

    async def release(self, jobs: Sequence[Job]) -> None:
        """Release jobs that cannot be delivered. [RETRY-5]"""
        if jobs:
            await self.store.finish([Finish(job.key, job.token, "release") for job in jobs])

    @property
    def result_limit(self) -> int:
        """The largest result that can be stored."""
        return RESULT_LIMIT if self.blobs is None else self.settings.limits.batch_body

    async def finish(self, items: Sequence[Finish]) -> Sequence[FinishAnswer]:
        """Acknowledge. A result that is too large for the store is put into the blob store. [RESULT-1]"""
        if self.blobs is None:
            answers = await self.store.finish(items)
        else:
            small = [await self._small(item, self.blobs) for item in items]
            answers = await self.store.finish(small)
            await self._delete_unused(small, self.blobs)
        if http_metrics.current is not None:
            http_metrics.current.jobs("finish", answers)
        return answers

    async def _small(self, item: Finish, blobs: Blobs) -> Finish:
        if item.result is None or len(item.result.data) <= RESULT_LIMIT:
            return item
        # A name of its own: the lease may be lost already, and an accepted result must not be overwritten.
        name = f"{result_name(item.key, item.token)}-{new_id()}"
        await blobs.put(name, item.result.data)
        return Finish(item.key, item.token, "complete", Result(b"", item.result.codec, name))

    async def _delete_unused(self, items: Sequence[Finish], blobs: Blobs) -> None:
        """Delete the blobs of results that were refused, or that repeat an accepted one. [LEASE-1]"""
        written = {item.key: item.result.blob for item in items if item.result is not None and item.result.blob}
        if not written:
            return
        try:
            jobs = await self.store.get(list(written))
            kept = {job.result.blob for job in jobs if job is not None and job.result is not None}
            names = [item.result.blob for item in items if item.result is not None and item.result.blob]
            await blobs.delete(name for name in names if name not in kept)
        except StoreError as error:
            # The acknowledgements are valid all the same.
            _log.warning("could not delete the blobs of refused results", blobs=len(written), error=error)


def _enqueued(answers: Sequence[EnqueueAnswer]) -> Sequence[EnqueueAnswer]:
    hit("service.after_enqueue")
    if http_metrics.current is not None:
        http_metrics.current.jobs("enqueue", answers)
    return answers
