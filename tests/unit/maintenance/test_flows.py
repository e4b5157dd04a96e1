"""How a flow is led, seen from the store: what is looked at, what is asked for, and what the flow gives."""

import asyncio
import itertools

import msgspec
import pytest

from holdfast import Flow, JobCanceled, JobNotFound, LeaseExpired, LeaseLost, Queue
from holdfast.core.job import AttemptError, Cancel, ClaimRequest, Finish, JobKey, Result
from holdfast.core.names import FLOWS
from holdfast.maintenance import flows
from holdfast.maintenance.system_jobs import SystemContext
from tests.unit.running import claim, finish

LATER_MS = 301_000
_numbers = itertools.count()


@pytest.fixture
async def queue():
    async with Queue(f"memory:flows-{next(_numbers)}?test_clock=frozen", tenant="acme") as queue:
        yield queue


class Passing(SystemContext):
    """Without a wait: the flow is released at once."""

    watched = frozenset()

    def watch(self, keys):
        self.watched = frozenset(keys)


async def lead(queue, flow=None):
    """One turn of a flow."""
    if flow is not None:
        await queue.start(flow)
    (job,) = (await queue.store.claim(ClaimRequest("acme", (FLOWS,), 1, 30_000, "c"))).jobs
    at = Passing(queue.store)
    ending = await flows.serve(job, at)
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
        (msgspec.msgpack.encode({(1, 2): 3}), {"left_out": "not_json"}),
        (msgspec.msgpack.encode(msgspec.msgpack.Ext(5, b"x")), {"left_out": "not_json"}),
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


async def test_a_result_that_is_too_large_in_json_is_left_out(queue):
    flow = Flow("report")
    flow.add(1, name="one")
    await lead(queue, flow)
    (job,) = await claim(queue, "default")
    data = msgspec.msgpack.encode("\0" * 100_000)
    await queue.store.finish([Finish(job.key, job.token, "complete", Result(data, "msgpack"))])
    await queue.store.shift_clock(LATER_MS)
    ending, _ = await lead(queue)
    assert msgspec.json.decode(ending.result.data) == {"one": {"state": "completed", "left_out": "too_large"}}


async def test_the_result_of_a_flow_keeps_the_last_steps_first(queue):
    sizes = {"first": 30_000, "second": 100_000, "third": 90_000, "none": 0}
    flow = Flow("report")
    before = []
    for name in sizes:
        before = [flow.add(name, name=name, after=before)]
    await lead(queue, flow)
    for size in sizes.values():
        (job,) = await claim(queue, "default")
        result = Result(msgspec.json.encode("x" * (size - 2))) if size else None
        await queue.store.finish([Finish(job.key, job.token, "complete", result)])
        await queue.store.shift_clock(LATER_MS)
        ending, _ = await lead(queue)
    shown = msgspec.json.decode(ending.result.data)
    assert {name: len(step.get("result", "")) for name, step in shown.items()} == {
        "first": 29_998, "second": 0, "third": 89_998, "none": 0,
    }  # fmt: skip
    assert [step.get("left_out") for step in shown.values()] == [None, "too_large", None, None]


async def test_many_long_names_and_large_results_fit_into_the_result_of_the_flow(queue):
    flow = Flow("report")
    for n in range(1_000):
        flow.add(n, name=f"{n:04}" + '"' * 96)
    await lead(queue, flow)
    data = msgspec.json.encode("x" * 1_000)
    for _ in range(10):
        jobs = await claim(queue, "default", limit=100)
        await queue.store.finish([Finish(job.key, job.token, "complete", Result(data)) for job in jobs])
    await queue.store.shift_clock(LATER_MS)
    ending, _ = await lead(queue)
    assert len(ending.result.data) <= 256 * 1024
    shown = list(msgspec.json.decode(ending.result.data).values())
    kept = [n for n, step in enumerate(shown) if "result" in step]
    assert all(step.get("left_out") == "too_large" for step in shown[: 1_000 - len(kept)])
    assert kept == list(range(1_000 - len(kept), 1_000))


async def test_only_running_steps_are_watched_and_read(queue, monkeypatch):
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


async def test_a_new_leader_reads_a_long_chain_in_few_calls(queue, monkeypatch):
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


async def test_a_replay_tries_a_full_queue_once_and_continues_when_there_is_room(queue, monkeypatch):
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


async def test_a_step_shows_an_error_only_while_it_has_failed(queue):
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
    """Let this many leases of the flow end with their leaders."""
    for _ in range(times):
        await queue.store.shift_clock(LATER_MS)
        assert len(await claim(queue, FLOWS)) == 1
        await queue.store.shift_clock(LATER_MS)
        await queue.store.reap(10, 0.0)
    await queue.store.shift_clock(LATER_MS)


async def broken(queue):
    """A flow after its failure: one step failed and another was canceled."""
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
    """Ten of them remove its failure from the errors that are kept. [RETRY-4]"""
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


async def test_a_flow_whose_leaders_died_names_its_failed_steps(queue):
    flow = await broken(queue)
    await queue.replay(flow.id, queue=FLOWS)
    await lose(queue, 100)
    found = await queue.flow(flow.id)
    assert (found.state, found.error.partition("; ")[2]) == (
        "failed",
        "steps that did not complete: two (failed), three (canceled)",
    )


async def test_a_full_queue_is_tried_once_and_delays_no_other(queue, monkeypatch, caplog):
    await queue.set_tenant(max_waiting=0, queue="full")
    flow = Flow("report")
    for n in range(250):
        flow.add(n, queue="full")
    flow.add("x", name="last", queue="other")
    asked = counting(monkeypatch, queue.store, "enqueue")
    await lead(queue, flow)
    steps = [new for new in asked if new.key.queue != FLOWS]
    assert (len(steps), caplog.text.count("a step waits for its tenant's quota")) == (101, 1)
    assert [job.id for job in await queue.list(queue="other")] == [f"{flow.id}/last"]


# Leaders that come late, or again and again -----------------------------------------------------------------------


class Held(SystemContext):
    """A leader whose next call of `verb` waits until it may continue."""

    def __init__(self, store, verb):
        super().__init__(store)
        self.reached, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.store, self._verb, self._real = self, verb, store

    def __getattr__(self, name):
        call = getattr(self._real, name)

        async def later(*args, **more):
            self.reached.set()
            await self.may_go_on.wait()
            return await call(*args, **more)

        return later if name == self._verb else call


async def claimed_flow(queue):
    (job,) = (await queue.store.claim(ClaimRequest("acme", (FLOWS,), 1, 30_000, "c"))).jobs
    return job


@pytest.mark.parametrize("end", ["canceled", "lost", "taken over", "gone"])
async def test_a_batch_after_the_end_of_the_lease_starts_no_step(queue, end):
    flow = Flow("report")
    for n in range(3):
        flow.add(n)
    await queue.start(flow)
    late = Held(queue.store, "enqueue")
    leading = asyncio.create_task(flows.serve(await claimed_flow(queue), late))
    await late.reached.wait()
    if end in ("canceled", "gone"):
        await queue.cancel(flow.id, queue=FLOWS)
        if end == "gone":
            await queue.purge(flow.id, queue=FLOWS)
    else:
        await queue.store.shift_clock(LATER_MS)
        if end == "taken over":
            await queue.store.reap(10, 0.0)
            await queue.store.shift_clock(LATER_MS)
            await claimed_flow(queue)
    late.may_go_on.set()
    with pytest.raises((JobCanceled, JobNotFound, LeaseExpired, LeaseLost)):
        await leading
    assert await queue.list() == []


async def test_a_late_replay_does_not_start_the_steps_of_a_canceled_flow(queue):
    flow = Flow("report")
    flow.add("charge", max_attempts=1)
    await lead(queue, flow)
    (job,) = await claim(queue, "default")
    await finish(queue, job, "fail")
    await queue.store.shift_clock(LATER_MS)
    assert (await lead(queue))[0].outcome == "fail"
    await queue.replay(flow.id, queue=FLOWS)
    late = Held(queue.store, "replay")
    leading = asyncio.create_task(flows.serve(await claimed_flow(queue), late))
    await late.reached.wait()
    await queue.cancel(flow.id, queue=FLOWS)
    late.may_go_on.set()
    with pytest.raises(JobCanceled):
        await leading
    assert await claim(queue, "default") == []


@pytest.mark.parametrize("verb", ["cancel", "purge"])
async def test_a_late_leader_does_not_change_the_steps_of_the_next(queue, verb):
    def flow():
        made = Flow("report", id="f")
        made.add("charge", name="a")
        made.add("later", name="z", delay=3600)
        return made

    await lead(queue, flow())
    (job,) = await claim(queue, "default")
    if verb == "purge":
        await finish(queue, job)
    await queue.store.cancel([Cancel(JobKey("acme", FLOWS, "f"))])  # No process is left to cancel the steps.
    await queue.purge("f", queue=FLOWS)
    await queue.start(flow())
    late = Held(queue.store, verb)
    leading = asyncio.create_task(flows.serve(await claimed_flow(queue), late))
    await late.reached.wait()
    await queue.store.shift_clock(LATER_MS)
    await queue.store.reap(10, 0.0)
    await queue.store.shift_clock(LATER_MS)
    await lead(queue)
    (job,) = await claim(queue, "default")
    await finish(queue, job)
    late.may_go_on.set()
    with pytest.raises((LeaseExpired, LeaseLost)):
        await leading
    assert (await queue.get("f/a")).state == "completed"


async def lose_leases(queue, times, every_ms=LATER_MS):
    """Leases of the flow that end with their leaders."""
    for _ in range(times):
        await claimed_flow(queue)
        await queue.store.shift_clock(every_ms)
        await queue.store.reap(10, 0.0)
    await queue.store.shift_clock(LATER_MS)


async def test_lost_leases_do_not_fail_a_flow_that_makes_progress(queue):
    flow = Flow("report")
    step = None
    for n in range(4):
        step = flow.add(n, after=[step] if step else [])
    await lead(queue, flow)
    for _ in range(4):
        await queue.store.shift_clock(LATER_MS)
        await lose_leases(queue, 60, 61_000)
        (job,) = await claim(queue, "default")
        await finish(queue, job)
        ending, _ = await lead(queue)
        assert (ending.outcome, ending.forgive) == ("release", True)
        assert (await queue.get(flow.id, queue=FLOWS)).attempts == 0
        ending, _ = await lead(queue)
    assert ending.outcome == "complete"


async def test_leases_lost_over_hours_do_not_fail_a_flow(queue):
    flow = Flow("report")
    flow.add("long")
    await lead(queue, flow)
    assert len(await claim(queue, "default")) == 1
    await queue.store.shift_clock(LATER_MS)
    await lose_leases(queue, 60, 600_000)
    assert (await lead(queue))[0].forgive


async def test_a_flow_that_kills_its_leaders_becomes_a_dead_letter(queue):
    flow = Flow("report")
    flow.add("long", delay=90 * 86_400)
    await lead(queue, flow)
    await queue.store.shift_clock(LATER_MS)
    await lose_leases(queue, 60, 61_000)
    assert not (await lead(queue))[0].forgive
    await queue.store.shift_clock(LATER_MS)
    await lose_leases(queue, 40, 61_000)
    assert (await queue.get(flow.id, queue=FLOWS)).state == "failed"
