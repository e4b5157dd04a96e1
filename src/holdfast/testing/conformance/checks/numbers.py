"""EVENT-1: the events of a job's life are numbered 1, 2, 3, ..., and its record has the last number."""

from __future__ import annotations

from holdfast.core.job import DAY, HOUR, Cancel, Extend, Finish, Job, JobKey, JobState, Progress, Purge, Queued, Report
from holdfast.extensions import SplitLog
from holdfast.testing.conformance.expect import expect, expect_a, expect_equal
from holdfast.testing.conformance.harness import BOOM, DELAY, LEASE, Harness
from holdfast.testing.conformance.rules import rule
from holdfast.testing.conformance.waiting_worker import waiting_worker


async def expect_numbered(h: Harness, *keys: JobKey) -> None:
    """Fail unless each job's events count from 1 in each of its lives, and its record has the last number."""
    for key in keys:
        history = await h.history(key)
        want: list[int] = []
        for event in history:
            want.append(1 if event.kind == "enqueued" else want[-1] + 1)
        expect_equal([event.number for event in history], want, f"numbers of {[event.kind for event in history]}")
        job = await h.find(key)
        if job is not None:
            expect_equal(job.events, want[-1], f"last number in the record after {history[-1].kind}")


@rule("EVENT-1")
async def every_kind_of_event_takes_the_next_number_of_its_job(h: Harness) -> None:
    """Each transition is made by a call with one job, over several lives of one id."""
    async with h.frozen(events="all") as f:
        key = f.key("job")

        async def claimed() -> Job:
            job = await f.claim_one("job")
            expect_equal(job.events, (await f.history(key))[-1].number, "last number in a job that was claimed")
            await expect_numbered(f, key)
            return job

        async def done(answer: object) -> None:
            expect(not isinstance(answer, Exception), f"a step was refused: {answer!r}")
            await expect_numbered(f, key)

        await f.queued("job", max_attempts=2)
        job = await claimed()
        await done(await f.extend(job))
        await done(await f.report(job))
        await done(await f.release(job))
        job = await claimed()
        await done(await f.retry(job))
        await f.advance(DELAY)
        job = await claimed()
        await done(await f.retry(job))
        await f.expect_state(key, JobState.FAILED)
        await done(await f.replay(key))
        await claimed()
        await f.advance(LEASE)
        await done(await f.store.reap(10, 0.0))
        await f.advance(DELAY)
        await claimed()
        await f.advance(LEASE)
        await done(await f.store.reap(10, 0.0))
        await f.expect_state(key, JobState.FAILED)
        await done(await f.enqueue("job", replace_failed=True, delay_ms=HOUR))
        await done(await f.cancel(key))
        await done(await f.enqueue("job"))
        job = await claimed()
        await done(await f.fail(job))
        await done(await f.replay(key))
        await claimed()
        await done(await f.cancel(key))
        await done(await f.purge(key))
        await done(await f.enqueue("job"))
        job = await claimed()
        await done(await f.complete(job))
        await done(await f.purge(key))
        await done(await f.enqueue("job"))
        kinds = [event.kind for event in await f.history(key)]
        expect_equal((kinds.count("enqueued"), kinds[-1]), (5, "enqueued"), "lives of the job")
        if f.capabilities.durable:
            await claimed()
            await f.reopen()
            await expect_numbered(f, key)


@rule("EVENT-1")
async def in_a_batch_each_job_has_its_own_number(h: Harness) -> None:
    """Jobs with different numbers are claimed, extended, ended, replayed and purged in one call."""
    async with h.frozen(events="all") as f:
        ids = [f"job-{n}" for n in range(6)]
        keys = [f.key(id) for id in ids]
        await f.queued(*ids)
        for n in (1, 2, 4):
            for job in await f.claim(n):
                f.accepted(await f.release(job))
        await expect_numbered(f, *keys)
        jobs = list(reversed(await f.claim(6)))
        expect_equal(len({job.events for job in jobs}) > 1, True, "jobs with different numbers in the batch")
        for job in jobs:
            expect_equal(job.events, (await f.history(job.key))[-1].number, "last number in a job that was claimed")
        await f.store.extend([Extend(job.key, job.token, 2 * LEASE) for job in jobs])
        await f.store.report([Report(job.key, job.token, Progress(0.5)) for job in jobs])
        await expect_numbered(f, *keys)
        await f.store.finish([Finish(job.key, job.token, "complete") for job in jobs[:3]])
        await expect_numbered(f, *keys)
        mixed = [Finish(jobs[3].key, jobs[3].token, "fail", error=BOOM), Finish(jobs[4].key, jobs[4].token, "release")]
        await f.store.finish([*mixed, Finish(jobs[5].key, jobs[5].token, "fail", error=BOOM)])
        await expect_numbered(f, *keys)
        await f.store.replay([jobs[5].key, jobs[3].key])
        await expect_numbered(f, *keys)
        await f.store.cancel([Cancel(jobs[4].key), Cancel(jobs[5].key)])
        await expect_numbered(f, *keys)
        await f.store.purge([Purge(key) for key in reversed(keys)])
        await expect_numbered(f, *keys)
        for answer in await f.store.enqueue([f.new(id, delay_ms=HOUR if id == "job-3" else 0) for id in ids]):
            expect(not isinstance(answer, Exception), f"an enqueue was refused: {answer!r}")
        await expect_numbered(f, *keys)


@rule("EVENT-1")
async def the_events_of_a_batch_keep_their_numbers_when_they_are_read_apart(h: Harness) -> None:
    """They are read one at a time, from the middle of a batch, and by tenant."""
    ids = [f"job-{n}" for n in range(5)]
    before = await h.store.last_offset()
    await h.queued(*ids)
    for job in await h.claim(2):
        h.accepted(await h.release(job))
    await h.store.finish([Finish(job.key, job.token, "complete") for job in await h.claim(5)])
    whole = [(event.kind, event.job_id, event.number) for event in await h.events()]
    apart = [(event.kind, event.job_id, event.number) for event in await h.events(page=1)]
    expect_equal(apart, whole, "numbers of events that were read one by one")
    everything = await h.events(None)
    mine = [(event.kind, event.job_id, event.number) for event in everything if event.tenant == h.tenant]
    expect_equal(mine, whole, "numbers of events in the log of all tenants")
    store = h.store
    if isinstance(store, SplitLog):
        pieces = await store.split(*await store.bounds(before), 1000)
        found = [event for piece in pieces for event in (await store.read(piece, 1000)).events]
        mine = [(event.kind, event.job_id, event.number) for event in found if event.tenant == h.tenant]
        expect_equal(mine, whole, "numbers of events in pieces of the log")


@rule("EVENT-1")
async def a_job_that_another_handle_renewed_completes_with_the_next_number(h: Harness) -> None:
    """The number is that of the record, whatever a handle has cached for the lease."""
    async with h.frozen(events="all") as f:
        mine = [await f.leased(f"job-{n}") for n in range(3)]
        for handle in await f.handles(2):
            await handle.extend([Extend(job.key, job.token, LEASE) for job in mine])
        await f.complete(mine[0])
        await f.store.finish([Finish(job.key, job.token, "complete") for job in mine[1:]])
        await expect_numbered(f, *(job.key for job in mine))


@rule("EVENT-1")
async def a_call_without_an_event_uses_no_number(h: Harness) -> None:
    """Extensions and progress that are not logged, refusals, and repeated acknowledgements."""
    job = await h.leased()
    await h.extend(job)
    await h.report(job)
    await h.enqueue(queue=job.queue)
    await h.store.finish([Finish(job.key, job.token - 1, "complete")])
    expect_equal((await h.get(job.key)).events, 2, "last number of a running job that was renewed")
    h.accepted(await h.complete(job), JobState.COMPLETED)
    h.accepted(await h.complete(job), JobState.COMPLETED)
    await h.set_result_ttl(job.key, DAY)
    await h.cancel(job.key)
    expect_equal((await h.get(job.key)).events, 3, "last number of a completed job")
    await expect_numbered(h, job.key)


@rule("EVENT-1")
async def the_claim_of_a_handed_off_job_is_its_second_event(h: Harness) -> None:
    """The enqueue and the claim of a hand-off have two numbers, and later events continue from there."""
    async with waiting_worker(h) as worker:
        await worker.register(2)
        for id in ("a", "b"):
            expect_a(await h.enqueue(id), Queued, "enqueue while a worker waits")
        one, two = await worker.received(2)
        expect_equal((one.events, two.events), (2, 2), "last numbers of handed-off jobs")
        h.accepted(await h.complete(one), JobState.COMPLETED)
        h.accepted(await h.release(two))
        await expect_numbered(h, one.key, two.key)


@rule("EVENT-1")
async def event_numbers_begin_at_one_after_a_job_is_forgotten(h: Harness) -> None:
    """This holds whether or not its record was removed already."""
    for pruned in (True, False):
        job = await h.job_in(JobState.COMPLETED, result_ttl_ms=HOUR)
        await h.advance(HOUR)
        if pruned:
            while (await h.store.prune(1000)).more:
                pass
        expect_a(await h.enqueue(queue=job.queue), Queued, "enqueue of a forgotten id")
        expect_equal((await h.get(job.key)).events, 1, f"last number of a new life (pruned: {pruned})")
        await expect_numbered(h, job.key)
