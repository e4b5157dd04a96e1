"""CLAIM-1 and what goes with it, for stores that hand a new job to an idle worker as it comes."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from holdfast.core.errors import JobCanceled, LeaseLost, QuotaExceeded
from holdfast.core.events import Event
from holdfast.core.job import (
    HOUR,
    SECOND,
    AlreadyCompleted,
    Duplicate,
    Extended,
    IdempotencyKey,
    Job,
    JobKey,
    JobState,
    NewJob,
    Queued,
    Reported,
)
from holdfast.store import Hint, TenantSettings
from holdfast.testing.conformance.expect import expect, expect_a, expect_equal
from holdfast.testing.conformance.harness import DELAY, LEASE, Harness
from holdfast.testing.conformance.places import enqueue_elsewhere, place
from holdfast.testing.conformance.rules import rule

READY, LEASED, SCHEDULED = JobState.READY, JobState.LEASED, JobState.SCHEDULED


async def states(h: Harness, *ids: str, **where: str) -> list[JobState]:
    """The states of some jobs, in order."""
    return [(await h.get(h.key(id, **where))).state for id in ids]


async def leased_of(h: Harness, keys: list[JobKey]) -> int:
    """How many of these are leased."""
    return sum(job is not None and job.state is LEASED for job in await h.store.get(keys))


def alike(job: Job) -> Job:
    """A record without what two jobs never have in common."""
    return replace(job, tenant="", queue="", seq=0, token=0, worker_id="")


def alike_events(events: list[Event]) -> list[Event]:
    """The same for events."""
    return [replace(event, queue="", tenant="", token=0, offset="", worker_id="") for event in events]


# CLAIM-1, RETRY-1, EVENT-1 ------------------------------------------------------------------------------------


@rule("CLAIM-1")
async def a_delivered_job_is_leased_as_by_a_claim(h: Harness) -> None:
    """Token, deadline, attempt, worker and all the rest, for every option of an enqueue."""
    async with h.frozen() as f, place(f, "worker-with-a-name-of-its-own") as worker:
        for n, whose in enumerate((f.tenant, None)):
            for options in (
                {},
                {"priority": 9, "max_attempts": 1, "type": "a/b"},
                {"priority": 0, "max_attempts": 7, "request_id": "job", "payload": b"\x00\xff" * 100},
                {"request_id": "another", "result_ttl_ms": 0, "headers": {"a": "b"}, "timeout_ms": 5 * SECOND},
                {"run_at": 1, "type": ""},
            ):
                own, twin = f.name("own"), f.name("twin")
                await f.queued("job", queue=twin, **options)
                claimed = await f.claim_one("job", queue=twin, worker="worker-2")
                worker.jobs.clear()
                await worker.offer(1, queue=own, tenant=whose)
                answer = expect_a(await f.enqueue("job", queue=own, **options), Queued, "enqueue while a worker waits")
                expect_equal(answer.id, "job", "id of a delivered job")
                (job,) = await worker.came(1)
                now = await f.now()
                expect_equal(job, await f.get(f.key(queue=own)), "the job as it came, and its record")
                expect_equal(alike(job), alike(claimed), f"a delivered job ({n}, {options}), and one that was claimed")
                expect_equal(job.worker_id, "worker-with-a-name-of-its-own", "worker of a delivered job")
                expect_equal((job.state, job.attempts), (LEASED, 1), "state and attempts of a delivered job")
                expect_equal((job.deadline, job.claimed_at), (now + LEASE, now), "deadline and start of its lease")
                expect_equal(worker.times[-1], now, "the store's time that came with it")
                expect(job.token > claimed.token, "the token of a delivered job is not greater than those before")
                later = await f.leased()
                expect(later.token > job.token, "a token after a delivery is not greater")
                made, twins = await f.history(job.key), await f.history(claimed.key)
                expect_equal([event.kind for event in made], ["enqueued", "claimed"], "events of a delivered job")
                expect_equal(alike_events(made), alike_events(twins), "events of a delivered and of a claimed job")
                expect_equal(made[1].token, job.token, "token in the event")
                expect_equal([event.worker_id for event in made], ["", job.worker_id], "workers in the events")


@rule("EVENT-1")
async def the_events_of_a_delivery_are_two_in_order_for_every_reader(h: Harness) -> None:
    """Read one by one, by tenant or of all, each comes once; the log goes on behind them."""
    async with place(h) as worker:
        await worker.offer(3)
        before = await h.store.last_offset()
        for id in ("a", "b", "c"):
            await h.queued(id)
        end = await h.store.last_offset()
        want = [(kind, id) for id in ("a", "b", "c") for kind in ("enqueued", "claimed")]
        for tenant in (h.tenant, None):
            for page in (1, 500):
                found = await h.events(tenant, after=before, page=page)
                mine = [(event.kind, event.job_id) for event in found if event.tenant == h.tenant]
                expect_equal(mine, want, f"events of three deliveries, {page} at a time")
        expect_equal(await h.events(after=end), [], "events behind the end of the log")
        await h.queued("d", delay_ms=HOUR)
        after = [(event.kind, event.job_id) for event in await h.events(after=end)]
        expect_equal(after, [("enqueued", "d")], "what came after the end of the log")


@rule("EVENT-2")
async def deliveries_are_counted_in_the_log(h: Harness) -> None:
    """Trimming keeps just as many events as it should, also if they came two at a time or one by one."""
    async with h.frozen(keep_events="12") as f, place(f) as worker:
        for round_ in range(2):
            # The newest are completions at first, deliveries then.
            await worker.offer(8)
            for n in range(8):
                await f.queued(f"{round_}-{n}")
            jobs = (await worker.came(8 * round_ + 8))[8 * round_ :]
            want = [(kind, f"{round_}-{n}") for n in range(8) for kind in ("enqueued", "claimed")]
            if round_ == 0:
                want += [("completed", f"0-{n}") for n in range(8)]
                for job in jobs:
                    f.accepted(await f.complete(job), JobState.COMPLETED)
            while (await f.store.prune(1000)).more:
                pass
            everything = (await f.store.events(None, None, 500)).events
            kept = [(event.kind, event.job_id) for event in everything if event.tenant == f.tenant]
            expect_equal(len(everything), 12, "events that trimming kept")
            # The place has tried itself out, as another tenant.
            expect_equal(kept, want[-len(kept) :], "the tenant's part of them")


@rule("EVENT-2")
async def a_hint_comes_when_a_delivery_made_the_log_grow(h: Harness) -> None:
    """Who follows the log is told."""
    async with place(h) as worker:
        await worker.offer(1)
        with h.listening() as ear:
            await h.queued("first", queue=h.name("q"))
            await ear.expect(Hint.EVENTS, h.key("first"), "at first")
            await ear.settle()
            await asyncio.sleep(0.1)
            ear.signals.clear()
            await h.queued("job")
            await ear.expect(Hint.EVENTS, h.key("job"), "after a delivery")


@rule("STATE-1")
async def a_delivered_job_is_counted_and_listed_as_leased(h: Harness) -> None:
    """It never stood in line: not in the counts, not in the lists, not for a claim; its tenant and queue are known."""
    async with place(h) as worker:
        tenant = h.name("t")
        await worker.offer(1, tenant=tenant)
        await h.queued("job", tenant=tenant)
        (job,) = await worker.came(1)
        (stats,) = await h.store.stats(tenant)
        expect_equal(stats.queue, h.queue, "queue of a delivered job")
        counts = {state: count for state, count in stats.counts.items() if count}
        expect_equal(counts, {LEASED: 1}, "counts after a delivery")
        expect_equal(stats.oldest_ready_at, None, "oldest ready job after a delivery")
        expect(tenant in await h.store.tenants(), "the tenant of a delivered job is not listed")
        for whose in (tenant, None):
            await h.claim_none(tenant=whose)
        h.accepted(await h.complete(job), JobState.COMPLETED)
        (stats,) = await h.store.stats(tenant)
        counts = {state: count for state, count in stats.counts.items() if count}
        expect_equal(counts, {JobState.COMPLETED: 1}, "counts after its end")


# LEASE, CANCEL ------------------------------------------------------------------------------------------------


@rule("LEASE-1")
async def a_delivered_job_obeys_its_token(h: Harness) -> None:
    """Whoever it was delivered to can extend, report, and acknowledge in every way; nobody else can."""
    async with place(h) as worker:
        for outcome, state in (
            ("complete", JobState.COMPLETED), ("fail", JobState.FAILED), ("retry", JobState.RETRYING),
            ("release", READY),
        ):  # fmt: skip
            queue = h.name("q")
            worker.jobs.clear()
            await worker.offer(1, queue=queue)
            await h.queued("job", queue=queue)
            (job,) = await worker.came(1)
            expect_a(await h.finish(job, "complete", token=job.token + 1), LeaseLost, "another token")
            expect_a(await h.extend(job, 2 * LEASE), Extended, "extending a delivered job")
            expect_a(await h.report(job), Reported, "progress of a delivered job")
            for _ in range(2):
                h.accepted(await h.finish(job, outcome), state)  # pyright: ignore[reportArgumentType]
            kinds = [kind for kind in await h.kinds(job.key) if kind not in ("extended", "progressed")]
            expect_equal(len(kinds), 3, "events of a delivered job that was acknowledged twice")
            if state is READY:
                again = await h.claim_one("job", queue=queue)
                expect_equal(again.attempts, 1, "attempts after a release gave the first back")
                expect(again.token > job.token, "the token did not grow")


@rule("LEASE-3")
async def a_delivered_job_that_nobody_finishes_comes_back(h: Harness) -> None:
    """Its lease is found expired, to the very moment, by the reaper and by any claim, and counts as an attempt."""
    async with h.frozen() as f, place(f) as worker:
        for by_reaper in (True, False):
            for whose in (f.tenant, None):
                queue = f.name("q")
                worker.jobs.clear()
                await worker.offer(1, queue=queue, tenant=whose)
                await f.queued("job", queue=queue, max_attempts=2)
                (job,) = await worker.came(1)
                await f.claim_none(queue=f.name("q"))
                page = await f.claim_page(1, queue=queue)
                expect_equal(page.next_at, job.deadline, "when a claim should look again")
                await f.advance(LEASE - 1)
                expect_equal((await f.store.reap(100, 0.0)).jobs, [], "leases that ended before their time")
                await f.advance(1)
                if by_reaper:
                    expect_equal((await f.store.reap(100, 0.0)).jobs, [job.key], "leases that ended at their time")
                else:
                    await f.claim_none(queue=f.name("q"))
                await f.expect_state(job.key, JobState.RETRYING, "after its lease ran out")
                await f.advance(DELAY)
                again = await f.claim_one("job", queue=queue, tenant=whose)
                expect_equal(again.attempts, 2, "attempts after a delivery and a claim")
                expect_equal((await f.store.reap(100, 0.0)).jobs, [], "leases that ended")
                f.accepted(await f.complete(again), JobState.COMPLETED)


@rule("LEASE-3")
async def a_lease_that_was_delivered_hides_no_shorter_one(h: Harness) -> None:
    """Of a claimed and a delivered job in one queue, each lease is found at its own time."""
    for own in (True, False):
        async with h.frozen() as f, place(f) as worker:
            whose = f.tenant if own else None
            queue = f.name("q")
            await f.queued("short", queue=queue)
            short = await f.claim_one("short", queue=queue, tenant=whose, lease_ms=5 * SECOND)
            await worker.offer(1, queue=queue, tenant=whose)
            await f.queued("long", queue=queue)
            (long,) = await worker.came(1)
            await f.advance(5 * SECOND)
            expect_equal((await f.store.reap(100, 0.0)).jobs, [short.key], "leases that ended first")
            await f.advance(LEASE - 5 * SECOND)
            expect_equal((await f.store.reap(100, 0.0)).jobs, [long.key], "leases that ended then")


@rule("CANCEL-1")
async def a_delivered_job_can_be_canceled(h: Harness) -> None:
    """The lease dies with it, the holder is told, and the id is free."""
    async with place(h) as worker:
        await worker.offer(2)
        await h.queued("job")
        (job,) = await worker.came(1)
        expect_equal(await h.cancel(job.key, only_waiting=True), "processing", "cancel of waiting jobs alone")
        with h.listening() as ear:
            expect_equal(await h.cancel(job.key), "canceled", "cancel of a delivered job")
            await ear.expect(Hint.CANCELED, job.key, "when a delivered job was canceled")
        expect_a(await h.complete(job), JobCanceled, "completing a canceled job")
        expect_equal(
            await h.store.reap(100, 0.0) and await h.kinds(job.key), ["enqueued", "claimed", "canceled"], "events"
        )
        await h.queued("job")
        again = (await worker.claim(1) or await worker.came(2))[-1]
        expect(again.token > job.token, "the token did not grow with the next life of the id")
        expect_equal(again.attempts, 1, "attempts of the next life")


# How many -----------------------------------------------------------------------------------------------------


@rule("CLAIM-1")
async def never_more_is_delivered_than_there_is_room_for(h: Harness) -> None:
    """What a claim wished for and did not get, and not one more; the rest waits, in order."""
    for whose in (h.tenant, None):
        async with place(h) as worker:
            queue = h.name("q")
            worker.jobs.clear()
            await h.queued("first", queue=queue)
            expect_equal([job.id for job in await worker.claim(4, queue=queue, tenant=whose)], ["first"], "claimed")
            ids = [f"job-{n}" for n in range(6)]
            for id in ids:
                await h.queued(id, queue=queue)
            await worker.came(3)
            expect_equal(worker.ids, ids[:3], "jobs that were delivered, in order")
            expect_equal(await states(h, *ids, queue=queue), [LEASED] * 3 + [READY] * 3, "states over the room told")
            got = [job.id for job in await worker.claim(2, queue=queue, tenant=whose)]
            expect_equal(got, ids[3:5], "the next claim")
            await h.queued("last", queue=queue)
            expect_equal(await states(h, "last", queue=queue), [READY], "state of a job after a claim that got all")


@rule("CLAIM-1")
async def no_more_is_delivered_than_could_start_at_once(h: Harness) -> None:
    """What a worker would claim ahead is not sent to it: it would wait there while others are free."""
    for whose in (h.tenant, None):
        for free, waits, want in ((0, 0, 0), (2, 0, 2), (2, 1, 1), (1, 2, 0), (9, 1, 3)):
            async with place(h) as worker:
                queue = h.name("q")
                for n in range(waits):
                    await h.queued(f"waits-{n}", queue=queue)
                claimed = await worker.claim(4, queue=queue, tenant=whose, free=free)
                expect_equal(len(claimed), waits, "claimed jobs")
                ids = [f"job-{n}" for n in range(6)]
                for id in ids:
                    await h.queued(id, queue=queue)
                await worker.came(want)
                expect_equal(
                    await states(h, *ids, queue=queue),
                    [LEASED] * want + [READY] * (6 - want),
                    f"states with {free} free and {waits} claimed",
                )


@rule("CLAIM-1")
async def free_room_counts_what_is_on_its_way(h: Harness) -> None:
    """Jobs that were handed over and have not come yet will start first."""
    for whose in (h.tenant, None):
        async with place(h) as worker:
            queue = h.name("q")
            await worker.offer(4, queue=queue, tenant=whose)
            enqueue_elsewhere(h, [h.new("a", queue=queue)], [h.new("b", queue=queue)])
            expect_equal(await worker.claim(9, queue=queue, tenant=whose, free=4), [], "claimed jobs")
            ids = [f"job-{n}" for n in range(6)]
            for id in ids:
                await h.queued(id, queue=queue)
            await worker.came(4)
            expect_equal(await states(h, *ids, queue=queue), [LEASED] * 2 + [READY] * 4, "states with 2 on their way")


@rule("CLAIM-1")
async def the_room_of_a_worker_is_counted_once_over_all_its_queues(h: Harness) -> None:
    """An offer for several queues is one offer, wherever it is used."""
    for whose in (h.tenant, None):
        async with place(h) as worker:
            queues = [h.name("q") for _ in range(3)]
            worker.jobs.clear()
            await worker.offer(4, queue=queues, tenant=whose)
            keys = [h.key(f"{n}", queue=queues[n % 3]) for n in range(8)]
            for key in keys:
                await h.queued(key.id, queue=key.queue)
            await worker.came(4)
            expect_equal(await leased_of(h, keys), 4, "leases from three queues")
            # And the other way round.
            got = await worker.claim(6, queue=[*queues[1:], queues[0]], tenant=whose)
            expect_equal(len(got), 4, "what waited in the three queues")
            keys = [h.key(f"again-{n}", queue=queues[n % 3]) for n in range(5)]
            for key in keys:
                await h.queued(key.id, queue=key.queue)
            await worker.came(6)
            expect_equal(await leased_of(h, keys), 2, "leases from three queues after another claim")
            await worker.claim(3, queue=queues, tenant=whose)


@rule("CLAIM-1")
async def a_claim_takes_back_what_was_offered_before(h: Harness) -> None:
    """The room told last is what counts."""
    for whose in (h.tenant, None):
        async with place(h) as worker:
            queues = [h.name("q"), h.name("q")]
            worker.jobs.clear()
            await worker.offer(9, queue=queues, tenant=whose)
            await worker.offer(2, queue=queues, tenant=whose)
            keys = [h.key(f"{n}", queue=queues[n % 2]) for n in range(5)]
            for key in keys:
                await h.queued(key.id, queue=key.queue)
            await worker.came(2)
            expect_equal(await leased_of(h, keys), 2, "leases after a second, smaller offer")
            rest = await worker.claim(3, queue=queues, tenant=whose)
            expect_equal(len(rest), 3, "what was left")
            await h.queued("more", queue=queues[0])
            expect_equal(await states(h, "more", queue=queues[0]), [READY], "state of a job after a full claim")
            await worker.claim(1, queue=queues, tenant=whose)
            await worker.came(2)
            await worker.offer(5, queue=queues, tenant=whose)
            await h.store.enqueue(batch_of(h, queues[1]))
            expect_equal(len(await worker.claim(5, queue=queues, tenant=whose)), 5, "what came together")
            await h.queued("late", queue=queues[0])
            expect_equal(await states(h, "late", queue=queues[0]), [READY], "state of a job that nobody has room for")
            await worker.came(2)


@rule("CLAIM-1")
async def a_claim_counts_what_is_on_its_way(h: Harness) -> None:
    """Jobs that were handed over and have not come yet take up room: together they are no more than was wished for."""
    for whose in (h.tenant, None):
        async with place(h) as worker:
            queue = h.name("q")
            worker.jobs.clear()
            await worker.offer(4, queue=queue, tenant=whose)
            lone = [[h.new(f"lone-{n}", queue=queue)] for n in range(4)]
            batch = [h.new(f"batch-{n}", queue=queue) for n in range(9)]
            enqueue_elsewhere(h, *lone, batch)
            claimed = await worker.claim(6, queue=queue, tenant=whose)
            await worker.came(4)
            expect_equal([job.id for job in claimed], ["batch-0", "batch-1"], "a claim of 6 with 4 on their way")
            # Those are known by now, and count no more.
            again = await worker.claim(3, queue=queue, tenant=whose)
            expect_equal([job.id for job in again], ["batch-2", "batch-3", "batch-4"], "the next claim")
            # An offer that was used in part, and seen in part.
            await worker.claim(4, queue=queue, tenant=whose)
            await worker.offer(5, queue=queue, tenant=whose)
            await h.queued("seen", queue=queue)
            await worker.came(5)
            enqueue_elsewhere(h, [h.new("unseen-1", queue=queue)], [h.new("unseen-2", queue=queue)], batch_of(h, queue))
            claimed = await worker.claim(4, queue=queue, tenant=whose)
            await worker.came(7)
            expect_equal(len(claimed), 2, "a claim of 4 with 2 on their way")
            await worker.claim(10, queue=queue, tenant=whose)


def batch_of(h: Harness, queue: str) -> list[NewJob]:
    """Jobs that come together."""
    stem = h.name("b")
    return [h.new(f"{stem}-{n}", queue=queue) for n in range(5)]


@rule("CLAIM-1")
async def two_workers_get_what_each_has_room_for(h: Harness) -> None:
    """Of jobs that come while two wait, each gets its own, and none goes to both."""
    (second,) = await h.handles(1)
    for whose in (h.tenant, None):
        async with place(h, "worker-1") as one, place(h, "worker-2", second) as two:
            queue = h.name("q")
            for worker in (one, two):
                worker.jobs.clear()
                await worker.offer(2, queue=queue, tenant=whose)
            ids = [f"job-{n}" for n in range(5)]
            for id in ids:
                await h.queued(id, queue=queue)
            await one.came(2)
            await two.came(2)
            expect_equal(sorted(one.ids + two.ids), ids[:4], "jobs that were delivered")
            for worker, name in ((one, "worker-1"), (two, "worker-2")):
                expect_equal({job.worker_id for job in worker.jobs}, {name}, "workers of delivered jobs")
            expect_equal(await states(h, ids[4], queue=queue), [READY], "state of the one that nobody had room for")
            await one.claim(1, queue=queue, tenant=whose)


# Which --------------------------------------------------------------------------------------------------------


@rule("CLAIM-5")
async def nothing_is_delivered_from_a_paused_queue(h: Harness) -> None:
    """It takes jobs in; they come by a claim when it goes on."""
    for whose in (h.tenant, None):
        async with place(h) as worker:
            queue = h.name("q")
            worker.jobs.clear()
            await worker.offer(2, queue=queue, tenant=whose)
            await h.store.pause(h.tenant, queue, paused=True)
            await h.queued("job", queue=queue)
            expect_equal(await states(h, "job", queue=queue), [READY], "state of a job in a paused queue")
            await h.store.pause(h.tenant, queue, paused=False)
            expect_equal([job.id for job in await worker.claim(2, queue=queue, tenant=whose)], ["job"], "a claim")
            await h.queued("next", queue=queue)
            await worker.came(1)
            expect_equal(worker.ids, ["next"], "what was delivered when the queue went on")


@rule("ENQ-5")
async def a_job_that_is_not_due_is_not_delivered(h: Harness) -> None:
    """It waits for its time and then for a claim; one whose time has been comes at once."""
    for own in (True, False):
        async with h.frozen() as f, place(f) as worker:
            whose = f.tenant if own else None
            queue = f.name("q")
            worker.jobs.clear()
            await worker.offer(4, queue=queue, tenant=whose)
            now = await f.now()
            await f.queued("delayed", queue=queue, delay_ms=1)
            await f.queued("dated", queue=queue, run_at=now + 1)
            expect_equal(await states(f, "delayed", "dated", queue=queue), [SCHEDULED] * 2, "states before the time")
            await f.claim_none(queue=queue, tenant=whose)
            await f.advance(1)
            got = [job.id for job in await worker.claim(4, queue=queue, tenant=whose)]
            expect_equal(got, ["delayed", "dated"], "what a claim gets at the time")
            await f.queued("past", queue=queue, run_at=now - HOUR)
            (job,) = await worker.came(1)
            expect_equal(job.visible_at, now + 1, "since when a job is visible whose time had been before it came")


@rule("CLAIM-2")
async def nothing_is_delivered_ahead_of_a_job_that_waits(h: Harness) -> None:
    """One that became due while the worker waited goes first, whatever its priority."""
    for own in (True, False):
        async with h.frozen() as f, place(f) as worker:
            whose = f.tenant if own else None
            for priority in (9, 5, 0):
                queue = f.name("q")
                worker.jobs.clear()
                await worker.offer(1, queue=queue, tenant=whose)
                await f.queued("waits", queue=queue, delay_ms=SECOND, priority=priority)
                await worker.offer(3, queue=queue, tenant=whose)
                await f.advance(SECOND)
                await f.queued("comes", queue=queue, priority=5)
                found = await states(f, "waits", "comes", queue=queue)
                want = [READY, READY]
                if priority < 5 and found == [READY, LEASED]:
                    want = found  # It is the next by its priority, and may be delivered.
                expect_equal(found, want, f"states of a job of priority {priority} that waits, and of one that comes")
                if found[1] is READY:
                    got = [job.id for job in await worker.claim(2, queue=queue, tenant=whose)]
                    order = ["waits", "comes"] if priority >= 5 else ["comes", "waits"]
                    expect_equal(got, order, "the order of the claim")


@rule("TENANT-2")
async def a_worker_of_one_tenant_is_never_sent_anothers_job(h: Harness) -> None:
    """Nor is a tenant's job sent to whom it would meet if names were put together carelessly."""
    async with place(h) as worker:
        base = h.name("x")
        for (tenant, queue), (other, others_queue) in (
            ((h.tenant, h.queue), (h.other, h.queue)),
            ((h.tenant, h.queue), (h.tenant, h.name("q"))),
            ((base, "bc"), (f"{base}b", "c")),
            ((f"{base}1", "1:c"), (f"{base}", "11:c")),
            ((f"{base}-1", "a:1:b"), (f"{base}-1", "a:1")),
        ):
            worker.jobs.clear()
            await worker.offer(1, tenant=tenant, queue=queue)
            strange, own = h.name("strange"), h.name("own")
            await h.queued(strange, tenant=other, queue=others_queue)
            found = await states(h, strange, tenant=other, queue=others_queue)
            expect_equal(found, [READY], "state of a job that the worker does not serve")
            await h.queued(own, tenant=tenant, queue=queue)
            await worker.came(1)
            expect_equal([(job.tenant, job.queue, job.id) for job in worker.jobs], [(tenant, queue, own)], "deliveries")


@rule("TENANT-3")
async def a_worker_for_all_is_sent_the_jobs_of_its_queues_alone(h: Harness) -> None:
    """Of every tenant, under its own name; of no other queue."""
    async with place(h) as worker:
        queue = h.name("q")
        await worker.offer(3, tenant=None, queue=queue)
        for strange in (f"{queue}:1", f"1:{queue}", queue[:-1], queue.upper()):
            await h.queued("strange", queue=strange)
            expect_equal(await states(h, "strange", queue=strange), [READY], f"state of a job in {strange!r}")
        for tenant in (h.tenant, h.other, f"{h.other}-1"):
            await h.queued("own", tenant=tenant, queue=queue)
        found = [(job.tenant, job.queue, job.id) for job in await worker.came(3)]
        want = [(tenant, queue, "own") for tenant in (h.tenant, h.other, f"{h.other}-1")]
        expect_equal(found, want, "deliveries to a worker for all")


@rule("TENANT-4")
async def nothing_is_handed_over_past_the_turns_of_others(h: Harness) -> None:
    """While another tenant's job waits in the queue, a new one waits for its turn as well."""
    for in_the_turns in (False, True):
        async with h.frozen() as f, place(f) as worker:
            queue = f.name("q")
            for n in range(3):
                await f.queued(f"waits-{n}", tenant=f.other, queue=queue, delay_ms=SECOND)
            await worker.offer(4, tenant=None, queue=queue)
            await f.advance(SECOND)
            if in_the_turns:
                await f.claim_one("waits-0", tenant=None, queue=queue)
            await f.queued("comes", queue=queue)
            expect_equal(await states(f, "comes", queue=queue), [READY], "state of a job that comes while others wait")
            got = [job.tenant for job in await worker.claim(2, tenant=None, queue=queue)]
            expect_equal(sorted(got), sorted([f.tenant, f.other]), "tenants in the next two turns")
            await worker.claim(9, tenant=None, queue=queue)
            await f.queued("next", queue=queue)
            (job,) = await worker.came(1)
            expect_equal(job.id, "next", "what is delivered when nobody waits")


@rule("TENANT-4")
async def a_worker_for_all_does_not_keep_jobs_from_a_tenants_own(h: Harness) -> None:
    """Each can be sent what it serves; what is sent to one is not sent to the other."""
    (second,) = await h.handles(1)
    async with place(h, "for-all") as common, place(h, "own", second) as own:
        await common.offer(1, tenant=None)
        await own.offer(1)
        for n in range(3):
            await h.queued(f"{n}")
        await common.came(1)
        await own.came(1)
        expect_equal(sorted(common.ids + own.ids), ["0", "1"], "jobs that were delivered")
        expect_equal(await states(h, "2"), [READY], "state of the third")


# What an enqueue answers --------------------------------------------------------------------------------------


@rule("ENQ-2")
async def an_id_is_unique_also_while_a_worker_waits(h: Harness) -> None:
    """The second enqueue answers by the state of the first, and nothing is delivered twice."""
    async with place(h) as worker:
        await worker.offer(8)
        await h.queued("job")
        (job,) = await worker.came(1)
        duplicate = expect_a(await h.enqueue("job"), Duplicate, "the id of a running job")
        expect_equal(duplicate.state, LEASED, "state of a running job")
        h.accepted(await h.complete(job, b"7"), JobState.COMPLETED)
        done = expect_a(await h.enqueue("job"), AlreadyCompleted, "the id of a completed job")
        expect_equal(done.result.data, b"7", "its result")
        await h.queued("dead")
        dead = (await worker.came(2))[1]
        h.accepted(await h.fail(dead), JobState.FAILED)
        expect_a(await h.enqueue("dead"), Duplicate, "the id of a failed job")
        await h.enqueue("dead", replace_failed=True)
        await h.queued("gone")
        await h.cancel(h.key("gone"))
        expect_a(await h.enqueue("gone"), Queued, "the id of a canceled job")
        await worker.close()
        delivered = [job.id for job in worker.jobs]
        expect_equal(delivered.count("job"), 1, "deliveries of a job that was enqueued three times")
        for id in ("dead", "gone"):
            claimed = (await h.kinds(h.key(id))).count("claimed")
            expect_equal(delivered.count(id), claimed, f"deliveries and leases of {id!r}")


@rule("ENQ-8")
async def a_repeated_request_is_delivered_once(h: Harness) -> None:
    """Whether the request id is the id or not, and also when the job has ended and been forgotten."""
    for request_id in ("job", "another"):
        async with place(h) as worker:
            queue = h.name("q")
            await worker.offer(5, queue=queue)
            for _ in range(3):
                expect_a(await h.enqueue("job", queue=queue, request_id=request_id, result_ttl_ms=0), Queued, "again")
            (job,) = await worker.came(1)
            h.accepted(await h.complete(job), JobState.COMPLETED)
            expect_a(await h.enqueue("job", queue=queue, request_id=request_id), Queued, "after its end")
            expect_equal(await h.kinds(job.key), ["enqueued", "claimed", "completed"], "events of a repeated request")
            strange = await h.enqueue("job", queue=queue, request_id="third")
            expect_a(strange, Queued, "another request for an id that was forgotten")
            await worker.close()
            leases = (await h.kinds(job.key)).count("claimed")
            expect_equal(len(worker.jobs), leases, "deliveries and leases of an id that was used again")


@rule("ENQ-3")
async def keys_hold_also_while_a_worker_waits(h: Harness) -> None:
    """A key is held by the job that was delivered or waits, and free when its policy says so."""
    async with place(h) as worker:
        await worker.offer(5)
        for policy, busy in (("until_terminal", True), ("until_started", False), ("forever", True)):
            key = IdempotencyKey(policy, policy)  # pyright: ignore[reportArgumentType]
            await h.queued(f"{policy}-1", idempotency=key)
            answer = await h.enqueue(f"{policy}-2", idempotency=key)
            expect_equal(expect_a(answer, Duplicate, "a key that is held").id, f"{policy}-1", "who holds it")
            running = [job for job in await worker.claim(5) if job.id == f"{policy}-1"]
            running += [job for job in worker.jobs if job.id == f"{policy}-1"]
            expect_equal(len(running), 1, "leases of a job with a key")
            answer = await h.enqueue(f"{policy}-3", idempotency=key)
            expect_equal(type(answer) is Duplicate, busy, f"whether a key {policy} is held by a running job")
            h.accepted(await h.complete(running[0]), JobState.COMPLETED)


@rule("TENANT-5")
async def quotas_hold_also_while_a_worker_waits(h: Harness) -> None:
    """Over it nothing is taken in and nothing delivered; running jobs take up no room."""
    async with place(h) as worker:
        for queue, settings in (
            (h.name("q"), TenantSettings(None, max_waiting=1)), (h.queue, TenantSettings(h.queue, max_waiting=1))
        ):  # fmt: skip
            tenant = h.name("t")
            worker.jobs.clear()
            await worker.offer(1, tenant=tenant, queue=queue)
            await h.store.set_tenant(tenant, settings)
            await h.queued("later", tenant=tenant, queue=queue, delay_ms=HOUR)
            before = await h.store.last_offset()
            refused = await h.enqueue("job", tenant=tenant, queue=queue)
            expect_equal(expect_a(refused, QuotaExceeded, "over the quota").limit, 1, "the limit")
            expect_equal(await h.find(h.key("job", tenant=tenant, queue=queue)), None, "a job that was refused")
            expect_equal(await h.events(tenant, after=before), [], "events of a refusal")
            await h.cancel(h.key("later", tenant=tenant, queue=queue))
            await h.queued("job", tenant=tenant, queue=queue)
            got = await worker.claim(1, tenant=tenant, queue=queue) or await worker.came(1)
            expect_equal([job.id for job in got], ["job"], "what the worker got")
            await h.queued("next", tenant=tenant, queue=queue)


# When ---------------------------------------------------------------------------------------------------------


@rule("CLAIM-1")
async def after_its_end_a_place_is_sent_nothing(h: Harness) -> None:
    """What comes then waits, and goes to others."""
    for whose in (h.tenant, None):
        queues = [h.name("q"), h.name("q")]
        async with place(h) as worker:
            await worker.offer(3, queue=queues, tenant=whose)
            await worker.close()
            for queue in queues:
                await h.queued("job", queue=queue)
                expect_equal(await states(h, "job", queue=queue), [READY], "state of a job that came after the end")
                await h.claim_one("job", queue=queue, tenant=whose)
            await worker.close()
            expect_equal(worker.ids, [], "what came after the end")


@rule("CLAIM-1")
async def what_is_on_its_way_comes_before_the_end(h: Harness) -> None:
    """A worker that leaves gets all that was leased to it, and can give it back."""
    for n in range(3):
        for whose in (h.tenant, None):
            queue = h.name("q")
            async with place(h) as worker:
                await worker.offer(6, queue=queue, tenant=whose)
                if n:
                    await h.queued("seen", queue=queue)
                    await worker.came(1)
                enqueue_elsewhere(h, *([h.new(f"job-{m}", queue=queue)] for m in range(n + 1)))
                await worker.close()
                keys = [h.key(id, queue=queue) for id in ("seen", *(f"job-{m}" for m in range(n + 1)))]
                expect_equal(len(worker.jobs), await leased_of(h, keys), "jobs that came, and that are leased")
                expect_equal(len(worker.jobs), n + 1 + bool(n), "jobs that came before the end")


@rule("CLAIM-1")
async def every_lease_reaches_a_place_that_leaves_in_the_middle_of_it(h: Harness) -> None:
    """Enqueues go on while it leaves: each job was delivered before the end, or waits."""
    for n in range(5):
        queue = h.name("q")
        async with place(h) as worker:
            await worker.offer(6, queue=queue)
            ids = [f"job-{m}" for m in range(8)]
            *_, _ = await asyncio.gather(*(h.queued(id, queue=queue) for id in ids[: n + 1]), worker.close())
            for id in ids[n + 1 :]:
                await h.queued(id, queue=queue)
            leased = [id for id in ids if (await states(h, id, queue=queue)) == [LEASED]]
            expect_equal(sorted(worker.ids), leased, "jobs that came, and jobs that are leased")
            expect(not set(leased) & set(ids[n + 1 :]), "a job was leased to a place that was gone")


@rule("CLAIM-1")
async def an_offer_that_is_too_old_is_not_used(h: Harness) -> None:
    """After so long nobody knows whether the worker is still there; another's offer does not make it younger."""
    (second,) = await h.handles(1)
    for whose in (h.tenant, None):
        for others in ("none", "elsewhere", "here as well"):
            async with place(h) as worker, place(h, "worker-2", second) as other:
                queue, elsewhere = h.name("q"), h.name("q")
                await worker.offer(2, queue=queue, tenant=whose)
                await h.advance(LEASE)
                if others == "elsewhere":
                    await other.offer(1, queue=elsewhere, tenant=whose)
                elif others == "here as well":
                    await other.offer(1, queue=queue, tenant=whose)
                    await h.queued("first", queue=queue)
                    await other.came(1)
                await h.queued("job", queue=queue)
                expect_equal(await states(h, "job", queue=queue), [READY], f"state of a job, other offers: {others}")
                expect_equal(worker.ids, [], "what was delivered under an offer that was over")


@rule("CLAIM-1")
async def an_offer_is_good_for_a_while(h: Harness) -> None:
    """A worker that waits is sent a job also some time after its claim; its lease begins when it is handed over."""
    for own in (True, False):
        async with h.frozen() as f, place(f) as worker:
            whose = f.tenant if own else None
            queue = f.name("q")
            worker.jobs.clear()
            await worker.offer(2, queue=queue, tenant=whose)
            for n in range(2):
                await f.advance(SECOND)
                await f.queued(f"{n}", queue=queue)
                job = (await worker.came(n + 1))[n]
                expect_equal(job.deadline, await f.now() + LEASE, "deadline of a job that came later")


@rule("CLAIM-3")
async def what_is_for_a_worker_that_is_gone_goes_to_another(h: Harness) -> None:
    """Its connection is lost, its offer is there: the next job is not sent into the void."""
    (second,) = await h.handles(1)
    async with place(h, "stays") as stays:
        for whose in (h.tenant, None):
            queue = h.name("q")
            stays.jobs.clear()
            handles = await h.handles(2)
            for n, store in enumerate(handles):
                async with place(h, f"gone-{n}", store) as gone:
                    await gone.offer(5, queue=queue, tenant=whose)
                    await store.close()
            for _ in range(5):
                await second.now()
            with h.listening() as ear:
                await ear.settle()
                await h.queued("waits", queue=queue)
                expect_equal(await states(h, "waits", queue=queue), [READY], "state of a job with nobody there")
                await ear.expect(Hint.READY, h.key("waits", queue=queue), "for a job that nobody was sent")
            expect_equal([job.id for job in await stays.claim(3, queue=queue, tenant=whose)], ["waits"], "a claim")
            for n in range(2):
                await h.queued(f"{n}", queue=queue)
            await stays.came(2)
