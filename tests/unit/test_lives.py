"""An id can have several lives; a hint can get lost; who waits must not be misled by either. [ENQ-2, RESULT-2]"""

import asyncio

import pytest

from holdfast import Queue, ResultExpired, Worker, job
from holdfast.core.errors import JobCanceled
from tests.eventually import eventually
from tests.unit.running import claim, finish

STORES = ["memory", "file"]


@pytest.fixture(params=STORES)
def url(request, tmp_path):
    return {"memory": f"memory:lives-{tmp_path.name}", "file": f"file:{tmp_path}/data"}[request.param]


async def claimed(queue):
    """The next job, as soon as it is there."""
    return (await eventually(lambda: claim(queue), bool))[0]


async def test_a_request_is_not_answered_with_the_end_of_an_earlier_life(url):
    async with Queue(url, tenant="acme") as queue:
        for number in range(10):
            id = f"job-{number}"
            await queue.enqueue({}, id=id)
            earlier = asyncio.create_task(queue.result(id, timeout=10))
            await asyncio.sleep(0)
            await queue.get(id)  # By now the waiter has looked, too.
            await queue.cancel(id)
            waiting = asyncio.create_task(queue.enqueue_and_wait({}, id=id, timeout=10))
            with pytest.raises((JobCanceled, ResultExpired)):
                await earlier
            leased = await claimed(queue)
            assert leased.id == id
            await finish(queue, leased, "complete", result=b'"new life"')
            assert await waiting == "new life"


async def test_a_lost_hint_delays_a_waiter_and_does_not_strand_it(url, monkeypatch):
    monkeypatch.setattr("holdfast.queue.waiting.FALLBACK_S", 0.05)
    async with Queue(url, tenant="acme") as queue:
        monkeypatch.setattr(queue.store, "listen", lambda *_: lambda: None)
        ticket = await queue.enqueue({}, id="x")
        waiting = asyncio.create_task(ticket.wait(timeout=10))
        await asyncio.sleep(0)
        await finish(queue, await claimed(queue), "complete", result=b"1")
        assert await waiting == 1


async def test_a_wait_looks_once_more_before_its_time_is_up(url, monkeypatch):
    async with Queue(url, tenant="acme") as queue:
        monkeypatch.setattr(queue.store, "listen", lambda *_: lambda: None)
        ticket = await queue.enqueue({}, id="x")
        waiting = asyncio.create_task(ticket.wait(timeout=0.2))
        await asyncio.sleep(0)
        await finish(queue, await claimed(queue), "complete", result=b"1")
        assert await waiting == 1


async def test_a_handler_that_finishes_while_the_worker_stops_is_not_run_again(url):
    started, go_on = asyncio.Event(), asyncio.Event()

    @job(name="stubborn", queue="default")
    async def stubborn() -> str:
        started.set()
        try:
            await go_on.wait()
        except asyncio.CancelledError:
            return "done all the same"
        return "not reported"

    async with Queue(url, tenant="acme") as queue:
        ticket = await queue.enqueue(stubborn.message(), id="x")
        worker = Worker(queue, jobs=[stubborn], shutdown_grace=0)
        running = asyncio.create_task(worker.run(signals=False))
        await asyncio.wait_for(started.wait(), 10)
        await worker.stop()
        await running
        assert await ticket.wait(timeout=60) == "done all the same"
