"""STATE: a job is in exactly one state, and an ended job does not change."""

from __future__ import annotations

from holdfast.core.errors import JobCanceled, LeaseExpired, LeaseLost, NotReplayable
from holdfast.core.job import HOUR, SECOND, TERMINAL, Job, JobState, Outcome, Replayed
from holdfast.store import ListQuery
from holdfast.testing.conformance.expect import expect, expect_a, expect_equal
from holdfast.testing.conformance.harness import BOOM, DELAY, LEASE, Harness
from holdfast.testing.conformance.rules import rule

REACHABLE = [state for state in JobState if state is not JobState.BLOCKED]
OUTCOMES: tuple[Outcome, ...] = ("complete", "fail", "retry", "release")


async def states_shown(h: Harness, job: Job) -> list[JobState]:
    """Every state in which the job is listed."""
    found: list[JobState] = []
    for state in JobState:
        page = await h.store.list(ListQuery(job.tenant, job.queue, frozenset({state})))
        for listed in page.jobs:
            expect_equal(listed.state, state, "state of a job in the list of one state")
            found.append(state)
    return found


@rule("STATE-1")
async def a_job_is_listed_and_counted_in_exactly_one_state(h: Harness) -> None:
    """The record, the list and the counts agree, in every state that a job can reach."""
    for state in REACHABLE:
        job = await h.job_in(state)
        expect_equal(await states_shown(h, job), [state], f"lists that show a {state} job")
        counts = (await h.stats(job.queue)).counts
        if state in TERMINAL:
            still_open = sum(number for each, number in counts.items() if each not in TERMINAL)
            expect_equal(still_open, 0, f"jobs counted as not ended beside one {state}")
            await h.advance(10 * SECOND)  # Counts of finished jobs may be 10 s old.
            counts = (await h.stats(job.queue)).counts
        expect_equal({s: n for s, n in counts.items() if n}, {state: 1}, f"counts with one {state} job")


@rule("STATE-1")
async def a_due_job_shows_as_ready_and_makes_no_event(h: Harness) -> None:
    """Scheduled and retrying jobs are ready when they are due. Only the clock decides that."""
    scheduled = await h.job_in(JobState.SCHEDULED, delay_ms=DELAY)
    retrying = await h.job_in(JobState.RETRYING)
    async with h.no_event("by jobs becoming due"):
        await h.advance(DELAY)
        for job in (scheduled, retrying):
            expect_equal((await h.get(job.key)).state, JobState.READY, f"state of a {job.state} job that is due")
            expect_equal(await states_shown(h, job), [JobState.READY], f"lists that show a {job.state} job that is due")
            stats = await h.stats(job.queue)
            expect_equal(stats.counts[JobState.READY], 1, f"ready jobs counted after a {job.state} one became due")
            expect_equal(stats.counts[job.state], 0, f"{job.state} jobs counted after it became due")
            expect_equal(stats.oldest_ready_at, job.visible_at, "since when the oldest ready job has been waiting")


@rule("STATE-1")
async def a_lease_past_its_deadline_shows_as_leased_until_it_is_reaped(h: Harness) -> None:
    """Expiry is a transition: until a claim or the reaper makes it, the job is still leased."""
    job = await h.leased(lease_ms=LEASE)
    async with h.no_event("by a deadline that passed"):
        await h.advance(LEASE)
        await h.expect_state(job.key, JobState.LEASED, "past its deadline")
        expect_equal(await states_shown(h, job), [JobState.LEASED], "lists that show it")
        expect_equal((await h.stats(job.queue)).counts[JobState.LEASED], 1, "leased jobs counted")
    await h.store.reap(1000, 0.0)
    await h.expect_state(job.key, JobState.RETRYING, "once reaped")


@rule("STATE-1")
async def the_oldest_ready_job_is_the_oldest_of_all_priorities(h: Harness) -> None:
    """Only the time at which a job became ready counts."""
    async with h.frozen() as f:
        start = await f.now()
        expect_equal((await f.stats()).oldest_ready_at, None, "since when an empty queue waits")
        for wait, priority in ((0, 5), (10, 9), (10, 0)):
            await f.advance(wait)
            await f.queued(f.name("job"), priority=priority)
            expect_equal((await f.stats()).oldest_ready_at, start, "since when the oldest ready job has been waiting")
        await f.queued("later", priority=9, delay_ms=HOUR)
        await f.claim(2)
        expect_equal((await f.stats()).oldest_ready_at, start + 20, "since when the last ready job has been waiting")


async def expect_pages(h: Harness, wanted: list[str], states: frozenset[JobState], what: str) -> None:
    """Fail unless the list shows these jobs in this order, in pages of any size."""
    for size in (1, 2, 3, 100):
        found: list[str] = []
        cursor: str | None = None
        for _ in range(len(wanted) + 1):
            page = await h.store.list(ListQuery(h.tenant, h.queue, states, cursor=cursor, limit=size))
            expect(len(page.jobs) <= size, f"a page of {size} has {len(page.jobs)} jobs")
            found += [job.id for job in page.jobs]
            cursor = page.cursor
            if cursor is None:
                break
        expect_equal((found, cursor), (wanted, None), f"{what}, listed in pages of {size}")


@rule("STATE-1")
async def a_list_comes_in_pages_that_miss_and_repeat_nothing(h: Harness) -> None:
    """Waiting jobs are listed in claim order, leased ones by deadline, ended ones by time; many share an instant."""
    async with h.frozen() as f:
        ids = [f"job-{number}" for number in range(9)]
        await f.queued(*ids)
        leased = await f.claim(6, lease_ms=LEASE)
        outcomes: list[Outcome] = ["fail", "complete", "fail", "complete"]
        for job, outcome in zip(leased, outcomes, strict=False):
            f.accepted(await f.finish(job, outcome, error=BOOM))
        await f.advance(1)
        await f.cancel(f.key("job-6"))
        await f.advance(1)
        f.accepted(await f.finish(leased[4], "complete"))
        await f.queued("late", "urgent-b", "urgent-a", priority=9)
        one, two = await f.claim(2, lease_ms=2 * LEASE)
        expect_equal([one.id, two.id], ["late", "urgent-b"], "jobs claimed")
        waiting, running = ["urgent-a", "job-7", "job-8"], ["job-5", "late", "urgent-b"]
        await expect_pages(f, running, frozenset({JobState.LEASED}), "running jobs")
        await f.extend(leased[5], 3 * LEASE)
        running = ["late", "urgent-b", "job-5"]
        ended = ["job-0", "job-1", "job-2", "job-3", "job-6", "job-4"]
        await expect_pages(f, ended, TERMINAL, "ended jobs")
        await expect_pages(f, ["job-0", "job-2"], frozenset({JobState.FAILED}), "failed jobs")
        await expect_pages(f, waiting, frozenset({JobState.READY}), "ready jobs")
        await expect_pages(f, [*waiting, *running, *ended], frozenset(JobState), "all jobs")


@rule("STATE-2")
async def an_ended_job_never_changes(h: Harness) -> None:
    """No acknowledgement, cancel, claim, reaping or time moves a job out of a terminal state."""
    for state in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELED):
        ended = await h.job_in(state)
        async with h.no_event(f"on a {state} job"):
            spent = {JobState.COMPLETED: "complete", JobState.FAILED: "fail"}.get(state)
            for outcome in OUTCOMES:
                answer = await h.finish(ended, outcome, error=BOOM)
                if outcome != spent:
                    expect(isinstance(answer, LeaseLost | JobCanceled), f"{outcome} of a {state} job: {answer!r}")
            expect(isinstance(await h.extend(ended), LeaseLost | JobCanceled), f"extend of a {state} job was accepted")
            expect(isinstance(await h.report(ended), LeaseLost | JobCanceled), f"report on a {state} job was accepted")
            expect_equal(await h.cancel(ended.key), state.value, f"cancel of a {state} job")
            await h.advance(2 * LEASE)
            await h.store.reap(1000, 0.0)
            await h.claim_none(queue=ended.queue)
            expect_equal(await h.get(ended.key), ended, f"record of a {state} job after all that")


@rule("STATE-2")
async def a_second_enqueue_leaves_an_ended_job_as_it_is(h: Harness) -> None:
    """A completed or failed job that is enqueued again answers, and does not change."""
    for state in (JobState.COMPLETED, JobState.FAILED):
        ended = await h.job_in(state)
        async with h.no_event(f"by a second enqueue of a {state} job"):
            await h.enqueue("job", queue=ended.queue, payload=b"another", request_id="another")
            expect_equal(await h.get(ended.key), ended, f"record of a {state} job after a second enqueue")


@rule("STATE-3")
async def a_replay_is_recorded(h: Harness) -> None:
    """A failed job may be replayed. Its record and the log show that."""
    failed = await h.job_in(JobState.FAILED)
    await h.advance(SECOND)
    expect_a(await h.replay(failed.key), Replayed, "replay of a failed job")
    job = await h.get(failed.key)
    expect_equal((job.state, job.attempts, job.replays), (JobState.READY, 0, 1), "state, attempts, replays")
    expect_equal((job.reason, job.finished_at, job.expires_at), ("", None, None), "traces of the end in the record")
    expect_equal(await h.kinds(failed.key), ["enqueued", "claimed", "failed", "replayed"], "events")
    expect_equal((await h.history(failed.key))[-1].data["replays"], 1, "replays in the event")


@rule("STATE-3")
async def only_a_failed_job_can_be_replayed(h: Harness) -> None:
    """Replay refuses every other state, and changes nothing."""
    for state in REACHABLE:
        if state is JobState.FAILED:
            continue
        job = await h.job_in(state, result_ttl_ms=HOUR)
        async with h.no_event(f"by a replay of a {state} job"):
            refusal = expect_a(await h.replay(job.key), NotReplayable, f"replay of a {state} job")
            expect_equal((refusal.queue, refusal.job_id), job.key[1:], "address in the refusal")
            expect(state.value in refusal.reason, f"the refusal does not say that it is {state}: {refusal.reason!r}")
            expect_equal(await h.get(job.key), job, f"record of a {state} job after a refused replay")


@rule("STATE-3")
async def an_acknowledgement_from_before_a_replay_changes_nothing(h: Harness) -> None:
    """The token of the failed run stays used: only the next claim's token is valid."""
    job = await h.leased()
    h.accepted(await h.fail(job), JobState.FAILED)
    expect_a(await h.replay(job.key), Replayed, "replay")
    async with h.no_event("by stale acknowledgements"):
        h.accepted(await h.fail(job), JobState.FAILED)  # The first answer again. [LEASE-1]
        for outcome in ("complete", "retry", "release"):
            expect_a(await h.finish(job, outcome), LeaseLost, f"{outcome} with the token of the failed run")
        expect_a(await h.extend(job), LeaseLost, "extend with the token of the failed run")
        await h.expect_state(job.key, JobState.READY, "after stale acknowledgements")
    again = await h.claim_one(queue=job.queue)
    expect(again.token > job.token, "the replayed job got an old token")
    expect_a(await h.fail(job), LeaseLost, "the first outcome again, once another lease was granted")


@rule("STATE-3")
async def a_lease_expired_job_can_be_replayed_too(h: Harness) -> None:
    """This is a job that failed by its last expired lease, whose token was never used."""
    job = await h.leased(max_attempts=1)
    await h.advance(LEASE)
    await h.store.reap(1000, 0.0)
    await h.expect_state(job.key, JobState.FAILED, "after its last lease ran out")
    expect_a(await h.replay(job.key), Replayed, "replay")
    expect_a(await h.complete(job), LeaseExpired, "a late acknowledgement of the lease that ran out")
    h.accepted(await h.complete(await h.claim_one(queue=job.queue)), JobState.COMPLETED)
