"""A pool of two connections, whatever is asked of it. [LEASE-4]

Invariants verified:
- callers that get none get an error that says what to do about it
- renewals and signs of life go on: a worker with jobs that run longer than their lease keeps them
"""

import asyncio

import asyncpg
import pytest

from holdfast import Queue, job
from holdfast.core.errors import StoreBusy, StoreError
from holdfast.core.job import JobState
from holdfast.worker import Worker
from tests.eventually import eventually
from tests.stores.load import claim_one, new
from tests.stores.postgres.support import complete, judge


@job(max_attempts=1)
async def sit(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "sat"


async def test_a_worker_keeps_its_leases_while_a_hundred_callers_wait(postgres, database):
    """All other connections are blocked for several leases; no lease is lost, and every job runs once."""
    url = postgres.url(database, connections=2, wait_s=1)
    async with Queue(url, tenant="acme") as queue, Queue(postgres.url(database), tenant="acme") as beside:
        worker = Worker(queue, jobs=[sit], concurrency=4, lease=1)
        stalled = []
        worker.on("stalled", stalled.append)
        running = asyncio.create_task(worker.run(signals=False))
        tickets = await beside.enqueue_many([sit.message(4) for _ in range(4)])
        await eventually(beside.stats, lambda stats: stats.counts[JobState.LEASED] == 4)
        # Another open transaction has locked a job that a hundred callers want to end.
        await beside.store.enqueue([new("held")])
        held = await claim_one(beside.store)
        blocker = await asyncpg.connect(postgres.url(database))
        async with blocker.transaction():
            await blocker.execute("SELECT FROM holdfast.jobs WHERE id = 'held' FOR UPDATE")
            refused = []

            async def insist():
                while not all([(await ticket.refresh()).state is JobState.COMPLETED for ticket in tickets[:1]]):
                    try:
                        await complete(queue.store, [held])
                    except StoreBusy as busy:
                        refused.append(str(busy))

            callers = [asyncio.create_task(insist()) for _ in range(100)]
            await eventually(lambda: any("connections" in text for text in refused), patience_s=30)
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
        await blocker.close()
        assert [await ticket.wait(timeout=30) for ticket in tickets] == ["sat"] * 4
        assert stalled == []
        records = [await ticket.refresh() for ticket in tickets]
        assert {(record.state, record.attempts) for record in records} == {(JobState.COMPLETED, 1)}
        await worker.stop()
        await running
        await judge(beside.store)


@pytest.mark.parametrize("connections", [2, 3])
async def test_a_hundred_callers_share_a_small_pool(postgres, database, connections):
    """Only their own calls compete: all get a connection, or StoreBusy."""
    async with Queue(postgres.url(database, connections=connections), tenant="acme") as queue:
        store = queue.store

        async def call(n):
            while True:
                try:
                    return await store.enqueue([new(f"{n}")])
                except StoreError:
                    await asyncio.sleep(0.05)

        await asyncio.gather(*map(call, range(100)))
        (stats,) = await store.stats("acme", ["mail"])
        assert stats.counts[JobState.READY] == 100
        assert store._client._count <= connections
