from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from holdfast import JobFailed, JobState, Message, Permanent, Queue, RetryLater, current_job, job
from holdfast.testing import assert_enqueued, assert_not_enqueued, enqueued, inline_queue
from holdfast.testing.blocking import inline_queue as blocking_inline_queue
from tests.unit.running import asynchronous

ran: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_ran():
    ran.clear()


@job(queue="emails", max_attempts=3)
async def send_email(to: str, template: str = "welcome") -> str:
    if to == "broken":
        raise ValueError("it broke")
    if to == "hopeless":
        raise Permanent("no such address")
    if to == "later" and current_job().attempt == 1 and "later" not in ran:
        ran.append("later")
        raise RetryLater(delay=timedelta(minutes=10))
    current_job().progress(0.5, "rendered")
    ran.append(to)
    return f"{template} -> {to}"


@job
def add(a: int, b: int) -> int:
    ran.append((a, b))
    return a + b


async def signup(queue: Queue, address: str) -> None:
    await queue.enqueue(send_email.message(address), delay=timedelta(minutes=5))


@asynchronous
async def test_the_example_of_the_documentation():
    async with inline_queue(tenant="acme") as queue:
        await signup(queue, "a@example.com")
        assert_enqueued(queue, send_email, to="a@example.com")
        assert await queue.drain() == 0
        await queue.advance(hours=1)
        assert await queue.drain() == 1
        assert_not_enqueued(queue, send_email)
        assert ran == ["a@example.com"]


@asynchronous
async def test_drain_runs_all_visible_jobs_and_those_that_they_enqueue():
    async with inline_queue(tenant="acme") as queue:

        @job
        async def parent(n: int) -> None:
            for number in range(n):
                await queue.enqueue(add.message(number, 1))

        await queue.enqueue(parent.message(3))
        assert await queue.drain() == 4
        assert ran == [(0, 1), (1, 1), (2, 1)]
        assert await queue.drain() == 0


@asynchronous
async def test_results_and_progress_are_stored_as_by_a_worker():
    async with inline_queue(tenant="acme") as queue:
        ticket = await queue.enqueue(send_email.message("a"))
        await queue.drain()
        record = await ticket.refresh()
        assert (record.state, record.result, record.attempts) == (JobState.COMPLETED, "welcome -> a", 1)
        assert record.progress is not None
        assert record.progress.message == "rendered"
        assert await ticket.wait() == "welcome -> a"


@asynchronous
async def test_a_failing_job_is_retried_as_time_passes_until_it_is_dead():
    async with inline_queue(tenant="acme") as queue:
        ticket = await queue.enqueue(send_email.message("broken"))
        for state in (JobState.RETRYING, JobState.RETRYING, JobState.FAILED):
            assert await queue.drain() == 1
            assert (await ticket.refresh()).state in (state, JobState.READY)
            await queue.advance(minutes=10)
        assert await queue.drain() == 0
        with pytest.raises(JobFailed, match=r"max_attempts.*ValueError: it broke"):
            await ticket.wait()


@asynchronous
async def test_permanent_and_retry_later_steer_as_in_a_worker():
    async with inline_queue(tenant="acme") as queue:
        hopeless = await queue.enqueue(send_email.message("hopeless"))
        later = await queue.enqueue(send_email.message("later"))
        assert await queue.drain() == 2
        assert (await hopeless.refresh()).reason == "permanent"
        record = await later.refresh()
        assert (record.state, record.attempts) == (JobState.SCHEDULED, 0)
        await queue.advance(minutes=10)
        await queue.drain()
        assert (await later.refresh()).result == "welcome -> later"


@asynchronous
async def test_a_job_for_the_process_executor_runs_inline():
    @job(executor="process")
    def heavy(n: int) -> int:
        ran.append(n)
        return n

    async with inline_queue(tenant="acme") as queue:
        ticket = await queue.enqueue(heavy.message(5))
        await queue.drain()
        assert (await ticket.wait(), ran) == (5, [5])


@asynchronous
async def test_handlers_are_found_by_the_name_of_the_job_type():
    async with inline_queue(tenant="acme") as queue:
        ticket = await queue.enqueue(Message.raw({"a": 1, "b": 2}, "add"))
        unknown = await queue.enqueue(Message.raw({}, "an.unknown.type"))
        await queue.drain()
        assert await ticket.wait() == 3
        assert (await unknown.refresh()).errors[0].type == "UnknownJobType"


@asynchronous
async def test_a_catch_all_gets_payloads_without_a_type():
    async with inline_queue(tenant="acme", handler=lambda payload: payload["x"]) as queue:
        ticket = await queue.enqueue({"x": 7})
        await queue.drain()
        assert await ticket.wait() == 7


@asynchronous
async def test_a_large_result_is_put_into_the_blob_store_or_fails():
    @job
    async def large() -> str:
        return "x" * 300_000

    async with inline_queue(tenant="acme", blobs="memory://inline") as queue:
        ticket = await queue.enqueue(large.message())
        await queue.drain()
        assert len(await ticket.wait()) == 300_000
    async with inline_queue(tenant="acme") as queue:
        ticket = await queue.enqueue(large.message())
        await queue.drain()
        with pytest.raises(JobFailed, match="ResultTooLarge"):
            await ticket.wait()


@asynchronous
async def test_a_drain_without_end_is_an_error(monkeypatch):
    monkeypatch.setattr("holdfast.testing.inline.DRAIN_LIMIT", 5)
    async with inline_queue(tenant="acme") as queue:

        @job
        async def again() -> None:
            await queue.enqueue(again.message())

        await queue.enqueue(again.message())
        with pytest.raises(AssertionError, match="more are waiting"):
            await queue.drain()


@asynchronous
async def test_the_clock_is_frozen_and_moving_it_ends_leases():
    async with inline_queue(tenant="acme") as queue:
        before = await queue.store.now()
        await asyncio.sleep(0.005)
        assert await queue.store.now() == before
        ticket = await queue.enqueue(add.message(1, 2))
        from holdfast.core.job import ClaimRequest

        await queue.store.claim(ClaimRequest("acme", ("default",), 1, 30_000, "w"))
        await queue.advance(seconds=30)
        assert (await ticket.refresh()).errors[0].type == "LeaseExpired"
        assert await queue.store.now() == before + 30_000


@asynchronous
async def test_advance_still_moves_a_reader():
    async with inline_queue(tenant="acme") as queue:
        start = await queue.register_reader("audit")
        await queue.enqueue(1)
        await queue.advance_reader("audit", await queue.last_offset())
        (reader,) = await queue.readers()
        assert reader.offset != start


@asynchronous
async def test_inline_queues_are_separate():
    async with inline_queue(tenant="acme") as one, inline_queue(tenant="acme") as two:
        await one.enqueue(add.message(1, 2))
        assert_not_enqueued(two, add)


# Asserts -------------------------------------------------------------------------------------------------------


@asynchronous
async def test_only_given_arguments_are_compared():
    async with inline_queue(tenant="acme") as queue:
        await queue.enqueue(send_email.message("a", template="bye"))
        await queue.enqueue(send_email.message("b"), delay=60, queue="slow")
        assert_enqueued(queue, send_email)
        assert_enqueued(queue, send_email, to="a", template="bye")
        assert_enqueued(queue, send_email, template="welcome", count=1)
        assert_enqueued(queue, send_email, count=2)
        assert_enqueued(queue, add, count=0)
        assert_not_enqueued(queue, send_email, to="a", template="welcome")
        assert_not_enqueued(queue, send_email, nonsense=1)
        assert enqueued(queue, send_email, to="b") == [{"to": "b", "template": "welcome"}]


@asynchronous
async def test_a_failed_assertion_lists_the_waiting_jobs():
    async with inline_queue(tenant="acme") as queue:
        with pytest.raises(AssertionError, match=r"add\(\): expected at least one, found 0; nothing is waiting"):
            assert_enqueued(queue, add)
        await queue.enqueue(send_email.message("a"))
        with pytest.raises(AssertionError) as caught:
            assert_enqueued(queue, send_email, to="b")
        assert str(caught.value) == (
            "send_email(to='b'): expected at least one, found 0; waiting are:\n"
            '  emails: send_email {"to":"a","template":"welcome"}'
        )
        with pytest.raises(AssertionError, match="expected 2, found 1"):
            assert_enqueued(queue, send_email, count=2)
        with pytest.raises(AssertionError, match="expected none, found 1"):
            assert_not_enqueued(queue, send_email)
        await queue.enqueue_many(range(30))
        with pytest.raises(AssertionError, match="and 11 more"):
            assert_enqueued(queue, add)


@asynchronous
async def test_a_queue_on_another_store_is_refused():
    class Elsewhere:
        async def stats(self, tenant: str) -> list[Any]:
            await asyncio.sleep(0)
            return []

    queue = Queue(store=Elsewhere(), tenant="acme")
    with pytest.raises(TypeError, match="inline_queue"):
        assert_enqueued(queue, add)


@asynchronous
async def test_advancing_the_clock_fires_schedules_tick_by_tick():
    async with inline_queue(tenant="acme", handler=str) as queue:
        made = await queue.schedule("hourly", {"n": 1}, every=timedelta(hours=1))
        await queue.advance(minutes=59)
        assert await queue.drain() == 0
        await queue.advance(hours=3)
        at = [record.enqueued_at - made.created_at for record in await queue.list()]
        assert at == [timedelta(hours=n) for n in (1, 2, 3)]
        assert await queue.drain() == 3
        await queue.unschedule("hourly")
        await queue.advance(days=1)
        assert await queue.drain() == 0


@asynchronous
async def test_a_clock_moved_far_ahead_stops_at_a_bounded_number_of_ticks():
    async with inline_queue(tenant="acme", handler=str) as queue:
        made = await queue.schedule("often", {"n": 1}, every=1)
        await queue.advance(days=365)
        counts = (await queue.stats()).counts
        assert counts["ready"] == 1000
        assert (await queue.get_schedule("often")).next_at == made.created_at + timedelta(days=365, seconds=1)


@asynchronous
async def test_draining_reports_failed_jobs():
    @job
    async def broken(n: int) -> None:
        raise ValueError(f"no {n}")

    @job
    def never() -> None:
        raise Permanent("never")

    @job
    async def odd() -> float:
        return float("nan")

    async with inline_queue(tenant="acme") as queue:
        await queue.enqueue(add.message(1, 2))
        await queue.enqueue_many([broken.message(7).options(id="b"), never.message(), odd.message()])
        drained = await queue.drain()
        assert drained == 4
        assert [(one.type, one.attempt, one.state, type(one.error)) for one in drained.failures] == [
            ("broken", 1, JobState.RETRYING, ValueError),
            ("never", 1, JobState.FAILED, Permanent),
            ("odd", 1, JobState.FAILED, JobFailed),
        ]
        assert "4 runs, 3 failed:\n  broken default/b, attempt 1, now retrying: ValueError: no 7" in repr(drained)
        assert repr(await queue.drain()) == "<0 runs, 0 failed>"


@asynchronous
async def test_draining_can_raise_an_error_and_continue_later():
    @job
    async def broken() -> None:
        raise ValueError("no")

    async with inline_queue(tenant="acme", handler=str) as queue:
        await queue.enqueue(broken.message(), id="b", priority=9)
        await queue.enqueue(1, id="rest")
        with pytest.raises(ValueError, match="no") as caught:
            await queue.drain(raise_errors=True)
        assert caught.traceback[-1].name == "broken"
        assert (await queue.get("b")).state is JobState.RETRYING
        assert (await queue.get("rest")).state is JobState.READY
        assert await queue.drain(raise_errors=True) == 1


@asynchronous
async def test_jobs_that_a_handler_enqueues_run_in_the_same_drain():
    ran: list[str] = []

    def definitions() -> Any:
        @job(name="leaf")
        async def leaf(who: str) -> None:
            ran.append(who)

        return leaf

    leaf = definitions()

    @job
    async def root() -> str:
        async with current_job().client as client:
            await client.enqueue(leaf.message("async"))
        await current_job().enqueue(leaf.message("again"))
        return client.tenant

    @job
    def plain() -> None:
        current_job().enqueue(leaf.message("thread"))
        assert current_job().client.stats().queue == "default"

    async with inline_queue(tenant="acme") as queue:
        ticket = await queue.enqueue(root.message())
        await queue.enqueue(plain.message())
        definitions()  # The one that was enqueued is the one that runs, not the last of its name.
        assert await queue.drain(raise_errors=True) == 5
        assert sorted(ran) == ["again", "async", "thread"]
        assert await ticket.wait() == "acme"


def test_the_inline_queue_works_without_await():
    @job
    def greet(name: str) -> str:
        current_job().enqueue(add.message(1, 2))
        return f"hello {name}"

    with blocking_inline_queue(tenant="acme", handler=str) as queue:
        ticket = queue.enqueue(greet.message("a"), delay=60)
        assert_enqueued(queue, greet, name="a")
        assert queue.drain() == 0
        queue.advance(minutes=1)
        drained = queue.drain()
        assert (drained, drained.failures) == (2, ())
        assert ticket.wait() == "hello a"
        assert_not_enqueued(queue, greet)
        queue.enqueue({"no": "handler"}, queue="x")
        queue.enqueue(boom.message())
        with pytest.raises(ZeroDivisionError):
            queue.drain(raise_errors=True)


@job
async def boom() -> None:
    _ = 1 / 0
