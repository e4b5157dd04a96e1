"""A handler that runs longer than it may."""

import asyncio
import threading
from datetime import timedelta

from holdfast import current_job, job
from holdfast.core.job import JobState
from holdfast.jobs.definition import RetryPolicy
from tests.eventually import eventually
from tests.unit.worker.serving import heard, serving, until


async def test_an_async_handler_is_canceled_and_the_attempt_has_failed(queue):
    ended = asyncio.Event()

    @job(timeout=0.05, max_attempts=2, retry=RetryPolicy(base=timedelta(0)))
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async with serving(queue, slow) as worker:
        reported = heard(worker)
        job_ = await until(queue, await queue.enqueue(slow.message(), id="x"))
        assert ended.is_set()
        assert (job_.state, job_.reason, job_.attempts) == (JobState.FAILED, "timeout", 2)
        assert [error.type for error in job_.errors] == ["Timeout", "Timeout"]
    assert reported == [("retrying", "x"), ("failed", "x")]


async def test_a_value_returned_after_the_timeout_does_not_count(queue):
    @job(timeout=0.05, max_attempts=1)
    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "too late"
        return ""

    async with serving(queue, stubborn):
        job_ = await until(queue, await queue.enqueue(stubborn.message()))
        assert (job_.state, job_.reason) == (JobState.FAILED, "timeout")


async def test_an_async_handler_that_ignores_its_timeout_is_still_reported(queue, monkeypatch):
    monkeypatch.setattr("holdfast.worker.runner.TIMEOUT_GRACE_S", 0.05)
    go_on = asyncio.Event()

    @job(timeout=0.05, max_attempts=1)
    async def endless() -> None:
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue

    async with serving(queue, endless, concurrency=1) as worker:
        job_ = await until(queue, await queue.enqueue(endless.message()))
        assert (job_.state, job_.reason) == (JobState.FAILED, "timeout")
        assert len(worker._loop.state.running) == 1
        go_on.set()


async def test_a_thread_is_reported_at_once_and_keeps_its_slot_until_it_ends(queue):
    go_on, asked_to_end = threading.Event(), threading.Event()

    @job(timeout=1, max_attempts=1)  # Long enough for a busy machine to start the thread.
    def slow() -> str:
        current_job().canceled.wait(10)
        asked_to_end.set()
        go_on.wait(10)
        return "too late"

    @job
    async def next_one() -> str:
        return "ran"

    async with serving(queue, slow, next_one, concurrency=1, prefetch=0):
        job_ = await until(queue, await queue.enqueue(slow.message()))
        assert (job_.state, job_.reason) == (JobState.FAILED, "timeout")
        ticket = await queue.enqueue(next_one.message())
        await eventually(asked_to_end.is_set)
        assert (await ticket.refresh()).state is JobState.READY
        go_on.set()
        assert await ticket.wait(timeout=60) == "ran"


async def test_a_handler_within_its_timeout_is_left_alone(queue):
    @job(timeout=30)
    async def quick() -> str:
        return "done"

    async with serving(queue, quick):
        assert await queue.enqueue_and_wait(quick.message(), timeout=60) == "done"
