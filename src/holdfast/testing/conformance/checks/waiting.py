"""RESULT-2, RESULT-3, CLAIM-3, LEASE-4, CANCEL-2: Queue, Claimer and Worker on the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from holdfast.core.errors import JobCanceled, JobFailed, JobNotFound, ResultExpired, WaitTimeout
from holdfast.core.job import HOUR, SECOND, Cancel, ClaimRequest, Job, JobState
from holdfast.jobs.context import current_job
from holdfast.jobs.definition import job
from holdfast.queue.claims import Claimer
from holdfast.queue.queue import Queue
from holdfast.store import Hint
from holdfast.testing.conformance.checks.events import quiet
from holdfast.testing.conformance.expect import Broken, expect, expect_equal
from holdfast.testing.conformance.harness import PATIENCE_S, Harness
from holdfast.testing.conformance.rules import rule
from holdfast.worker import Worker

LONG = timedelta(seconds=PATIENCE_S)


def queue_of(h: Harness) -> Queue:
    """A Queue on the store under test."""
    return Queue(store=h.store, tenant=h.tenant, name=h.queue)


@contextmanager
def waiting_claims(
    h: Harness, wait_s: float = PATIENCE_S
) -> Generator[Callable[[int], Coroutine[Any, Any, list[Job]]]]:
    """Claims of up to `limit` jobs that wait for work."""
    claimer = Claimer(h.store)
    claimer.start()

    async def claim(limit: int) -> list[Job]:
        request = ClaimRequest(h.tenant, (h.queue,), limit, HOUR, "worker-1")
        return (await claimer.claim(request, wait_s=wait_s)).jobs

    try:
        yield claim
    finally:
        claimer.close()


# RESULT ---------------------------------------------------------------------------------------------------------------


@rule("RESULT-2")
async def a_wait_ends_when_the_job_does(h: Harness) -> None:
    """It may begin before, during or after the run. It ends differently for completed, failed and canceled jobs."""
    async with queue_of(h) as queue:
        for outcome in ("complete", "fail", "cancel"):
            ticket = await queue.enqueue({"n": 1}, id=outcome)
            early = asyncio.create_task(queue.result(outcome, timeout=LONG))
            await asyncio.sleep(0)
            leased = await h.claim_one(outcome)
            during = asyncio.create_task(ticket.wait(timeout=LONG))
            await asyncio.sleep(0)
            if outcome == "complete":
                h.accepted(await h.complete(leased, b'"done"'), JobState.COMPLETED)
            elif outcome == "fail":
                h.accepted(await h.fail(leased), JobState.FAILED)
            else:
                expect_equal(await h.cancel(leased.key), "canceled", "cancel")
            late = asyncio.create_task(queue.result(outcome, timeout=LONG))
            ends: list[object] = list(await asyncio.gather(early, during, late, return_exceptions=True))
            if outcome == "complete":
                expect_equal(ends, ["done"] * 3, "results")
            else:
                want = JobFailed if outcome == "fail" else JobCanceled
                expect_equal(
                    [type(end) for end in ends], [want] * 3, f"ends of waiting for a job that ended by {outcome}"
                )


@rule("RESULT-2")
async def the_record_in_a_hint_is_the_stored_record(h: Harness) -> None:
    """This holds through another handle, too. A waiter with the record need not read it: the job may be forgotten."""
    other = (await h.handles(2))[1]
    with h.listening(other) as far:
        for id_, ttl_ms in (("kept", HOUR), ("gone", 0)):
            job = await h.leased(id_, result_ttl_ms=ttl_ms)
            await quiet(job.key, far)
            h.accepted(await h.complete(job, b'"done"'), JobState.COMPLETED)
            await far.expect(Hint.DONE, job.key, "after a completion through another handle")
            seen = [signal.job for signal in far.signals if signal.job is not None]
            expect_equal(seen, [await h.find(job.key)] * len(seen), "records in the hints of a job that has ended")


@rule("RESULT-2")
async def a_timeout_ends_the_wait_and_not_the_job(h: Harness) -> None:
    """The job continues, and its result is there later. Waiting for a job that does not exist fails."""
    async with queue_of(h) as queue:
        ticket = await queue.enqueue({"n": 1}, id="job")
        try:
            await ticket.wait(timeout=0.01)
        except WaitTimeout:
            pass
        else:
            raise Broken("a wait ended before its job and without a timeout")
        leased = await h.claim_one("job")
        h.accepted(await h.complete(leased, b"42"), JobState.COMPLETED)
        expect_equal(await ticket.wait(timeout=LONG), 42, "result after a wait that timed out")
        try:
            await queue.result("never", timeout=LONG)
        except JobNotFound:
            return
        raise Broken("there was a result of a job that was never there")


@rule("RESULT-1")
async def only_a_ticket_says_that_its_result_expired(h: Harness) -> None:
    """A read of a forgotten id finds nothing. A ticket raises ResultExpired."""
    async with queue_of(h) as queue:
        ticket = await queue.enqueue({}, id="job", result_ttl=timedelta(seconds=1))
        h.accepted(await h.complete(await h.claim_one("job")), JobState.COMPLETED)
        await h.advance(SECOND)
        expect_equal(await queue.get("job"), None, "a forgotten job")
        for wait, want in (
            (queue.result("job", timeout=LONG), JobNotFound),
            (ticket.wait(timeout=LONG), ResultExpired),
        ):
            try:
                await wait
            except want:
                continue
            raise Broken(f"waiting for a forgotten result did not raise {want.__name__}")


@rule("RESULT-3")
async def all_waiters_on_one_id_get_the_result_of_one_run(h: Harness) -> None:
    """Ten callers with one id get the same result of one job and one lease."""
    async with queue_of(h) as queue:
        waits = [asyncio.create_task(queue.enqueue_and_wait({}, id="job", timeout=LONG)) for _ in range(10)]
        with waiting_claims(h) as claim:
            (leased,) = await claim(1)
        h.accepted(await h.complete(leased, b'{"n":7}'), JobState.COMPLETED)
        expect_equal(await asyncio.gather(*waits), [{"n": 7}] * 10, "results of ten waiters")
        expect_equal((await h.kinds(leased.key)).count("claimed"), 1, "runs")


@rule("RESULT-3")
async def a_canceled_waiter_does_not_affect_the_others(h: Harness) -> None:
    """One waiter is canceled, one times out, the third gets the result."""
    async with queue_of(h) as queue:
        await queue.enqueue({}, id="job")
        leaves = asyncio.create_task(queue.result("job", timeout=LONG))
        short = asyncio.create_task(queue.result("job", timeout=0.01))
        stays = asyncio.create_task(queue.result("job", timeout=LONG))
        await asyncio.sleep(0)
        leaves.cancel()
        ends: list[object] = list(await asyncio.gather(leaves, short, return_exceptions=True))
        expect_equal([type(end) for end in ends], [asyncio.CancelledError, WaitTimeout], "ends of two of the waiters")
        h.accepted(await h.complete(await h.claim_one("job"), b"1"), JobState.COMPLETED)
        expect_equal(await stays, 1, "result of the third waiter")


# CLAIM-3 --------------------------------------------------------------------------------------------------------------


@rule("CLAIM-3")
async def a_waiting_claim_wakes_when_a_job_becomes_visible(h: Harness) -> None:
    """By an enqueue, a due time, an expired lease or a release, long before any fallback poll."""
    (other,) = await h.handles(1)
    with waiting_claims(h) as claim:
        waiting = asyncio.create_task(claim(1))
        await asyncio.sleep(0)
        await other.enqueue([h.new("enqueued")])
        expect_equal([j.id for j in await waiting], ["enqueued"], "claim that waited for an enqueue")

        await other.enqueue([h.new("due", delay_ms=HOUR)])
        waiting = asyncio.create_task(claim(1))
        await asyncio.sleep(0)
        await other.shift_clock(HOUR)
        jobs = await waiting
        expect(len(jobs) == 1, "a claim that waited for a due time got nothing")
        held = jobs[0]

        waiting = asyncio.create_task(claim(2))
        await asyncio.sleep(0)
        h.accepted(await h.release(held), JobState.READY)
        expect(held.id in {j.id for j in await waiting}, "a claim that waited for a release did not get it")


@rule("CLAIM-3")
async def a_waiting_claim_ends_with_its_time(h: Harness) -> None:
    """It returns no job, and none is leased afterwards."""
    with waiting_claims(h, wait_s=0.01) as claim:
        expect_equal(await claim(1), [], "claim that waited for nothing")
    await h.queued("job")
    await h.claim_one("job")


# LEASE-4, CANCEL-2 ----------------------------------------------------------------------------------------------------


@rule("LEASE-4")
async def a_lease_is_renewed_under_a_handler_that_blocks_the_event_loop(h: Harness) -> None:
    """A handler that runs longer than its lease still completes, in one attempt."""
    lease = timedelta(seconds=1)

    @job(name="busy", queue=h.queue)
    async def busy() -> str:
        time.sleep(1.6)  # noqa: ASYNC251 - a handler that does not let go of the event loop
        return "done"

    async with queue_of(h) as queue:
        worker = Worker(queue, jobs=[busy], lease=lease, concurrency=1)
        running = asyncio.create_task(worker.run())
        try:
            expect_equal(await queue.enqueue_and_wait(busy.message(), id="job", timeout=LONG), "done", "result")
        finally:
            await worker.stop()
            await running
    expect_equal(await h.kinds(h.key()), ["enqueued", "claimed", "completed"], "events")


@rule("CANCEL-2")
async def a_running_handler_learns_of_a_cancel_within_a_second(h: Harness) -> None:
    """It is interrupted and can clean up. Nothing that it does afterwards is recorded."""
    began, seen = asyncio.Event(), asyncio.Event()

    @job(name="endless", queue=h.queue)
    async def endless() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            expect(current_job().canceled.is_set(), "the handler was interrupted without the reason")
            seen.set()

    async with queue_of(h) as queue:
        worker = Worker(queue, jobs=[endless], concurrency=1)
        running = asyncio.create_task(worker.run())
        try:
            await queue.enqueue(endless.message(), id="job")
            await asyncio.wait_for(began.wait(), PATIENCE_S)
            (other,) = await h.handles(1)
            await other.cancel([Cancel(h.key())])
            try:
                await asyncio.wait_for(seen.wait(), 1.0)
            except TimeoutError:
                raise Broken("a running handler did not learn of the cancel within a second") from None
        finally:
            await worker.stop()
            await running
    expect_equal(await h.kinds(h.key()), ["enqueued", "claimed", "canceled"], "events")
