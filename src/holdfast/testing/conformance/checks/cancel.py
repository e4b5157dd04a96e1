"""CANCEL: cancel wins, the running handler is told, and the answer says what was found."""

from __future__ import annotations

import asyncio

from holdfast.core.errors import JobCanceled
from holdfast.core.job import HOUR, TERMINAL, Cancel, Finish, Finished, JobState, Result
from holdfast.store import Hint
from holdfast.testing.conformance.expect import expect, expect_a, expect_equal
from holdfast.testing.conformance.harness import LEASE, Harness
from holdfast.testing.conformance.rules import rule

OPEN = (JobState.SCHEDULED, JobState.READY, JobState.LEASED, JobState.RETRYING)


@rule("CANCEL-1")
async def cancel_wins_from_every_state_that_is_not_terminal(h: Harness) -> None:
    """The job is canceled at once and for good; it is never handed out; one event says so."""
    for state in OPEN:
        job = await h.job_in(state)
        expect_equal(await h.cancel(job.key), "canceled", f"cancel of a {state} job")
        record = await h.get(job.key)
        expect_equal(record.state, JobState.CANCELED, f"state after cancel of a {state} job")
        expect(record.finished_at is not None, f"a {state} job that was canceled has no time of its end")
        await h.advance(HOUR)
        await h.claim_none(queue=job.queue)
        expect_equal((await h.kinds(job.key)).count("canceled"), 1, f"canceled events of a {state} job")


@rule("CANCEL-1")
async def the_lease_dies_with_the_job(h: Harness) -> None:
    """Neither an acknowledgement nor the reaper changes a canceled job."""
    job = await h.leased()
    await h.cancel(job.key)
    before = await h.get(job.key)
    expect_a(await h.complete(job), JobCanceled, "completion after the cancel")
    expect_a(await h.extend(job), JobCanceled, "extension after the cancel")
    await h.advance(2 * LEASE)
    await h.store.reap(1000, 0.0)
    expect_equal(await h.get(job.key), before, "record of a canceled job past its old deadline")
    expect_equal((await h.stats(job.queue)).counts[JobState.LEASED], 0, "leased jobs after a cancel")


@rule("CANCEL-1")
async def cancel_against_complete_has_one_winner(h: Harness) -> None:
    """Raced many times: the answers, the record and the log agree on who won."""
    stores = await h.handles(2)
    queue = h.name("q")
    ids = [f"job-{number}" for number in range(40)]
    await h.queued(*ids, queue=queue)
    jobs = await h.claim(len(ids), queue=queue)
    for number, job in enumerate(jobs):
        acknowledge = stores[0].finish([Finish(job.key, job.token, "complete", result=Result(b"1"))])
        cancel = stores[1].cancel([Cancel(job.key)])
        # Each side goes first half of the time.
        if number % 2:
            (status,), (answer,) = await asyncio.gather(cancel, acknowledge)
        else:
            (answer,), (status,) = await asyncio.gather(acknowledge, cancel)
        won = JobState.COMPLETED if isinstance(answer, Finished) else JobState.CANCELED
        expect_equal(status, won.value, "what cancel said of a job that was completed at the same time")
        await h.expect_state(job.key, won, "after the race")
        ends = [kind for kind in await h.kinds(job.key) if kind in ("completed", "canceled")]
        expect_equal(ends, [won.value], "endings in the log")


@rule("CANCEL-1")
async def cancel_against_claim_has_one_winner(h: Harness) -> None:
    """A job that was canceled first is not handed out; one that was leased first is canceled under its holder."""
    stores = await h.handles(2)
    for number in range(30):
        queue = h.name("q")
        await h.queued("job", queue=queue)
        key = h.key(queue=queue)
        claim, cancel = h.claim(1, queue=queue, store=stores[0]), stores[1].cancel([Cancel(key)])
        if number % 2:
            jobs, statuses = await asyncio.gather(claim, cancel)
        else:
            statuses, jobs = await asyncio.gather(cancel, claim)
        expect_equal(statuses, ["canceled"], "cancel of a job that is being claimed")
        await h.expect_state(key, JobState.CANCELED, "after the race")
        for job in jobs:
            expect_a(await h.complete(job), JobCanceled, "completion of a job that was canceled")


@rule("CANCEL-2")
async def the_store_tells_that_a_running_job_was_canceled(h: Harness) -> None:
    """A hint comes to every handle, so that the worker looks."""
    others = await h.handles(2)
    for store in (h.store, *others):
        job = await h.leased()
        with h.listening(store) as ear:
            await h.cancel(job.key)
            await ear.expect(Hint.CANCELED, job.key, "after the cancel of a running job")


@rule("CANCEL-2")
async def only_waiting_leaves_a_running_job_alone(h: Harness) -> None:
    """It says `processing` and changes nothing; waiting jobs it cancels."""
    running = await h.leased()
    before = await h.get(running.key)
    async with h.no_event("by a cancel of waiting jobs only"):
        expect_equal(await h.cancel(running.key, only_waiting=True), "processing", "cancel of a running job")
    expect_equal(await h.get(running.key), before, "record of the running job")
    h.accepted(await h.complete(running), JobState.COMPLETED)
    for state in (JobState.SCHEDULED, JobState.READY, JobState.RETRYING):
        job = await h.job_in(state)
        expect_equal(await h.cancel(job.key, only_waiting=True), "canceled", f"cancel of a {state} job")


@rule("CANCEL-3")
async def cancel_says_what_it_found(h: Harness) -> None:
    """completed, failed, canceled (again), not_found; none of these changes anything."""
    for state in TERMINAL:
        job = await h.job_in(state)
        before = await h.get(job.key)
        async with h.no_event(f"by a cancel of a {state} job"):
            for only_waiting in (False, True):
                expect_equal(
                    await h.cancel(job.key, only_waiting=only_waiting), state.value, f"cancel of a {state} job"
                )
        expect_equal(await h.get(job.key), before, f"record of a {state} job")
    expect_equal(await h.cancel(h.key("never")), "not_found", "cancel of a job that is not there")


@rule("CANCEL-3")
async def a_batch_of_cancels_answers_in_order(h: Harness) -> None:
    """Also with one job twice in it."""
    waiting, running, done = await h.job_in(JobState.READY), await h.leased(), await h.job_in(JobState.COMPLETED)
    keys = [waiting.key, h.key("never"), running.key, done.key, waiting.key]
    answers = await h.store.cancel([Cancel(key, only_waiting=True) for key in keys])
    expect_equal(answers, ["canceled", "not_found", "processing", "completed", "canceled"], "answers")
    expect_equal((await h.kinds(waiting.key)).count("canceled"), 1, "canceled events")
