"""RESULT-1, and the hint behind RESULT-2: results are kept for their time."""

from __future__ import annotations

from holdfast.core.job import DAY, HOUR, SECOND, Finish, JobState, Queued, Result
from holdfast.store import Hint
from holdfast.testing.conformance.checks.events import quiet
from holdfast.testing.conformance.expect import expect_a, expect_between, expect_equal
from holdfast.testing.conformance.harness import LEASE, Harness
from holdfast.testing.conformance.rules import rule


@rule("RESULT-1")
async def a_result_is_kept_for_its_ttl_and_then_gone(h: Harness) -> None:
    """It ends with the record, to the millisecond: get and list do not return it, and the id is free."""
    async with h.frozen() as f:
        job = await f.leased("job", queue=f.queue, result_ttl_ms=90 * SECOND)
        await f.advance(10 * SECOND)  # The time counts from the end, not from the start.
        now = await f.now()
        h.accepted(await f.finish(job, "complete", result=Result(b"\x00\xff", "msgpack")), JobState.COMPLETED)
        done = await f.get(job.key)
        expect_equal((done.result, done.finished_at), (Result(b"\x00\xff", "msgpack"), now), "result and its time")
        await f.advance(90 * SECOND - 1)
        expect_equal(await f.get(job.key), done, "record a millisecond before the end of its time")
        expect_equal(await f.list_ids(JobState.COMPLETED), ["job"], "list a millisecond before")
        await f.advance(1)
        expect_equal(await f.find(job.key), None, "record at the end of its time")
        expect_equal(await f.list_ids(), [], "list at the end of its time")
        expect_a(await f.enqueue("job"), Queued, "enqueue of the id at the end of its time")


@rule("RESULT-1")
async def a_result_is_returned_unchanged(h: Harness) -> None:
    """Bytes, codec and reference are returned, also for empty and large results."""
    large, binary = Result(b"x" * 250_000), Result(bytes(range(256)), "raw")
    for result in (Result(b""), Result(b"null"), binary, large, Result(b"", "json", "b/1")):
        job = await h.leased()
        h.accepted(await h.finish(job, "complete", result=result), JobState.COMPLETED)
        expect_equal((await h.get(job.key)).result, result, "result")


@rule("RESULT-1")
async def a_result_is_kept_for_an_hour_by_default(h: Harness) -> None:
    """This is the default. Each job has its own time. A completion without a result is kept, too."""
    by_default, long = await h.leased(), await h.leased(result_ttl_ms=DAY)
    h.accepted(await h.finish(by_default, "complete"), JobState.COMPLETED)
    h.accepted(await h.complete(long, b"2"), JobState.COMPLETED)
    await h.advance(HOUR - 10 * SECOND)
    await h.store.prune(1000)
    await h.expect_state(by_default.key, JobState.COMPLETED, "before the hour is over")
    await h.advance(10 * SECOND)
    expect_equal(await h.find(by_default.key), None, "record of a result after an hour")
    await h.advance(DAY - HOUR - 10 * SECOND)
    await h.store.prune(1000)
    await h.expect_state(long.key, JobState.COMPLETED, "before the day is over")
    await h.advance(10 * SECOND)
    expect_equal(await h.find(long.key), None, "record of a result of a day after a day")


@rule("RESULT-1")
async def the_ttl_of_a_result_can_be_changed_afterwards(h: Harness) -> None:
    """The new time is longer or shorter and counts from the change. Only an ended job can be changed."""
    async with h.frozen() as f:
        longer = await f.job_in(JobState.COMPLETED, result_ttl_ms=10 * SECOND)
        shorter = await f.job_in(JobState.COMPLETED, result_ttl_ms=DAY)
        await f.advance(5 * SECOND)
        async with f.no_event("by a change of the TTL"):
            expect_equal(await f.set_result_ttl(longer.key, HOUR), "updated", "longer TTL")
            expect_equal(await f.set_result_ttl(shorter.key, 20 * SECOND), "updated", "shorter TTL")
        await f.advance(20 * SECOND - 1)
        await f.store.prune(1000)
        await f.expect_state(shorter.key, JobState.COMPLETED, "a millisecond before its new end")
        await f.advance(1)
        expect_equal(await f.find(shorter.key), None, "record whose TTL was shortened")
        expect_equal((await f.store.prune(1000)).jobs, 1, "jobs to prune at the end of a shorter TTL")
        await f.advance(HOUR - 20 * SECOND - 1)
        expect_equal((await f.store.prune(1000)).jobs, 0, "jobs to prune before the end of a longer TTL")
        await f.expect_state(longer.key, JobState.COMPLETED, "a millisecond before its new end")
        await f.advance(1)
        expect_equal(await f.find(longer.key), None, "record whose TTL was lengthened, after that")
        expect_equal((await f.store.prune(1000)).jobs, 1, "jobs to prune at the end of a longer TTL")
        expect_equal(await f.set_result_ttl(longer.key, HOUR), "not_found", "change for a forgotten job")


@rule("RESULT-1")
async def a_change_of_the_ttl_answers_with_the_state_that_it_found(h: Harness) -> None:
    """It answers updated for an ended job, not_terminal for another one, not_found for none."""
    for state in JobState:
        if state is JobState.BLOCKED:
            continue
        job = await h.job_in(state)
        ended = state in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELED)
        wanted = "updated" if ended else "not_terminal"
        expect_equal(await h.set_result_ttl(job.key, 60 * SECOND), wanted, f"TTL of a {state} job")
        if not ended:
            expect_equal(await h.get(job.key), job, f"record of a {state} job after a refused change")
        else:
            await h.advance(60 * SECOND)
            expect_equal(await h.find(job.key), None, f"a {state} job after its new TTL")
    expect_equal(await h.set_result_ttl(h.key("nowhere"), HOUR), "not_found", "TTL of a job that is not there")


@rule("RESULT-1")
async def a_result_without_ttl_is_gone_at_once(h: Harness) -> None:
    """With a TTL of 0 the job completes, and only its event is left."""
    job = await h.leased(result_ttl_ms=0)
    h.accepted(await h.complete(job), JobState.COMPLETED)
    expect_equal(await h.find(job.key), None, "record of a completed job with a TTL of 0")
    expect_equal(await h.kinds(job.key), ["enqueued", "claimed", "completed"], "events")


@rule("RESULT-1")
async def a_result_in_a_blob_is_named_when_it_is_forgotten(h: Harness) -> None:
    """Pruning returns the blobs of the results of the jobs that it removed, each once."""
    async with h.frozen(keep_events="1000") as f:
        job = await f.leased(result_ttl_ms=10 * SECOND)
        result = Result(b"", "json", blob="results/abc")
        h.accepted((await f.store.finish([Finish(job.key, job.token, "complete", result)]))[0], JobState.COMPLETED)
        expect_equal((await f.get(job.key)).result, result, "reference to a blob")
        expect_equal((await f.store.prune(100)).blobs, [], "blobs to delete while the result is kept")
        await f.advance(10 * SECOND)
        pruned = await f.store.prune(100)
        expect_equal((pruned.jobs, pruned.blobs), (1, ["results/abc"]), "jobs and blobs forgotten")
        expect_equal((await f.store.prune(100)).blobs, [], "blobs to delete the second time")


@rule("RESULT-2")
async def a_hint_is_sent_when_a_job_ends(h: Harness) -> None:
    """This holds for every ending, also through another handle. A waiter needs no polling."""
    other = (await h.handles(2))[1]
    with h.listening() as hints, h.listening(other) as far:
        for end in ("complete", "fail", "cancel", "expire"):
            job = await h.leased(max_attempts=1)
            await quiet(job.key, hints, far)
            if end == "cancel":
                await h.cancel(job.key)
            elif end == "expire":
                await h.advance(LEASE)
                await quiet(job.key, hints, far)  # A shift of the clock sends a hint for everything.
                await h.store.reap(1000, 0.0)
            else:
                h.accepted(await h.finish(job, end))
            await hints.expect(Hint.DONE, job.key, f"after an end by {end}")
            await far.expect(Hint.DONE, job.key, f"after an end by {end} through another handle")


@rule("RESULT-2")
async def a_retried_or_released_job_has_not_ended(h: Harness) -> None:
    """A retry or a release leaves no result, and no time of ending."""
    for outcome in ("retry", "release"):
        job = await h.leased()
        h.accepted(await h.finish(job, outcome, result=Result(b"1")))
        record = await h.get(job.key)
        expect_equal(
            (record.result, record.finished_at, record.expires_at), (None, None, None), f"record after {outcome}"
        )
        expect_between(record.visible_at, job.visible_at, record.visible_at, "visible from")
