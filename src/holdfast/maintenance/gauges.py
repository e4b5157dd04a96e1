"""Reads the gauges of a store, in one process at a time. (docs/adr/0027-gauges-of-a-store.md)

A system job of the operator's tenant decides which process: the coordinator that holds its lease reads. The work of a
round depends on the number of tenants and their queues, not on the number of jobs. The reader rests between calls.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

from holdfast.core.job import Envelope, Finish, JobKey, JobState, NewJob
from holdfast.core.names import GAUGES, OPERATOR
from holdfast.core.schedule import MAX_ATTEMPTS, SOON
from holdfast.ids import new_id
from holdfast.maintenance.backoff import AWAY, Pause
from holdfast.maintenance.system_jobs import SystemContext
from holdfast.paging import pages
from holdfast.store import ListQuery, QueueStats, Store
from holdfast.telemetry.gauges import MAX_EXPIRED, STATES, Gauges, QueueCounts, Round

KEY = JobKey(OPERATOR, GAUGES, "gauges")
ENSURE_S = 60.0
"""How often to check that the system job exists."""
REST = 4
"""After each call it rests this many times as long: a round uses at most a fifth of one connection's time."""
MIN_PAUSE_S = 1.0
"""The least pause between two rounds."""
EXPIRED_PAGE = 10

_LEASED = frozenset({JobState.LEASED})
T = TypeVar("T")


async def ensure_job(store: Store) -> float:
    """Enqueue the system job, unless it exists. Returns in how many seconds to do it again."""
    envelope = Envelope(
        "gauges", b"null", max_attempts=MAX_ATTEMPTS, backoff=SOON, result_ttl_ms=0, request_id=new_id()
    )
    await store.enqueue([NewJob(KEY, envelope, replace_failed=True)])
    return ENSURE_S * random.uniform(0.8, 1.2)  # noqa: S311 - no secret; a fleet must not ask in step


async def serve(gauges: Gauges, context: SystemContext) -> Finish:
    """Read and publish round after round, until the lease of the system job is lost or released."""
    pause = Pause()
    try:
        while True:
            try:
                found = await read(context.store, gauges.tenants)
            except AWAY:
                # The last numbers stay exported until the lease is over; their age grows.
                await asyncio.sleep(pause.next_s())
                continue
            pause.reset()
            gauges.publish(found)
            await asyncio.sleep(max(MIN_PAUSE_S, gauges.every_s - found.took_s))
    finally:
        gauges.clear()


async def read(store: Store, tenants: tuple[str, ...] = ()) -> Round:
    """The numbers of all tenants together, and of `tenants` one by one. Rests after each call."""
    found = Round(time.monotonic(), tenants={name: QueueCounts() for name in tenants})
    async for page in pages(lambda cursor: _resting(store.tenant_page(cursor))):
        for tenant in page.tenants:
            async for queue, counts in tenant_counts(store, tenant):
                found.add(tenant, queue, counts)
    found.took_s = time.monotonic() - found.started_at
    return found


async def tenant_counts(store: Store, tenant: str) -> AsyncIterator[tuple[str, QueueCounts]]:
    """What each queue of a tenant holds, by name. Rests after each call to the store."""
    async for page in pages(lambda cursor: _resting(store.queue_page(tenant, cursor))):
        for stats in page.queues:
            expired = await expired_leases(store, tenant, stats.queue) if stats.counts.get(JobState.LEASED) else 0
            yield stats.queue, counts_of(stats, expired)


def counts_of(stats: QueueStats, expired: int = 0) -> QueueCounts:
    """The counts of a queue, from its stats and the number of its expired leases."""
    counts = QueueCounts(expired_leases=expired)
    counts.jobs.update({state: stats.counts.get(state, 0) for state in STATES})
    if stats.oldest_ready_at is not None:
        counts.oldest_ready_s = max(0, stats.now - stats.oldest_ready_at) / 1000
    return counts


async def expired_leases(store: Store, tenant: str, queue: str) -> int:
    """How many leases of a queue have expired and have not been ended, up to MAX_EXPIRED. Reads them by deadline."""
    found, cursor, size = 0, None, 1
    while found < MAX_EXPIRED:
        page = await _resting(store.list(ListQuery(tenant, queue, _LEASED, cursor=cursor, limit=size)))
        expired = sum(job.deadline <= page.now for job in page.jobs)
        found += expired
        cursor, size = page.cursor, EXPIRED_PAGE
        if cursor is None or expired < len(page.jobs):
            break
    return min(found, MAX_EXPIRED)


async def _resting(call: Awaitable[T]) -> T:
    began = time.monotonic()
    answer = await call
    await asyncio.sleep(REST * (time.monotonic() - began))
    return answer
