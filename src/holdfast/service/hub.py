"""What all requests of one process share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.blobs import Blobs, result_name
from holdfast.budgets import ceiling_ms, keeper_of, usage_of
from holdfast.claims import Claimer
from holdfast.coalesce import Coalescer
from holdfast.core.budgets import Budgets, BudgetUse, TenantUsage
from holdfast.core.errors import HoldfastError, ResultExpired, StoreBusy, StoreError, StoreUnavailable
from holdfast.core.failpoint import hit
from holdfast.core.job import (
    PAYLOAD_LIMIT,
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
from holdfast.queue import Queue
from holdfast.service.keys import Keys
from holdfast.service.limits import Rates, TenantRates
from holdfast.service.proofs import Proofs
from holdfast.service.revoked import Revoked
from holdfast.service.settings import Settings
from holdfast.service.shares import Hold, Shares
from holdfast.service.tails import Tails
from holdfast.service.tokens import Tokens
from holdfast.service.turns import Turns
from holdfast.service.types import Types
from holdfast.store import EnqueueAnswer, ExtendAnswer, FinishAnswer, ListQuery, Page, Store
from holdfast.telemetry import http as http_metrics
from holdfast.telemetry.logging import get_logger
from holdfast.waiting import Waits

_log = get_logger(__name__)

TENANTS = 10_000
"""How many tenants' queues are kept at hand."""
ANSWER_BYTES = 8 * 1024 * 1024
"""A claim or a page that has as much of payloads, results and errors gets no more."""
STEP, SMALL_PART = 100, 16
"""Jobs that are asked for at a time where those before had less than this part of an answer."""
LARGEST_CLAIMED, LARGEST_JOB = PAYLOAD_LIMIT, PAYLOAD_LIMIT + RESULT_LIMIT
"""The most that one job has of them, but for its errors. As many jobs are asked for at a time as are sure to fit."""


class _Tenant(NamedTuple):
    """What the requests of one tenant share. Not of several: who is blocked must not hold up another. [TENANT-4]"""

    queue: Queue
    waits: Waits
    enqueues: Coalescer[NewJob, EnqueueAnswer | HoldfastError]
    gets: Coalescer[JobKey, Job | None]
    cancels: Coalescer[Cancel, CancelStatus]


class Hub:
    """One process of the service, without HTTP: a store, open; claims that wait; one Queue for each tenant.

    Concurrent requests of a tenant share round trips. Whose they are came from a token. [TENANT-1]
    """

    def __init__(self, settings: Settings, store: Store) -> None:
        self.settings = settings
        self.store = store
        self._keeper = keeper_of(store)
        self.ceiling_ms = ceiling_ms(store)
        self.blobs = None if settings.blobs is None else Blobs.open(settings.blobs)
        self.keys = Keys(settings.tokens.hs256_key, settings.tokens.jwks)
        self.tokens = Tokens(settings.tokens.check(), self.keys, settings.limits)
        self.rates = Rates(settings.limits.rate)
        self.proofs = Proofs(store)
        self.revoked = Revoked(store)
        self.claimer = Claimer(store)
        self.tails = Tails(store)
        self.types = Types(store)
        self.turns = Turns()
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
        """Done when the service is to end: who waits for something answers with what there is."""
        self._tenants: dict[str, _Tenant] = {}
        self._upkeep: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the store, read the keys, start the upkeep."""
        await self.keys.open()
        await self.store.open()
        await self.proofs.renew()
        await self.revoked.renew()
        self.claimer.start()
        if self.settings.upkeep:
            self._upkeep = asyncio.create_task(Maintenance(self.store, blobs=self.blobs).run())

    def most(self) -> tuple[int, int, int, int]:
        """The most so far of what is bounded: bytes, connections, waits, work in a turn."""
        return self.memory.most, self.connections.most, self.waits.most + self.streams.most, self.turns.most

    def budgets(self, tenant: str) -> Budgets:
        """What an operator has set for a tenant, or for all, as far as it is known by now. [TENANT-5]"""
        return Budgets() if self._keeper is None else self._keeper.budgets(tenant)

    def _budget(self, name: str, default: int) -> Callable[[str], int]:
        """How much of a thing a tenant may have in this process; 0: any number."""

        def limit(tenant: str) -> int:
            said = getattr(self.budgets(tenant), name)
            return default if said is None else said

        return limit

    async def usage(self, tenant: str) -> TenantUsage:
        """What a tenant keeps, and what it uses of this process, with what it may."""
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
        """Let everybody who waits answer now."""
        if not self.stopping.done():
            self.stopping.set_result(None)

    async def close(self) -> None:
        """Let go of everything. Call it when no request is under way."""
        self.stop()
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.wait([self._upkeep])
        for tenant in self._tenants.values():
            await tenant.queue.close()
            for calls in (tenant.enqueues, tenant.gets, tenant.cancels):
                await calls.settle()
        self.claimer.close()
        await self.keys.close()
        await self.proofs.close()
        await self.revoked.close()
        await self.store.close()

    def queue(self, tenant: str) -> Queue:
        """The tenant's Queue."""
        return self._tenant(tenant).queue

    async def ended(self, key: JobKey, wait_s: float, gone: asyncio.Future[None]) -> Job | None:
        """The job as it ended, or None if there is none. Waits, but not for a client that has left. [RESULT-2]

        Raises WaitTimeout, and ResultExpired where the job was there and is no more. [RESULT-1]
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
            if len(self._tenants) >= TENANTS:
                del self._tenants[next(iter(self._tenants))]
            queue = Queue(store=self.store, tenant=name, blobs=self.blobs)
            gets = Coalescer(self._get)
            waits = Waits(name, self.store.listen, gets)
            tenant = _Tenant(queue, waits, Coalescer(self._enqueue), gets, Coalescer(self._cancel))
        self._tenants[name] = tenant
        return tenant

    async def enqueue(self, item: NewJob) -> EnqueueAnswer | HoldfastError:
        """One job, with others of its tenant."""
        return await self._tenant(item.key.tenant).enqueues(item)

    async def enqueue_many(self, items: Sequence[NewJob]) -> Sequence[EnqueueAnswer | HoldfastError]:
        """A batch of one caller, in one trip of its own."""
        return await self._enqueue(items)

    async def get(self, key: JobKey) -> Job | None:
        """One job as it is, or None."""
        return await self._tenant(key.tenant).gets(key)

    async def cancel(self, item: Cancel) -> CancelStatus:
        """Cancel one job."""
        return await self._tenant(item.key.tenant).cancels(item)

    async def claim(
        self, request: ClaimRequest, wait_s: float, gone: asyncio.Future[None], hold: Hold
    ) -> tuple[Claimed, float]:
        """Claim, and wait while there is nothing, but not for a client that has left; and how long it waited.

        Raises a refusal, before anything is leased, while there is no room for an answer.
        """
        started = looked = time.monotonic()

        def look() -> None:
            nonlocal looked
            looked = time.monotonic()
            hold.check()

        hold.check()
        step = replace(request, limit=_fitting(request.limit, 0, LARGEST_CLAIMED))
        claimed = await self.claimer.claim(step, wait_s=wait_s, gone=gone, on_look=look)
        jobs, got = claimed.jobs, len(claimed.jobs)
        hold.resize(size := _size(jobs))
        while got == step.limit and not gone.done():
            step = replace(request, limit=_fitting(request.limit - len(jobs), size, LARGEST_CLAIMED, hold))
            if not step.limit:
                break
            hold.resize(size + step.limit * LARGEST_CLAIMED)
            try:
                more = (await self.store.claim(step)).jobs
            except StoreError:
                break  # Those that are leased are answered.
            jobs, got = [*jobs, *more], len(more)
            hold.resize(size := size + _size(more))
        claimed = replace(claimed, jobs=jobs)
        hit("service.after_claim")
        if http_metrics.current is not None:
            http_metrics.current.jobs("claim", claimed.jobs)
        return claimed, looked - started

    async def page(self, query: ListQuery, hold: Hold) -> Page:
        """A page of jobs, shorter than was asked for where they are large. Raises a refusal where there is no room."""
        hold.check()
        step = _fitting(query.limit, 0, LARGEST_JOB)
        page = await self.store.list(replace(query, limit=step))
        jobs = page.jobs
        hold.take(size := _size(jobs))
        # A step that found less has looked through as much as a store does at a time.
        while page.cursor and len(page.jobs) == step:
            step = _fitting(query.limit - len(jobs), size, LARGEST_JOB, hold)
            if not step:
                break
            hold.resize(size + step * LARGEST_JOB)
            page = await self.store.list(replace(query, cursor=page.cursor, limit=step))
            jobs = [*jobs, *page.jobs]
            hold.resize(size := size + _size(page.jobs))
        return replace(page, jobs=jobs)

    async def ids(self, query: ListQuery) -> tuple[list[str], bool]:
        """The ids of jobs, and whether there are more. What else they have is not kept."""
        ids: list[str] = []
        while True:
            step = _fitting(query.limit - len(ids), 0, LARGEST_JOB)
            page = await self.store.list(replace(query, limit=step))
            ids += [job.id for job in page.jobs]
            if page.cursor is None or len(ids) >= query.limit:
                return ids, page.cursor is not None
            query = replace(query, cursor=page.cursor)

    async def give_back(self, jobs: Sequence[Job]) -> None:
        """Release jobs that nobody is there to take. [RETRY-5]"""
        if jobs:
            await self.store.finish([Finish(job.key, job.token, "release") for job in jobs])

    @property
    def result_limit(self) -> int:
        """The largest result that can be kept."""
        return RESULT_LIMIT if self.blobs is None else self.settings.limits.batch_body

    async def finish(self, items: Sequence[Finish]) -> Sequence[FinishAnswer]:
        """Acknowledge. A result over the limit of a store goes to the blob store. [RESULT-1]"""
        small = [await self._small(item) for item in items]
        answers = await self.store.finish(small)
        await self._tidy(small)
        if http_metrics.current is not None:
            http_metrics.current.jobs("finish", answers)
        return answers

    async def extend(self, items: Sequence[Extend]) -> Sequence[ExtendAnswer]:
        """Renew leases."""
        return await self.store.extend(items)

    async def purge(self, items: Sequence[Purge]) -> Sequence[PurgeStatus]:
        """Forget finished jobs, and the blobs that held their results. [KEEP-1]"""
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
        """What the blob store has of a result. Raises ResultExpired where it is gone."""
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
        except StoreBusy:
            if len(items) == 1:
                raise
            # One of them is blocked: each alone, and the others are answered as they were. [ENQ-8]
            answers = await asyncio.gather(*(self._alone(item) for item in items))
        except StoreUnavailable as error:
            # Once more, at once: if only the reply was lost, the request ids make it answer the same. [ENQ-8]
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

    async def _small(self, item: Finish) -> Finish:
        if item.result is None or len(item.result.data) <= RESULT_LIMIT or self.blobs is None:
            return item
        # Of its own: whether the lease still holds is not known yet, and what was accepted must not change.
        name = f"{result_name(item.key, item.token)}-{new_id()}"
        await self.blobs.put(name, item.result.data)
        return Finish(item.key, item.token, "complete", Result(b"", item.result.codec, name))

    async def _tidy(self, items: Sequence[Finish]) -> None:
        """Delete the blobs of results that were refused, or that repeat one which is there. [LEASE-1]"""
        written = {item.key: item.result.blob for item in items if item.result is not None and item.result.blob}
        if not written or self.blobs is None:
            return
        try:
            jobs = await self.store.get(list(written))
            kept = {job.result.blob for job in jobs if job is not None and job.result is not None}
            names = [item.result.blob for item in items if item.result is not None and item.result.blob]
            await self.blobs.delete(name for name in names if name not in kept)
        except StoreError as error:
            # The acknowledgements hold all the same.
            _log.warning("blobs of refused results are left", blobs=len(written), error=error)


def _fitting(wanted: int, size: int, largest: int, hold: Hold | None = None) -> int:
    """How many jobs more to ask for, for an answer that has this size already: as many as are sure to fit.

    With a hold no more than there is room for; where those before were small, up to `STEP`: fewer round trips.
    """
    fitting = (ANSWER_BYTES - size) // largest
    if hold is not None:
        fitting = min(hold.room() // largest, STEP if size < ANSWER_BYTES // SMALL_PART else fitting)
    return max(0, min(wanted, fitting))


def _size(jobs: Sequence[Job]) -> int:
    """How large the answer will be, about."""
    return sum(
        len(job.envelope.payload)
        + (0 if job.result is None else len(job.result.data))
        + sum(len(error.message) + len(error.traceback) for error in job.errors)
        for job in jobs
    )
