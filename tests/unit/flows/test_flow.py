"""Flows as they are put together: what is refused, and in whose words."""

import pytest

from holdfast import Flow, InvalidName, InvalidOption, PayloadTooLarge, Queue, Worker, blocking, current_job, job
from holdfast.core.errors import UnknownCodec
from holdfast.core.flow import Plan, Step, Turns, check_plan, in_order, plan_of, shown_state, step_job
from holdfast.core.job import Cancel, Envelope, JobState
from holdfast.core.names import FLOWS
from holdfast.testing import inline_queue
from tests.unit.running import asynchronous, claim, memory_queue, run_one

READY, LEASED, COMPLETED, FAILED = JobState.READY, JobState.LEASED, JobState.COMPLETED, JobState.FAILED


def plan(*after):
    return Plan(1, "p", tuple(Step(str(n), "default", Envelope("", b"1"), others) for n, others in enumerate(after)))


DIAMOND = plan((), (0,), (0,), (1, 2))


@pytest.mark.parametrize(
    "states, now, over",
    [
        ({}, [0], False),
        ({0: LEASED}, [], False),
        ({0: COMPLETED}, [1, 2], False),
        ({0: COMPLETED, 1: COMPLETED, 2: LEASED}, [], False),
        ({0: COMPLETED, 1: FAILED, 2: LEASED}, [], False),
        ({0: COMPLETED, 1: FAILED, 2: COMPLETED}, [], True),
        ({0: FAILED}, [], True),
        ({0: COMPLETED, 1: COMPLETED, 2: COMPLETED}, [3], False),
        (dict.fromkeys(range(4), COMPLETED), [], True),
    ],
)
def test_a_step_may_start_when_all_steps_before_it_have_completed(states, now, over):
    turns = Turns(DIAMOND)
    for place, state in states.items():
        for _ in range(2):
            turns.put(place, state)
    assert (sorted(turns.ready), turns.over) == (now, over)


def test_a_step_whose_job_is_gone_may_start_again():
    turns = Turns(DIAMOND)
    turns.put(0, COMPLETED)
    turns.put(1, JobState.CANCELED)
    turns.drop(1)
    turns.drop(3)
    assert (sorted(turns.ready), turns.states, turns.over) == ([1, 2], {0: COMPLETED}, False)


def test_a_plan_with_too_many_edges_is_refused():
    wide = plan(*((),) * 101, *(tuple(range(101)),) * 99)
    assert check_plan(wide, "f") is wide
    with pytest.raises(InvalidOption, match="wait for 10100 others in all, 10000 are allowed"):
        check_plan(plan(*((),) * 101, *(tuple(range(101)),) * 100), "f")


def test_a_step_without_a_job_is_blocked_or_ready():
    assert shown_state(DIAMOND, 0, {}, READY) is READY
    assert shown_state(DIAMOND, 1, {0: LEASED}, LEASED) is JobState.BLOCKED
    assert shown_state(DIAMOND, 1, {0: COMPLETED}, LEASED) is READY
    assert shown_state(DIAMOND, 1, {0: COMPLETED}, FAILED) is JobState.BLOCKED
    assert shown_state(DIAMOND, 1, {}, COMPLETED) is COMPLETED, "its record is gone, and all have completed"


def test_steps_are_put_in_order_and_circles_are_refused():
    assert in_order({"c": ["a", "b"], "b": ["a"], "a": []}) == ["a", "b", "c"]
    with pytest.raises(InvalidOption, match=r"in a cycle: '[ab]' before '[ab]' before '[ab]'"):
        in_order({"a": ["b"], "b": ["a"], "c": []})
    with pytest.raises(InvalidOption, match="no such step"):
        in_order({"a": ["b"]})


def test_a_step_that_cannot_be_added_is_refused_with_the_reason():
    flow, other = Flow("report"), Flow("other")
    first = flow.add(1)
    assert (first.name, flow.add(2).name) == ("1", "2")
    for options, reason in (
        ({"after": [other.add(1)]}, "of another flow"),
        ({"after": first}, r"after=\[step\]"),
        ({"after": ["1"]}, "is not a step"),
        ({"name": "1"}, "already"),
        ({"id": "mine"}, "is not for steps"),
        ({"idempotency_key": "k"}, "is not for steps"),
        ({"priority": 10}, "priority"),
    ):
        with pytest.raises(InvalidOption, match=reason):
            flow.add(3, **options)
    for name in ("", "a/b", "x" * 101, "a\n"):
        with pytest.raises(InvalidName):
            flow.add(3, name=name)
    for make in (lambda: Flow("no good"), lambda: Flow("report", "x" * 100), lambda: Flow("report", "")):
        with pytest.raises(InvalidName):
            make()
    for _ in range(998):
        flow.add(1)
    with pytest.raises(InvalidOption, match="1000 steps"):
        flow.add(1)


@asynchronous
async def test_an_empty_or_too_large_flow_is_refused():
    async with memory_queue() as queue:
        with pytest.raises(InvalidOption, match="has no steps"):
            await queue.start(Flow("report"))
        flow = Flow("report")
        for _ in range(3):
            flow.add("x" * 100_000)
        with pytest.raises(PayloadTooLarge):
            await queue.start(flow)
        assert await queue.flow(flow.id) is None
        assert await queue.queues() == []


@asynchronous
async def test_reserved_queues_are_refused():
    queue = memory_queue()
    makers = (
        lambda: Queue("memory:", tenant="acme", name="holdfast:mine"),
        lambda: Worker(queue, handler=print, queues=["holdfast:flows"]),
        lambda: job(queue="holdfast:x"),
        lambda: Flow("f").add(1, queue="holdfast:flows"),
    )
    for make in makers:
        with pytest.raises(InvalidName, match="reserved for schedules and flows"):
            make()
    async with queue:
        with pytest.raises(InvalidName, match="reserved for"):
            await queue.enqueue(1, queue="holdfast:flows")
        refused, taken = await queue.enqueue_many([1, 2], queue="holdfasty")
        assert refused.status == taken.status == "queued"


@asynchronous
async def test_the_steps_of_a_canceled_flow_that_is_forgotten_at_once_are_canceled():
    async with memory_queue(url="memory:forgetful?test_clock=frozen&keep_canceled_s=0") as queue:
        flow = Flow("report")
        flow.add(1, name="one")
        ticket = await queue.start(flow)
        (job,) = await claim(queue, FLOWS)
        await queue.store.enqueue([step_job(job, plan_of(job.envelope), 0)])
        await ticket.cancel()
        left = await queue.get(f"{flow.id}/one")
        assert left is None or left.state is JobState.CANCELED


@asynchronous
async def test_a_second_cancel_ends_the_steps_that_the_first_one_missed():
    async with memory_queue() as queue:
        flow = Flow("report")
        flow.add(1, name="one")
        ticket = await queue.start(flow)
        (job,) = await claim(queue, FLOWS)
        await queue.store.enqueue([step_job(job, plan_of(job.envelope), 0)])
        await queue.store.cancel([Cancel(job.key)])  # Who did that died here.
        assert (await queue.get(f"{flow.id}/one")).state is READY
        await ticket.cancel()
        assert (await queue.get(f"{flow.id}/one")).state is JobState.CANCELED


def test_blocking_code_starts_reads_and_cancels_flows():
    with blocking.Queue("memory:blocking-flows", tenant="acme") as queue:
        flow = Flow("report", "f1")
        flow.add(1, name="first")
        ticket = queue.start(flow)
        assert (ticket.status, queue.start(flow).status) == ("queued", "duplicate")
        assert [step.name for step in queue.flow("f1").steps] == ["first"]
        assert ticket.cancel().status == "canceled"
        assert queue.flow("f1").state is JobState.CANCELED


@asynchronous
async def test_a_flow_of_a_newer_version_is_left_to_a_newer_process():
    async with memory_queue() as queue:
        flow = Flow("report")
        flow.add(1)
        await queue.start(flow)
        found = await run_one(queue, "holdfast:flows", outcome="release")
    assert [step.name for step in plan_of(found.envelope).steps] == ["1"]
    with pytest.raises(UnknownCodec, match="version 2"):
        plan_of(Envelope("report", b"\x93\x02\xa1x\x90", "msgpack"))


@asynchronous
async def test_the_inline_queue_advances_flows():
    seen = []

    @job
    async def extract(n: int) -> int:
        seen.append(current_job().flow)
        return n

    @job(max_attempts=2)
    async def load() -> str:
        if len(seen) == 2:
            seen.append("broken")
            raise ValueError("try again")
        return "loaded"

    async with inline_queue(tenant="acme") as queue:
        flow = Flow("report", "f1")
        steps = [flow.add(extract.message(n)) for n in range(2)]
        flow.add(load.message(), name="load", after=steps)
        ticket = await queue.start(flow)
        assert await queue.drain() == 3
        assert (await queue.flow("f1")).step("load").state is JobState.RETRYING
        await queue.advance(hours=1)
        assert await queue.drain() == 1
        found = await ticket.wait(1)
        assert found["load"] == {"state": "completed", "result": "loaded"}
        assert seen == ["f1", "f1", "broken"]
        assert await queue.drain() == 0
