"""CLAIM: the order of jobs, leases, waiting and pauses."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

from holdfast.core.job import HOUR, SECOND, Cancel, ClaimRequest, Job, JobState
from holdfast.store import Hint
from holdfast.testing.conformance.expect import Skipped, expect, expect_between, expect_equal, expect_some
from holdfast.testing.conformance.harness import DELAY, LEASE, PATIENCE_S, Harness
from holdfast.testing.conformance.rules import rule

MINUTE_MS = 60 * SECOND

# CLAIM-1 ------------------------------------------------------------------------------------------------------


@rule("CLAIM-1")
async def a_claim_gives_token_deadline_and_attempt(h: Harness) -> None:
    """A claim returns up to N jobs, each leased to this worker until now + lease. The record agrees."""
    async with h.frozen() as f:
        await f.queued("a", "b", "c")
        await f.advance(SECOND)
        now = await f.now()
        page = await f.claim_page(2, lease_ms=45 * SECOND, worker="worker-7")
        expect_equal([job.id for job in page.jobs], ["a", "b"], "jobs of a claim of two")
        expect_equal(page.now, now, "the store's clock in the answer")
        for job in page.jobs:
            expect_equal((job.state, job.attempts, job.worker_id), (JobState.LEASED, 1, "worker-7"), "lease")
            expect_equal((job.deadline, job.claimed_at), (now + 45 * SECOND, now), "deadline and time of the claim")
            expect(job.token > 0, f"token {job.token} is not positive")
            expect_equal(await f.get(job.key), job, "record after the claim")
        expect_equal(len({job.token for job in page.jobs}), 2, "different tokens")
        rest = await f.claim(5)
        expect_equal([job.id for job in rest], ["c"], "jobs of a claim of five with one left")
        expect(rest[0].token not in {job.token for job in page.jobs}, "a token was granted twice")
        await f.claim_none()


@rule("CLAIM-1")
async def concurrent_claims_never_give_one_job_twice(h: Harness) -> None:
    """Of many concurrent claims over several handles, exactly one gets each job."""
    jobs = 120
    await h.queued(*(f"job-{number}" for number in range(jobs)))
    stores = await h.handles(4)
    got: list[Job] = []
    for tenant in (h.tenant, None):
        calls = [h.claim(2 + n % 4, store=stores[n % 4], worker=f"w{n}", tenant=tenant) for n in range(16)]
        got += [job for batch in await asyncio.gather(*calls) for job in batch]
    got += await h.claim(jobs)
    expect_equal(max(Counter(job.id for job in got).values()), 1, "leases of one job")
    expect_equal(len(got), jobs, "jobs given out")
    expect_equal(len({job.token for job in got}), jobs, "different tokens")
    claimed = Counter(event.job_id for event in await h.events() if event.kind == "claimed")
    expect_equal(set(claimed.values()), {1}, "claimed events of a job")


@rule("CLAIM-1")
async def claims_from_several_event_loops_never_give_one_job_twice(h: Harness) -> None:
    """Siblings serve the event loops of other threads. All of them claim at the same moment, in rounds."""
    rounds, loops = 10, 3
    ids = [f"job-{number:02}" for number in range(2 * rounds * loops)]
    await h.queued(*ids)
    siblings = [await h.store.sibling() for _ in range(loops)]
    start = threading.Barrier(loops)

    async def claim_in_rounds(number: int) -> list[Job]:
        got: list[Job] = []
        try:
            for _ in range(rounds):
                start.wait(PATIENCE_S)
                got += await h.claim(2, store=siblings[number], worker=f"loop-{number}")
        finally:
            await siblings[number].close()
        return got

    def work(number: int) -> list[Job]:
        return asyncio.run(claim_in_rounds(number))

    taken = await asyncio.gather(*(asyncio.to_thread(work, number) for number in range(loops)))
    expect_equal([len(jobs) for jobs in taken], [2 * rounds] * loops, "jobs that each event loop got")
    everything = [job for jobs in taken for job in jobs]
    expect_equal(sorted(job.id for job in everything), ids, "jobs given out")
    expect_equal(len({job.token for job in everything}), len(ids), "different tokens")


@rule("CLAIM-1")
async def a_leased_job_is_not_given_again_before_its_deadline(h: Harness) -> None:
    """A job has one live lease, to the millisecond, whichever handle claims."""
    async with h.frozen() as f:
        await f.queued("job")
        first = await f.claim_one("job", lease_ms=LEASE)
        await f.advance(LEASE - 1)
        for tenant in (f.tenant, None):
            await f.claim_none(tenant=tenant)
        expect_equal((await f.get(first.key)).token, first.token, "token before the deadline")
        await f.advance(1)
        await f.claim_none()  # It ends the lease, and the job waits for its retry.
        await f.advance(DELAY)
        second = await f.claim_one("job")
        expect(second.token > first.token, "the second lease has no greater token")


# CLAIM-2 ------------------------------------------------------------------------------------------------------


@rule("CLAIM-2")
async def jobs_are_claimed_by_priority_then_time_then_sequence(h: Harness) -> None:
    """Priority 9 is first. Equal priorities are ordered by when they became visible, then by enqueue."""
    async with h.frozen() as f:
        for number, priority in enumerate((0, 5, 9, 4, 5, 9, 1, 0, 8)):
            await f.queued(f"p{priority}-{number}", priority=priority)
        got = [job.id for job in await f.claim(20)]
        expect_equal(got, ["p9-2", "p9-5", "p8-8", "p5-1", "p5-4", "p4-3", "p1-6", "p0-0", "p0-7"], "order by priority")
        await f.queued("later", delay_ms=2)
        await f.queued("sooner", delay_ms=1)
        await f.queued("at-once-z")
        await f.queued("at-once-a")
        await f.queued("batch-z", "batch-a")
        await f.advance(2)
        await f.queued("last")
        got = [job.id for job in await f.claim(20)]
        wanted = ["at-once-z", "at-once-a", "batch-z", "batch-a", "sooner", "later", "last"]
        expect_equal(got, wanted, "order by time and sequence")


@rule("CLAIM-2")
async def a_retried_job_is_ordered_by_its_new_visible_time(h: Harness) -> None:
    """Within its priority, a retried, released or replayed job is ordered by its new instant."""
    async with h.frozen() as f:
        await f.queued("a", "b", "c")
        a, b, c = await f.claim(3)
        await f.queued("d")
        await f.advance(10)
        await f.retry(a, delay_ms=20)
        await f.release(b)
        await f.fail(c)
        await f.advance(5)
        await f.replay(c.key)
        await f.advance(5)
        await f.queued("e")
        await f.queued("urgent", priority=6)
        await f.advance(10)
        await f.queued("f")
        order = ["urgent", "d", "b", "c", "e", "a", "f"]
        expect_equal(await f.list_ids(JobState.READY), order, "order of the list of ready jobs")
        expect_equal([job.id for job in await f.claim(20)], order, "order after retries, releases and replays")


@rule("CLAIM-2")
async def leased_and_future_jobs_never_hide_ready_ones(h: Harness) -> None:
    """This holds for any number of them with a higher priority or an earlier time."""
    await h.queued(*(f"leased-{number}" for number in range(1100)), priority=9)
    expect_equal(len(await h.claim(1100, lease_ms=HOUR)), 1100, "jobs leased")
    await h.queued(*(f"future-{number}" for number in range(1100)), priority=9, delay_ms=HOUR)
    gone = [f"canceled-{number}" for number in range(300)]
    await h.queued(*gone, priority=9)
    await h.store.cancel([Cancel(h.key(id)) for id in gone])
    await h.queued("ready", priority=0)
    await h.claim_one("ready")
    await h.claim_none()
    await h.queued("ready-2", priority=0)
    await h.claim_one("ready-2", tenant=None)


@rule("CLAIM-2")
async def many_jobs_due_at_the_same_time_are_claimed_in_order(h: Harness) -> None:
    """They are more than a store promotes in one step. Priority orders all of them, and none is lost."""
    ids = [f"job-{number:04}" for number in range(1500)]
    await h.queued(*ids, delay_ms=MINUTE_MS)
    await h.advance(MINUTE_MS)
    await h.queued("urgent", priority=9)
    got: list[str] = []
    while batch := await h.claim(400):
        got += [job.id for job in batch]
    expect_equal(got[0], "urgent", "first job")
    expect_equal(got[1:], ids, "the others, by time and sequence")


# CLAIM-3 ------------------------------------------------------------------------------------------------------


@rule("CLAIM-3")
async def a_claim_names_queues_and_never_job_types(h: Harness) -> None:
    """Jobs of every type, and those without a type, share one order in a queue. No other queue's jobs are claimed."""
    for number, type_ in enumerate(("a", "b", "", "a", "c")):
        await h.queued(f"job-{number}", type=type_)
    await h.queued("elsewhere", queue=h.name("q"))
    got = await h.claim(10)
    expect_equal([job.envelope.type for job in got], ["a", "b", "", "a", "c"], "types in the order of the queue")


@rule("CLAIM-3")
async def an_empty_claim_says_when_to_claim_again(h: Harness) -> None:
    """It gets the next due time or the next deadline, whichever is earlier. None if there is neither."""
    async with h.frozen(keep_events="1000") as f:
        expect_equal((await f.claim_page()).next_at, None, "when to claim again in an empty store")
        await f.queued("later", delay_ms=HOUR)
        await f.queued("sooner", delay_ms=MINUTE_MS)
        now = await f.now()
        expect_equal((await f.claim_page()).next_at, now + MINUTE_MS, "when to claim again: the next due time")
        expect_equal((await f.claim_page(tenant=None)).next_at, now + MINUTE_MS, "the same for all tenants")
        await f.queued("job")
        page = await f.claim_page(5, lease_ms=LEASE)
        expect_equal(len(page.jobs), 1, "jobs of a claim of five")
        expect_equal(page.next_at, now + LEASE, "when to claim again after fewer jobs than the limit: the deadline")
        await f.retry(page.jobs[0], delay_ms=10)
        expect_equal((await f.claim_page()).next_at, now + 10, "when to claim again: the retry")
        await f.advance(10)
        await f.claim_one("job", lease_ms=LEASE)
        expect_equal((await f.claim_page()).next_at, now + 10 + LEASE, "when to claim again: the new deadline")


@rule("CLAIM-3")
async def a_new_worker_learns_when_to_claim_again(h: Harness) -> None:
    """This includes the end of leases that were granted before it started."""
    if not h.capabilities.durable:
        raise Skipped("the store does not outlive the process")
    async with h.frozen() as f:
        await f.queued("later", delay_ms=HOUR)
        await f.queued("job")
        await f.claim_one("job", lease_ms=LEASE)
        now = await f.now()
        for tenant in (f.tenant, None):
            await f.reopen()
            expect_equal((await f.claim_page(tenant=tenant)).next_at, now + LEASE, "when to claim again: the deadline")


@rule("CLAIM-3")
async def an_urgent_job_due_later_does_not_hide_the_next_due_job(h: Harness) -> None:
    """The earliest due time counts, whatever the priority. At that time the job can be claimed."""
    async with h.frozen(keep_events="1000") as f:
        await f.queued("urgent", priority=9, delay_ms=HOUR)
        await f.queued("soon", priority=1, delay_ms=MINUTE_MS)
        now = await f.now()
        for tenant in (f.tenant, None):
            page = await f.claim_page(tenant=tenant)
            expect_equal((len(page.jobs), page.next_at), (0, now + MINUTE_MS), f"when {tenant} should claim again")
        await f.advance(MINUTE_MS)
        await f.claim_one("soon", tenant=None, lease_ms=2 * HOUR)
        page = await f.claim_page(tenant=None)
        expect_equal((len(page.jobs), page.next_at), (0, now + HOUR), "when to claim again for the urgent one")
        await f.advance(HOUR - MINUTE_MS)
        await f.claim_one("urgent", tenant=None)


@rule("CLAIM-3")
async def a_hint_is_sent_whenever_a_job_may_have_become_visible(h: Harness) -> None:
    """After an enqueue, retry, release, replay, resume and an expired lease, also through another handle."""
    other = (await h.handles(2))[1]
    key = h.key("job")
    with h.listening() as hints, h.listening(other) as far:
        await h.queued("job", max_attempts=20)
        await hints.expect(Hint.READY, key, "after an enqueue")
        await far.expect(Hint.READY, key, "after an enqueue through another handle")
        for outcome in ("retry", "release"):
            job = await h.claim_one("job")
            await hints.forget()
            h.accepted(await h.finish(job, outcome, delay_ms=0))
            await hints.expect(Hint.READY, key, f"after a {outcome}")
        await h.claim_one("job")
        await h.advance(LEASE)
        await hints.forget()
        await h.reap_all(other)
        await hints.expect(Hint.READY, key, "after a lease was reaped by another handle")
        await h.advance(DELAY)
        await h.fail(await h.claim_one("job"))
        await hints.forget()
        await h.replay(key)
        await hints.expect(Hint.READY, key, "after a replay")
        await h.store.pause(h.tenant, h.queue, paused=True)
        await hints.forget()
        await h.store.pause(h.tenant, h.queue, paused=False)
        await hints.expect(Hint.READY, key, "after a queue was resumed")


@rule("CLAIM-3")
async def a_stopped_listener_gets_no_hints(h: Harness) -> None:
    """The other listeners still get hints."""
    with h.listening() as stays:
        with h.listening() as leaves:
            await h.queued("a")
            await leaves.expect(Hint.READY, h.key("a"), "to a listener")
        await leaves.forget()
        await stays.forget()
        await h.queued("b")
        await stays.expect(Hint.READY, h.key("b"), "to the listener that stayed")
        expect_equal(leaves.signals, [], "hints to a listener that stopped")


# CLAIM-4 ------------------------------------------------------------------------------------------------------


@rule("CLAIM-4")
async def concurrent_claims_all_get_an_answer(h: Harness) -> None:
    """A hundred claims run over several handles, for one tenant and for all, beside enqueues and acknowledgements."""
    tenants = [h.name("t") for _ in range(4)]
    for tenant in tenants:
        await h.queued(*(f"before-{number}" for number in range(80)), tenant=tenant)
    stores = await h.handles(4)

    async def work(number: int) -> int:
        store, tenant = stores[number % 4], tenants[number % 4]
        whose = None if number % 3 == 0 else tenant
        limit = 1 + number % 3
        got = (await store.claim(ClaimRequest(whose, (h.queue,), limit, LEASE, f"w{number}"))).jobs
        expect_between(len(got), 1, limit, f"jobs of a claim of {limit} while there are more")
        for job in got:
            h.accepted(await h.complete(job), JobState.COMPLETED)
        await store.enqueue([h.new(f"new-{number}", tenant=tenant)])
        return len(got)

    given = sum(await asyncio.gather(*(work(number) for number in range(100))))
    while batch := await h.claim(50, tenant=None):
        given += len(batch)
    expect_equal(given, 4 * 80 + 100, "jobs given out to a hundred claims at once, and then to the rest")


@rule("CLAIM-4")
async def a_claim_finds_its_job_in_a_large_backlog(h: Harness) -> None:
    """A claim gets what it asked for beside thousands of waiting jobs of other tenants and queues."""
    busy = h.name("v")
    for start in range(0, 4000, 1000):
        await h.queued(*(f"job-{n}" for n in range(start, start + 1000)), tenant=busy, priority=9)
    await h.queued("mine")
    await h.claim_one("mine")
    page = await h.claim_page()
    expect_equal(page.jobs, [], "jobs of a tenant that has none left")
    await h.queued("mine-2")
    got = [job.id for job in await h.claim(2, tenant=None)]
    expect("mine-2" in got, "a tenant's only job did not come within two turns beside a backlog of 4000")


# CLAIM-5 ------------------------------------------------------------------------------------------------------


@rule("CLAIM-5")
async def a_paused_queue_accepts_jobs_and_hands_out_none(h: Harness) -> None:
    """Neither the tenant's workers nor those for all tenants get a job, whether it is ready or becomes due."""
    await h.queued("before")
    await h.store.pause(h.tenant, h.queue, paused=True)
    await h.store.pause(h.tenant, h.queue, paused=True)  # It can be called twice.
    await h.queued("ready")
    await h.queued("later", delay_ms=DELAY)
    await h.advance(DELAY)
    for tenant in (h.tenant, None):
        await h.claim_none(tenant=tenant)
    stats = await h.stats()
    expect(stats.paused, "stats do not say that the queue is paused")
    expect_equal(stats.counts[JobState.READY], 3, "ready jobs in a paused queue")
    await h.store.pause(h.tenant, h.queue, paused=False)
    expect(not (await h.stats()).paused, "stats say that the queue is still paused")
    expect_equal([job.id for job in await h.claim(5)], ["before", "ready", "later"], "jobs once the queue is resumed")


@rule("CLAIM-5")
async def a_tenant_with_a_paused_queue_takes_no_turns(h: Harness) -> None:
    """A tenant whose queue is paused has no more turns at once, and has turns again after the resume."""
    for tenant in (h.tenant, h.other):
        await h.queued(*(f"job-{number}" for number in range(20)), tenant=tenant)
    expect_equal(len(await h.claim(4, tenant=None)), 4, "turns before the pause")
    await h.store.pause(h.other, h.queue, paused=True)
    got = [job.tenant for _ in range(3) for job in await h.claim(2, tenant=None)]
    expect_equal(got, [h.tenant] * 6, "tenants served during the pause")
    await h.store.pause(h.other, h.queue, paused=False)
    got = [job.tenant for _ in range(4) for job in await h.claim(2, tenant=None)]
    expect_between(got.count(h.other), 2, 6, "turns of eight that the tenant has after the pause")


@rule("CLAIM-5")
async def a_pause_stops_that_queue_alone(h: Harness) -> None:
    """The tenant's other queues are still served, even in the same claim."""
    going = h.name("q")
    await h.store.pause(h.tenant, h.queue, paused=True)
    await h.queued("paused")
    await h.queued("a", "b", queue=going)
    got = await h.claim(5, queue=(h.queue, going))
    expect_equal([job.id for job in got], ["a", "b"], "jobs of a claim over a paused and a running queue")


@rule("CLAIM-5")
async def running_jobs_of_a_paused_queue_can_end(h: Harness) -> None:
    """They can complete and extend. A job that is retried or released waits for the resume."""
    await h.queued("a", "b", "c")
    a, b, c = await h.claim(3)
    await h.store.pause(h.tenant, h.queue, paused=True)
    h.accepted(await h.complete(a), JobState.COMPLETED)
    h.accepted(await h.release(b), JobState.READY)
    deadline = getattr(await h.extend(c, 2 * LEASE), "deadline", 0)
    expect_between(deadline, c.deadline + 1, c.deadline + 2 * LEASE, "deadline extended in a paused queue")
    await h.claim_none()
    expect_equal(await h.cancel(b.key), "canceled", "cancel in a paused queue")
    await h.store.pause(h.tenant, h.queue, paused=False)
    await h.claim_none()
    expect_some(await h.find(c.key), "a running job of a paused queue")


@rule("CLAIM-2")
async def a_batch_of_claims_skips_a_job_that_is_due_later(h: Harness) -> None:
    """The batch continues with jobs of lower priority behind it."""
    await h.queued("first", priority=9)
    await h.queued("later", priority=9, delay_ms=HOUR)
    await h.queued("second", "third", priority=5)
    await h.queued("much-later", priority=5, delay_ms=2 * HOUR)
    await h.queued("last", priority=0)
    for tenant in (h.tenant, None):
        got = await h.claim(6, tenant=tenant)
        expect_equal([job.id for job in got], ["first", "second", "third", "last"], f"jobs that {tenant} got")
        for job in got:
            h.accepted(await h.release(job))
