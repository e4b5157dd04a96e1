from __future__ import annotations

import asyncio
import logging
import threading
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import InvalidOption, current_job
from holdfast.core.job import Envelope, Job, JobState, Progress
from holdfast.jobs.context import CancelFlag, JobContext, active
from tests.unit.running import asynchronous, turns

DEADLINE = 1_800_000_000_000


def a_context(**options) -> JobContext:
    envelope = Envelope("send_email", b"{}", version=2, max_attempts=7, headers={"traceparent": "x"})
    job = Job("acme", "emails", "1", 5, envelope, JobState.LEASED, 0, 0, attempts=3, token=99, deadline=DEADLINE)
    return JobContext(job, **options)


def test_a_handler_can_see_its_job():
    context = a_context()
    with active(context):
        job = current_job()
    assert (job.tenant, job.queue, job.id, job.type) == ("acme", "emails", "1", "send_email")
    assert (job.attempt, job.max_attempts, job.fence, job.payload_version) == (3, 7, 99, 2)
    assert job.headers == {"traceparent": "x"}
    assert job.deadline == datetime.fromtimestamp(DEADLINE / 1000, UTC)


def test_renewals_move_the_deadline():
    context = a_context()
    context.renewed(DEADLINE + 30_000)
    assert context.deadline == datetime.fromtimestamp(DEADLINE / 1000, UTC) + timedelta(seconds=30)


def test_the_current_job_is_that_of_the_innermost_block():
    outer, inner = a_context(), a_context()
    with active(outer):
        with active(inner):
            assert current_job() is inner
        assert current_job() is outer
    assert current_job() not in (outer, inner)


@asynchronous
async def test_tasks_and_threads_see_their_own_job():
    contexts = [a_context(), a_context()]

    async def handler(context: JobContext) -> bool:
        with active(context):
            await asyncio.sleep(0)
            return current_job() is context and await asyncio.to_thread(current_job) is context

    assert await asyncio.gather(*map(handler, contexts)) == [True, True]


def test_progress_reaches_the_worker():
    seen: list[Progress] = []
    context = a_context(on_progress=seen.append)
    context.progress(0)
    context.progress(0.5, "half\x00way \ud800")
    context.progress(1, "x" * 5000)
    assert seen[:2] == [Progress(0.0), Progress(0.5, "halfway ?")]
    assert seen[2] == Progress(1.0, "x" * 1024)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), float("inf"), "0.5", None])
def test_progress_outside_0_to_1_is_refused(fraction):
    with pytest.raises(InvalidOption):
        a_context().progress(fraction)
    with pytest.raises(InvalidOption):
        current_job().progress(fraction)


def test_the_log_names_the_job(caplog):
    with caplog.at_level(logging.INFO, "holdfast.job"):
        a_context().log.info("rendered", size=3, token=99)
    line = caplog.messages[0]
    assert line == "rendered tenant=acme queue=emails job_id=1 type=send_email attempt=3 size=3"


def test_outside_a_worker_nothing_happens(caplog):
    job = current_job()
    with caplog.at_level(logging.DEBUG):
        job.progress(0.5, "half")
        job.log.bind(a=1).error("this is lost")
    assert caplog.messages == []
    assert (job.id, job.attempt, job.fence, dict(job.headers)) == ("", 1, 0, {})
    assert not job.cancelled.is_set()


# The flag ------------------------------------------------------------------------------------------------------


@asynchronous
async def test_async_code_can_await_the_flag():
    flag = CancelFlag()
    waiters = [asyncio.create_task(_await(flag)) for _ in range(2)]
    await turns()
    assert not any(waiter.done() for waiter in waiters)
    flag.set()
    flag.set()
    await asyncio.gather(*waiters)
    await flag
    assert flag.is_set()


async def _await(flag: CancelFlag) -> None:
    await flag


@asynchronous
async def test_a_canceled_await_leaves_nothing_behind():
    flag = CancelFlag()
    waiter = asyncio.create_task(_await(flag))
    await turns()
    waiter.cancel()
    await turns()
    assert flag._waiters == set()


@asynchronous
async def test_the_flag_can_be_set_from_another_thread():
    flag = CancelFlag()
    waiter = asyncio.create_task(_await(flag))
    await turns()
    await asyncio.to_thread(flag.set)
    await waiter


def test_threads_can_block_on_the_flag():
    flag = CancelFlag()
    seen: list[bool] = []
    threads = [threading.Thread(target=lambda: seen.append(flag.wait(30))) for _ in range(2)]
    for thread in threads:
        thread.start()
    flag.set()
    for thread in threads:
        thread.join()
    assert seen == [True, True]
    assert flag.wait() is True


def test_waiting_for_the_flag_can_time_out():
    assert CancelFlag().wait(0.001) is False


def test_a_flag_can_be_set_after_its_waiters_loop_is_closed():
    flag = CancelFlag()
    loop = asyncio.new_event_loop()
    task = loop.create_task(_await(flag))
    loop.run_until_complete(turns())
    task._log_destroy_pending = False
    loop.close()
    flag.set()
    assert flag.is_set()
