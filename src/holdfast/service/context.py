"""What all requests of one process share."""

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
from holdfast.queue.claims import Claimer
from holdfast.queue.coalesce import Coalescer
from holdfast.queue.queue import Queue
from holdfast.queue.waiting import Waits
from holdfast.service.audit import TrailQueue
from holdfast.service.event_cache import Tails
from holdfast.service.fair import CallsExhausted, fair
from holdfast.service.keys import Keys
from holdfast.service.limits import Rates, TenantRates
from holdfast.service.proofs import Proofs
from holdfast.service.revoked import Revoked
from holdfast.service.settings import Settings
from holdfast.service.shares import Hold, Shares
from holdfast.service.tokens import Tokens
from holdfast.service.turns import Turns
from holdfast.service.types import Types
from holdfast.store import EnqueueAnswer, ExtendAnswer, FinishAnswer, ListQuery, Page, Store
from holdfast.telemetry import http as http_metrics
from holdfast.telemetry.logging import get_logger

_log = get_logger(__name__)

TENANTS = 10_000
"""How many tenants' queues are kept at hand."""
ANSWER_BYTES = 8 * 1024 * 1024
"""A claim or a page that has as much of payloads, results and errors gets no more."""
STEP = 100
"""The most jobs that are asked for at a time."""
LARGEST_CLAIMED, LARGEST_JOB = PAYLOAD_LIMIT, PAYLOAD_LIMIT + RESULT_LIMIT
"""The most that one job has of them, but for its errors."""


class _Tenant(NamedTuple):
    """What the requests of one tenant share. Not of several: who is blocked must not hold up another. [TENANT-4]"""

    queue: Queue
    waits: Waits
    enqueues: Coalescer[NewJob, EnqueueAnswer | HoldfastError]
    gets: Coalescer[JobKey, Job | None]
    cancels: Coalescer[Cancel, CancelStatus]
    largest: dict[str, int]
    """The largest job of its last claim and of its last page, in bytes."""


class Hub:
    """One process of the service, without HTTP: a store, open; claims that wait; one Queue for each tenant.

    Concurrent requests of a tenant share round trips. Whose they are came from a token. [TENANT-1]
    """

    def __init__(self, settings: Settings, store: Store) -> None:
        self.settings = settings
        self.store = fair(store)
        """In turns between tenants. The service's own reads are not: of each kind there is one at a time."""
        self._enforcer = enforcer_of(store)
        self.ceiling_ms = ceiling_ms(store)
        self.blobs = None if settings.blobs is None else Blobs.open(settings.blobs)
        self.keys = Keys(settings.tokens.hs256_key, settings.tokens.jwks)
        self.tokens = Tokens(settings.tokens.check(), self.keys, settings.limits)
        self.rates = Rates(settings.limits.rate)
        self.proofs = Proofs(store)
        self.revoked = Revoked(store)
        self.claimer = Claimer(self.store)
        self.tails = Tails(self.store)
        self.types = Types(self.store)
        self.trail = TrailQueue(store) if settings.audit_queue else None
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
        self._own = store
        self._tenants: dict[str, _Tenant] = {}
        self._upkeep: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the store, read the keys, start the upkeep."""
        await self.keys.open()
        await self.store.open()
        await self.proofs.renew()
        await self.revoked.renew()
        if self.trail is not None:
            await self.trail.open()
        self.claimer.start()
        if self.settings.upkeep:
            self._upkeep = asyncio.create_task(Maintenance(self._own, blobs=self.blobs).run())

    def most(self) -> tuple[int, int, int, int]:
        """The most so far of what is bounded: bytes, connections, waits, work in a turn."""
        return self.memory.most, self.connections.most, self.waits.most + self.streams.most, self.turns.most

    def budgets(self, tenant: str) -> Budgets:
        """What an operator has set for a tenant, or for all, as far as it is known by now. [TENANT-5]"""
        return Budgets() if self._enforcer is None else self._enforcer.budgets(tenant)

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
            tenant = _Tenant(queue, waits, Coalescer(self._enqueue), gets, Coalescer(self._cancel), {})
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
        steps = _Steps(self._tenant(request.tenant or "").largest, "claim", LARGEST_CLAIMED, request.limit, hold)
        step = steps.first() if wait_s else steps.next()
        claimed = await self.claimer.claim(replace(request, limit=step), wait_s=wait_s, gone=gone, on_look=look)
        fits = steps.add(claimed.jobs)
        jobs = claimed.jobs
        while fits and len(claimed.jobs) == step < request.limit and not gone.done() and (step := steps.next()):
            try:
                claimed = await self.store.claim(replace(request, limit=step))
            except StoreError:
                break  # Those that are leased are answered.
            fits = steps.add(claimed.jobs)
            jobs = [*jobs, *claimed.jobs]
        if not fits:
            # Larger ones than before: what is over an answer's length goes back, with its attempt. [RETRY-5]
            kept = _fit(jobs)
            with contextlib.suppress(StoreError):
                await self.give_back(jobs[kept:])
            jobs = jobs[:kept]
        claimed = replace(claimed, jobs=jobs)
        hit("service.after_claim")
        if http_metrics.current is not None:
            http_metrics.current.jobs("claim", claimed.jobs)
        return claimed, looked - started

    async def page(self, query: ListQuery, hold: Hold) -> Page:
        """A page of jobs, shorter than was asked for where they are large. Raises a refusal where there is no room."""
        hold.check()
        steps = _Steps(self._tenant(query.tenant).largest, "page", LARGEST_JOB, query.limit, hold)
        jobs: list[Job] = []
        step = steps.next()
        while True:
            page = await self.store.list(replace(query, limit=step))
            if steps.add(page.jobs):
                jobs = [*jobs, *page.jobs]
                # A step that found less has looked through as much as a store does at a time.
                if page.cursor is None or len(page.jobs) < step:
                    return replace(page, jobs=jobs)
                query = replace(query, cursor=page.cursor)
            else:
                # Larger ones than before: again, as many as are sure to fit.
                steps.drop(page.jobs)
            step = steps.next()
            if not step:
                return replace(page, jobs=jobs, cursor=query.cursor)

    async def ids(self, query: ListQuery) -> tuple[list[str], bool]:
        """The ids of jobs, and whether there are more. What else they have is not kept."""
        ids: list[str] = []
        while True:
            step = min(query.limit - len(ids), ANSWER_BYTES // LARGEST_JOB)
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
        except StoreBusy as error:
            if len(items) == 1 or isinstance(error, CallsExhausted):
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


class _Steps:
    """How many jobs to ask a store for at a time, for an answer of bounded length. Stores do not know of bytes.

    As many as are sure to fit; or as fit if they are no larger than the largest of the tenant's last answer: most
    jobs are small, and one call does. Room for the largest there can be is held before the store is asked.
    """

    def __init__(self, known: dict[str, int], kind: str, largest: int, wanted: int, hold: Hold) -> None:
        self._known = known
        self._kind = kind
        self._largest = largest
        self._wanted = wanted
        self._hold = hold
        self._size = 0
        self._is_sure = True

    def first(self) -> int:
        """Of a claim that waits: what is sure to fit, and no room is held meanwhile, since many wait."""
        return min(self._wanted, ANSWER_BYTES // self._largest)

    def next(self) -> int:
        """So many; 0: there is no room for more."""
        left = ANSWER_BYTES - self._size
        likely = max(1, min(self._known.get(self._kind, self._largest), self._largest))
        sure = left // self._largest
        step = min(self._wanted, max(sure, min(STEP, left // likely, self._hold.room() // self._largest)))
        self._is_sure = step <= sure
        self._hold.resize(self._size + step * self._largest)
        return step

    def add(self, jobs: Sequence[Job]) -> bool:
        """Count what a store gave; whether the answer still has no more than it may, but for what errors say."""
        sizes = [_size(job) for job in jobs]
        if sizes:
            self._known[self._kind] = max(sizes)
        self._size += sum(sizes)
        self._wanted -= len(sizes)
        self._hold.resize(self._size)
        return self._is_sure or self._size <= ANSWER_BYTES

    def drop(self, jobs: Sequence[Job]) -> None:
        """Take back what was counted last."""
        self._size -= sum(map(_size, jobs))
        self._wanted += len(jobs)
        self._hold.resize(self._size)


def _fit(jobs: Sequence[Job]) -> int:
    """How many of them, from the first, an answer has room for: one at least."""
    size = 0
    for count, job in enumerate(jobs):
        size += _size(job)
        if size > ANSWER_BYTES:
            return max(1, count)
    return len(jobs)


def _size(job: Job) -> int:
    """How much of an answer it takes, about."""
    size = len(job.envelope.payload)
    if job.result is not None:
        size += len(job.result.data)
    if job.errors:
        size += sum(len(error.message) + len(error.traceback) for error in job.errors)
    return size
