"""When a worker claims, and how much. [CLAIM-3]"""

import asyncio
from datetime import timedelta

from holdfast import job
from holdfast.core.job import ClaimRequest, JobState
from holdfast.jobs.definition import RetryPolicy
from holdfast.queue.claims import POLL_S
from holdfast.worker import Worker
from tests.eventually import eventually
from tests.unit.worker.serving import run, serving, until


async def test_an_idle_worker_does_not_poll(queue, store):
    @job
    async def nothing() -> None: ...

    async with serving(queue, nothing):
        await queue.enqueue_and_wait(nothing.message(), timeout=60)
        await asyncio.sleep(0.05)
        before = store.calls["claim"]
        await asyncio.sleep(0.5)
        assert store.calls["claim"] == before <= 4


async def test_a_new_job_wakes_an_idle_worker_at_once(queue):
    @job
    async def nothing() -> None: ...

    async with serving(queue, nothing):
        await queue.enqueue_and_wait(nothing.message(), timeout=60)
        for _ in range(20):
            await queue.enqueue_and_wait(nothing.message(), timeout=POLL_S / 2)


async def test_a_job_that_becomes_due_wakes_an_idle_worker(queue):
    @job
    async def nothing() -> str:
        return "ran"

    async with serving(queue, nothing):
        ticket = await queue.enqueue(nothing.message(), delay=0.3)
        assert await ticket.wait(timeout=POLL_S / 2) == "ran"
    enqueued, claimed = [event.at async for event in queue.events() if event.kind in ("enqueued", "claimed")]
    assert claimed - enqueued >= timedelta(seconds=0.3)


async def test_a_hint_between_the_claim_and_the_wait_is_not_lost(queue, store):
    @job
    async def nothing() -> str:
        return "ran"

    real = store.inner.claim
    late = []

    async def claim(request):
        claimed = await real(request)
        if not claimed.jobs and not late:
            # Found nothing; now a job comes before the worker has gone to sleep.
            late.append(await queue.enqueue(nothing.message()))
            await asyncio.sleep(0.05)
        return claimed

    store.inner.claim = claim
    async with serving(queue, nothing):
        await eventually(lambda: late)
        assert await late[0].wait(timeout=60) == "ran"


async def test_jobs_are_not_prefetched_while_handlers_are_slow(queue):
    started = 0
    go_on = asyncio.Event()

    @job
    async def slow() -> None:
        nonlocal started
        started += 1
        await go_on.wait()

    tickets = await queue.enqueue_many([slow.message() for _ in range(20)])
    async with serving(queue, slow, concurrency=4):
        await eventually(lambda: started >= 4)
        stats = await queue.stats()
        assert stats.counts[JobState.LEASED] == 4
        go_on.set()
        for ticket in tickets:
            await ticket.wait(timeout=60)


async def test_short_jobs_are_prefetched(queue, store):
    @job
    async def short() -> None:
        await asyncio.sleep(0)

    sizes = []
    real = store.inner.claim

    async def claim(request):
        if request.queues == ("default",):  # Not those for schedules and flows, which may come first.
            sizes.append(request.limit)
        return await real(request)

    store.inner.claim = claim
    tickets = await queue.enqueue_many([short.message() for _ in range(500)])
    async with serving(queue, short, concurrency=10):
        await tickets[-1].wait(timeout=10)
    assert max(sizes) > 10
    assert sizes[0] == 10


async def test_queues_are_served_in_rotation(queue):
    order = []

    @job(queue="a")
    async def one() -> None:
        order.append("a")

    @job(queue="b")
    async def two() -> None:
        order.append("b")

    await queue.enqueue_many([one.message() for _ in range(10)])
    await queue.enqueue_many([two.message() for _ in range(10)])
    worker = Worker(queue, jobs=[one, two], concurrency=1, prefetch=0)
    async with run(worker), asyncio.timeout(10):
        await eventually(lambda: len(order) >= 20)
    assert abs(order[:10].count("a") - order[:10].count("b")) <= 2


async def test_a_resumed_queue_is_served_again(queue, store):
    @job
    async def nothing() -> str:
        return "ran"

    await store.pause("acme", "default", paused=True)
    async with serving(queue, nothing):
        await eventually(lambda: store.calls["claim"])
        before = store.calls["claim"]
        ticket = await queue.enqueue(nothing.message())
        await eventually(lambda: store.calls["claim"] > before)
        assert (await ticket.refresh()).state is JobState.READY
        await store.pause("acme", "default", paused=False)
        assert await ticket.wait(timeout=60) == "ran"


async def test_an_expired_lease_of_another_worker_is_taken_over(queue, store):
    @job(max_attempts=3, retry=RetryPolicy(base=timedelta(0)))
    async def nothing() -> str:
        return "ran"

    ticket = await queue.enqueue(nothing.message())
    await store.claim(ClaimRequest("acme", ("default",), 1, 1000, "dead"))
    async with serving(queue, nothing):
        await store.shift_clock(400_000)
        await until(queue, ticket, JobState.COMPLETED)
