"""Flows on every store, with real workers, which also lead them.

Invariants verified: a step runs after those it waits for, and once; what hangs on a failed step never runs, the rest
does; cancel takes the open steps along; a replay goes on where it failed; no other job is touched.
"""

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from holdfast import Flow, JobFailed, JobState, Message, Permanent, Worker, current_job
from holdfast.core.flow import plan_of, step_job
from holdfast.core.job import ClaimRequest, Finish, JobKey, Queued, Result
from holdfast.core.names import FLOWS
from holdfast.maintenance import flows
from holdfast.maintenance.system_jobs import SystemContext
from tests.eventually import eventually

PATIENCE_S = 20


class Handler:
    """Records the steps that ran. The payload says what to do."""

    def __init__(self):
        self.ran = []
        self.broken = {"broken"}
        self.gate = asyncio.Event()

    async def __call__(self, payload):
        job = current_job()
        self.ran.append(payload)
        if payload in self.broken:
            raise Permanent("it broke")
        if payload == "waits":
            await self.gate.wait()
        return {"did": payload, "flow": job.flow}


@asynccontextmanager
async def working(queue, handler):
    worker = Worker(queue, handler=handler, concurrency=5)
    task = asyncio.create_task(worker.run(signals=False))
    try:
        yield
    finally:
        await worker.stop()
        await task


def diamond():
    flow = Flow("report")
    extract = flow.add("extract", name="extract")
    left = flow.add("left", name="left", after=[extract])
    right = flow.add("right", name="right", after=[extract])
    flow.add("load", name="load", after=[left, right])
    return flow


async def states(queue, flow):
    record = await queue.flow(flow.id)
    return {step.name: step.state.value for step in record.steps}


async def test_steps_run_in_order_and_the_flow_has_their_results(queue):
    handler, flow = Handler(), diamond()
    ticket = await queue.start(flow)
    assert (ticket.status, ticket.id, ticket.queue) == ("queued", flow.id, FLOWS)
    assert await states(queue, flow) == {"extract": "ready", "left": "blocked", "right": "blocked", "load": "blocked"}
    async with working(queue, handler):
        found = await ticket.wait(PATIENCE_S)
        assert found["load"] == {"state": "completed", "result": {"did": "load", "flow": flow.id}}
        assert set(found) == {"extract", "left", "right", "load"}
        assert (handler.ran[0], set(handler.ran[1:3]), handler.ran[3]) == ("extract", {"left", "right"}, "load")
        record = await queue.flow(flow.id)
        assert (record.state, record.name, record.step("load").after) == ("completed", "report", ["left", "right"])
        step = record.step("load")
        assert (step.id, step.queue, step.state, step.attempts) == (f"{flow.id}/load", "default", "completed", 1)
        again = await queue.start(flow)
        assert (again.status, again.result) == ("completed", found)
        job = await queue.get(step.id)
        await eventually(lambda: queue.get(step.id), lambda job: job.expires_at - job.finished_at < timedelta(hours=2))
        assert job.result == {"did": "load", "flow": flow.id}
    assert len(handler.ran) == 4


async def test_steps_after_a_failed_one_wait_for_its_replay(queue):
    handler, flow = Handler(), Flow("report")
    good = flow.add("good", name="good")
    broken = flow.add("broken", name="broken", max_attempts=1)
    flow.add("after good", name="after good", after=[good])
    flow.add("after broken", name="after broken", after=[good, broken])
    ticket = await queue.start(flow)
    async with working(queue, handler):
        with pytest.raises(
            JobFailed, match=r"1 of 4 .*: broken \(failed: Permanent: it broke\).*started: after broken"
        ):
            await ticket.wait(PATIENCE_S)
        assert await states(queue, flow) == {
            "good": "completed", "broken": "failed", "after good": "completed", "after broken": "blocked"
        }  # fmt: skip
        assert "after broken" not in handler.ran
        kept = await eventually(
            lambda: queue.get(f"{flow.id}/good"), lambda job: job.expires_at - job.finished_at > timedelta(days=29)
        )
        assert kept.state is JobState.COMPLETED, "kept as long as the flow can be replayed"
        assert (await queue.start(flow)).status == "duplicate"

        await queue.replay(flow.id, queue=FLOWS)
        with pytest.raises(JobFailed):
            await queue.result(flow.id, queue=FLOWS, timeout=PATIENCE_S)
        handler.broken.clear()
        await queue.replay(flow.id, queue=FLOWS)
        await queue.result(flow.id, queue=FLOWS, timeout=PATIENCE_S)
    assert sorted(handler.ran) == ["after broken", "after good", "broken", "broken", "broken", "good"]
    replayed = [one async for one in queue.events() if one.kind == "replayed" and one.queue != FLOWS]
    assert [one.data.get("by") for one in replayed] == [f"flow:{flow.id}"] * 2


async def test_a_canceled_flow_cancels_its_open_steps(queue):
    handler, flow = Handler(), Flow("report")
    first = flow.add("first", name="first")
    flow.add("waits", name="waits", after=[first])
    flow.add("later", name="later", after=[first], delay=3600)
    ticket = await queue.start(flow)
    async with working(queue, handler):
        await eventually(lambda: "waits" in handler.ran)
        assert (await ticket.cancel()).status == "canceled"
        await eventually(lambda: states(queue, flow), lambda s: s["waits"] == s["later"] == "canceled")
        assert (await states(queue, flow))["first"] == "completed"
        assert (await ticket.cancel()).status == "canceled"
        fresh = await queue.start(flow)
        assert fresh.status == "queued", "a canceled id is free"
        await eventually(lambda: handler.ran.count("waits") == 2)
        handler.gate.set()
        await eventually(lambda: states(queue, flow), lambda s: s["first"] == s["waits"] == "completed")
    assert handler.ran.count("first") == 2, "it is another life, and its steps are others"


async def test_a_flow_is_canceled_with_its_steps_even_without_a_leader(queue):
    handler, flow = Handler(), Flow("report")
    flow.add("waits", queue="other")
    ticket = await queue.start(flow)
    async with working(queue, handler):
        await eventually(lambda: queue.get(f"{flow.id}/1", queue="other"))
    assert (await ticket.cancel()).status == "canceled"
    assert (await queue.get(f"{flow.id}/1", queue="other")).state is JobState.CANCELED


async def test_a_canceled_step_fails_the_flow_and_a_replay_enqueues_it_again(queue):
    handler, flow = Handler(), Flow("report")
    flow.add("one", name="one", delay=3600)
    ticket = await queue.start(flow)
    async with working(queue, handler):
        await eventually(lambda: queue.cancel(f"{flow.id}/one"), lambda answer: answer.status == "canceled")
        with pytest.raises(JobFailed, match=r"one \(canceled\)"):
            await ticket.wait(PATIENCE_S)
        await queue.replay(flow.id, queue=FLOWS)
        await eventually(lambda: states(queue, flow), lambda s: s == {"one": "scheduled"})
        await queue.store.shift_clock(3_600_000)
        await queue.result(flow.id, queue=FLOWS, timeout=PATIENCE_S)
    assert handler.ran == ["one"]


async def test_a_step_does_not_use_another_jobs_id(queue):
    flow = Flow("report")
    flow.add("ours", name="step")
    theirs = await queue.enqueue("theirs", id=f"{flow.id}/step", delay=3600)
    handler = Handler()
    async with working(queue, handler):
        ticket = await queue.start(flow)
        with pytest.raises(JobFailed, match="another job has the id"):
            await ticket.wait(PATIENCE_S)
        await ticket.cancel()
        assert (await theirs.refresh()).state is JobState.SCHEDULED
    assert handler.ran == []


async def test_a_step_waits_for_room_in_its_queue(queue, monkeypatch):
    monkeypatch.setattr(flows, "QUOTA_S", 0.05)
    handler, flow = Handler(), diamond()
    await queue.set_tenant(max_waiting=0, queue="default")
    ticket = await queue.start(flow)
    async with working(queue, handler):
        await eventually(lambda: queue.get(flow.id, queue=FLOWS), lambda job: job.state is JobState.LEASED)
        assert await states(queue, flow) == {
            "extract": "ready",
            "left": "blocked",
            "right": "blocked",
            "load": "blocked",
        }
        await queue.set_tenant(max_waiting=100, queue="default")
        await ticket.wait(PATIENCE_S)


async def test_a_new_leader_enqueues_no_step_twice(queue):
    """A process dies after it enqueued the first steps, and its lease expires."""
    flow = diamond()
    ticket = await queue.start(flow)
    (job,) = (await queue.store.claim(ClaimRequest(queue.tenant, (FLOWS,), 1, 1000, "dead"))).jobs
    leading = asyncio.create_task(flows.serve(job, WithoutHints(queue.store)))
    key = JobKey(queue.tenant, "default", f"{flow.id}/extract")
    await eventually(lambda: queue.get(key.id))
    leading.cancel()
    (step,) = (await queue.store.claim(ClaimRequest(queue.tenant, ("default",), 1, 30_000, "w"))).jobs
    await queue.store.finish([Finish(key, step.token, "complete", Result(b'"by hand"'))])
    await queue.store.shift_clock(1500)
    while (await queue.store.reap(10, 0.0)).jobs:
        pass
    handler = Handler()
    async with working(queue, handler):
        found = await ticket.wait(PATIENCE_S)
    assert found["extract"]["result"] == "by hand"
    assert sorted(handler.ran) == ["left", "load", "right"]
    assert (await queue.get(flow.id, queue=FLOWS)).attempts == 2


async def test_a_late_leader_does_not_enqueue_a_canceled_step_again(queue):
    """It has lost its lease and does not know it yet: its enqueues are the same requests, so nothing is new. [ENQ-8]"""
    flow = Flow("report")
    flow.add("one", name="one", delay=3600)
    await queue.start(flow)
    (job,) = (await queue.store.claim(ClaimRequest(queue.tenant, (FLOWS,), 1, 30_000, "late"))).jobs
    plan = plan_of(job.envelope)
    (first,) = await queue.store.enqueue([step_job(job, plan, 0)])
    assert (first.id, first.state) == (f"{flow.id}/one", JobState.SCHEDULED)
    await queue.cancel(first.id)
    (again,) = await queue.store.enqueue([step_job(job, plan, 0)])
    assert (again, (await queue.get(first.id)).state) == (Queued(first.id, JobState.CANCELED), JobState.CANCELED)


class WithoutHints(SystemContext):
    """A context that can wait, and never gets a hint."""

    async def changed(self, timeout_s):
        await asyncio.Event().wait()


async def test_a_flow_may_be_wide_and_have_large_results(queue):
    flow = Flow("wide")
    steps = [flow.add(Message.raw(n)) for n in range(150)]
    flow.add("x" * 1000, name="last", after=steps)
    ticket = await queue.start(flow)

    async def handler(payload):
        return "y" * 1000

    async with working(queue, handler):
        found = await ticket.wait(PATIENCE_S)
    assert {name: step["state"] for name, step in found.items()} == {step.name: "completed" for step in flow.steps}
    kept = [step.name for step in flow.steps if "result" in found[step.name]]
    assert kept == [step.name for step in flow.steps][-len(kept) :], "the last steps first, as far as they fit"
    assert 0 < len(kept) < len(flow.steps)
    assert all(found[name]["left_out"] == "too_large" for name in found.keys() - set(kept))
