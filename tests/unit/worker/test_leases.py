"""Renewal, loss and cancel of leases, seen from the worker. [LEASE-4, CANCEL-2]"""

import asyncio
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

import holdfast
from holdfast import Queue, Worker, current_job, job
from holdfast.clock import boot_time
from holdfast.core.errors import StoreUnavailable
from holdfast.core.job import JobState
from holdfast.jobs.definition import RetryPolicy
from holdfast.store import Hint
from tests.eventually import eventually
from tests.unit.worker.serving import heard, serving, until


async def test_a_lease_is_renewed_while_an_async_handler_blocks_the_event_loop(queue, store):
    @job(max_attempts=1)
    async def block() -> int:
        # Not a bug of the test: this is the handler that must not starve the renewal.
        time.sleep(1.5)  # noqa: ASYNC251
        return current_job().attempt

    async with serving(queue, block, lease=1) as worker:
        reported = heard(worker)
        ticket = await queue.enqueue(block.message(), id="x")
        assert await ticket.wait(timeout=60) == 1
    assert reported == [("completed", "x")]
    assert store.calls["extend"] >= 2


async def test_short_jobs_are_never_renewed(queue, store):
    @job
    async def short() -> None: ...

    async with serving(queue, short):
        # Once at its start the heartbeat looks whether it has missed a cancel.
        await eventually(lambda: store.calls["beat"])
        await queue.enqueue_many([short.message() for _ in range(50)])
        await queue.enqueue_and_wait(short.message(), timeout=60)
    assert store.calls["extend"] == 0


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_canceled_handler_is_notified_and_can_clean_up(queue, kind):
    started, cleaned = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @job(name="wait")
    async def wait() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            assert current_job().canceled.is_set()
            cleaned.set()

    @job(name="wait")
    def wait_in_thread() -> str:
        loop.call_soon_threadsafe(started.set)
        if current_job().canceled.wait(60):
            cleaned.set()
        return "this counts no more"

    async with serving(queue, wait if kind == "async" else wait_in_thread, lease=120) as worker:
        reported = heard(worker)
        ticket = await queue.enqueue(wait.message(), id="x")
        await started.wait()
        assert (await ticket.cancel()).status == "canceled"
        await eventually(cleaned.is_set)  # By the store's hint: the lease is renewed after 40 s.
    assert reported == [("canceled", "x")]
    assert (await queue.get("x")).state is JobState.CANCELED


async def test_a_cancel_noticed_before_its_job_arrives_takes_effect_at_once(tmp_path):
    """The event loop is blocked while the job is leased to the worker and canceled; its lease is renewed after 40 s."""
    url = f"file:{tmp_path}/data"
    cleaned = threading.Event()

    @job
    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    async def enqueue_and_cancel() -> None:
        async with Queue(url, tenant="acme") as other:
            seen = asyncio.Event()
            other.store.listen(lambda _: seen.set(), {Hint.CANCELED})
            await other.enqueue(wait.message(), id="x")
            assert (await other.cancel("x")).status == "canceled"
            await seen.wait()

    @job
    async def block() -> None:
        thread = threading.Thread(target=asyncio.run, args=[enqueue_and_cancel()])
        thread.start()
        thread.join()

    async with Queue(url, tenant="acme") as queue:
        worker = Worker(queue, jobs=[wait, block], lease=120)
        reported = heard(worker)
        task = asyncio.create_task(worker.run(signals=False))
        await queue.enqueue_and_wait(block.message(), timeout=30)
        await eventually(cleaned.is_set)
        await eventually(lambda: ("canceled", "x") in reported)
        await worker.stop()
        await task
        kinds = [event.kind async for event in queue.events() if event.job_id == "x"]
        assert kinds == ["enqueued", "claimed", "canceled"]


async def test_a_prefetched_job_that_is_canceled_is_never_started(queue):
    started, go_on, ran = asyncio.Event(), asyncio.Event(), []

    @job
    async def wait(n: int) -> None:
        ran.append(n)
        started.set()
        await go_on.wait()

    await queue.enqueue(wait.message(1), id="first")
    await queue.enqueue(wait.message(2), id="second")
    async with serving(queue, wait, concurrency=1, prefetch=1) as worker:
        reported = heard(worker)
        await started.wait()
        await queue.cancel("second")
        await eventually(lambda: ("canceled", "second") in reported)
        go_on.set()
        await queue.result("first", timeout=60)
    assert ran == [1]


async def test_a_lease_that_expired_in_the_store_ends_the_handler(queue, store):
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
        reported = heard(worker)
        ticket = await queue.enqueue(wait.message(), id="x")
        await started.wait()
        await store.shift_clock(10_000)
        await store.reap(10, 0.0)
        async with asyncio.timeout(60):
            await ended.wait()
            assert await ticket.wait() == "second"
    assert runs == [1, 2]
    assert sorted(reported) == [("completed", "x"), ("stalled", "x")]
    assert [item.outcome for batch in store.batches["finish"] for item in batch] == ["complete"]


async def test_a_lease_that_cannot_be_renewed_ends_by_the_workers_clock(queue, store):
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
        reported = heard(worker)
        await queue.enqueue(wait.message(), id="x")
        await started.wait()
        async with asyncio.timeout(20):
            await ended.wait()
        assert store.calls["extend"] >= 1
        assert ("stalled", "x") in reported
        store.heal()
        assert not store.batches["finish"]


async def test_a_lease_that_expired_during_a_suspend_is_over_at_the_resume(queue, store, monkeypatch):
    """Timers were stopped meanwhile: the next one is 20 minutes away."""
    started, ended = asyncio.Event(), asyncio.Event()

    @job
    async def wait() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    store.fail("extend", StoreUnavailable("gone"), times=1000)
    async with serving(queue, wait, lease=3600) as worker:
        reported = heard(worker)
        await queue.enqueue(wait.message(), id="x")
        await started.wait()
        monkeypatch.setattr("holdfast.worker.heartbeat.boot_time", lambda: boot_time() + 7200)
        async with asyncio.timeout(10):
            await ended.wait()
            await eventually(lambda: ("stalled", "x") in reported)
        assert not store.batches["finish"]


@pytest.mark.skipif(sys.platform != "linux", reason="the clock of Linux")
def test_leases_are_measured_by_a_clock_that_includes_suspends():
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= boot_time() <= time.clock_gettime(time.CLOCK_BOOTTIME)
    here = Path(holdfast.__file__).parent
    handoffs = [*here.glob("stores/*/handoff.py")]
    assert handoffs
    for path in [*here.glob("worker/*.py"), *handoffs, here / "maintenance/coordinator.py"]:
        for line in path.read_text(encoding="utf-8").splitlines():
            assert not ("monotonic()" in line and ("sent" in line or "until" in line)), f"{path.name}: {line}"


async def test_an_outcome_is_not_sent_after_its_lease_has_ended(queue, store):
    """The handler ends in time, but the store accepts no outcome until it is too late."""
    done = asyncio.Event()

    @job(max_attempts=1)
    async def quick() -> None:
        done.set()

    store.fail("finish", StoreUnavailable("gone"), times=1000)
    store.fail("extend", StoreUnavailable("gone"), times=1000)
    async with serving(queue, quick, lease=1) as worker:
        reported = heard(worker)
        await queue.enqueue(quick.message(), id="x")
        async with asyncio.timeout(60):
            await done.wait()
            await eventually(lambda: ("stalled", "x") in reported)
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
        reported = heard(worker)
        await queue.enqueue(wait.message(), id="x")
        async with asyncio.timeout(60):
            await ended.wait()
        assert reported == [("stalled", "x")]
        # The gate belongs to the loop of the heartbeat.
        worker._loop._heartbeat._loop.call_soon_threadsafe(gate.set)


async def test_a_handler_that_blocks_the_loop_is_not_renewed_past_its_timeout(queue, store, monkeypatch):
    monkeypatch.setattr("holdfast.worker.runner.TIMEOUT_GRACE_S", 0.2)

    @job(timeout=0.2, max_attempts=1)
    async def block() -> None:
        time.sleep(2)  # noqa: ASYNC251

    async with serving(queue, block, lease=1) as worker:
        reported = heard(worker)
        await queue.enqueue(block.message(), id="x")
        await eventually(lambda: ("stalled", "x") in reported)
    assert store.calls["extend"] <= 2
