"""How a worker ends. [RETRY-5]"""

import asyncio
import gc
import os
import signal
import threading

import pytest

from holdfast import current_job, job
from holdfast.core.job import JobState
from holdfast.worker import Worker
from holdfast.worker.active_job import ActiveJob
from tests.eventually import eventually
from tests.unit.worker.serving import run, serving


async def state_of(queue, id):
    record = await queue.get(id)
    return record.state, record.attempts


async def test_running_jobs_finish_and_prefetched_jobs_are_released(queue):
    started, go_on = asyncio.Event(), asyncio.Event()

    @job
    async def wait() -> str:
        started.set()
        await go_on.wait()
        return "done"

    for id_ in ("running", "ahead", "more"):
        await queue.enqueue(wait.message(), id=id_)
    worker = Worker(queue, jobs=[wait], concurrency=1, prefetch=2)
    task = asyncio.create_task(worker.run(signals=False))
    await started.wait()
    assert await state_of(queue, "more") == (JobState.LEASED, 1)
    stopping = asyncio.create_task(worker.stop())
    await eventually(lambda: state_of(queue, "more"), lambda state: state == (JobState.READY, 0))
    assert await state_of(queue, "ahead") == (JobState.READY, 0)
    assert await state_of(queue, "running") == (JobState.LEASED, 1)
    go_on.set()
    await asyncio.wait_for(stopping, 15)
    await task
    assert (await state_of(queue, "running"))[0] is JobState.COMPLETED


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_after_the_grace_period_running_jobs_are_canceled_and_released(queue, kind):
    started, cleaned = threading.Event(), threading.Event()

    @job(name="wait")
    async def wait() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    @job(name="wait")
    def wait_in_thread() -> None:
        started.set()
        current_job().canceled.wait(60)
        cleaned.set()

    await queue.enqueue(wait.message(), id="x")
    worker = Worker(queue, jobs=[wait if kind == "async" else wait_in_thread], shutdown_grace=0.1)
    async with run(worker), asyncio.timeout(60):
        await eventually(started.is_set)
    assert cleaned.is_set()
    assert await state_of(queue, "x") == (JobState.READY, 0)


class Stubborn:
    """A handler in a thread that does not check whether it should stop."""

    def __init__(self):
        self.started, self.go_on, self.ended = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, payload):
        self.started.set()
        self.go_on.wait(30)
        self.ended.set()
        return "done"


async def test_a_thread_that_does_not_stop_keeps_its_lease_until_it_ends(queue, store, monkeypatch, caplog):
    """Released, it would run twice at a time. The stop waits for it, renews the lease and logs that."""
    monkeypatch.setattr("holdfast.worker.shutdown.END_S", 0.01)
    stubborn = Stubborn()
    ticket = await queue.enqueue("charge a card", id="x")
    worker = Worker(queue, handler=stubborn, shutdown_grace=0, lease=1)
    running = asyncio.create_task(worker.run(signals=False))
    await eventually(stubborn.started.is_set)
    stopping = asyncio.create_task(worker.stop())
    await eventually(lambda: "do not stop" in caplog.text)
    renewed = store.calls["extend"]
    await eventually(lambda: store.calls["extend"] > renewed + 3)
    assert await state_of(queue, "x") == (JobState.LEASED, 1)
    assert not stopping.done()
    stubborn.go_on.set()
    await asyncio.wait_for(asyncio.gather(stopping, running), 20)
    assert await ticket.wait(timeout=60) == "done"


@pytest.mark.parametrize("how", ["signal", "cancel"])
async def test_a_second_stop_ends_the_worker_without_releasing_jobs_of_running_threads(queue, monkeypatch, caplog, how):
    monkeypatch.setattr("holdfast.worker.shutdown.END_S", 0.01)
    stubborn = Stubborn()
    await queue.enqueue("charge a card", id="x")
    running = asyncio.create_task(Worker(queue, handler=stubborn, shutdown_grace=0).run())
    await eventually(stubborn.started.is_set)
    os.kill(os.getpid(), signal.SIGTERM)
    await eventually(lambda: "do not stop" in caplog.text)
    if how == "signal":
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        running.cancel()
    await asyncio.wait([running], timeout=20)
    assert running.done()
    assert not stubborn.ended.is_set()
    assert await state_of(queue, "x") == (JobState.LEASED, 1)
    stubborn.go_on.set()
    assert await asyncio.to_thread(stubborn.ended.wait, 20)


async def test_a_job_canceled_during_the_stop_does_not_delay_it(queue, monkeypatch, caplog):
    monkeypatch.setattr("holdfast.worker.shutdown.END_S", 0.01)
    stubborn = Stubborn()
    ticket = await queue.enqueue("charge a card", id="x")
    worker = Worker(queue, handler=stubborn, shutdown_grace=0)
    running = asyncio.create_task(worker.run(signals=False))
    await eventually(stubborn.started.is_set)
    stopping = asyncio.create_task(worker.stop())
    await eventually(lambda: "do not stop" in caplog.text)
    await ticket.cancel()
    await asyncio.wait_for(asyncio.gather(stopping, running), 20)
    assert not stubborn.ended.is_set()
    stubborn.go_on.set()
    assert await asyncio.to_thread(stubborn.ended.wait, 20)


async def test_a_signal_stops_the_worker_and_earlier_handlers_are_restored(queue):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    started, go_on = asyncio.Event(), asyncio.Event()

    @job
    async def wait() -> str:
        started.set()
        await go_on.wait()
        return "done"

    for number in (signal.SIGTERM, signal.SIGINT):
        started.clear()
        go_on.clear()
        ticket = await queue.enqueue(wait.message())
        task = asyncio.create_task(Worker(queue, jobs=[wait]).run())
        await started.wait()
        os.kill(os.getpid(), number)
        asyncio.get_running_loop().call_later(0.1, go_on.set)
        await asyncio.wait_for(task, 15)
        assert await ticket.wait(timeout=60) == "done"
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


async def test_the_second_signal_stops_the_worker_at_once(queue):
    started = asyncio.Event()

    @job
    async def wait() -> None:
        started.set()
        await asyncio.sleep(60)

    await queue.enqueue(wait.message(), id="x")
    worker = Worker(queue, jobs=[wait], shutdown_grace=60)
    task = asyncio.create_task(worker.run())
    await started.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await eventually(lambda: worker._loop.state.stopping)
    assert not task.done()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(task, 30)
    assert await state_of(queue, "x") == (JobState.READY, 0)


async def test_a_signal_reaches_every_worker_of_the_process(queue):
    @job
    async def nothing() -> None: ...

    workers = [Worker(queue, jobs=[nothing]) for _ in range(2)]
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    await queue.enqueue_and_wait(nothing.message(), timeout=60)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(asyncio.gather(*tasks), 15)


async def test_canceling_run_releases_all_jobs_and_leaves_no_tasks(queue):
    started = asyncio.Event()

    @job
    async def wait() -> None:
        started.set()
        await asyncio.sleep(60)

    await queue.enqueue(wait.message(), id="x")
    await queue.enqueue(wait.message(), id="y")
    threads = threading.active_count()
    task = asyncio.create_task(Worker(queue, jobs=[wait], concurrency=1, prefetch=1).run())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert threading.active_count() == threads
    assert await state_of(queue, "x") == (JobState.READY, 0)
    assert await state_of(queue, "y") == (JobState.READY, 0)


async def test_a_worker_can_be_stopped_twice_and_run_again(queue):
    @job
    async def nothing() -> str:
        return "ok"

    worker = Worker(queue, jobs=[nothing])
    await worker.stop()
    for _ in range(3):
        first = asyncio.create_task(worker.run(signals=False))
        second = asyncio.create_task(worker.run(signals=False))
        assert await queue.enqueue_and_wait(nothing.message(), timeout=60) == "ok"
        await asyncio.gather(worker.stop(), worker.stop())
        await asyncio.gather(first, second)
        await worker.stop()


async def test_a_worker_can_be_stopped_right_after_its_start(queue):
    @job
    async def nothing() -> None: ...

    worker = Worker(queue, jobs=[nothing])
    async with run(worker):
        pass


async def test_a_stop_before_run_has_begun_is_not_lost(queue):
    @job
    async def nothing() -> str:
        return "ok"

    worker = Worker(queue, jobs=[nothing])
    running = asyncio.create_task(worker.run(signals=False))
    await worker.stop()
    await asyncio.wait_for(running, 20)
    async with run(worker):  # And it can run again.
        assert await queue.enqueue_and_wait(nothing.message(), timeout=20) == "ok"


async def test_a_handler_and_a_callback_can_stop_their_worker(queue):
    @job
    async def last() -> str:
        await worker.stop()
        return "bye"

    worker = Worker(queue, jobs=[last])
    ticket = await queue.enqueue(last.message())
    await asyncio.wait_for(worker.run(signals=False), 15)
    assert await ticket.wait(timeout=60) == "bye"

    async def stop(event):
        await worker.stop()

    @job
    async def nothing() -> None: ...

    worker = Worker(queue, jobs=[nothing])
    worker.on("completed", stop)
    await queue.enqueue(nothing.message())
    await asyncio.wait_for(worker.run(signals=False), 15)


async def test_jobs_of_a_claim_in_flight_are_released(queue, store):
    @job
    async def nothing() -> None: ...

    gate = store.hold("claim")
    worker = Worker(queue, jobs=[nothing])
    await queue.enqueue(nothing.message(), id="x")
    async with run(worker):
        await eventually(lambda: store.calls["claim"])
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0.05)
        gate.set()
        await stopping
    assert await state_of(queue, "x") == (JobState.READY, 0)


async def test_a_worker_is_listed_as_live_while_it_runs(queue, store):
    @job
    async def nothing() -> None: ...

    async with serving(queue, nothing, worker_id="w1", concurrency=7) as worker:
        await queue.enqueue_and_wait(nothing.message(), timeout=60)
        [info] = await eventually(lambda: store.workers("acme"))
        assert (info.worker_id, info.queues, info.concurrency, info.pid) == ("w1", ("default",), 7, os.getpid())
        assert worker.id == "w1"
    assert await store.workers("acme") == []


async def test_many_jobs_leave_no_objects_in_the_worker(queue):
    @job
    async def nothing() -> None: ...

    def alive():
        gc.collect()
        return sum(isinstance(one, ActiveJob) for one in gc.get_objects())

    before = alive()
    async with serving(queue, nothing, concurrency=100) as worker:
        done = asyncio.Event()
        count = 0

        def completed(event):
            nonlocal count
            count += 1
            if count == 5000:
                done.set()

        worker.on("completed", completed)
        await queue.enqueue_many([nothing.message() for _ in range(5000)])
        await asyncio.wait_for(done.wait(), 30)
        state = worker._loop.state
        assert not any((state.leased, state.prefetched, state.running, worker._loop._acks.backlog))
    assert alive() == before
