"""CANCEL: cancel wins."""

from __future__ import annotations

import asyncio

from holdfast.core.errors import JobCanceled
from holdfast.core.job import DAY, Cancel, Finish, JobState, Outcome, Result
from holdfast.store import Hint
from holdfast.testing.conformance.checks.events import quiet
from holdfast.testing.conformance.expect import expect, expect_a, expect_between, expect_equal
from holdfast.testing.conformance.harness import DELAY, LEASE, Harness
from holdfast.testing.conformance.rules import rule

NOT_TERMINAL = (JobState.SCHEDULED, JobState.READY, JobState.LEASED, JobState.RETRYING)


@rule("CANCEL-1")
async def cancel_wins_from_every_state_that_is_not_terminal(h: Harness) -> None:
    """The job becomes canceled, with one event, and no claim returns it again."""
    for state in NOT_TERMINAL:
        job = await h.job_in(state)
        before = await h.now()
        expect_equal(await h.cancel(job.key), "canceled", f"cancel of a {state} job")
        ended = await h.get(job.key)
        expect_equal((ended.state, ended.deadline), (JobState.CANCELED, 0), f"record of a canceled {state} job")
        expect_between(ended.finished_at or 0, before, await h.now(), "time of the end")
        expect_equal((await h.kinds(job.key))[-1], "canceled", "last event")
        await h.advance(2 * LEASE)
        await h.store.reap(1000, 0.0)
        await h.claim_none(queue=job.queue)
        await h.claim_none(queue=job.queue, tenant=None)
        expect_equal(await h.get(job.key), ended, f"record of a canceled {state} job later on")
        counts = (await h.stats(job.queue)).counts
        expect_equal(sum(counts[each] for each in NOT_TERMINAL), 0, "waiting and leased jobs counted")


@rule("CANCEL-1")
async def a_job_canceled_while_due_is_not_handed_out(h: Harness) -> None:
    """This includes a job that had become due, and one whose expired lease was not found yet."""
    due = await h.job_in(JobState.SCHEDULED, delay_ms=DELAY)
    lapsed = await h.job_in(JobState.LEASED)
    await h.advance(LEASE)
    answers = await h.store.cancel([Cancel(due.key), Cancel(lapsed.key)])
    expect_equal(answers, ["canceled", "canceled"], "cancel of a job that is due, and of one past its deadline")
    for job in (due, lapsed):
        await h.claim_none(queue=job.queue)
        await h.advance(DELAY)
        await h.claim_none(queue=job.queue)
        await h.expect_state(job.key, JobState.CANCELED, "later on")
    expect_equal(await h.kinds(lapsed.key), ["enqueued", "claimed", "canceled"], "events")


@rule("CANCEL-1")
async def after_a_cancel_acknowledgements_get_job_canceled(h: Harness) -> None:
    """The lease ends with the job, whichever call its holder makes."""
    outcomes: tuple[Outcome, ...] = ("complete", "fail", "retry", "release")
    for outcome in outcomes:
        job = await h.leased()
        expect_equal(await h.cancel(job.key), "canceled", "cancel of a running job")
        expect_a(await h.finish(job, outcome, result=Result(b"1")), JobCanceled, f"{outcome} after a cancel")
        expect_a(await h.extend(job), JobCanceled, "extend after a cancel")
        expect_a(await h.report(job), JobCanceled, "progress after a cancel")
        ended = await h.get(job.key)
        expect_equal((ended.state, ended.result), (JobState.CANCELED, None), f"record after {outcome}")


@rule("CANCEL-1")
async def of_a_concurrent_cancel_and_completion_one_wins(h: Harness) -> None:
    """Both answers, the record and the log agree."""
    jobs = [await h.leased() for _ in range(12)]
    stores = await h.handles(4)

    async def cancel(number: int) -> str:
        return (await stores[number % 4].cancel([Cancel(jobs[number].key)]))[0]

    async def complete(number: int) -> object:
        job = jobs[number]
        return (await stores[(number + 1) % 4].finish([Finish(job.key, job.token, "complete", Result(b"1"))]))[0]

    for start in (0, 6):
        calls = [(cancel(n), complete(n)) for n in range(start, start + 6)]
        flat = [call for pair in calls for call in (pair if start else reversed(pair))]
        answers = await asyncio.gather(*flat)
        for index, number in enumerate(range(start, start + 6)):
            canceled, finished = (
                answers[2 * index : 2 * index + 2] if start else answers[2 * index : 2 * index + 2][::-1]
            )
            state = (await h.get(jobs[number].key)).state
            if state is JobState.CANCELED:
                expect_equal(canceled, "canceled", "answer to the cancel that won")
                expect_a(finished, JobCanceled, "answer to the completion that lost")
            else:
                expect_equal((state, canceled), (JobState.COMPLETED, "completed"), "state and answer to the cancel")
            expect_equal((await h.kinds(jobs[number].key))[2:], [state.value], "events of the end")


@rule("CANCEL-1")
async def of_a_concurrent_cancel_and_claim_the_cancel_wins(h: Harness) -> None:
    """A job that is canceled first is not claimed. One that is leased first is canceled while its holder runs it."""
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


@rule("CANCEL-1")
async def a_concurrent_cancel_and_enqueue_answer_what_happened(h: Harness) -> None:
    """A cancel that answers `canceled` has canceled the job. If the cancel was too early, the job can be completed.

    The same holds for a caller that cancels its own enqueue while a worker waits for the job.
    """
    producer, canceler, worker = await h.handles(3)
    queue = h.name("q")

    async def claim_and_complete() -> list[tuple[str, object]]:
        jobs = await h.claim(5, queue=queue, store=worker)
        acks = await worker.finish([Finish(job.key, job.token, "complete", Result(b"1")) for job in jobs])
        return [(job.id, ack) for job, ack in zip(jobs, acks, strict=True)]

    completed: dict[str, object] = {}
    for number in range(30):
        key = h.key(f"job-{number}", queue=queue)
        calls = producer.enqueue([h.new(key.id, queue=queue)]), canceler.cancel([Cancel(key)]), claim_and_complete()
        _, (status,), found = await asyncio.gather(*calls)
        completed |= dict([*found, *await claim_and_complete()])
        state = (await h.get(key)).state
        expected = JobState.CANCELED if status == "canceled" else JobState.COMPLETED
        expect_equal(state, expected, f"state of a job whose cancel was answered {status!r}")
        if state is JobState.CANCELED and key.id in completed:
            expect_a(completed[key.id], JobCanceled, "completion of a job that was canceled")
        kinds = await h.kinds(key)
        lives = (["enqueued", "canceled"], ["enqueued", "claimed", "canceled"], ["enqueued", "claimed", "completed"])
        expect(kinds in lives and kinds[-1] == state.value, f"events of a {state} job: {kinds}")


@rule("CANCEL-2")
async def only_waiting_leaves_a_running_job_alone(h: Harness) -> None:
    """It answers `processing` and changes nothing. A waiting job is canceled."""
    job = await h.leased()
    before = await h.get(job.key)
    async with h.no_event("by a cancel of waiting jobs only"):
        expect_equal(await h.cancel(job.key, only_waiting=True), "processing", "cancel of waiting jobs only")
        expect_equal(await h.get(job.key), before, "record of the running job")
    h.accepted(await h.complete(job), JobState.COMPLETED)
    for state in (JobState.SCHEDULED, JobState.READY, JobState.RETRYING):
        waiting = await h.job_in(state)
        expect_equal(await h.cancel(waiting.key, only_waiting=True), "canceled", f"cancel of a {state} job")
        await h.expect_state(waiting.key, JobState.CANCELED)


@rule("CANCEL-2")
async def a_hint_is_sent_when_a_running_job_is_canceled(h: Harness) -> None:
    """The worker gets a hint at once, also from another handle."""
    other = (await h.handles(2))[1]
    with h.listening() as hints, h.listening(other) as far:
        job = await h.leased()
        await quiet(job.key, hints, far)
        expect_equal(await h.cancel(job.key), "canceled", "cancel of a running job")
        await hints.expect(Hint.CANCELED, job.key, "after a running job was canceled")
        await far.expect(Hint.CANCELED, job.key, "after a running job was canceled through another handle")


@rule("CANCEL-3")
async def a_cancel_answers_with_the_state_that_it_found(h: Harness) -> None:
    """The answers are canceled, processing, completed, failed and not_found. A canceled job answers canceled again."""
    wanted = {
        JobState.SCHEDULED: "canceled",
        JobState.READY: "canceled",
        JobState.LEASED: "canceled",
        JobState.RETRYING: "canceled",
        JobState.COMPLETED: "completed",
        JobState.FAILED: "failed",
        JobState.CANCELED: "canceled",
    }
    for only_waiting in (False, True):
        jobs = [await h.job_in(state) for state in wanted]
        items = [Cancel(job.key, only_waiting) for job in jobs] + [Cancel(h.key("nowhere"), only_waiting)]
        statuses = list(wanted.values())
        if only_waiting:
            statuses[2] = "processing"
        answers = await h.store.cancel(items)
        expect_equal(answers, [*statuses, "not_found"], f"answers, only_waiting={only_waiting}")
        for job, status in zip(jobs, statuses, strict=True):
            if status == "canceled":
                expect_equal(await h.cancel(job.key, only_waiting=only_waiting), "canceled", "cancel again")
                expect_equal((await h.kinds(job.key)).count("canceled"), 1, "canceled events after two cancels")


@rule("CANCEL-3")
async def a_forgotten_job_is_not_found_by_a_cancel(h: Harness) -> None:
    """After its retention it answers like a job that never existed."""
    job = await h.job_in(JobState.CANCELED)
    await h.advance(DAY)
    expect_equal(await h.cancel(job.key), "not_found", "cancel of a forgotten job")
    expect(await h.find(job.key) is None, "a canceled job was kept for more than a day")
