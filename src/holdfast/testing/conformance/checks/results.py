"""RESULT-1, DEAD, KEEP: what is kept of an ended job, and for how long."""

from __future__ import annotations

import asyncio

from holdfast.core.errors import JobNotFound, NotReplayable
from holdfast.core.events import fingerprint
from holdfast.core.job import DAY, HOUR, SECOND, AttemptError, JobKey, JobState, Queued, Replayed, Result
from holdfast.store import ListQuery
from holdfast.testing.conformance.expect import expect, expect_a, expect_equal
from holdfast.testing.conformance.harness import Harness
from holdfast.testing.conformance.rules import rule

FAILED = frozenset({JobState.FAILED})


# RESULT-1 -------------------------------------------------------------------------------------------------------


@rule("RESULT-1")
async def a_result_comes_back_as_it_was_given(h: Harness) -> None:
    """Bytes, codec and reference, also empty and large ones."""
    results = (
        Result(b""),
        Result(b"null"),
        Result(bytes(range(256)), "raw"),
        Result(b"x" * 250_000),
        Result(b"", "json", "b/1"),
    )
    for result in results:
        job = await h.leased()
        h.accepted(await h.finish(job, "complete", result=result), JobState.COMPLETED)
        expect_equal((await h.get(job.key)).result, result, "result")


@rule("RESULT-1")
async def a_result_is_gone_after_its_ttl_with_the_record(h: Harness) -> None:
    """Per job: an hour unless said otherwise. To the millisecond, and before anything is pruned."""
    async with h.frozen() as f:
        for ttl in (HOUR, 5 * SECOND, 40 * DAY):
            job = await (f.leased() if ttl == HOUR else f.leased(result_ttl_ms=ttl))
            f.accepted(await f.complete(job, b"1"), JobState.COMPLETED)
            await f.advance(ttl - 1)
            expect_equal((await f.get(job.key)).result, Result(b"1"), f"result just before its TTL of {ttl} ms")
            await f.advance(1)
            expect_equal(await f.find(job.key), None, f"record at the end of its TTL of {ttl} ms")
            expect_equal(await f.list_ids(queue=job.queue), [], "list after the TTL")
            expect_equal((await f.stats(job.queue)).counts[JobState.COMPLETED], 0, "completed jobs after the TTL")
            expect_equal(await f.cancel(job.key), "not_found", "cancel after the TTL")


@rule("RESULT-1")
async def a_ttl_can_be_changed_afterwards(h: Harness) -> None:
    """Counted from now, longer or shorter, for ended jobs alone."""
    async with h.frozen() as f:
        for ttl in (SECOND, 3 * HOUR):
            job = await f.job_in(JobState.COMPLETED)
            expect_equal(await f.set_result_ttl(job.key, ttl), "updated", "change of a TTL")
            await f.advance(ttl - 1)
            await f.get(job.key)
            await f.store.prune(1000)
            await f.get(job.key)
            await f.advance(1)
            expect_equal(await f.find(job.key), None, f"record after the new TTL of {ttl} ms")
            expect_equal(await f.set_result_ttl(job.key, ttl), "not_found", "change of a TTL of a forgotten job")
    for state in (JobState.SCHEDULED, JobState.READY, JobState.LEASED, JobState.RETRYING):
        job = await h.job_in(state)
        expect_equal(await h.set_result_ttl(job.key, SECOND), "not_terminal", f"change of a TTL of a {state} job")
        await h.advance(2 * SECOND)
        await h.get(job.key)
    expect_equal(await h.set_result_ttl(h.key("never"), SECOND), "not_found", "change of a TTL of no job")


# DEAD-1 -------------------------------------------------------------------------------------------------------------


async def dead(h: Harness, id: str, error: AttemptError, *, type: str = "conformance", queue: str) -> JobKey:
    """A dead letter."""
    job = await h.leased(id, queue=queue, type=type)
    h.accepted(await h.fail(job, error), JobState.FAILED)
    return job.key


@rule("DEAD-1")
async def dead_letters_are_listed_oldest_first_with_reason_and_errors(h: Harness) -> None:
    """In the order in which they failed, page by page, and nothing else among them."""
    queue = h.name("q")
    ids = [f"job-{number}" for number in (3, 1, 4, 0, 5, 2)]
    for number, id in enumerate(ids):
        await dead(h, id, AttemptError("Boom", f"number {number}", "trace"), queue=queue)
        await h.advance(10)
    done = await h.leased("done", queue=queue)
    await h.complete(done)
    found: list[str] = []
    cursor: str | None = None
    for _ in range(10):
        page = await h.store.list(ListQuery(h.tenant, queue, FAILED, cursor=cursor, limit=2))
        found += [job.id for job in page.jobs]
        for job in page.jobs:
            expect_equal(job.reason, "permanent", "reason of a dead letter")
            expect_equal([(e.type, e.traceback, e.attempt) for e in job.errors], [("Boom", "trace", 1)], "errors")
        cursor = page.cursor
        if cursor is None:
            break
    expect_equal(found, ids, "dead letters, page by page")


@rule("DEAD-1")
async def dead_letters_are_filtered_by_type_and_error(h: Harness) -> None:
    """By the type of the job; by type, fingerprint or a part of the message of the last error."""
    queue = h.name("q")
    timeout = AttemptError("Timeout", "took 31 s")
    await dead(h, "a", timeout, type="mail", queue=queue)
    await dead(h, "b", AttemptError("KeyError", "'name'"), type="mail", queue=queue)
    await dead(h, "c", AttemptError("Timeout", "took 99 s"), type="report", queue=queue)

    async def found(**filters: str) -> list[str]:
        return await h.list_ids(JobState.FAILED, queue=queue, **filters)

    expect_equal(await found(type="mail"), ["a", "b"], "dead letters of one type")
    expect_equal(await found(error="Timeout"), ["a", "c"], "dead letters by the error's type")
    expect_equal(await found(error=fingerprint(timeout)), ["a", "c"], "dead letters by the error's fingerprint")
    expect_equal(await found(error="99 s"), ["c"], "dead letters by a part of the message")
    expect_equal(await found(type="mail", error="Timeout"), ["a"], "dead letters by both")
    expect_equal(await found(error="nothing like it"), [], "dead letters by an error that none had")


@rule("DEAD-1")
async def of_concurrent_replays_one_wins(h: Harness) -> None:
    """The job starts again once; the others are told that it is not replayable."""
    job = await h.job_in(JobState.FAILED)
    stores = await h.handles(4)
    answers = [a for one in await asyncio.gather(*(s.replay([job.key, job.key]) for s in stores)) for a in one]
    expect_equal(sum(isinstance(answer, Replayed) for answer in answers), 1, "replays that won")
    expect_equal(sum(isinstance(answer, NotReplayable) for answer in answers), 7, "replays that lost")
    expect_equal((await h.kinds(job.key)).count("replayed"), 1, "replayed events")
    await h.claim_one("job", queue=job.queue)
    await h.claim_none(queue=job.queue)


@rule("DEAD-1")
async def a_replayed_job_has_all_its_attempts_again(h: Harness) -> None:
    """Same id, same message, its history kept; a job that is not there answers so."""
    queue = h.name("q")
    await h.queued("job", queue=queue, max_attempts=2, payload=b'{"n":1}')
    key = h.key(queue=queue)
    for replays in (1, 2):
        for attempt in (1, 2):
            job = await h.claim_one("job", queue=queue)
            expect_equal((job.attempts, job.envelope.payload), (attempt, b'{"n":1}'), "attempt and payload")
            await h.retry(job, delay_ms=0)
        expect_equal((await h.get(key)).reason, "max_attempts", "reason")
        expect_a(await h.replay(key), Replayed, "replay")
        record = await h.get(key)
        expect_equal((record.state, record.attempts, record.reason), (JobState.READY, 0, ""), "record after a replay")
        expect(record.finished_at is None and record.expires_at is None, "a replayed job still counts as ended")
        expect_equal((len(record.errors), record.replays), (2 * replays, replays), "errors and replays")
    expect_a(await h.replay(h.key("never")), JobNotFound, "replay of no job")


@rule("DEAD-1")
async def a_purge_forgets_a_finished_job_and_records_it(h: Harness) -> None:
    """Only a finished one, and with a time only if that is still how it ended."""
    job = await h.job_in(JobState.FAILED)
    finished_at = job.finished_at or 0
    expect_equal(await h.purge(job.key, finished_at + 1), "not_terminal", "purge of another ending")
    await h.get(job.key)
    expect_equal(await h.purge(job.key, finished_at), "purged", "purge")
    expect_equal(await h.find(job.key), None, "record of a purged job")
    expect_equal((await h.kinds(job.key))[-1], "purged", "last event of a purged job")
    expect_equal(await h.purge(job.key), "not_found", "purge of a purged job")
    for state in (JobState.SCHEDULED, JobState.READY, JobState.LEASED, JobState.RETRYING):
        other = await h.job_in(state)
        expect_equal(await h.purge(other.key), "not_terminal", f"purge of a {state} job")
        await h.expect_state(other.key, state, "after a purge was refused")


# KEEP-1 -------------------------------------------------------------------------------------------------------------


@rule("KEEP-1")
async def only_terminal_jobs_are_ever_forgotten(h: Harness) -> None:
    """Waiting and running ones outlive any retention, whatever is pruned."""
    open_states = (JobState.SCHEDULED, JobState.READY, JobState.LEASED, JobState.RETRYING)
    jobs = {state: await h.job_in(state, result_ttl_ms=0, **_far(state)) for state in open_states}
    await h.advance(400 * DAY)
    while (await h.store.prune(1000)).more:
        pass
    for state, job in jobs.items():
        record = await h.get(job.key)
        expect_equal(record.expires_at, None, f"expiry of a {state} job")
    claimed = await h.claim_one("job", queue=jobs[JobState.READY].queue)
    h.accepted(await h.complete(claimed), JobState.COMPLETED)


def _far(state: JobState) -> dict[str, int]:
    return {"delay_ms": 500 * DAY} if state is JobState.SCHEDULED else {}


@rule("KEEP-1")
async def each_kind_of_ending_has_its_own_retention(h: Harness) -> None:
    """Completed with its result, failed 7 days, canceled 1 day; then the id is free, and no event is made."""
    async with h.frozen() as f:
        for state, keep in ((JobState.COMPLETED, HOUR), (JobState.FAILED, 7 * DAY), (JobState.CANCELED, DAY)):
            job = await f.job_in(state)
            await f.advance(keep - 1)
            await f.store.prune(1000)
            await f.get(job.key)
            await f.advance(1)
            expect_equal(await f.find(job.key), None, f"record of a {state} job after its retention")
            async with f.no_event("by forgetting"):
                pruned = await f.store.prune(1000)
                expect(pruned.jobs >= 1, "nothing was pruned")
            expect_equal((await f.stats(job.queue)).counts[state], 0, f"{state} jobs counted after pruning")
            expect_a(await f.enqueue(queue=job.queue), Queued, "enqueue of a forgotten id")
            expect_equal((await f.get(job.key)).attempts, 0, "attempts of the new life")


@rule("KEEP-1")
async def retention_can_be_set_when_the_store_is_opened(h: Harness) -> None:
    """`keep_failed_s` and `keep_canceled_s`."""
    async with h.frozen(keep_failed_s="10", keep_canceled_s="5") as f:
        failed, canceled = await f.job_in(JobState.FAILED), await f.job_in(JobState.CANCELED)
        await f.advance(5 * SECOND)
        expect_equal(await f.find(canceled.key), None, "a canceled job after 5 s")
        await f.get(failed.key)
        await f.advance(5 * SECOND)
        expect_equal(await f.find(failed.key), None, "a failed job after 10 s")


@rule("KEEP-1")
async def pruning_is_bounded_and_says_whether_there_is_more(h: Harness) -> None:
    """A limit of two takes two, and the blobs of large results are named once."""
    async with h.frozen(keep_events="1000") as f:
        queue = f.name("q")
        ids = [f"job-{number}" for number in range(5)]
        await f.queued(*ids, queue=queue, result_ttl_ms=SECOND)
        for job in await f.claim(5, queue=queue):
            f.accepted(await f.finish(job, "complete", result=Result(b"", "json", f"blob/{job.id}")))
        await f.advance(SECOND)
        counts: list[int] = []
        blobs: list[str] = []
        for _ in range(10):
            pruned = await f.store.prune(2)
            counts.append(pruned.jobs)
            blobs += pruned.blobs
            if not pruned.more:
                break
        expect_equal(sum(counts), 5, "jobs pruned in all")
        expect(max(counts) <= 2, f"a prune of two took {max(counts)}")
        expect_equal(sorted(blobs), [f"blob/{id}" for id in ids], "blobs to delete")
