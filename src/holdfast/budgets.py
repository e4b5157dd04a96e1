"""Budgets at work: what this process knows of its tenants, and what it refuses. One keeper for each open store.

An enqueue looks its tenant up in a dictionary, and asks the store nothing. What a tenant keeps is read in the
background, at most every 10 s while the tenant is active; what was enqueued here since then is added. Until the first
answer nothing is refused. Only an enqueue that is over a budget costs more: it looks for ids and queues that exist, and
lets those through. [TENANT-5]
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Protocol, runtime_checkable

from msgspec import Struct, field

from holdfast.core.budgets import FIELDS, RECORD_BYTES, Budgets, BudgetUse, TenantUsage, Usage, merged
from holdfast.core.errors import HoldfastError, QuotaExceeded, Unsupported
from holdfast.core.job import TERMINAL, Job, JobKey, JobState, NewJob
from holdfast.core.names import FLOWS, OPERATOR, RESERVED, SCHEDULES
from holdfast.opening import CommonOptions
from holdfast.store import EnqueueAnswer, ListQuery, Page, QueueStats, Store, TenantSettings

REFRESH_S = 10.0
DELAY_S = 0.1
TENANTS = 10_000
"""How many tenants' counts are kept at hand."""
QUEUES_LOOKED_FOR = 16
"""How many queues of one enqueue are looked for, of a tenant that has as many as it may; further ones are refused."""
QUEUES_KNOWN = 10_000
"""How many queues of a tenant are kept at hand that may have any number."""
IDS_AT_ONCE = 32
"""How many ids are looked up at a time, each with up to half a MiB."""
_NONE: set[str] = set()


class Counted(Protocol):
    """What a keeper asks of its store."""

    async def usage(self, tenant: str) -> Usage: ...
    async def tenant_settings(self, tenant: str) -> Sequence[TenantSettings]: ...
    async def get(self, keys: Sequence[JobKey]) -> list[Job | None]: ...
    async def list(self, query: ListQuery) -> Page: ...
    async def stats(self, tenant: str, queues: Sequence[str] | None = None) -> list[QueueStats]: ...


@runtime_checkable
class UsageShowing(Protocol):
    """A store whose budgets are kept elsewhere: a service."""

    async def tenant_usage(self, tenant: str) -> TenantUsage:
        """What a tenant keeps and may keep."""
        ...


class Account(Struct, eq=False):
    """One tenant, as far as this process knows."""

    budgets: Budgets
    usage: Usage | None = None
    """None: not read yet."""
    asked_at: float = -inf
    jobs_room: float = inf
    bytes_room: float = inf
    queues_room: float = inf
    """Up to where the next three may go."""
    jobs: int = 0
    bytes: int = 0
    new_queues: int = 0
    """What came here, ever."""
    before: tuple[int, int, int] = (0, 0, 0)
    """The same when `usage` was asked for. Of two answers either may come last: each is right with its own."""
    queues: set[str] = field(default_factory=set[str])
    """Some that this process has enqueued to, no more than the tenant may have: they may be gone by now."""
    flows: int | None = None
    """Under way, as last read, and those started here since. None: not read yet."""
    starts_flows: bool = False

    def over(self, jobs: int, size: int, queues: int, flows: int) -> str:
        """The budget that is used up if there is so much more; "": none."""
        if jobs and self.jobs + jobs > self.jobs_room:
            return "max_jobs"
        if self.bytes + size > self.bytes_room:
            return "max_bytes"
        if queues and self.new_queues + queues > self.queues_room:
            return "max_queues"
        if flows and self.flows is not None and self.flows + flows > (self.budgets.max_flows or inf):
            return "max_flows"
        return ""

    def add(self, jobs: int, size: int, queues: set[str], flows: int) -> None:
        """So much more was let through."""
        self.jobs += jobs
        self.bytes += size
        if queues:
            self.learn(queues)
            self.new_queues += len(queues)
        if flows:
            if not self.starts_flows:
                self.starts_flows, self.asked_at = True, -inf
            if self.flows is not None:
                self.flows += flows

    def learn(self, queues: set[str]) -> None:
        """These have jobs. Where there are too many, the others are forgotten: they were not all there at once."""
        self.queues |= queues
        if len(self.queues) > (self.budgets.max_queues or QUEUES_KNOWN):
            self.queues = queues

    def fresh(self, usage: Usage, jobs: int, size: int, queues: int) -> None:
        """The tenant keeps this by now; the rest is what had come before it was asked."""
        self.usage, self.before = usage, (jobs, size, queues)
        self.set(self.budgets)

    def set(self, budgets: Budgets) -> None:
        """These hold from now on."""
        self.budgets = budgets
        if self.usage is not None:
            jobs, size, queues = self.before
            self.jobs_room = (budgets.max_jobs or inf) - self.usage.jobs - self.usage.keys + jobs
            self.bytes_room = (budgets.max_bytes or inf) - self.usage.bytes + size
            self.queues_room = (budgets.max_queues or inf) - self.usage.queues + queues

    def refusal(self, budget: str) -> QuotaExceeded:
        """What an enqueue is answered that is over this budget."""
        usage, (jobs, size, queues) = self.usage or Usage(), self.before
        used = {
            "max_jobs": usage.jobs + usage.keys + self.jobs - jobs,
            "max_bytes": usage.bytes + self.bytes - size,
            "max_queues": usage.queues + self.new_queues - queues,
            "max_flows": self.flows or 0,
        }
        return QuotaExceeded(None, used[budget], getattr(self.budgets, budget), budget)


class Keeper:
    """What the tenants of one store keep, and what they may. For as many event loops as its store."""

    def __init__(self, store: Counted, options: CommonOptions) -> None:
        self.defaults = options.budgets
        self.max_result_ttl_ms = options.max_result_ttl_ms
        self._store = store
        self._accounts: dict[str, Account] = {}
        self._reads: set[asyncio.Task[None]] = set()

    def budgets(self, tenant: str) -> Budgets:
        """What holds for a tenant, as far as it is known by now."""
        return self._account(tenant).budgets

    def admits(self, items: Sequence[NewJob]) -> bool:
        """Whether a batch of one tenant is within its budgets; then it is counted. Asks the store nothing.

        False for one of several tenants, which `enqueue` takes apart.
        """
        if not items or items[0].key.tenant == OPERATOR:
            return True
        tenant, queue, _ = items[0].key
        account = self._account(tenant)
        jobs, size, queues, flows = len(items), 0, {queue}, 0
        for item in items:
            key = item.key
            if key.queue != queue or key.tenant != tenant:
                if key.tenant != tenant:
                    return False
                queue = key.queue
                queues.add(queue)
            size += len(item.envelope.payload)
        if not queues <= account.queues:
            if any(is_exempt(tenant, name) for name in queues):
                return len(queues) == 1
            if FLOWS in queues:
                flows = sum(item.key.queue == FLOWS for item in items)
            queues -= {FLOWS, *account.queues}
        else:
            queues = _NONE
        size += RECORD_BYTES * jobs
        if account.over(jobs, size, len(queues), flows):
            return False
        account.add(jobs, size, queues, flows)
        return True

    async def enqueue(
        self, items: Sequence[NewJob], take: Callable[[Sequence[NewJob]], Awaitable[list[EnqueueAnswer]]]
    ) -> list[EnqueueAnswer]:
        """Have those taken in that are within the budgets, or there already; refuse the others, item by item."""
        refused = await self._refused(items)
        let = [item for n, item in enumerate(items) if n not in refused]
        taken = iter(await take(let) if let else ())
        return [refused[n] if n in refused else next(taken) for n in range(len(items))]

    async def _refused(self, items: Sequence[NewJob]) -> dict[int, QuotaExceeded]:
        """Which items are over a budget, by place."""
        looked_for: dict[tuple[str, str], bool] = {}
        over: dict[int, QuotaExceeded] = {}
        for n, item in enumerate(items):
            tenant, queue, _ = item.key
            if is_exempt(tenant, queue):
                continue
            account = self._account(tenant)
            size, flows = len(item.envelope.payload) + RECORD_BYTES, int(queue == FLOWS)
            new = {queue} - {FLOWS} - account.queues
            full = account.over(1, size, len(new), flows)
            if full == "max_queues" and await self._has_jobs(tenant, queue, looked_for):
                account.learn(new)
                new, full = _NONE, ""
            if full:
                over[n] = account.refusal(full)
            else:
                account.add(1, size, new, flows)
        # An id that exists makes no new record, and is answered as what it is. One that comes to life again must have
        # room for its payload. [ENQ-2]
        places = list(over)
        for start in range(0, len(places), IDS_AT_ONCE):
            part = places[start : start + IDS_AT_ONCE]
            for n, job in zip(part, await self._store.get([items[n].key for n in part]), strict=True):
                if job is None:
                    continue
                if job.state is JobState.CANCELED or (job.state is JobState.FAILED and items[n].replace_failed):
                    account = self._account(job.tenant)
                    size, flows = len(items[n].envelope.payload) + RECORD_BYTES, int(job.queue == FLOWS)
                    full = account.over(0, size, 0, flows)
                    if full:
                        over[n] = account.refusal(full)
                        continue
                    account.add(0, size, _NONE, flows)
                del over[n]
        return over

    def admit_schedule(self, tenant: str, size: int) -> None:
        """Count a schedule that is about to be put. Raises QuotaExceeded: removed ones are kept for a while, too."""
        account = self._account(tenant)
        size += RECORD_BYTES
        full = account.over(1, size, 0, 0)
        if full:
            raise account.refusal(full)
        account.add(1, size, _NONE, 0)

    async def _has_jobs(self, tenant: str, queue: str, looked_for: dict[tuple[str, str], bool]) -> bool:
        found = looked_for.get((tenant, queue))
        if found is None:
            found = False
            if len(looked_for) < QUEUES_LOOKED_FOR:
                found = bool((await self._store.list(ListQuery(tenant, queue, limit=1))).jobs)
            looked_for[tenant, queue] = found
        return found

    async def counted(self, tenant: str, read: Awaitable[Usage]) -> Usage:
        """What a tenant keeps, as it is read; from now on it is judged by that."""
        account = self._account(tenant, renewed=True)
        before = (account.jobs, account.bytes, account.new_queues)
        usage = await read
        account.fresh(usage, *before)
        return usage

    async def renew(self, tenant: str) -> tuple[Budgets, Usage]:
        """Read a tenant's budgets, and what it keeps: those set for it, and that."""
        account = self._account(tenant, renewed=True)
        settings = await self._store.tenant_settings(tenant)
        said = next((one.budgets for one in settings if one.queue is None), None) or Budgets()
        account.set(merged(self.defaults, said) or self.defaults)
        usage = await self._store.usage(tenant)
        if account.starts_flows:
            account.flows = await _under_way(self._store, tenant, FLOWS)
        return said, usage

    async def shown(self, tenant: str) -> TenantUsage:
        """What a tenant keeps and may keep, budget by budget, read now."""
        said, usage = await self.renew(tenant)
        holds = merged(self.defaults, said) or self.defaults
        used: dict[str, int] = {
            "max_jobs": usage.jobs + usage.keys,
            "max_bytes": usage.bytes,
            "max_queues": usage.queues,
            "max_schedules": await _under_way(self._store, tenant, SCHEDULES),
            "max_flows": await _under_way(self._store, tenant, FLOWS),
        }
        budgets = [
            BudgetUse(name, used.get(name), getattr(holds, name), getattr(said, name) is not None) for name in FIELDS
        ]
        return TenantUsage(tenant, budgets, usage.keys, usage.events)

    async def close(self) -> None:
        """End what is being read in this event loop."""
        loop = asyncio.get_running_loop()
        reads = [task for task in list(self._reads) if task.get_loop() is loop]
        for task in reads:
            task.cancel()
        if reads:
            await asyncio.wait(reads)

    def _account(self, tenant: str, *, renewed: bool = False) -> Account:
        """What is known of a tenant; if that is old, it is read anew in the background."""
        now = time.monotonic()
        account = self._accounts.get(tenant)
        if account is None:
            if len(self._accounts) >= TENANTS:
                self._accounts.pop(next(iter(self._accounts)), None)
            account = self._accounts[tenant] = Account(self.defaults)
        if renewed:
            account.asked_at = now
        elif now >= account.asked_at + REFRESH_S:
            account.asked_at = now
            task = asyncio.get_running_loop().create_task(self._read(tenant), name=f"budgets of {tenant}")
            self._reads.add(task)
            task.add_done_callback(self._reads.discard)
        return account

    async def _read(self, tenant: str) -> None:
        # Not beside the enqueue that it is for, and not at all in a process that is gone by then.
        await asyncio.sleep(DELAY_S)
        # What is known stays in force while the store cannot be read.
        with suppress(HoldfastError):
            await self.renew(tenant)


def is_exempt(tenant: str, queue: str) -> bool:
    """Whether a queue is for what Holdfast itself keeps as jobs. Schedules are judged where they are put."""
    return tenant == OPERATOR or (queue.startswith(RESERVED) and queue != FLOWS)


async def _under_way(store: Counted, tenant: str, queue: str) -> int:
    """How many jobs of a queue have not ended."""
    (stats,) = await store.stats(tenant, [queue])
    return sum(count for state, count in stats.counts.items() if state not in TERMINAL)


def keeper_of(store: Store) -> Keeper | None:
    """The keeper of a store; None: it judges elsewhere, or not at all."""
    found = getattr(store, "keeper", None)
    return found if isinstance(found, Keeper) else None


def ceiling_ms(store: Store) -> int:
    """The longest that a finished job or a key can be told to be kept at a store; 0: as long as it says itself."""
    keeper = keeper_of(store)
    return 0 if keeper is None else keeper.max_result_ttl_ms


async def usage_of(store: Store, tenant: str) -> TenantUsage:
    """What a tenant keeps and may keep. Raises Unsupported."""
    if isinstance(store, UsageShowing):
        return await store.tenant_usage(tenant)
    keeper = keeper_of(store)
    if keeper is None:
        raise Unsupported("budgets", store.capabilities.name)
    return await keeper.shown(tenant)


async def check_schedules(store: Store, tenant: str, size: int) -> None:
    """Raise QuotaExceeded if the tenant has as many schedules as it may, or no room for one of this size. [TENANT-5]"""
    keeper = keeper_of(store)
    if keeper is None:
        return
    limit = keeper.budgets(tenant).max_schedules
    used = await _under_way(store, tenant, SCHEDULES) if limit else 0
    if limit and used >= limit:
        raise QuotaExceeded(SCHEDULES, used, limit, "max_schedules")
    keeper.admit_schedule(tenant, size)
