"""CLAIM-1 with direct hand-off: how many jobs a waiting worker gets, and for how long it counts as waiting."""

from __future__ import annotations

import asyncio

from holdfast.core.job import (
    SECOND,
    NewJob,
)
from holdfast.store import Hint
from holdfast.testing.conformance.checks.handoff import LEASED, READY, leased_of, states
from holdfast.testing.conformance.expect import expect, expect_equal
from holdfast.testing.conformance.harness import LEASE, Harness
from holdfast.testing.conformance.rules import rule
from holdfast.testing.conformance.waiting_worker import enqueue_elsewhere, waiting_worker

# How many -----------------------------------------------------------------------------------------------------


@rule("CLAIM-1")
async def a_worker_gets_no_more_jobs_than_it_has_room_for(h: Harness) -> None:
    """At most as many as a claim asked for and did not get. The rest waits, in order."""
    for whose in (h.tenant, None):
        async with waiting_worker(h) as worker:
            queue = h.name("q")
            worker.jobs.clear()
            await h.queued("first", queue=queue)
            expect_equal([job.id for job in await worker.claim(4, queue=queue, tenant=whose)], ["first"], "claimed")
            ids = [f"job-{n}" for n in range(6)]
            for id in ids:
                await h.queued(id, queue=queue)
            await worker.received(3)
            expect_equal(worker.ids, ids[:3], "jobs that were delivered, in order")
            expect_equal(
                await states(h, *ids, queue=queue), [LEASED] * 3 + [READY] * 3, "states beyond the registered room"
            )
            got = [job.id for job in await worker.claim(2, queue=queue, tenant=whose)]
            expect_equal(got, ids[3:5], "the next claim")
            await h.queued("last", queue=queue)
            expect_equal(await states(h, "last", queue=queue), [READY], "state of a job after a claim that got all")


@rule("CLAIM-1")
async def a_worker_gets_no_more_jobs_than_it_can_start_at_once(h: Harness) -> None:
    """A prefetched job would wait while other workers are free, so it is not sent."""
    for whose in (h.tenant, None):
        for free, waits, want in ((0, 0, 0), (2, 0, 2), (2, 1, 1), (1, 2, 0), (9, 1, 3)):
            async with waiting_worker(h) as worker:
                queue = h.name("q")
                for n in range(waits):
                    await h.queued(f"waits-{n}", queue=queue)
                claimed = await worker.claim(4, queue=queue, tenant=whose, free=free)
                expect_equal(len(claimed), waits, "claimed jobs")
                ids = [f"job-{n}" for n in range(6)]
                for id in ids:
                    await h.queued(id, queue=queue)
                await worker.received(want)
                expect_equal(
                    await states(h, *ids, queue=queue),
                    [LEASED] * want + [READY] * (6 - want),
                    f"states with {free} free and {waits} claimed",
                )


@rule("CLAIM-1")
async def the_free_room_of_a_worker_excludes_jobs_in_flight(h: Harness) -> None:
    """Jobs that were handed off and are still in flight start first."""
    for whose in (h.tenant, None):
        async with waiting_worker(h) as worker:
            queue = h.name("q")
            await worker.register(4, queue=queue, tenant=whose)
            enqueue_elsewhere(h, [h.new("a", queue=queue)], [h.new("b", queue=queue)])
            expect_equal(await worker.claim(9, queue=queue, tenant=whose, free=4), [], "claimed jobs")
            ids = [f"job-{n}" for n in range(6)]
            for id in ids:
                await h.queued(id, queue=queue)
            await worker.received(4)
            expect_equal(await states(h, *ids, queue=queue), [LEASED] * 2 + [READY] * 4, "states with 2 on their way")


@rule("CLAIM-1")
async def the_room_of_a_worker_is_counted_once_over_all_its_queues(h: Harness) -> None:
    """A registration for several queues is one registration, whichever queue uses it up."""
    for whose in (h.tenant, None):
        async with waiting_worker(h) as worker:
            queues = [h.name("q") for _ in range(3)]
            worker.jobs.clear()
            await worker.register(4, queue=queues, tenant=whose)
            keys = [h.key(f"{n}", queue=queues[n % 3]) for n in range(8)]
            for key in keys:
                await h.queued(key.id, queue=key.queue)
            await worker.received(4)
            expect_equal(await leased_of(h, keys), 4, "leases from three queues")
            # And the other way round.
            got = await worker.claim(6, queue=[*queues[1:], queues[0]], tenant=whose)
            expect_equal(len(got), 4, "what waited in the three queues")
            keys = [h.key(f"again-{n}", queue=queues[n % 3]) for n in range(5)]
            for key in keys:
                await h.queued(key.id, queue=key.queue)
            await worker.received(6)
            expect_equal(await leased_of(h, keys), 2, "leases from three queues after another claim")
            await worker.claim(3, queue=queues, tenant=whose)


@rule("CLAIM-1")
async def a_claim_replaces_the_registration_before_it(h: Harness) -> None:
    """The newest registration counts."""
    for whose in (h.tenant, None):
        async with waiting_worker(h) as worker:
            queues = [h.name("q"), h.name("q")]
            worker.jobs.clear()
            await worker.register(9, queue=queues, tenant=whose)
            await worker.register(2, queue=queues, tenant=whose)
            keys = [h.key(f"{n}", queue=queues[n % 2]) for n in range(5)]
            for key in keys:
                await h.queued(key.id, queue=key.queue)
            await worker.received(2)
            expect_equal(await leased_of(h, keys), 2, "leases after a second, smaller registration")
            rest = await worker.claim(3, queue=queues, tenant=whose)
            expect_equal(len(rest), 3, "what was left")
            await h.queued("more", queue=queues[0])
            expect_equal(await states(h, "more", queue=queues[0]), [READY], "state of a job after a full claim")
            await worker.claim(1, queue=queues, tenant=whose)
            await worker.received(2)
            await worker.register(5, queue=queues, tenant=whose)
            await h.store.enqueue(batch_of(h, queues[1]))
            expect_equal(len(await worker.claim(5, queue=queues, tenant=whose)), 5, "what came together")
            await h.queued("late", queue=queues[0])
            expect_equal(await states(h, "late", queue=queues[0]), [READY], "state of a job without a free worker")
            await worker.received(2)


@rule("CLAIM-1")
async def the_room_of_a_claim_excludes_jobs_in_flight(h: Harness) -> None:
    """Jobs in flight take up room: with them a claim never gets more than it asked for."""
    for whose in (h.tenant, None):
        async with waiting_worker(h) as worker:
            queue = h.name("q")
            worker.jobs.clear()
            await worker.register(4, queue=queue, tenant=whose)
            singles = [[h.new(f"single-{n}", queue=queue)] for n in range(4)]
            batch = [h.new(f"batch-{n}", queue=queue) for n in range(9)]
            enqueue_elsewhere(h, *singles, batch)
            claimed = await worker.claim(6, queue=queue, tenant=whose)
            await worker.received(4)
            expect_equal([job.id for job in claimed], ["batch-0", "batch-1"], "a claim of 6 with 4 on their way")
            # These have arrived, and no longer count.
            again = await worker.claim(3, queue=queue, tenant=whose)
            expect_equal([job.id for job in again], ["batch-2", "batch-3", "batch-4"], "the next claim")
            # A part of the registration is used, and the worker has received a part of that.
            await worker.claim(4, queue=queue, tenant=whose)
            await worker.register(5, queue=queue, tenant=whose)
            await h.queued("seen", queue=queue)
            await worker.received(5)
            enqueue_elsewhere(h, [h.new("unseen-1", queue=queue)], [h.new("unseen-2", queue=queue)], batch_of(h, queue))
            claimed = await worker.claim(4, queue=queue, tenant=whose)
            await worker.received(7)
            expect_equal(len(claimed), 2, "a claim of 4 with 2 on their way")
            await worker.claim(10, queue=queue, tenant=whose)


def batch_of(h: Harness, queue: str) -> list[NewJob]:
    """Enqueue jobs in one batch."""
    stem = h.name("b")
    return [h.new(f"{stem}-{n}", queue=queue) for n in range(5)]


@rule("CLAIM-1")
async def two_workers_each_get_the_jobs_that_they_have_room_for(h: Harness) -> None:
    """If two workers wait, each gets jobs of its own, and no job is sent to both."""
    (second,) = await h.handles(1)
    for whose in (h.tenant, None):
        async with waiting_worker(h, "worker-1") as one, waiting_worker(h, "worker-2", second) as two:
            queue = h.name("q")
            for worker in (one, two):
                worker.jobs.clear()
                await worker.register(2, queue=queue, tenant=whose)
            ids = [f"job-{n}" for n in range(5)]
            for id in ids:
                await h.queued(id, queue=queue)
            await one.received(2)
            await two.received(2)
            expect_equal(sorted(one.ids + two.ids), ids[:4], "jobs that were delivered")
            for worker, name in ((one, "worker-1"), (two, "worker-2")):
                expect_equal({job.worker_id for job in worker.jobs}, {name}, "workers of handed-off jobs")
            expect_equal(await states(h, ids[4], queue=queue), [READY], "state of the job without a free worker")
            await one.claim(1, queue=queue, tenant=whose)


# When ---------------------------------------------------------------------------------------------------------


@rule("CLAIM-1")
async def a_closed_inbox_gets_no_jobs(h: Harness) -> None:
    """A later job waits for another worker."""
    for whose in (h.tenant, None):
        queues = [h.name("q"), h.name("q")]
        async with waiting_worker(h) as worker:
            await worker.register(3, queue=queues, tenant=whose)
            await worker.close()
            for queue in queues:
                await h.queued("job", queue=queue)
                expect_equal(await states(h, "job", queue=queue), [READY], "state of a job that came after the end")
                await h.claim_one("job", queue=queue, tenant=whose)
            await worker.close()
            expect_equal(worker.ids, [], "what came after the end")


@rule("CLAIM-1")
async def jobs_in_flight_arrive_before_the_inbox_closes(h: Harness) -> None:
    """A worker that leaves gets all jobs that were leased to it, and can release them."""
    for n in range(3):
        for whose in (h.tenant, None):
            queue = h.name("q")
            async with waiting_worker(h) as worker:
                await worker.register(6, queue=queue, tenant=whose)
                if n:
                    await h.queued("seen", queue=queue)
                    await worker.received(1)
                enqueue_elsewhere(h, *([h.new(f"job-{m}", queue=queue)] for m in range(n + 1)))
                await worker.close()
                keys = [h.key(id, queue=queue) for id in ("seen", *(f"job-{m}" for m in range(n + 1)))]
                expect_equal(len(worker.jobs), await leased_of(h, keys), "jobs that came, and that are leased")
                expect_equal(len(worker.jobs), n + 1 + bool(n), "jobs that came before the end")


@rule("CLAIM-1")
async def a_worker_that_closes_its_inbox_gets_every_lease_first(h: Harness) -> None:
    """Jobs are enqueued while it leaves. Each is delivered before the end, or waits."""
    for n in range(5):
        queue = h.name("q")
        async with waiting_worker(h) as worker:
            await worker.register(6, queue=queue)
            ids = [f"job-{m}" for m in range(8)]
            *_, _ = await asyncio.gather(*(h.queued(id, queue=queue) for id in ids[: n + 1]), worker.close())
            for id in ids[n + 1 :]:
                await h.queued(id, queue=queue)
            leased = [id for id in ids if (await states(h, id, queue=queue)) == [LEASED]]
            expect_equal(sorted(worker.ids), leased, "jobs that came, and jobs that are leased")
            expect(not set(leased) & set(ids[n + 1 :]), "a job was leased to an inbox that was closed")


@rule("CLAIM-1")
async def an_expired_registration_gets_no_jobs(h: Harness) -> None:
    """The worker may be gone by then. Another worker's registration does not renew it."""
    (second,) = await h.handles(1)
    for whose in (h.tenant, None):
        for others in ("none", "elsewhere", "here as well"):
            async with waiting_worker(h) as worker, waiting_worker(h, "worker-2", second) as other:
                queue, elsewhere = h.name("q"), h.name("q")
                await worker.register(2, queue=queue, tenant=whose)
                await h.advance(LEASE)
                if others == "elsewhere":
                    await other.register(1, queue=elsewhere, tenant=whose)
                elif others == "here as well":
                    await other.register(1, queue=queue, tenant=whose)
                    await h.queued("first", queue=queue)
                    await other.received(1)
                await h.queued("job", queue=queue)
                expect_equal(
                    await states(h, "job", queue=queue), [READY], f"state of a job, other registrations: {others}"
                )
                expect_equal(worker.ids, [], "what was delivered under a registration that was too old")


@rule("CLAIM-1")
async def a_registration_gets_jobs_until_it_expires(h: Harness) -> None:
    """A waiting worker can be sent a job some time after its claim. The lease begins with the hand-off."""
    for own in (True, False):
        async with h.frozen() as f, waiting_worker(f) as worker:
            whose = f.tenant if own else None
            queue = f.name("q")
            worker.jobs.clear()
            await worker.register(2, queue=queue, tenant=whose)
            for n in range(2):
                await f.advance(SECOND)
                await f.queued(f"{n}", queue=queue)
                job = (await worker.received(n + 1))[n]
                expect_equal(job.deadline, await f.now() + LEASE, "deadline of a job that came later")


@rule("CLAIM-3")
async def a_job_for_a_disconnected_worker_is_given_to_another(h: Harness) -> None:
    """A worker loses its connection, but its registration remains. The next job must not be sent to it."""
    (second,) = await h.handles(1)
    async with waiting_worker(h, "stays") as stays:
        for whose in (h.tenant, None):
            queue = h.name("q")
            stays.jobs.clear()
            handles = await h.handles(2)
            for n, store in enumerate(handles):
                async with waiting_worker(h, f"gone-{n}", store) as gone:
                    await gone.register(5, queue=queue, tenant=whose)
                    await store.close()
            for _ in range(5):
                await second.now()
            with h.listening() as hints:
                await hints.forget()
                await h.queued("waits", queue=queue)
                expect_equal(await states(h, "waits", queue=queue), [READY], "state of a job without a worker")
                await hints.expect(Hint.READY, h.key("waits", queue=queue), "for a job that was not delivered")
            expect_equal([job.id for job in await stays.claim(3, queue=queue, tenant=whose)], ["waits"], "a claim")
            for n in range(2):
                await h.queued(f"{n}", queue=queue)
            await stays.received(2)
