"""Flows that a worker leads beside its own handlers."""

import asyncio
import time

import pytest

from holdfast import Flow, InvalidOption, Queue, Worker, current_job, job
from holdfast.blocking import current_job as blocking_current_job
from holdfast.core.job import JobKey
from holdfast.maintenance import coordinator


@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_handlers_that_block_the_event_loop_do_not_cost_a_flow_its_lease(plain_url, monkeypatch):
    monkeypatch.setattr(coordinator, "LEASE_MS", 1_000)

    async def handler(_):
        time.sleep(1.2)  # noqa: ASYNC251 - it blocks, for longer than the leader's lease

    async with Queue(plain_url, tenant="acme") as queue:
        flow = Flow("report", id="f")
        first = flow.add("one", name="one")
        flow.add("two", name="two", after=[first])
        ticket = await queue.start(flow)
        worker = Worker(queue, handler=handler)
        running = asyncio.create_task(worker.run())
        assert set(await ticket.wait(timeout=30)) == {"one", "two"}
        assert (await queue.get("f", queue="holdfast:flows")).attempts == 1
        kinds = [event.kind async for event in queue.events() if event.job_id == "f"]
        assert kinds == ["enqueued", "claimed", "completed"]
        await worker.stop()
        await running


@job
async def one() -> int:
    return 1


@job(queue="other")
async def two() -> str:
    return "two"


@job
async def both() -> list[object]:
    found = await current_job().results()
    return [found["one"], found["two"]]


@job
def both_in_a_thread() -> list[object]:
    found = blocking_current_job().results()
    return [found["one"], found["two"]]


@job
async def none() -> dict[str, object]:
    return await current_job().results()


async def test_a_step_reads_the_results_of_earlier_steps_in_one_call(tmp_path, monkeypatch):
    async with Queue(f"file:{tmp_path}", tenant="acme") as queue:
        flow = Flow("report")
        before = [flow.add(one.message(), name="one"), flow.add(two.message(), name="two")]
        flow.add(both.message(), name="async", after=before)
        flow.add(both_in_a_thread.message(), name="thread", after=before)
        flow.add(none.message(), name="none")
        ticket = await queue.start(flow)
        worker = Worker(queue, jobs=[one, two, both, both_in_a_thread, none])
        running = asyncio.create_task(worker.run())
        steps = await ticket.wait(timeout=30)
        await worker.stop()
        await running
        shown = [steps[name]["result"] for name in ("async", "thread", "none")]
        assert shown == [[1, "two"], [1, "two"], {}]
        keys = {step.name: JobKey("acme", step.queue, step.id) for step in (await queue.flow(flow.id)).steps[:2]}
        asked, real = [], queue.store.get

        async def counted(keys):
            asked.append(len(keys))
            return await real(keys)

        monkeypatch.setattr(queue.store, "get", counted)
        assert await queue.results_of(keys) == {"one": 1, "two": "two"}
        assert asked == [2]


async def test_a_job_outside_a_flow_has_no_results_of_steps():
    with pytest.raises(InvalidOption, match="no step of a flow"):
        current_job().results()
