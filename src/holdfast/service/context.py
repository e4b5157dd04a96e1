"""What all requests of one process share: the open store, waiting claims, and a Queue for each tenant."""

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
from holdfast.core.errors import HoldfastError, ResultExpired, StoreBusy, StoreError, StoreUnavailable
from holdfast.core.failpoint import hit
from holdfast.core.job import (
    RESULT_LIMIT,
    Cancel,
    CancelStatus,
    Claimed,
    ClaimRequest,
    Extend,
    Finish,
    Job,
    JobKey,
    NewJob,
    Purge,
    PurgeStatus,
    Result,
)
from holdfast.ids import new_id
from holdfast.maintenance.runner import Maintenance
from holdfast.queue.claims import Claimer
from holdfast.queue.coalesce import Coalescer
from holdfast.queue.queue import Queue
from holdfast.queue.waiting import Waits
from holdfast.service.answer_size import ANSWER_BYTES, MAX_BYTES, AnswerSize, LargestJobs, count_that_fit
from holdfast.service.audit import TrailQueue
from holdfast.service.event_cache import EventCaches
from holdfast.service.fair import CallsExhausted, fair
from holdfast.service.keys import Keys
from holdfast.service.limits import TenantRates, TokenRates
from holdfast.service.proofs import Proofs
from holdfast.service.revoked import Revoked
from holdfast.service.settings import ServiceSettings
from holdfast.service.shares import Hold, Shares
from holdfast.service.tokens import Tokens
from holdfast.service.turns import Activity, CheckTurns, PieceTurns
from holdfast.service.types import TypeCache
from holdfast.store import EnqueueAnswer, ExtendAnswer, FinishAnswer, ListQuery, Page, QueuePage, QueueStats, Store
from holdfast.telemetry import http as http_metrics
from holdfast.telemetry.logging import get_logger

_log = get_logger(__name__)

MAX_TENANTS = 10_000
"""The most tenants whose Queue is kept."""
QUEUES_IN_PIECE = 50
"""Queues that one call to the store counts."""


class _Tenant(NamedTuple):
    """What the requests of one tenant share. Tenants share no round trips: one may be blocked. [TENANT-4]"""

    queue: Queue
    waits: Waits
    enqueues: Coalescer[NewJob, EnqueueAnswer | HoldfastError]
    gets: Coalescer[JobKey, Job | None]
    cancels: Coalescer[Cancel, CancelStatus]
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
            await tenant.queue.close()
            for calls in (tenant.enqueues, tenant.gets, tenant.cancels):
                await calls.settle()
        if self.trail is not None:
            await self.trail.close()
        self.claimer.close()
        await self.keys.close()
        await self.proofs.close()
        await self.revoked.close()
        await self.store.close()

    def queue(self, tenant: str) -> Queue:
        """The tenant's Queue."""
        return self._tenant(tenant).queue

    async def ended(self, key: JobKey, wait_s: float, gone: asyncio.Future[None]) -> Job | None:
        """Wait for the end of a job and return it; None if there is no such job. [RESULT-2]

        The wait ends when `gone` is done. Raises WaitTimeout, or ResultExpired if the job is forgotten meanwhile.
        [RESULT-1]
        """
        with self._tenant(key.tenant).waits.watch(key) as watch:
            watch.look()
            job = await watch.wait(wait_s, gone)
            if job is None and watch.seen:
                raise ResultExpired(key.queue, key.id)
            return job

    def _tenant(self, name: str) -> _Tenant:
        tenant = self._tenants.pop(name, None)
        if tenant is None:
            if len(self._tenants) >= MAX_TENANTS:
                del self._tenants[next(iter(self._tenants))]
            queue = Queue(store=self.store, tenant=name, blobs=self.blobs)
            gets = Coalescer(self._get)
            waits = Waits(name, self.store.listen, gets)
            tenant = _Tenant(queue, waits, Coalescer(self._enqueue), gets, Coalescer(self._cancel), LargestJobs())
        self._tenants[name] = tenant
        return tenant

    async def enqueue(self, item: NewJob) -> EnqueueAnswer | HoldfastError:
        """Enqueue one job, in one round trip with others of its tenant."""
        return await self._tenant(item.key.tenant).enqueues(item)

    async def enqueue_many(self, items: Sequence[NewJob]) -> Sequence[EnqueueAnswer | HoldfastError]:
        """Enqueue the batch of one request, in its own round trip."""
        return await self._enqueue(items)

    async def get(self, key: JobKey) -> Job | None:
        """One job, or None."""
        return await self._tenant(key.tenant).gets(key)

    async def cancel(self, item: Cancel) -> CancelStatus:
        """Cancel one job."""
        return await self._tenant(item.key.tenant).cancels(item)

    async def claim(
        self, request: ClaimRequest, wait_s: float, gone: asyncio.Future[None], hold: Hold
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
        claimed = await self.claimer.claim(replace(request, limit=step), wait_s=wait_s, gone=gone, on_look=look)
        fits = steps.add(claimed.jobs)
        jobs = claimed.jobs
        while fits and len(claimed.jobs) == step < request.limit and not gone.done() and (step := steps.next()):
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

    async def ids(self, query: ListQuery) -> tuple[list[str], bool]:
        """The ids of jobs, and whether there are more."""
        ids: list[str] = []
        while True:
            step = min(query.limit - len(ids), ANSWER_BYTES // MAX_BYTES["page"])
            page = await self.pieces.run(query.tenant, self.store.list, replace(query, limit=step))
            ids += [job.id for job in page.jobs]
            if page.cursor is None or len(ids) >= query.limit:
                return ids, page.cursor is not None
            query = replace(query, cursor=page.cursor)

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

    async def extend(self, items: Sequence[Extend]) -> Sequence[ExtendAnswer]:
        """Renew leases."""
        return await self.store.extend(items)

    async def purge(self, items: Sequence[Purge]) -> Sequence[PurgeStatus]:
        """Purge finished jobs and the blobs of their results. [KEEP-1]"""
        jobs = await self.store.get([item.key for item in items]) if self.blobs is not None else []
        statuses = await self.store.purge(items)
        names = [
            job.result.blob
            for job, status in zip(jobs, statuses, strict=False)
            if status == "purged" and job is not None and job.result is not None and job.result.blob
        ]
        if names and self.blobs is not None:
            await self.blobs.delete(names)
        return statuses

    async def blob(self, result: Result | None, key: JobKey) -> bytes | None:
        """The bytes of a result in the blob store, if it is there. Raises ResultExpired if they are gone."""
        if result is None or not result.blob or self.blobs is None:
            return None
        data = await self.blobs.get(result.blob)
        if data is None:
            raise ResultExpired(key.queue, key.id)
        return data

    async def _enqueue(self, items: Sequence[NewJob]) -> Sequence[EnqueueAnswer | HoldfastError]:
        hit("service.before_enqueue")
        try:
            answers: Sequence[EnqueueAnswer | HoldfastError] = await self.store.enqueue(items)
        except StoreBusy as error:
            if len(items) == 1 or isinstance(error, CallsExhausted):
                raise
            # One of them is blocked. Send each alone: those that were accepted are answered the same again. [ENQ-8]
            answers = await asyncio.gather(*(self._alone(item) for item in items))
        except StoreUnavailable as error:
            # Repeat once, at once. If only the reply was lost, the request ids make the answer the same. [ENQ-8]
            _log.warning("enqueue repeated", items=len(items), error=error)
            answers = await self.store.enqueue(items)
        hit("service.after_enqueue")
        if http_metrics.current is not None:
            http_metrics.current.jobs("enqueue", answers)
        return answers

    async def _alone(self, item: NewJob) -> EnqueueAnswer | HoldfastError:
        try:
            return (await self.store.enqueue([item]))[0]
        except HoldfastError as error:
            return error

    async def _get(self, keys: Sequence[JobKey]) -> list[Job | None]:
        return await self.store.get(keys)

    async def _cancel(self, items: Sequence[Cancel]) -> list[CancelStatus]:
        return await self.store.cancel(items)

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
