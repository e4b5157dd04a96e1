"""Enforces budgets: what this process knows about its tenants, and what it refuses. One enforcer per open store.

An enqueue or a replay looks up its tenant in a dictionary and reads nothing from the store. A background task reads
what each active tenant keeps, at most every 10 s; the enforcer adds what this process has enqueued since then. It
refuses nothing until the first read has finished. Only a call over a budget costs more: it looks up the ids,
idempotency keys and queues in the call, because those that exist already need no room. [TENANT-5]
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from math import inf
from typing import Protocol, TypeVar

from msgspec import Struct, field

from holdfast.core.budgets import FIELDS, RECORD_BYTES, Budgets, BudgetUse, TenantUsage, Usage, merged
from holdfast.core.errors import HoldfastError, QuotaExceeded, Unsupported
from holdfast.core.job import TERMINAL, Job, JobKey, JobState, NewJob
from holdfast.core.names import FLOWS, OPERATOR, RESERVED, SCHEDULES
from holdfast.extensions import UsageReporter
from holdfast.opening import CommonOptions
from holdfast.store import EnqueueAnswer, ListQuery, Page, QueueStats, ReplayAnswer, Store, TenantSettings

T = TypeVar("T")

REFRESH_S = 10.0
"""How often to read what an active tenant keeps."""
FIRST_READ_DELAY_S = 0.1
MAX_TENANTS = 10_000
"""The most tenants whose counts are cached."""
MAX_QUEUE_LOOKUPS = 16
"""The most queues that one enqueue over `max_queues` looks up. It refuses jobs for the others."""
MAX_QUEUES = 10_000
"""The most queue names cached for a tenant without `max_queues`."""
IDS_PER_READ = 32
"""Jobs read at a time. A job can have half a MiB."""
_NO_QUEUES: set[str] = set()


class CountedStore(Protocol):
    """What an enforcer needs from its store."""

    async def usage(self, tenant: str) -> Usage: ...
    async def tenant_settings(self, tenant: str) -> Sequence[TenantSettings]: ...
    async def get(self, keys: Sequence[JobKey]) -> list[Job | None]: ...
    async def list(self, query: ListQuery) -> Page: ...
    async def stats(self, tenant: str, queues: Sequence[str] | None = None) -> list[QueueStats]: ...

    async def key_holders(self, items: Sequence[NewJob]) -> list[str | None]:
        """For each item, the id of the job that holds its idempotency key now. None if the key is free. [ENQ-3]

        Every item has a key. The id may be that of a forgotten job: some keys outlive their job.
        """
        ...


class TenantCounts(Struct, eq=False):
    """What this process knows about one tenant."""

    budgets: Budgets
    usage: Usage | None = None
    """None before the first read."""
    read_at: float = -inf
    """When the last read began."""
    max_jobs: float = inf
    max_bytes: float = inf
    max_queues: float = inf
    """Limits for the next three counters."""
    jobs: int = 0
    bytes: int = 0
    new_queues: int = 0
    """What this process has enqueued since it started."""
    counted: tuple[int, int, int] = (0, 0, 0)
    """These counters as they were when the read of `usage` began. Reads may overlap, so each has its own copy."""
    queues: set[str] = field(default_factory=set[str])
    """Queues that this process has enqueued to, at most as many as the tenant may have. Some may no longer exist."""
    flows: int | None = None
    """Running flows: those read, and those started here since. None before the first read."""
    starts_flows: bool = False
    reads: int = 0
    """How many reads of the budgets have begun."""
    last_used: int = 0
    """The number of the read whose budgets are in use."""

    def budget_without_room(self, jobs: int, size: int, queues: int, flows: int) -> str:
        """The first budget that adding this much would exceed, or "" if there is room in all of them."""
        if jobs and self.jobs + jobs > self.max_jobs:
            return "max_jobs"
        if self.bytes + size > self.max_bytes:
            return "max_bytes"
        if queues and self.new_queues + queues > self.max_queues:
            return "max_queues"
        if flows and self.flows is not None and self.flows + flows > (self.budgets.max_flows or inf):
            return "max_flows"
        return ""

    def exceeded_budget(self) -> str:
        """The first budget of jobs or bytes that the tenant is above, not merely at, or "" if there is none."""
        if self.jobs > self.max_jobs:
            return "max_jobs"
        return "max_bytes" if self.bytes > self.max_bytes else ""

    def add(self, jobs: int, size: int, queues: set[str], flows: int) -> None:
        """Count what is about to be enqueued."""
        self.jobs += jobs
        self.bytes += size
        if queues:
            self.remember_queues(queues)
            self.new_queues += len(queues)
        if flows:
            if not self.starts_flows:
                self.starts_flows, self.read_at = True, -inf
            if self.flows is not None:
                self.flows += flows

    def remember_queues(self, queues: set[str]) -> None:
        """Cache queues that have jobs. Over the limit, drop the others: they did not all exist at once."""
        self.queues |= queues
        if len(self.queues) > (self.budgets.max_queues or MAX_QUEUES):
            self.queues = queues

    def set_usage(self, usage: Usage, jobs: int, size: int, queues: int) -> None:
        """Store what was read, with this process's counters from when the read began."""
        self.usage, self.counted = usage, (jobs, size, queues)
        self.set_budgets(self.budgets)

    def set_budgets(self, budgets: Budgets) -> None:
        """Use these budgets from now on."""
        self.budgets = budgets
        if self.usage is not None:
            jobs, size, queues = self.counted
            self.max_jobs = (budgets.max_jobs or inf) - self.usage.jobs - self.usage.keys + jobs
            self.max_bytes = (budgets.max_bytes or inf) - self.usage.bytes + size
            self.max_queues = (budgets.max_queues or inf) - self.usage.queues + queues

    def refusal(self, budget: str) -> QuotaExceeded:
        """The answer to an enqueue or a replay over this budget."""
        usage, (jobs, size, queues) = self.usage or Usage(), self.counted
        used = {
            "max_jobs": usage.jobs + usage.keys + self.jobs - jobs,
            "max_bytes": usage.bytes + self.bytes - size,
            "max_queues": usage.queues + self.new_queues - queues,
            "max_flows": self.flows or 0,
        }
        return QuotaExceeded(None, used[budget], getattr(self.budgets, budget), budget)


class BudgetEnforcer:
    """Judges the enqueues and replays of one store's tenants. Serves as many event loops as its store."""

    def __init__(self, store: CountedStore, options: CommonOptions) -> None:
        self.defaults = options.budgets
        self.max_result_ttl_ms = options.max_result_ttl_ms
        self._store = store
        self._tenants: dict[str, TenantCounts] = {}
        self._reads: set[asyncio.Task[None]] = set()

    def budgets(self, tenant: str) -> Budgets:
        """The budgets of a tenant, as last read."""
        return self._counts(tenant).budgets

    def admits(self, items: Sequence[NewJob]) -> bool:
        """Whether a batch of one tenant is within its budgets. If so, count it. Reads nothing from the store.

        False for a batch of several tenants: `enqueue` judges it item by item.
        """
        if not items or items[0].key.tenant == OPERATOR:
            return True
        tenant, queue, _ = items[0].key
        counts = self._counts(tenant)
        jobs, size, queues, flows = len(items), 0, {queue}, 0
        for item in items:
            key = item.key
            if key.queue != queue or key.tenant != tenant:
                if key.tenant != tenant:
                    return False
                queue = key.queue
                queues.add(queue)
            size += len(item.envelope.payload)
        if not queues <= counts.queues:
            if any(is_exempt(tenant, name) for name in queues):
                return len(queues) == 1
            if FLOWS in queues:
                flows = sum(item.key.queue == FLOWS for item in items)
            queues -= {FLOWS, *counts.queues}
        else:
            queues = _NO_QUEUES
        size += RECORD_BYTES * jobs
        if counts.budget_without_room(jobs, size, len(queues), flows):
            return False
        counts.add(jobs, size, queues, flows)
        return True

    async def enqueue(
        self, items: Sequence[NewJob], enqueue_admitted: Callable[[Sequence[NewJob]], Awaitable[list[EnqueueAnswer]]]
    ) -> list[EnqueueAnswer]:
        """Enqueue the items that are within the budgets or need no room; refuse the others, item by item."""
        refused = await self._refused(items)
        admitted = [item for n, item in enumerate(items) if n not in refused]
        answers = iter(await enqueue_admitted(admitted) if admitted else ())
        return [refused[n] if n in refused else next(answers) for n in range(len(items))]

    async def _refused(self, items: Sequence[NewJob]) -> dict[int, QuotaExceeded]:
        """The refusals, by place in the batch. Counts the other items."""
        looked_up: dict[tuple[str, str], bool] = {}
        refused: dict[int, QuotaExceeded] = {}
        for n, item in enumerate(items):
            tenant, queue, _ = item.key
            if is_exempt(tenant, queue):
                continue
            counts = self._counts(tenant)
            size, flows = len(item.envelope.payload) + RECORD_BYTES, int(queue == FLOWS)
            new = {queue} - {FLOWS} - counts.queues
            budget = counts.budget_without_room(1, size, len(new), flows)
            if budget == "max_queues" and await self._has_jobs(tenant, queue, looked_up):
                counts.remember_queues(new)
                new, budget = _NO_QUEUES, ""
            if budget:
                refused[n] = counts.refusal(budget)
            else:
                counts.add(1, size, new, flows)
        await self._admit_known(items, refused)
        return refused

    async def _admit_known(self, items: Sequence[NewJob], refused: dict[int, QuotaExceeded]) -> None:
        """Take back the refusals of ids and keys that exist: they need no new record. [ENQ-2, ENQ-3]"""
        coming = await self._keys_to_come(items, refused)
        for places in _parts(list(refused)):
            keyed = [n for n in places if items[n].envelope.idempotency is not None]
            found = await self._store.key_holders([items[n] for n in keyed]) if keyed else ()
            holders = dict(zip(keyed, found, strict=True))
            for n, job in zip(places, await self._store.get([items[n].key for n in places]), strict=True):
                item, holder = items[n], holders.get(n)
                if _key_scope(item) in coming or (holder is not None and (job is None or job.id != holder)):
                    del refused[n]
                elif job is not None:
                    refusal = self._refusal_of_new_life(job, item)
                    if refusal is None:
                        del refused[n]
                    else:
                        refused[n] = refusal

    async def _keys_to_come(self, items: Sequence[NewJob], refused: Collection[int]) -> set[tuple[str, ...]]:
        """The keys that admitted items of this batch take: later items with such a key are their duplicates. [ENQ-3]

        An item whose id exists takes no key: a later item with its key becomes a job, which must be counted.
        """
        wanted = {_key_scope(items[n]) for n in refused}
        first = [item for n, item in enumerate(items) if n not in refused and _key_scope(item) in wanted - {None}]
        coming: set[tuple[str, ...]] = set()
        for part in _parts(first):
            for item, job in zip(part, await self._store.get([item.key for item in part]), strict=True):
                scope = _key_scope(item)
                if scope is not None and (job is None or job.state is JobState.CANCELED):
                    coming.add(scope)
        return coming

    def _refusal_of_new_life(self, job: Job, item: NewJob) -> QuotaExceeded | None:
        """The refusal if `item` makes a fresh job from an ended one and its payload has no room. [ENQ-2]"""
        if job.state is not JobState.CANCELED and not (job.state is JobState.FAILED and item.replace_failed):
            return None
        counts = self._counts(job.tenant)
        size, flows = len(item.envelope.payload) + RECORD_BYTES, int(job.queue == FLOWS)
        budget = counts.budget_without_room(0, size, 0, flows)
        if budget:
            return counts.refusal(budget)
        counts.add(0, size, _NO_QUEUES, flows)
        return None

    async def replay(
        self, keys: Sequence[JobKey], replay_admitted: Callable[[Sequence[JobKey]], Awaitable[list[ReplayAnswer]]]
    ) -> list[ReplayAnswer]:
        """Replay jobs, except the failed ones of tenants above `max_jobs` or `max_bytes`. [TENANT-5]

        A replay adds no record, so a tenant exactly at its budget can replay. A key without a failed job gets the
        store's own answer.
        """
        exceeded = {tenant: self._counts(tenant).exceeded_budget() for tenant in {key.tenant for key in keys}}
        judged = [n for n, key in enumerate(keys) if exceeded[key.tenant] and not is_exempt(key.tenant, key.queue)]
        refused: dict[int, QuotaExceeded] = {}
        for places in _parts(judged):
            for n, job in zip(places, await self._store.get([keys[n] for n in places]), strict=True):
                if job is not None and job.state is JobState.FAILED:
                    refused[n] = self._counts(job.tenant).refusal(exceeded[job.tenant])
        if not refused:
            return await replay_admitted(keys)
        admitted = [key for n, key in enumerate(keys) if n not in refused]
        answers = iter(await replay_admitted(admitted) if admitted else ())
        return [refused[n] if n in refused else next(answers) for n in range(len(keys))]

    def admit_schedule(self, tenant: str, size: int) -> None:
        """Count a new schedule. Raises QuotaExceeded. Removed schedules are kept for a while, so they count too."""
        counts = self._counts(tenant)
        size += RECORD_BYTES
        budget = counts.budget_without_room(1, size, 0, 0)
        if budget:
            raise counts.refusal(budget)
        counts.add(1, size, _NO_QUEUES, 0)

    async def _has_jobs(self, tenant: str, queue: str, looked_up: dict[tuple[str, str], bool]) -> bool:
        found = looked_up.get((tenant, queue))
        if found is None:
            found = False
            if len(looked_up) < MAX_QUEUE_LOOKUPS:
                found = bool((await self._store.list(ListQuery(tenant, queue, limit=1))).jobs)
            looked_up[tenant, queue] = found
        return found

    async def take_usage(self, tenant: str, read: Awaitable[Usage]) -> Usage:
        """Await a read of what a tenant keeps, and judge by it from then on."""
        counts = self._counts(tenant, reading=True)
        counted = (counts.jobs, counts.bytes, counts.new_queues)
        usage = await read
        counts.set_usage(usage, *counted)
        return usage

    async def refresh(self, tenant: str) -> tuple[Budgets, Usage]:
        """Read the budgets set for a tenant, and what it keeps."""
        counts = self._counts(tenant, reading=True)
        counts.reads += 1
        number = counts.reads
        settings = await self._store.tenant_settings(tenant)
        own = next((one.budgets for one in settings if one.queue is None), None) or Budgets()
        # A read that began before a change must not undo the budgets of one that began after it.
        if number > counts.last_used:
            counts.last_used = number
            counts.set_budgets(merged(self.defaults, own) or self.defaults)
        usage = await self._store.usage(tenant)
        if counts.starts_flows:
            counts.flows = await _count_unfinished(self._store, tenant, FLOWS)
        return own, usage

    async def report(self, tenant: str) -> TenantUsage:
        """What a tenant keeps and may keep, budget by budget, read now."""
        own, usage = await self.refresh(tenant)
        limits = merged(self.defaults, own) or self.defaults
        used: dict[str, int] = {
            "max_jobs": usage.jobs + usage.keys,
            "max_bytes": usage.bytes,
            "max_queues": usage.queues,
            "max_schedules": await _count_unfinished(self._store, tenant, SCHEDULES),
            "max_flows": await _count_unfinished(self._store, tenant, FLOWS),
        }
        budgets = [
            BudgetUse(name, used.get(name), getattr(limits, name), getattr(own, name) is not None) for name in FIELDS
        ]
        return TenantUsage(tenant, budgets, usage.keys, usage.events)

    async def close(self) -> None:
        """Cancel the reads of this event loop."""
        loop = asyncio.get_running_loop()
        reads = [task for task in list(self._reads) if task.get_loop() is loop]
        for task in reads:
            task.cancel()
        if reads:
            await asyncio.wait(reads)

    def _counts(self, tenant: str, *, reading: bool = False) -> TenantCounts:
        """The cached counts of a tenant. If they are old and the caller does not read them itself, start a read."""
        now = time.monotonic()
        counts = self._tenants.get(tenant)
        if counts is None:
            if len(self._tenants) >= MAX_TENANTS:
                self._tenants.pop(next(iter(self._tenants)), None)
            counts = self._tenants[tenant] = TenantCounts(self.defaults)
        if reading:
            counts.read_at = now
        elif now >= counts.read_at + REFRESH_S:
            counts.read_at = now
            task = asyncio.get_running_loop().create_task(self._read(tenant), name=f"budgets of {tenant}")
            self._reads.add(task)
            task.add_done_callback(self._reads.discard)
        return counts

    async def _read(self, tenant: str) -> None:
        # Do not compete with the enqueue that caused the read; a process that ends at once reads nothing.
        await asyncio.sleep(FIRST_READ_DELAY_S)
        # While the store cannot be read, the last known counts stay in force.
        with suppress(HoldfastError):
            await self.refresh(tenant)


def is_exempt(tenant: str, queue: str) -> bool:
    """Whether a queue holds Holdfast's own records, which no budget of jobs covers. Schedules have their own budget."""
    return tenant == OPERATOR or (queue.startswith(RESERVED) and queue != FLOWS)


def _key_scope(item: NewJob) -> tuple[str, str, str, str] | None:
    """What an idempotency key belongs to. [ENQ-3]"""
    idempotency = item.envelope.idempotency
    return None if idempotency is None else (*item.key[:2], item.envelope.type, idempotency.key)


def _parts(items: Sequence[T]) -> Iterable[Sequence[T]]:
    return (items[start : start + IDS_PER_READ] for start in range(0, len(items), IDS_PER_READ))


async def _count_unfinished(store: CountedStore | Store, tenant: str, queue: str) -> int:
    (stats,) = await store.stats(tenant, [queue])
    return sum(count for state, count in stats.counts.items() if state not in TERMINAL)


def enforcer_of(store: Store) -> BudgetEnforcer | None:
    """The enforcer of a store. None if its budgets are enforced elsewhere, or not at all."""
    found = getattr(store, "enforcer", None)
    return found if isinstance(found, BudgetEnforcer) else None


def ceiling_ms(store: Store) -> int:
    """The longest time that a store keeps a finished job or a key. 0 if this process knows no ceiling."""
    enforcer = enforcer_of(store)
    return 0 if enforcer is None else enforcer.max_result_ttl_ms


async def read_counts(store: Store, tenant: str) -> None:
    """Read what a tenant keeps now: a process that ends before its first background read would be refused nothing."""
    enforcer = enforcer_of(store)
    if enforcer is not None:
        await enforcer.refresh(tenant)


async def usage_of(store: Store, tenant: str) -> TenantUsage:
    """What a tenant keeps and may keep. Raises Unsupported."""
    if isinstance(store, UsageReporter):
        return await store.tenant_usage(tenant)
    enforcer = enforcer_of(store)
    if enforcer is None:
        raise Unsupported("budgets", store.capabilities.name)
    return await enforcer.report(tenant)


async def check_schedules(store: Store, tenant: str, size: int) -> None:
    """Count a new schedule. Raises QuotaExceeded if the tenant has too many or no room for its bytes. [TENANT-5]"""
    enforcer = enforcer_of(store)
    if enforcer is None:
        return
    limit = enforcer.budgets(tenant).max_schedules
    used = await _count_unfinished(store, tenant, SCHEDULES) if limit else 0
    if limit and used >= limit:
        raise QuotaExceeded(SCHEDULES, used, limit, "max_schedules")
    enforcer.admit_schedule(tenant, size)
