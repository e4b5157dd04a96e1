"""The `Store` methods for jobs. Each one takes the lock, reads the clock once, and calls one function on the tables.

The methods for everything else are those of `holdfast.tables.LocalStore`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from holdfast.core.budgets import Usage
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
    NewJob,
    Purge,
    PurgeStatus,
    Report,
    SetResultTtl,
    TtlStatus,
)
from holdfast.opening import CommonOptions
from holdfast.store import (
    Capabilities,
    EnqueueAnswer,
    ExtendAnswer,
    Finding,
    FinishAnswer,
    ListQuery,
    Page,
    Pruned,
    QueueStats,
    Reaped,
    ReplayAnswer,
    ReportAnswer,
)
from holdfast.stores.memory import changes, claims, reads, upkeep
from holdfast.stores.memory.tables import Tables
from holdfast.tables import LocalStore

CAPABILITIES = Capabilities(
    name="memory",
    durable=False,
    survives_power_loss=False,
    many_processes=False,
    many_hosts=False,
    transactional_enqueue=False,
    exact_turns=True,
    exact_quota=True,
    notes={
        "durable": "Everything is gone when the process ends.",
        "clock": "The clock of the process when it started, plus monotonic time: it never jumps.",
    },
)


class MemoryStore(LocalStore):
    """Jobs in this process. Safe from several threads and event loops at once."""

    name = "memory"

    def __init__(self, options: CommonOptions) -> None:
        self.tables = Tables(options)
        super().__init__(options, self.tables)

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    # Jobs -----------------------------------------------------------------------------------------------------

    def enqueue_one(self, new: NewJob, now: int) -> EnqueueAnswer:
        return changes.enqueue(self.tables, new, now)

    async def claim(self, request: ClaimRequest) -> Claimed:
        with self.lock:
            claimed = claims.claim(self.tables, request, self.clock.now())
            self.tables.notifier.send()
            return claimed

    async def finish(self, items: Sequence[Finish], *, connection: Any = None) -> list[FinishAnswer]:
        return self.each(partial(changes.finish, self.tables), items, connection=connection)

    async def extend(self, items: Sequence[Extend]) -> list[ExtendAnswer]:
        return self.each(partial(changes.extend, self.tables), items)

    async def report(self, items: Sequence[Report]) -> list[ReportAnswer]:
        return self.each(partial(changes.report, self.tables), items)

    async def cancel(self, items: Sequence[Cancel]) -> list[CancelStatus]:
        return self.each(partial(changes.cancel, self.tables), items)

    def replay_one(self, key: JobKey, now: int, by: str) -> ReplayAnswer:
        return changes.replay(self.tables, key, now, by)

    async def purge(self, items: Sequence[Purge]) -> list[PurgeStatus]:
        return self.each(partial(changes.purge, self.tables), items)

    async def set_result_ttl(self, items: Sequence[SetResultTtl]) -> list[TtlStatus]:
        return self.each(partial(changes.set_result_ttl, self.tables), items)

    # Reading --------------------------------------------------------------------------------------------------

    def find(self, key: JobKey, now: int) -> Job | None:
        return self.tables.jobs.find(key, now)

    async def get(self, keys: Sequence[JobKey]) -> list[Job | None]:
        with self.lock:
            return reads.get(self.tables, keys, self.clock.now())

    async def standing(self, key: JobKey) -> Standing | None:
        with self.lock:
            return reads.standing(self.tables, key, self.clock.now())

    async def list(self, query: ListQuery) -> Page:
        with self.lock:
            return reads.list_jobs(self.tables, query, self.clock.now())

    async def stats(self, tenant: str, queues: Sequence[str] | None = None) -> list[QueueStats]:
        with self.lock:
            return reads.stats(self.tables, tenant, queues, self.clock.now())

    def queue_names(self, tenant: str) -> list[str]:
        return reads.queue_names(self.tables, tenant)

    def tenants_with_jobs(self) -> set[str]:
        return {tenant_queue.tenant for tenant_queue in self.tables.jobs.tenant_queues() if tenant_queue.jobs}

    def count_usage(self, tenant: str) -> Usage:
        return reads.usage(self.tables, tenant)

    # Upkeep ---------------------------------------------------------------------------------------------------

    async def pause(self, tenant: str, queue: str, *, paused: bool) -> None:
        with self.lock:
            upkeep.pause(self.tables, tenant, queue, paused=paused)
            self.tables.notifier.send()

    async def reap(self, limit: int, random: float) -> Reaped:
        with self.lock:
            reaped = claims.reap(self.tables, limit, random, self.clock.now())
            self.tables.notifier.send()
            return reaped

    async def prune(self, limit: int, *, blobs: bool = True) -> Pruned:
        with self.lock:
            return upkeep.prune(self.tables, limit, self.clock.now(), blobs=blobs)

    async def doctor(self) -> Sequence[Finding]:
        with self.lock:
            count = sum(len(tenant_queue.jobs) for tenant_queue in self.tables.jobs.tenant_queues())
        return [
            Finding("ok", "store", f"{count} jobs in this process"),
            Finding("warn", "durability", "everything is gone when the process ends", "use file:DIR or a server"),
        ]
