"""Waiting for results on a server."""

import asyncio

import pytest

from holdfast import Queue, ResultExpired, Worker, job


@job(queue="sums")
async def add(a: int, b: int) -> int:
    return a + b


@job(queue="sums")
async def measure(text: str) -> int:
    return len(text)


@pytest.fixture
async def queue(url):
    async with Queue(url, tenant="acme") as queue:
        worker = Worker(queue, [add, measure])
        running = asyncio.create_task(worker.run())
        yield queue
        await worker.stop()
        await running


async def test_a_hint_carries_the_result(queue, monkeypatch):
    """A caller that waits before the job ends needs no read."""
    assert await queue.enqueue_and_wait(add.message(1, 2), timeout=10) == 3
    looks = []
    get = queue.store.get

    async def counted(keys):
        looks.extend(keys)
        return await get(keys)

    monkeypatch.setattr(queue.store, "get", counted)
    assert await queue.enqueue_and_wait(add.message(3, 4), timeout=10) == 7
    assert looks == []


async def test_hints_carry_many_results_and_those_of_large_jobs(queue):
    """More jobs than a notification carries in full, and jobs whose payload is apart from their record."""
    calls = [queue.enqueue_and_wait(add.message(n, 1), timeout=20) for n in range(40)]
    assert await asyncio.gather(*calls) == [n + 1 for n in range(40)]
    assert await queue.enqueue_and_wait(measure.message("x" * 10_000), timeout=10) == 10_000


async def test_a_hint_does_not_carry_a_result_that_is_not_kept(queue):
    with pytest.raises(ResultExpired):
        await queue.enqueue_and_wait(add.message(1, 1), result_ttl=0, timeout=10)
