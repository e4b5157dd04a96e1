"""Renewal, loss and cancel of leases, seen from the worker. [LEASE-4, CANCEL-2]"""

import asyncio
import threading
import time
from datetime import timedelta

import pytest

from holdfast import current_job, job
from holdfast.core.errors import StoreUnavailable
from holdfast.core.job import JobState
from holdfast.jobs import RetryPolicy
from tests.eventually import eventually
from tests.unit.worker.serving import heard, serving, until


async def test_a_lease_is_renewed_while_an_async_handler_blocks_the_event_loop(queue, store):
    @job(max_attempts=1)
    async def block() -> int:
        # Not a bug of the test: this is the handler that must not starve the renewal.
        time.sleep(1.5)  # noqa: ASYNC251
        return current_job().attempt

    async with serving(queue, block, lease=1) as worker:
        told = heard(worker)
        ticket = await queue.enqueue(block.message(), id="x")
        assert await ticket.wait(timeout=5) == 1
    assert told == [("completed", "x")]
    assert store.calls["extend"] >= 2


async def test_short_jobs_are_never_renewed(queue, store):
    @job
    async def short() -> None: ...

    async with serving(queue, short):
        # Once at its start the heartbeat looks whether it has missed a cancel.
        await eventually(lambda: store.calls["beat"])
        await queue.enqueue_many([short.message() for _ in range(50)])
        await queue.enqueue_and_wait(short.message(), timeout=5)
    assert store.calls["extend"] == 0


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_canceled_handler_is_told_and_can_clean_up(queue, kind):
    started, cleaned = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @job(name="wait")
    async def wait() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            assert current_job().cancelled.is_set()
            cleaned.set()

    @job(name="wait")
    def wait_in_thread() -> str:
        loop.call_soon_threadsafe(started.set)
        if current_job().cancelled.wait(60):
            cleaned.set()
        return "this counts no more"

    async with serving(queue, wait if kind == "async" else wait_in_thread) as worker:
        told = heard(worker)
        ticket = await queue.enqueue(wait.message(), id="x")
        await started.wait()
        before = time.monotonic()
        assert (await ticket.cancel()).status == "canceled"
        await eventually(cleaned.is_set)
        assert time.monotonic() - before < 1
    assert told == [("canceled", "x")]
    assert (await queue.get("x")).state is JobState.CANCELED


async def test_a_job_canceled_while_it_waits_its_turn_here_is_never_started(queue):
    started, go_on, ran = asyncio.Event(), asyncio.Event(), []

    @job
    async def wait(n: int) -> None:
        ran.append(n)
        started.set()
        await go_on.wait()

    await queue.enqueue(wait.message(1), id="first")
    await queue.enqueue(wait.message(2), id="second")
    async with serving(queue, wait, concurrency=1, prefetch=1) as worker:
        told = heard(worker)
        await started.wait()
        await queue.cancel("second")
        await eventually(lambda: ("canceled", "second") in told)
        go_on.set()
        await queue.result("first", timeout=5)
    assert ran == [1]


async def test_a_lease_that_ran_out_in_the_store_ends_the_handler(queue, store):
    started, ended = asyncio.Event(), asyncio.Event()
    runs = []

    @job(max_attempts=2, retry=RetryPolicy(base=timedelta(0)))
    async def wait() -> str:
        runs.append(current_job().attempt)
        if len(runs) > 1:
            return "second"
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return "first"

    async with serving(queue, wait, lease=1) as worker:
        told = heard(worker)
        ticket = await queue.enqueue(wait.message(), id="x")
        await started.wait()
        await store.shift_clock(10_000)
        await store.reap(10, 0.0)
        async with asyncio.timeout(5):
            await ended.wait()
            assert await ticket.wait() == "second"
    assert runs == [1, 2]
    assert sorted(told) == [("completed", "x"), ("stalled", "x")]
    assert [item.outcome for batch in store.batches["finish"] for item in batch] == ["complete"]


async def test_a_lease_that_cannot_be_renewed_is_over_by_the_own_clock(queue, store):
    started, ended = asyncio.Event(), asyncio.Event()

    @job
    async def wait() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    store.fail("extend", StoreUnavailable("gone"), times=1000)
    async with serving(queue, wait, lease=1) as worker:
        told = heard(worker)
        await queue.enqueue(wait.message(), id="x")
        await started.wait()
        before = time.monotonic()
        async with asyncio.timeout(5):
            await ended.wait()
        assert 0.5 < time.monotonic() - before < 1.3
        assert ("stalled", "x") in told
        store.heal()
        assert not store.batches["finish"]


async def test_an_outcome_is_not_sent_when_the_lease_is_over(queue, store):
    """The handler ends in time, but the store does not take the outcome until it is too late."""
    done = asyncio.Event()

    @job(max_attempts=1)
    async def quick() -> None:
        done.set()

    store.fail("finish", StoreUnavailable("gone"), times=1000)
    store.fail("extend", StoreUnavailable("gone"), times=1000)
    async with serving(queue, quick, lease=1) as worker:
        told = heard(worker)
        await queue.enqueue(quick.message(), id="x")
        async with asyncio.timeout(5):
            await done.wait()
            await eventually(lambda: ("stalled", "x") in told)
        store.heal()
        tried = store.calls["finish"]
        job_ = await until(queue, await queue.enqueue(quick.message(), id="y"))
        assert job_.state is JobState.COMPLETED
    assert {item.key.id for batch in store.batches["finish"][tried:] for item in batch} == {"y"}


async def test_a_hung_renewal_does_not_hide_the_end_of_the_lease(queue, store):
    ended = asyncio.Event()

    @job
    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    gate = store.hold("extend")
    async with serving(queue, wait, lease=1) as worker:
        told = heard(worker)
        await queue.enqueue(wait.message(), id="x")
        async with asyncio.timeout(5):
            await ended.wait()
        assert told == [("stalled", "x")]
        # The gate belongs to the loop of the heartbeat.
        worker._loop._heartbeat._loop.call_soon_threadsafe(gate.set)


async def test_a_blocked_loop_is_not_kept_alive_past_the_timeout_of_its_job(queue, store, monkeypatch):
    monkeypatch.setattr("holdfast.worker.runner.TIMEOUT_GRACE_S", 0.2)

    @job(timeout=0.2, max_attempts=1)
    async def block() -> None:
        time.sleep(2)  # noqa: ASYNC251

    async with serving(queue, block, lease=1) as worker:
        told = heard(worker)
        await queue.enqueue(block.message(), id="x")
        await eventually(lambda: ("stalled", "x") in told)
    assert store.calls["extend"] <= 2
