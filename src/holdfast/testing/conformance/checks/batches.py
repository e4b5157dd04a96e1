"""ENQ-4: a batch answers item by item, in order."""

from __future__ import annotations

from holdfast.core.job import (
    DAY,
    HOUR,
    SECOND,
    AlreadyCompleted,
    Backoff,
    Duplicate,
    Extend,
    Finish,
    Finished,
    JobState,
    Queued,
    Result,
)
from holdfast.testing.conformance.expect import expect_equal, expect_some
from holdfast.testing.conformance.harness import LEASE, Harness
from holdfast.testing.conformance.rules import rule

# ENQ-4 --------------------------------------------------------------------------------------------------------


@rule("ENQ-4")
async def a_batch_answers_item_by_item_in_order(h: Harness) -> None:
    """This holds across tenants, queues and outcomes. A bad item does not affect the others."""
    done = await h.job_in(JobState.COMPLETED)
    failed = await h.job_in(JobState.FAILED)
    elsewhere = h.name("q")
    items = [
        h.new("a"),
        h.new("a"),
        h.new("job", queue=done.queue),
        h.new("a", tenant=h.other, delay_ms=HOUR),
        h.new("job", queue=failed.queue),
        h.new("a", queue=elsewhere),
        h.new("b"),
    ]
    answers = await h.store.enqueue(items)
    wanted = [
        Queued("a", JobState.READY),
        Duplicate("a", JobState.READY),
        AlreadyCompleted("job", Result(b'"done"')),
        Queued("a", JobState.SCHEDULED),
        Duplicate("job", JobState.FAILED),
        Queued("a", JobState.READY),
        Queued("b", JobState.READY),
    ]
    expect_equal(answers, wanted, "answers to a mixed batch")
    expect_equal(await h.store.enqueue([]), [], "answers to an empty batch")


@rule("ENQ-4")
async def batches_of_acknowledgements_answer_item_by_item_too(h: Harness) -> None:
    """A stale or unknown item among good ones gets its own answer, and so do cancels, replays and purges."""
    await h.queued("a", "b", "c")
    a, b, c = await h.claim(3)
    nowhere = h.key("nowhere")
    answers = await h.store.finish(
        [
            Finish(a.key, a.token, "complete", Result(b"1")),
            Finish(b.key, b.token - 1, "complete"),
            Finish(nowhere, a.token, "complete"),
            Finish(c.key, c.token, "release"),
            Finish(a.key, a.token, "complete", Result(b"1")),
            Finish(a.key, a.token, "release"),
        ]
    )
    names = [type(answer).__name__ for answer in answers]
    wanted = ["Finished", "LeaseLost", "JobNotFound", "Finished", "Finished", "LeaseLost"]
    expect_equal(names, wanted, "answers to a mixed batch of acknowledgements")
    states = [job.state if job else None for job in await h.store.get([c.key, nowhere, a.key, b.key])]
    wanted = [JobState.READY, None, JobState.COMPLETED, JobState.LEASED]
    expect_equal(states, wanted, "states, in the order asked")
    expect_equal(answers[0], Finished(JobState.COMPLETED), "first answer")
    for call in (h.store.finish, h.store.extend, h.store.report, h.store.cancel, h.store.replay, h.store.purge):
        expect_equal(await call([]), [], f"answers of {call.__name__} to an empty batch")


@rule("ENQ-4")
async def batches_of_extensions_answer_item_by_item_too(h: Harness) -> None:
    """Only the leases that are lost or over are refused. The others in the batch are extended."""
    async with h.frozen() as f:
        await f.queued("a", "b", "c")
        jobs = [*await f.claim(2), await f.claim_one("c", lease_ms=SECOND)]
        await f.advance(SECOND)
        now = await f.now()
        for refused, why in (("c", "LeaseExpired"), ("b", "LeaseLost")):
            items = [Extend(job.key, job.token - (refused == job.id == "b"), 2 * LEASE) for job in jobs]
            names = [type(answer).__name__ for answer in await f.store.extend(items)]
            wanted = ["LeaseExpired" if job.id == "c" else why if job.id == refused else "Extended" for job in jobs]
            expect_equal(names, wanted, "answers to a batch of extensions")
        for job, deadline in zip(jobs, (now + 2 * LEASE, now + 2 * LEASE, now), strict=True):
            expect_equal((await f.get(job.key)).deadline, deadline, f"deadline of {job.id!r}")


@rule("ENQ-4")
async def each_result_of_a_batch_goes_to_its_own_job(h: Harness) -> None:
    """This holds even if some items are refused, at the start, in the middle or at the end, in any order."""
    ids = [f"job-{number}" for number in range(12)]
    await h.queued(*ids)
    whole = list(reversed(await h.claim(6)))
    results = [Result(job.id.encode()) for job in whole]
    items = [Finish(job.key, job.token, "complete", result) for job, result in zip(whole, results, strict=True)]
    for answer in await h.store.finish(items):
        h.accepted(answer, JobState.COMPLETED)
    kept = [expect_some(job, "record").result for job in await h.store.get([job.key for job in whole])]
    expect_equal(kept, results, "results of a batch that was accepted whole")
    jobs = await h.claim(6)
    stale = (0, 3, 5)
    items = [
        Finish(job.key, job.token - (number in stale), "complete", Result(job.id.encode()))
        for number, job in enumerate(jobs)
    ]
    names = [type(answer).__name__ for answer in await h.store.finish(items)]
    wanted = ["LeaseLost" if number in stale else "Finished" for number in range(6)]
    expect_equal(names, wanted, "answers to a batch of completions")
    for number, job in enumerate(await h.store.get([job.key for job in jobs])):
        want = None if number in stale else items[number].result
        expect_equal(expect_some(job, "record").result, want, f"result of job {number} of the batch")


@rule("ENQ-4")
async def each_job_of_a_batch_is_stored_as_it_was_sent(h: Harness) -> None:
    """Each job keeps its own delay, instant, type, retention and policy, whatever the other items and their order."""
    async with h.frozen() as f:
        for step in (1, -1):
            now, queue = await f.now(), f.name("q")
            sent = {
                f.new("plain", queue=queue): now,
                f.new("late", queue=queue, delay_ms=HOUR, type="mail", result_ttl_ms=DAY): now + HOUR,
                f.new("timed", queue=queue, run_at=now + DAY, priority=9, max_attempts=2): now + DAY,
                f.new("past", queue=queue, run_at=now - DAY, backoff=Backoff(), timeout_ms=SECOND): now,
            }
            items = list(sent)[::step]
            for item, answer in zip(items, await f.store.enqueue(items), strict=True):
                state = JobState.SCHEDULED if sent[item] > now else JobState.READY
                expect_equal(answer, Queued(item.key.id, state), f"answer for {item.key.id!r} of a batch")
                job = await f.get(item.key)
                expect_equal(job.envelope, item.envelope, f"what was sent as {item.key.id!r} of a batch")
                ttl_ms = item.envelope.result_ttl_ms
                got = (job.enqueued_at, job.visible_at, job.state, job.result_ttl_ms)
                expect_equal(got, (now, sent[item], state, ttl_ms), f"times of {item.key.id!r} of a batch")
            await f.advance(DAY)
            order = ["timed", *["plain", "past"][::step], "late"]
            expect_equal([job.id for job in await f.claim(4, queue=queue)], order, "a batch in the order of its claim")


@rule("ENQ-4")
async def a_large_batch_is_stored_in_order(h: Harness) -> None:
    """A thousand items come out in the order in which they went in."""
    ids = [f"job-{number:04}" for number in range(1000)]
    await h.queued(*ids)
    got = [job.id for _ in range(4) for job in await h.claim(250)]
    expect_equal(got, ids, "order of a thousand jobs")
