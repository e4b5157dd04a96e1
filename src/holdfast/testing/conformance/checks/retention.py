"""KEEP-1: only what has ended is ever forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.core.job import (
    DAY,
    FLOW_HEADER,
    HOUR,
    SECOND,
    AlreadyCompleted,
    Cancel,
    Duplicate,
    Finish,
    IdempotencyKey,
    JobState,
    Outcome,
    Purge,
    Queued,
    Replayed,
    SetResultTtl,
)
from holdfast.store import EnqueueAnswer
from holdfast.testing.conformance.expect import Skipped, expect, expect_a, expect_between, expect_equal
from holdfast.testing.conformance.harness import BOOM, LEASE, Harness
from holdfast.testing.conformance.rules import rule


async def prune_all(h: Harness) -> int:
    """Prune until nothing is left to remove. Returns how many jobs were removed."""
    jobs = 0
    while True:
        pruned = await h.store.prune(1000)
        jobs += pruned.jobs
        if not pruned.more:
            return jobs


@rule("KEEP-1")
async def a_job_that_has_not_ended_is_never_forgotten(h: Harness) -> None:
    """Jobs that wait, run or are between attempts for months are kept and can still complete."""
    await h.store.pause(h.tenant, h.queue, paused=True)
    await h.queued("paused", result_ttl_ms=0)
    await h.queued("scheduled", delay_ms=90 * DAY, result_ttl_ms=0)
    running = await h.job_in(JobState.LEASED)
    retrying = await h.leased()
    h.accepted(await h.retry(retrying, delay_ms=80 * DAY), JobState.RETRYING)
    replayed = await h.job_in(JobState.FAILED)
    expect_a(await h.replay(replayed.key), Replayed, "replay")
    keys = [h.key("paused"), h.key("scheduled"), running.key, retrying.key, replayed.key]
    for _ in range(4):
        await h.advance(10 * DAY)
        await prune_all(h)
        for key, job in zip(keys, await h.store.get(keys), strict=True):
            expect(job is not None, f"{key} was forgotten before it ended")
    await h.store.reap(1000, 0.0)
    await h.advance(50 * DAY)
    await prune_all(h)
    await h.store.pause(h.tenant, h.queue, paused=False)
    for queue in (h.queue, running.queue, retrying.queue, replayed.queue):
        for job in await h.claim(5, queue=queue):
            h.accepted(await h.complete(job), JobState.COMPLETED)
            keys.remove(job.key)
    expect_equal(keys, [], "jobs that could not be completed in the end")


@rule("KEEP-1")
async def ended_jobs_are_forgotten_after_their_retention_and_not_before(h: Harness) -> None:
    """Completed with their result, failed after 7 days, canceled after 1, to the millisecond, whether pruned or not."""
    kept = {JobState.COMPLETED: HOUR, JobState.CANCELED: DAY, JobState.FAILED: 7 * DAY}
    for pruning in (False, True):
        async with h.frozen(keep_events="1000") as f:
            for state, keep_ms in kept.items():
                job = await f.job_in(state)
                expect_equal(job.expires_at, await f.now() + keep_ms, f"end of the retention of a {state} job")
                await f.advance(keep_ms - 1)
                if pruning:
                    expect_equal(await prune_all(f), 0, f"jobs forgotten before the retention of a {state} one is over")
                expect_equal(await f.find(job.key), job, f"record of a {state} job before its retention is over")
                await f.advance(1)
                if pruning:
                    expect_equal(await prune_all(f), 1, f"jobs forgotten after the retention of a {state} one")
                expect_equal(await f.find(job.key), None, f"record of a {state} job after its retention")
                expect_equal(await f.list_ids(queue=job.queue), [], f"list after the retention of a {state} job")


@rule("KEEP-1")
async def the_retention_of_failed_and_canceled_jobs_is_a_setting(h: Harness) -> None:
    """The settings are `keep_failed_s` and `keep_canceled_s` in the store's URL."""
    async with h.frozen(keep_failed_s="100", keep_canceled_s="50") as f:
        failed, canceled = await f.job_in(JobState.FAILED), await f.job_in(JobState.CANCELED)
        lapsed = await f.leased(max_attempts=1)
        await f.advance(50 * SECOND - 1)
        expect(await f.find(canceled.key), "a canceled job was forgotten too early")
        await f.advance(1)
        expect_equal(await f.find(canceled.key), None, "canceled job after 50 s")
        await f.store.reap(1000, 0.0)
        await f.advance(50 * SECOND)
        expect_equal(await f.find(failed.key), None, "failed job after 100 s")
        expect(await f.find(lapsed.key), "a job that failed by its lease was forgotten before its time")
        await f.advance(50 * SECOND)
        expect_equal(await f.find(lapsed.key), None, "job that failed by its lease, 100 s after")


@rule("KEEP-1")
async def a_failed_step_of_a_flow_is_kept_as_long_as_its_result_would_be(h: Harness) -> None:
    """For any retention: a flow learns the outcome of its steps from their records, and runs a step without one."""
    async with h.frozen(keep_failed_s="1", keep_canceled_s="1") as f:
        for n, end in enumerate(("fail", "cancel waiting", "cancel running", "expire")):
            fields: dict[str, Any] = {"headers": {FLOW_HEADER: "flow"}, "result_ttl_ms": 10 * DAY, "max_attempts": 1}
            job = await (
                f.job_in(JobState.READY, **fields) if end == "cancel waiting" else f.leased(f"job{n}", **fields)
            )
            if FLOW_HEADER not in ((await f.get(job.key)).envelope.headers or ()):
                raise Skipped("the store takes no headers from its callers")
            if end == "fail":
                f.accepted(await f.fail(job), JobState.FAILED)
            elif end == "expire":
                await f.advance(LEASE)
                await f.store.reap(1000, 0.0)
            else:
                expect_equal(await f.cancel(job.key), "canceled", end)
            await f.advance(9 * DAY)
            await prune_all(f)
            expect(await f.find(job.key) is not None, f"a step was forgotten after {end}")
            await f.advance(DAY + LEASE)
            expect_equal(await f.find(job.key), None, f"record of a step past its retention, after {end}")


@rule("KEEP-1")
async def a_purge_makes_an_event_and_forgetting_does_not(h: Harness) -> None:
    """The end of a retention makes no event."""
    job, purged = await h.job_in(JobState.COMPLETED), await h.job_in(JobState.COMPLETED)
    expect_equal(await h.purge(purged.key), "purged", "purge")
    expect_equal((await h.kinds(purged.key))[-1], "purged", "last event of a purged job")
    async with h.no_event("by forgetting"):
        await h.advance(HOUR)
        expect_equal(await h.find(job.key), None, "record after its retention")
        await prune_all(h)


@rule("KEEP-1")
async def pruning_is_bounded_and_says_when_more_is_left(h: Harness) -> None:
    """It removes up to its limit at a time, and the second time nothing."""
    async with h.frozen(keep_events="1000") as f:
        await f.queued(*(f"job-{number}" for number in range(25)), result_ttl_ms=10 * SECOND)
        for job in await f.claim(25):
            await f.complete(job)
        await f.advance(10 * SECOND)
        for jobs, more in ((10, True), (10, True), (5, False), (0, False)):
            pruned = await f.store.prune(10)
            expect_equal((pruned.jobs, pruned.more), (jobs, more), "jobs forgotten, and whether more are left")


@rule("KEEP-1")
async def a_forgotten_id_starts_a_new_life(h: Harness) -> None:
    """Nothing of the old life is seen again, and its end does not affect the new one."""
    for how in ("expire", "prune", "purge"):
        old = await h.job_in(JobState.COMPLETED, result_ttl_ms=60 * SECOND, request_id="request-1")
        if how == "purge":
            await h.purge(old.key)
        else:
            await h.advance(60 * SECOND)
        if how == "prune":
            await prune_all(h)
        answer = await h.enqueue("job", queue=old.queue, request_id="request-2", result_ttl_ms=HOUR)
        expect_equal(answer, Queued("job", JobState.READY), f"enqueue of an id forgotten by {how}")
        new = await h.get(old.key)
        fresh = (JobState.READY, 0, 0, None, None, 0)
        seen = (new.state, new.attempts, len(new.errors), new.result, new.finished_at, new.replays)
        expect_equal(seen, fresh, f"new life after {how}")
        await h.advance(60 * SECOND)
        await prune_all(h)
        job = await h.claim_one(queue=old.queue)
        expect(job.token > old.token, "the new life got a token that is not above the old one's")
        h.accepted(await h.complete(job, b"2"), JobState.COMPLETED)
        await h.advance(LEASE)
        await prune_all(h)
        answer = await h.enqueue("job", queue=old.queue)
        expect_equal(getattr(expect_a(answer, AlreadyCompleted, "enqueue of the completed id"), "id", ""), "job", "id")


@rule("KEEP-1")
async def a_call_for_an_earlier_life_of_an_id_does_not_change_the_next(h: Harness) -> None:
    """A cancel, purge or change of the retention with a sequence number finds only that life of the id."""
    old = await h.job_in(JobState.CANCELED)
    expect_equal(await h.store.purge([Purge(old.key, old.finished_at, old.seq)]), ["purged"], "purge of the life seen")
    await h.queued("job", queue=old.queue)
    new = await h.get(old.key)
    expect(new.seq != old.seq, "two lives of an id have one sequence number")

    async def untouched(what: str) -> None:
        before = await h.get(old.key)
        async with h.no_event(f"by acts on an earlier life, {what}"):
            expect_equal(await h.store.cancel([Cancel(old.key, seq=old.seq)]), ["not_found"], f"cancel, {what}")
            expect_equal(await h.store.purge([Purge(old.key, seq=old.seq)]), ["not_found"], f"purge, {what}")
            kept = await h.store.set_result_ttl([SetResultTtl(old.key, 0, seq=old.seq)])
            expect_equal(kept, ["not_found"], f"change of the retention, {what}")
        expect_equal(await h.get(old.key), before, f"record, {what}")

    await untouched("while the next one waits")
    job = await h.claim_one(queue=old.queue)
    await untouched("while the next one runs")
    h.accepted(await h.complete(job), JobState.COMPLETED)
    await untouched("when the next one has completed")
    answers = await h.store.set_result_ttl([SetResultTtl(old.key, HOUR, seq=new.seq)])
    expect_equal(answers, ["updated"], "change of the retention of the life that is there")
    expect_equal(await h.store.purge([Purge(old.key, seq=new.seq)]), ["purged"], "purge of the life that is there")
    await h.queued("job", queue=old.queue)
    last = await h.get(old.key)
    expect_equal(
        await h.store.cancel([Cancel(old.key, seq=last.seq)]), ["canceled"], "cancel of the life that is there"
    )


@rule("KEEP-1")
async def a_late_purge_does_not_remove_the_next_life(h: Harness) -> None:
    """It removes the ended job that it found. A job that takes the id at that moment is found once, and runs."""
    producer, purger = await h.handles(2)
    key = h.key(queue=h.name("q"))

    async def two_lives() -> EnqueueAnswer:
        await producer.enqueue([h.new(queue=key.queue)])
        await producer.cancel([Cancel(key)])
        return (await producer.enqueue([h.new(queue=key.queue)]))[0]

    for _ in range(20):
        answer, (status,) = await asyncio.gather(two_lives(), purger.purge([Purge(key)]))
        expect_equal(answer, Queued(key.id, JobState.READY), f"second life beside a purge that said {status!r}")
        again = await h.enqueue(queue=key.queue)
        expect_equal(again, Duplicate(key.id, JobState.READY), f"enqueue of its id after a purge that said {status!r}")
        job = await h.claim_one(queue=key.queue)
        await h.claim_none(queue=key.queue)
        h.accepted(await h.complete(job), JobState.COMPLETED)
        expect_equal(await h.purge(key), "purged", "purge of the second life")


@rule("KEEP-1")
async def a_jobs_keys_are_removed_with_it_unless_they_have_a_time_to_live(h: Harness) -> None:
    """`until_terminal` and `until_started` keys never outlive the job. Keys for a time or forever do."""
    for policy, outlives in (("until_terminal", False), ("until_started", False), ("ttl", True), ("forever", True)):
        key = IdempotencyKey("once", policy, 2 * HOUR)  # pyright: ignore[reportArgumentType]
        job = await h.job_in(JobState.COMPLETED, idempotency=key)
        await h.advance(HOUR)
        await prune_all(h)
        answer = await h.enqueue("second", queue=job.queue, idempotency=key)
        expect_equal(
            isinstance(answer, Queued), not outlives, f"whether a {policy} key is free after the job: {answer}"
        )


@rule("KEEP-1")
async def a_replayed_job_is_kept_as_if_it_had_not_failed(h: Harness) -> None:
    """The replay ends the retention of its failure."""
    failed = await h.job_in(JobState.FAILED)
    await h.advance(6 * DAY)
    expect_a(await h.replay(failed.key), Replayed, "replay")
    await h.advance(2 * DAY)
    await prune_all(h)
    job = await h.claim_one(queue=failed.queue)
    before = await h.now()
    h.accepted(await h.fail(job), JobState.FAILED)
    expires_at = (await h.get(job.key)).expires_at or 0
    expect_between(expires_at, before + 7 * DAY, await h.now() + 7 * DAY, "end of the second retention")
    await h.advance(6 * DAY)
    await prune_all(h)
    await h.expect_state(job.key, JobState.FAILED, "within its second retention")


@rule("KEEP-1")
async def a_forgotten_job_is_no_longer_counted(h: Harness) -> None:
    """This holds whether or not it was pruned. Counts of finished jobs may be 10 s old."""
    for state, keep in ((JobState.COMPLETED, HOUR), (JobState.FAILED, 7 * DAY), (JobState.CANCELED, DAY)):
        job = await h.job_in(state)
        await h.advance(keep + 10 * SECOND)
        expect_equal((await h.stats(job.queue)).counts[state], 0, f"{state} jobs counted after their retention")


@rule("KEEP-1")
async def each_job_of_a_queue_is_forgotten_at_its_own_time(h: Harness) -> None:
    """In any order of endings, one by one or in a batch, a long retention does not delay a short one."""
    for in_one_batch in (False, True):
        async with h.frozen(keep_events="1000") as f:
            for seconds in (30, 10, 20):
                await f.queued(f"job-{seconds}", result_ttl_ms=seconds * SECOND)
            done = [Finish(job.key, job.token, "complete") for job in await f.claim(3)]
            for items in [done] if in_one_batch else [[item] for item in done]:
                await f.store.finish(items)
            for seconds in (10, 20, 30):
                await f.advance(10 * SECOND - 1)
                expect_equal((await f.store.prune(100)).jobs, 0, f"jobs to forget before {seconds} s")
                await f.advance(1)
                expect_equal((await f.store.prune(100)).jobs, 1, f"jobs to forget after {seconds} s")


@rule("KEEP-1")
async def forgotten_jobs_leave_no_trace_in_counts_and_lists(h: Harness) -> None:
    """Jobs that were purged, pruned, or replaced by a new job of the same id."""
    for state in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELED):
        for how in ("purge", "prune", "replace"):
            old = await h.job_in(state, result_ttl_ms=60 * SECOND)
            if how == "purge":
                expect_equal(await h.purge(old.key), "purged", "purge")
            elif how == "prune" or state is JobState.COMPLETED:
                await h.advance(8 * DAY)
            if how == "prune":
                await prune_all(h)
            left: dict[JobState, int] = {}
            if how == "replace":
                answer = await h.enqueue("job", queue=old.queue, replace_failed=True)
                expect_a(answer, Queued, f"enqueue of a {state} id")
                left = {JobState.READY: 1}
            await h.advance(10 * SECOND)  # Counts of finished jobs may be 10 s old.
            counts = {s: n for s, n in (await h.stats(old.queue)).counts.items() if n}
            expect_equal(counts, left, f"counts after the {how} of a {state} job")
            listed = await h.list_ids(queue=old.queue)
            expect_equal(len(listed), len(left), f"jobs listed after the {how} of a {state} job")


@rule("KEEP-1")
async def jobs_of_one_batch_are_each_kept_for_their_own_time(h: Harness) -> None:
    """In a batch of failures and completions, first the completed jobs are removed, then the dead letters."""
    ids = ["a", "b", "c", "d"]
    await h.queued(*ids, result_ttl_ms=60 * SECOND)
    leased = await h.claim(4)
    outcomes: list[Outcome] = ["fail", "complete", "fail", "complete"]
    items = [Finish(job.key, job.token, outcome, error=BOOM) for job, outcome in zip(leased, outcomes, strict=True)]
    states = [JobState.FAILED, JobState.COMPLETED, JobState.FAILED, JobState.COMPLETED]
    for answer, state in zip(await h.store.finish(items), states, strict=True):
        h.accepted(answer, state)
    await h.advance(60 * SECOND)
    expect_equal(await prune_all(h), 2, "jobs pruned after a minute")
    left = await h.store.get([h.key(id) for id in ids])
    expect_equal([job.id for job in left if job is not None], ["a", "c"], "jobs that are left")
    counts = (await h.stats()).counts
    expect_equal((counts[JobState.COMPLETED], counts[JobState.FAILED]), (0, 2), "completed and failed jobs counted")
    await h.advance(7 * DAY)
    expect_equal(await prune_all(h), 2, "jobs pruned after a week")
