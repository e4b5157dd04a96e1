"""How a flow is led, seen from the store: what is looked at, what is asked for, and what the flow gives."""

import itertools

import msgspec
import pytest

from holdfast import Flow, Queue
from holdfast.core.job import AttemptError, ClaimRequest, Finish, Result
from holdfast.core.names import FLOWS
from holdfast.maintenance import conductor
from tests.unit.running import claim, finish

LATER_MS = 301_000
_numbers = itertools.count()


@pytest.fixture
async def queue():
    async with Queue(f"memory:conductor-{next(_numbers)}?test_clock=frozen", tenant="acme") as queue:
        yield queue


class Passing(conductor.Place):
    """Where nobody waits: the flow is given back at once."""

    watched = frozenset()

    def watch(self, keys):
        self.watched = frozenset(keys)


async def lead(queue, flow=None):
    """One turn of a flow."""
    if flow is not None:
        await queue.start(flow)
    (job,) = (await queue.store.claim(ClaimRequest("acme", (FLOWS,), 1, 30_000, "c"))).jobs
    at = Passing(queue.store)
    ending = await conductor.conduct(job, at)
    await queue.store.finish([ending])
    return ending, at


def counting(monkeypatch, store, name):
    asked, real = [], getattr(store, name)

    async def counted(items, **more):
        asked.extend(items)
        return await real(items, **more)

    monkeypatch.setattr(store, name, counted)
    return asked


@pytest.mark.parametrize(
    "data, shown",
    [
        (msgspec.msgpack.encode({(1, 2): 3}), {}),
        (msgspec.msgpack.encode(msgspec.msgpack.Ext(5, b"x")), {}),
        (msgspec.msgpack.encode([1, "x"]), {"result": [1, "x"]}),
    ],
)
async def test_a_result_that_json_cannot_hold_is_left_out(queue, data, shown):
    flow = Flow("report")
    flow.add(1, name="one")
    await lead(queue, flow)
    (job,) = await claim(queue, "default")
    await queue.store.finish([Finish(job.key, job.token, "complete", Result(data, "msgpack"))])
    await queue.store.shift_clock(LATER_MS)
    ending, _ = await lead(queue)
    assert ending.outcome == "complete"
    assert msgspec.json.decode(ending.result.data) == {"one": {"state": "completed", **shown}}


async def test_results_that_are_larger_in_json_are_left_out_together(queue):
    flow = Flow("report")
    flow.add(1, name="one")
    await lead(queue, flow)
    (job,) = await claim(queue, "default")
    data = msgspec.msgpack.encode("\0" * 100_000)
    await queue.store.finish([Finish(job.key, job.token, "complete", Result(data, "msgpack"))])
    await queue.store.shift_clock(LATER_MS)
    ending, _ = await lead(queue)
    assert msgspec.json.decode(ending.result.data) == {"one": {"state": "completed"}}


async def test_only_steps_whose_turn_has_come_are_watched_and_looked_at(queue, monkeypatch):
    flow = Flow("report")
    first = flow.add(1, name="first")
    for n in range(300):
        flow.add(n, name=f"later {n}", after=[first])
    looked = counting(monkeypatch, queue.store, "get")
    _, at = await lead(queue, flow)
    assert ({key.id for key in at.watched}, len(looked)) == ({f"{flow.id}/first"}, 100)
    (job,) = await claim(queue, "default")
    await queue.store.finish([Finish(job.key, job.token, "complete", Result(b"1"))])
    await queue.store.shift_clock(LATER_MS)
    _, at = await lead(queue)
    assert len(at.watched) == 300
    assert len(await queue.list(limit=1000)) == 301


async def test_whoever_takes_over_sees_a_long_chain_in_few_looks(queue, monkeypatch):
    flow = Flow("report")
    step = flow.add(0)
    for n in range(1, 120):
        step = flow.add(n, after=[step])
    await lead(queue, flow)
    for _ in range(110):
        (job,) = await claim(queue, "default")
        await queue.store.finish([Finish(job.key, job.token, "complete", Result(b"1"))])
        await queue.store.shift_clock(LATER_MS)
        await lead(queue)
    looked = counting(monkeypatch, queue.store, "get")
    (job,) = await claim(queue, "default")
    await queue.store.shift_clock(LATER_MS)
    _, at = await lead(queue)
    assert (job.key.id, {key.id for key in at.watched}) == (f"{flow.id}/111", {f"{flow.id}/111"})
    assert len(looked) == 120


async def test_a_replay_asks_a_full_queue_once_and_goes_on_when_there_is_room(queue, monkeypatch):
    flow = Flow("report")
    for n in range(150):
        flow.add(n, max_attempts=1)
    await lead(queue, flow)
    for job in await claim(queue, "default", limit=150):
        await finish(queue, job, "fail")
    await queue.store.shift_clock(LATER_MS)
    assert (await lead(queue))[0].outcome == "fail"
    await queue.replay(flow.id, queue=FLOWS)
    await queue.set_tenant(max_waiting=0, queue="default")
    asked = counting(monkeypatch, queue.store, "replay")
    assert (await lead(queue))[0].outcome == "release"
    assert len(asked) == 100
    await queue.set_tenant(max_waiting=1000, queue="default")
    await queue.store.shift_clock(LATER_MS)
    await lead(queue)
    assert len(await claim(queue, "default", limit=150)) == 150


async def test_a_step_shows_an_error_only_while_that_is_what_has_become_of_it(queue):
    flow = Flow("report")
    flow.add(1, name="one", max_attempts=2)
    await lead(queue, flow)

    async def shown():
        step = (await queue.flow(flow.id)).step("one")
        return step.state.value, step.error

    (job,) = await claim(queue)
    error = AttemptError("OSError", "it is away")
    await queue.store.finish([Finish(job.key, job.token, "retry", error=error, delay_ms=1000)])
    assert await shown() == ("retrying", "OSError: it is away")
    await queue.store.shift_clock(1000)
    (job,) = await claim(queue)
    assert await shown() == ("leased", None)
    await finish(queue, job, "fail")
    assert await shown() == ("failed", "ValueError: it broke")
    await queue.store.shift_clock(LATER_MS)
    assert (await lead(queue))[0].outcome == "fail"
    await queue.replay(flow.id, queue=FLOWS)
    await lead(queue)
    assert await shown() == ("ready", None)
    await finish(queue, (await claim(queue))[0])
    assert await shown() == ("completed", None)


async def lose(queue, times):
    """Let so many leases of the flow end with their holders."""
    for _ in range(times):
        await queue.store.shift_clock(LATER_MS)
        assert len(await claim(queue, FLOWS)) == 1
        await queue.store.shift_clock(LATER_MS)
        await queue.store.reap(10, 0.0)
    await queue.store.shift_clock(LATER_MS)


async def broken(queue):
    """A flow of which a step failed and another was canceled, as it is after its failure."""
    flow = Flow("report")
    flow.add(1, name="one")
    flow.add(2, name="two")
    flow.add(3, name="three")
    await lead(queue, flow)
    for job, outcome in zip(await claim(queue, limit=2), ("complete", "fail"), strict=True):
        await finish(queue, job, outcome)
    await queue.cancel(f"{flow.id}/three")
    await queue.store.shift_clock(LATER_MS)
    assert (await lead(queue))[0].outcome == "fail"
    return flow


async def test_lost_leases_do_not_make_a_replayed_flow_forget_which_steps_to_start_again(queue):
    """Ten of them push its failure out of the errors that are kept. [RETRY-4]"""
    flow = await broken(queue)
    for _ in range(2):
        await queue.replay(flow.id, queue=FLOWS)
        await lose(queue, 12)
        assert (await lead(queue))[0].outcome == "release"
        jobs = await claim(queue, limit=5)
        assert sorted(job.id for job in jobs) == [f"{flow.id}/three", f"{flow.id}/two"]
        for job in jobs:
            await finish(queue, job, "fail")
        # What fails now fails the flow: nothing is started a second time.
        await lose(queue, 12)
        assert (await lead(queue))[0].outcome == "fail"
        assert (await queue.flow(flow.id)).step("two").state == "failed"


async def test_a_flow_that_failed_with_those_who_led_it_tells_which_steps_had_failed(queue):
    flow = await broken(queue)
    await queue.replay(flow.id, queue=FLOWS)
    await lose(queue, 100)
    found = await queue.flow(flow.id)
    assert (found.state, found.error.partition("; ")[2]) == (
        "failed",
        "steps that did not complete: two (failed), three (canceled)",
    )


async def test_a_full_queue_is_asked_once_and_holds_up_no_other(queue, monkeypatch, caplog):
    await queue.set_tenant(max_waiting=0, queue="full")
    flow = Flow("report")
    for n in range(250):
        flow.add(n, queue="full")
    flow.add("x", name="last", queue="other")
    asked = counting(monkeypatch, queue.store, "enqueue")
    await lead(queue, flow)
    steps = [new for new in asked if new.key.queue != FLOWS]
    assert (len(steps), caplog.text.count("a step waits for room")) == (101, 1)
    assert [job.id for job in await queue.list(queue="other")] == [f"{flow.id}/last"]
