"""SCRIPT FLUSH every few milliseconds under load, as by another administrator or a restarted server.

Invariants verified:
- nothing fails: a script that the server has forgotten is sent again with its text
- nothing is lost and nothing runs twice, also where several scripts travel together
"""

import asyncio
import contextlib
from datetime import timedelta

import pytest

from holdfast import Queue, job
from holdfast.core.job import Cancel, Duplicate, JobState, Queued
from holdfast.opening import open_store
from holdfast.worker import Worker
from tests.stores.load import complete, judge, key, new, wish

TENANTS = [f"t{n}" for n in range(8)]
EVERY_S = 0.003


@contextlib.asynccontextmanager
async def flushing(valkey):
    """Have the server forget its scripts again and again; how often is in the list."""
    flushed = []

    async def flush():
        while True:
            await asyncio.to_thread(valkey.command, "SCRIPT", "FLUSH")
            flushed.append(None)
            await asyncio.sleep(EVERY_S)

    task = asyncio.create_task(flush())
    try:
        yield flushed
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()


@pytest.mark.parametrize("shards", [1, 4])
async def test_a_script_flush_does_not_affect_producers_workers_and_cancels(valkey, prefix, shards):
    url = valkey.url(prefix=prefix, shards=shards)
    errors, ran = [], []

    @job(max_attempts=1)
    async def work(n: int) -> int:
        ran.append(n)
        await asyncio.sleep(0)
        return n

    async def produce(queue, start):
        # Every twentieth waits, so that its cancel wins; other cancels race with the worker.
        delays = [timedelta(days=1) if n % 20 == 0 else None for n in range(100)]
        return [await queue.enqueue(work.message(n), id=f"{n}", delay=delay) for n, delay in enumerate(delays, start)]

    async def cancel(queue, start):
        return [(await queue.cancel(f"{n}")).status for n in range(start, start + 100, 10)]

    async with flushing(valkey) as flushed, Queue(url, tenant="acme") as queue, Queue(url, tenant="acme") as other:
        worker = Worker(queue, jobs=[work], concurrency=10)
        worker.on("error", errors.append)
        working = asyncio.create_task(worker.run(signals=False))
        made = await asyncio.gather(*(produce(q, 100 * n) for n, q in enumerate([queue, other] * 3)))
        answers = await asyncio.gather(*(cancel(q, 100 * n) for n, q in enumerate([other, queue] * 3)))
        results = await asyncio.gather(*(t.wait(timeout=30) for ts in made for t in ts), return_exceptions=True)
        await worker.stop()
        await working
    assert len(flushed) > 20
    assert errors == []
    assert all(ticket.status == "queued" for tickets in made for ticket in tickets)
    store = await open_store(url)
    try:
        jobs = await judge(store)
    finally:
        await store.close()
    assert len(jobs) == 600
    completed = {int(k.id) for k, j in jobs.items() if j.state is JobState.COMPLETED}
    canceled = {int(k.id) for k, j in jobs.items() if j.state is JobState.CANCELED}
    assert completed | canceled == set(range(600))
    assert completed <= set(ran)
    assert len(ran) == len(set(ran)), "a job ran twice"
    assert [r for r in results if isinstance(r, int)] == sorted(completed)
    assert sum(a == "canceled" for part in answers for a in part) == len(canceled) >= 30


async def test_batches_over_many_shards_are_done_once(valkey, prefix):
    """Calls for several shards travel together: all of them run, in order, each once."""
    store = await open_store(valkey.url(prefix=prefix, shards=4))
    try:
        async with flushing(valkey) as flushed:
            for round_ in range(60):
                items = [new(f"{round_}-{n}", tenant=tenant) for tenant in TENANTS for n in range(3)]
                assert {type(answer) for answer in await store.enqueue(items)} == {Queued}
                assert {type(answer) for answer in await store.enqueue(items[:1] + items[3:4])} == {Queued}
                again = [new(f"{round_}-0", tenant=tenant) for tenant in TENANTS]
                assert {type(answer) for answer in await store.enqueue(again)} == {Duplicate}
                gone = [Cancel(key(f"{round_}-2", tenant=tenant)) for tenant in TENANTS]
                assert await store.cancel(gone) == ["canceled"] * len(TENANTS)
                jobs = []
                while len(jobs) < 2 * len(TENANTS):
                    more = (await store.claim(wish(50, tenant=None))).jobs
                    assert more, "a job is missing"
                    jobs += more
                answers = await store.finish([complete(j) for j in jobs])
                assert {answer.state for answer in answers} == {JobState.COMPLETED}
        assert len(flushed) > 20
        jobs = await judge(store)
        assert len(jobs) == 60 * 3 * len(TENANTS)
    finally:
        await store.close()
