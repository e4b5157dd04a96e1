"""One queue name: which jobs are ready, which become due later, and which tenant's turn it is. [CLAIM-2, TENANT-4]"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import chain, islice

from holdfast.core import fairness
from holdfast.core.explain import AHEAD_LIMIT, OTHERS_LIMIT, OTHERS_SCAN, Standing, claim_order
from holdfast.core.job import WAITING, Job, JobState
from holdfast.stores.memory.heaps import LazyHeap

ReadyEntry = tuple[int, int, int, Job]
"""(-priority, visible_at, seq, job): the order of claims."""
LaterEntry = tuple[int, int, Job]
"""(visible_at, seq, job)"""


class TenantQueue:
    """One tenant's jobs in one queue name."""

    def __init__(self, tenant: str, queue: str) -> None:
        self.tenant = tenant
        self.queue = queue
        self.jobs: dict[str, Job] = {}
        """All of them, in every state, by id."""
        self.ready: LazyHeap[ReadyEntry] = LazyHeap(_is_ready)
        self.waiting = 0
        """How many of the jobs are in a waiting state."""
        self.paused = False
        self.time = 0
        """The virtual time of its next turn; see `core.fairness`."""
        self.in_turns = False

    def has_ready(self) -> bool:
        """Whether a claim would get a job. A paused queue hands out none. [CLAIM-5]"""
        return not self.paused and self.ready.first() is not None

    def take_ready(self) -> Job | None:
        """Take the next visible job, if there is one. A paused queue hands out none. [CLAIM-5]"""
        entry = None if self.paused else self.ready.take()
        return None if entry is None else entry[3]


class QueueIndex:
    """One queue name over all tenants."""

    def __init__(self) -> None:
        self.tenants: dict[str, TenantQueue] = {}
        self.later: LazyHeap[LaterEntry] = LazyHeap(_is_later)
        """Waiting jobs that are not due yet."""
        self.waiting = 0
        self.turns: list[fairness.Lane] = []
        """A heap of the tenants in turns, by virtual time. A tenant without ready jobs leaves at its next turn."""
        self.entering: set[str] = set()
        """Tenants that may have got ready jobs since the last claim."""
        self.floor = 0
        """The highest virtual time at which a turn was given."""

    def put(self, job: Job, now: int) -> None:
        """Index a waiting job."""
        if job.visible_at > now:
            self.later.push((job.visible_at, job.seq, job), self.waiting)
        else:
            tenant_queue = self.tenants[job.tenant]
            tenant_queue.ready.push((-job.envelope.priority, job.visible_at, job.seq, job), tenant_queue.waiting)
            self.entering.add(job.tenant)

    def promote(self, now: int) -> None:
        """Make the jobs ready that have become due."""
        while (entry := self.later.first()) is not None and entry[0] <= now:
            self.later.pop()
            self.put(entry[2], now)

    def standing(self, job: Job, now: int) -> Standing:
        """What a job of this queue name waits for."""
        tenant_queue = self.tenants[job.tenant]
        if job.state is not JobState.READY:
            return Standing(job, now, tenant_queue.paused)
        self.promote(now)
        ahead = tenant_queue.ready.count_below(claim_order(job), AHEAD_LIMIT + 1)
        maybe = dict.fromkeys(islice(chain((name for _, name in self.turns), self.entering), OTHERS_SCAN))
        working = (name for name in maybe if name != job.tenant and self.tenants[name].has_ready())
        others = sum(1 for _ in islice(working, OTHERS_LIMIT + 1))
        return Standing(job, now, tenant_queue.paused, ahead, others)

    def pick(self, tenant: str | None, cost: Callable[[str], int]) -> Iterator[Job]:
        """Take ready jobs one by one: those of `tenant`, or with None of all tenants in fair turns."""
        if tenant is None:
            return self._pick_in_turns(cost)
        return self._pick_of(tenant)

    def _pick_of(self, tenant: str) -> Iterator[Job]:
        tenant_queue = self.tenants.get(tenant)
        while tenant_queue is not None and (job := tenant_queue.take_ready()) is not None:
            yield job

    def _pick_in_turns(self, cost: Callable[[str], int]) -> Iterator[Job]:
        picked: list[Job] = []

        def take(tenant: str) -> bool:
            tenant_queue = self.tenants[tenant]
            job = tenant_queue.take_ready()
            if job is None:
                tenant_queue.in_turns = False
                return False
            self.floor = max(self.floor, tenant_queue.time)
            tenant_queue.time += cost(tenant)
            picked.append(job)
            return True

        self._enter_turns()
        while fairness.turns(self.turns, 1, take, cost):
            yield picked.pop()

    def _enter_turns(self) -> None:
        """Let tenants that got ready jobs into the turns, at the current minimum. [TENANT-4]"""
        while self.turns and not self.tenants[self.turns[0][1]].has_ready():
            self.tenants[heappop(self.turns)[1]].in_turns = False
        minimum = self.turns[0][0] if self.turns else self.floor
        for tenant in sorted(self.entering):
            tenant_queue = self.tenants[tenant]
            if not tenant_queue.in_turns and tenant_queue.has_ready():
                tenant_queue.time = fairness.entry(tenant_queue.time, minimum)
                tenant_queue.in_turns = True
                heappush(self.turns, (tenant_queue.time, tenant))
        self.entering.clear()

    def pause(self, tenant: str) -> None:
        """Stop handing out a tenant's jobs. The tenant leaves the turns until `resume`."""
        self.turns = [turn for turn in self.turns if turn[1] != tenant]
        heapify(self.turns)
        self.tenants[tenant].paused = True
        self.tenants[tenant].in_turns = False

    def resume(self, tenant: str) -> None:
        """Hand out a tenant's jobs again."""
        self.tenants[tenant].paused = False
        self.entering.add(tenant)

    def tidy(self, tenant: str) -> None:
        """Drop stale entries, after one of the tenant's waiting jobs was canceled."""
        tenant_queue = self.tenants[tenant]
        tenant_queue.ready.tidy(tenant_queue.waiting)
        self.later.tidy(self.waiting)


def _is_ready(entry: ReadyEntry) -> bool:
    _, visible_at, _, job = entry
    return job.state in WAITING and job.visible_at == visible_at


def _is_later(entry: LaterEntry) -> bool:
    visible_at, _, job = entry
    return job.state in WAITING and job.visible_at == visible_at
