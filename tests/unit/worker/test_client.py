"""What a handler reaches by `current_job().client`: the Queue of its job's tenant, on the worker's store."""

import asyncio
import gc
from datetime import timedelta

import pytest

from holdfast import InvalidOption, PartlyRefused, Queue, RetryPolicy, Worker, blocking, current_job, job
from holdfast.core.job import JobState
from tests.unit.worker import process_jobs
from tests.unit.worker.serving import run, serving, until


@job(queue="later")
async def later(n: int = 0) -> int:
    return n


async def test_an_async_handler_enqueues_through_the_queue_of_its_job(queue):
    @job
    async def first() -> list[str]:
        me = current_job()
        async with me.client as client:  # Its end takes it from no other worker.
            ticket = await client.enqueue(later.message(1), id="a")
        again = await me.enqueue(later.message(1), id="a")
        return [me.client.tenant, me.client.name, me.queue, ticket.status, again.status]

    async with serving(queue, first, later):
        found = await queue.enqueue_and_wait(first.message(), timeout=60)
        assert found == ["acme", "default", "default", "queued", "duplicate"]
        assert await queue.result("a", queue="later", timeout=60) == 1
        assert await queue.enqueue_and_wait(first.message(), timeout=60) == [*found[:3], "completed", "completed"]


async def test_a_plain_function_does_the_same_without_await(queue):
    @job
    def first() -> list[object]:
        client = current_job().client
        with client as same:
            ticket = same.enqueue(later.message(2), id="b")
        with pytest.raises(PartlyRefused) as caught:
            client.enqueue_many([later.message(3), float("nan")])
        kept, refused = caught.value.tickets
        return [
            isinstance(client, blocking.Queue),
            isinstance(ticket, blocking.Ticket),
            ticket.wait(timeout=60),
            current_job().enqueue(later.message(), id="b").status,
            [kept.status, refused.status],
            sum(1 for _ in client.events()) > 0,
        ]

    async with serving(queue, first, later):
        found = await queue.enqueue_and_wait(first.message(), timeout=10)
        assert found == [True, True, 2, "completed", ["queued", "refused"], True]


async def test_a_handlers_own_event_loop_can_await_it_too(queue):
    @job
    def first() -> list[object]:
        async def inside() -> list[object]:
            client = current_job().client

            async def source():
                yield later.message(4)

            async with client:
                (ticket,) = await client.enqueue_many(source())
            result = await ticket.wait(timeout=60)
            kinds = {event.kind async for event in client.events()}
            return [result, (await ticket.refresh()).state, "completed" in kinds, client.tenant]

        return asyncio.run(inside())

    async with serving(queue, first, later):
        assert await queue.enqueue_and_wait(first.message(), timeout=10) == [4, "completed", True, "acme"]


async def test_a_worker_for_all_tenants_enqueues_to_the_tenant_of_each_job(store):
    """[TENANT-1]"""

    @job
    async def spread() -> str:
        return (await current_job().enqueue(later.message(), id="x")).tenant

    worker = Worker.for_all_tenants(store, jobs=[spread], worker_id="w")
    async with run(worker):
        for tenant in ("acme", "other"):
            async with Queue(store=store, tenant=tenant) as queue:
                assert await queue.enqueue_and_wait(spread.message(), timeout=60) == tenant
                assert (await queue.get("x", queue="later")).tenant == tenant
        gc.collect()
        assert not worker._loop._runner._clients._queues, "unused queues are dropped"


@pytest.mark.parametrize("definition", [process_jobs.enqueue_another, process_jobs.await_another])
async def test_a_job_in_a_process_opens_the_store_by_its_url(tmp_path, definition):
    async with Queue(f"file:{tmp_path}", tenant="acme") as queue:
        worker = Worker(queue, jobs=[definition])
        task = asyncio.create_task(worker.run(signals=False))
        found = await queue.enqueue_and_wait(definition.message("new"), timeout=30)
        assert found[:2] == ["acme", "queued"]
        assert found[2] in ("duplicate", "new")
        assert (await queue.get("new", queue="other")).state is JobState.READY
        await worker.stop()
        await task


async def test_a_job_in_a_process_says_that_a_memory_store_cannot_be_opened(queue):
    definition = process_jobs.enqueue_another
    async with serving(queue, definition):
        job_ = await until(queue, await queue.enqueue(definition.message("x"), max_attempts=1), patience=30)
        assert job_.errors[0].type == "InvalidOption"
        assert "executor='process' cannot reach the worker's store" in job_.errors[0].message


async def test_a_repeated_handler_enqueues_one_job_by_its_id(queue):
    runs = []

    @job(retry=RetryPolicy(base=timedelta(0), jitter="none"))
    async def twice() -> None:
        me = current_job()
        runs.append((await me.enqueue(later.message(), id=f"{me.id}-next")).status)
        if len(runs) == 1:
            raise RuntimeError("once more")

    async with serving(queue, twice):
        await queue.enqueue_and_wait(twice.message(), timeout=60)
    assert runs == ["queued", "duplicate"]


def test_a_plain_call_has_no_queue_and_says_where_to_find_one():
    for use in (lambda: current_job().client, lambda: current_job().enqueue(later.message())):
        with pytest.raises(InvalidOption, match="inline_queue"):
            use()
