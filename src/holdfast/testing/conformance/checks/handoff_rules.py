"""Direct hand-off breaks no other rule: pauses, delays, order, tenants, ids, keys and quotas."""

from __future__ import annotations

from holdfast.core.errors import QuotaExceeded
from holdfast.core.job import (
    HOUR,
    SECOND,
    AlreadyCompleted,
    Duplicate,
    IdempotencyKey,
    JobState,
    Queued,
)
from holdfast.store import TenantSettings
from holdfast.testing.conformance.checks.handoff import LEASED, READY, SCHEDULED, states
from holdfast.testing.conformance.expect import expect_a, expect_equal
from holdfast.testing.conformance.harness import Harness
from holdfast.testing.conformance.rules import rule
from holdfast.testing.conformance.waiting_worker import waiting_worker

# Which --------------------------------------------------------------------------------------------------------


@rule("CLAIM-5")
async def no_job_of_a_paused_queue_is_handed_off(h: Harness) -> None:
    """It accepts jobs. They are claimed after the resume."""
    for whose in (h.tenant, None):
        async with waiting_worker(h) as worker:
            queue = h.name("q")
            worker.jobs.clear()
            await worker.register(2, queue=queue, tenant=whose)
            await h.store.pause(h.tenant, queue, paused=True)
            await h.queued("job", queue=queue)
            expect_equal(await states(h, "job", queue=queue), [READY], "state of a job in a paused queue")
            await h.store.pause(h.tenant, queue, paused=False)
            expect_equal([job.id for job in await worker.claim(2, queue=queue, tenant=whose)], ["job"], "a claim")
            await h.queued("next", queue=queue)
            await worker.received(1)
            expect_equal(worker.ids, ["next"], "jobs handed off when the queue was resumed")


@rule("ENQ-5")
async def no_job_is_handed_off_before_it_is_due(h: Harness) -> None:
    """It waits for its time and then for a claim. A job whose time is past is delivered at once."""
    for own in (True, False):
        async with h.frozen() as f, waiting_worker(f) as worker:
            whose = f.tenant if own else None
            queue = f.name("q")
            worker.jobs.clear()
            await worker.register(4, queue=queue, tenant=whose)
            now = await f.now()
            await f.queued("delayed", queue=queue, delay_ms=1)
            await f.queued("dated", queue=queue, run_at=now + 1)
            expect_equal(await states(f, "delayed", "dated", queue=queue), [SCHEDULED] * 2, "states before the time")
            await f.claim_none(queue=queue, tenant=whose)
            await f.advance(1)
            got = [job.id for job in await worker.claim(4, queue=queue, tenant=whose)]
            expect_equal(got, ["delayed", "dated"], "what a claim gets at the time")
            await f.queued("past", queue=queue, run_at=now - HOUR)
            (job,) = await worker.received(1)
            expect_equal(job.visible_at, now + 1, "since when a job is visible whose time had been before it came")


@rule("CLAIM-2")
async def no_job_is_handed_off_ahead_of_a_waiting_job(h: Harness) -> None:
    """A job that became due while the worker waited is first, whatever its priority."""
    for own in (True, False):
        async with h.frozen() as f, waiting_worker(f) as worker:
            whose = f.tenant if own else None
            for priority in (9, 5, 0):
                queue = f.name("q")
                worker.jobs.clear()
                await worker.register(1, queue=queue, tenant=whose)
                await f.queued("waits", queue=queue, delay_ms=SECOND, priority=priority)
                await worker.register(3, queue=queue, tenant=whose)
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
    """This holds even if joined names would collide."""
    async with waiting_worker(h) as worker:
        base = h.name("x")
        for (tenant, queue), (other, others_queue) in (
            ((h.tenant, h.queue), (h.other, h.queue)),
            ((h.tenant, h.queue), (h.tenant, h.name("q"))),
            ((base, "bc"), (f"{base}b", "c")),
            ((f"{base}1", "1:c"), (f"{base}", "11:c")),
            ((f"{base}-1", "a:1:b"), (f"{base}-1", "a:1")),
        ):
            worker.jobs.clear()
            await worker.register(1, tenant=tenant, queue=queue)
            strange, own = h.name("strange"), h.name("own")
            await h.queued(strange, tenant=other, queue=others_queue)
            found = await states(h, strange, tenant=other, queue=others_queue)
            expect_equal(found, [READY], "state of a job that the worker does not serve")
            await h.queued(own, tenant=tenant, queue=queue)
            await worker.received(1)
            expect_equal([(job.tenant, job.queue, job.id) for job in worker.jobs], [(tenant, queue, own)], "deliveries")


@rule("TENANT-3")
async def a_worker_for_all_tenants_gets_only_jobs_of_its_queues(h: Harness) -> None:
    """It gets the jobs of every tenant, each with its own tenant, and of no other queue."""
    async with waiting_worker(h) as worker:
        queue = h.name("q")
        await worker.register(3, tenant=None, queue=queue)
        for strange in (f"{queue}:1", f"1:{queue}", queue[:-1], queue.upper()):
            await h.queued("strange", queue=strange)
            expect_equal(await states(h, "strange", queue=strange), [READY], f"state of a job in {strange!r}")
        for tenant in (h.tenant, h.other, f"{h.other}-1"):
            await h.queued("own", tenant=tenant, queue=queue)
        found = [(job.tenant, job.queue, job.id) for job in await worker.received(3)]
        want = [(tenant, queue, "own") for tenant in (h.tenant, h.other, f"{h.other}-1")]
        expect_equal(found, want, "deliveries to a worker for all")


@rule("TENANT-4")
async def no_job_is_handed_off_ahead_of_another_tenants_turn(h: Harness) -> None:
    """While another tenant's job waits in the queue, a new one waits for its turn, too."""
    for in_the_turns in (False, True):
        async with h.frozen() as f, waiting_worker(f) as worker:
            queue = f.name("q")
            for n in range(3):
                await f.queued(f"waits-{n}", tenant=f.other, queue=queue, delay_ms=SECOND)
            await worker.register(4, tenant=None, queue=queue)
            await f.advance(SECOND)
            if in_the_turns:
                await f.claim_one("waits-0", tenant=None, queue=queue)
            await f.queued("comes", queue=queue)
            expect_equal(await states(f, "comes", queue=queue), [READY], "state of a job that comes while others wait")
            got = [job.tenant for job in await worker.claim(2, tenant=None, queue=queue)]
            expect_equal(sorted(got), sorted([f.tenant, f.other]), "tenants in the next two turns")
            await worker.claim(9, tenant=None, queue=queue)
            await f.queued("next", queue=queue)
            (job,) = await worker.received(1)
            expect_equal(job.id, "next", "what is delivered when no job waits")


@rule("TENANT-4")
async def a_worker_for_all_tenants_leaves_jobs_to_a_tenants_own_worker(h: Harness) -> None:
    """Each worker can be sent the jobs that it serves. No job is sent to both."""
    (second,) = await h.handles(1)
    async with waiting_worker(h, "for-all") as common, waiting_worker(h, "own", second) as own:
        await common.register(1, tenant=None)
        await own.register(1)
        for n in range(3):
            await h.queued(f"{n}")
        await common.received(1)
        await own.received(1)
        expect_equal(sorted(common.ids + own.ids), ["0", "1"], "jobs that were delivered")
        expect_equal(await states(h, "2"), [READY], "state of the third")


# What an enqueue answers --------------------------------------------------------------------------------------


@rule("ENQ-2")
async def an_id_stays_unique_while_a_worker_waits(h: Harness) -> None:
    """The second enqueue answers by the state of the first job, and nothing is delivered twice."""
    async with waiting_worker(h) as worker:
        await worker.register(8)
        await h.queued("job")
        (job,) = await worker.received(1)
        duplicate = expect_a(await h.enqueue("job"), Duplicate, "the id of a running job")
        expect_equal(duplicate.state, LEASED, "state of a running job")
        h.accepted(await h.complete(job, b"7"), JobState.COMPLETED)
        done = expect_a(await h.enqueue("job"), AlreadyCompleted, "the id of a completed job")
        expect_equal(done.result.data, b"7", "its result")
        await h.queued("dead")
        dead = (await worker.received(2))[1]
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
async def a_repeated_request_is_handed_off_once(h: Harness) -> None:
    """This holds whether or not the request id is the job's id, even after the job was forgotten."""
    for request_id in ("job", "another"):
        async with waiting_worker(h) as worker:
            queue = h.name("q")
            await worker.register(5, queue=queue)
            for _ in range(3):
                expect_a(await h.enqueue("job", queue=queue, request_id=request_id, result_ttl_ms=0), Queued, "again")
            (job,) = await worker.received(1)
            h.accepted(await h.complete(job), JobState.COMPLETED)
            expect_a(await h.enqueue("job", queue=queue, request_id=request_id), Queued, "after its end")
            expect_equal(await h.kinds(job.key), ["enqueued", "claimed", "completed"], "events of a repeated request")
            strange = await h.enqueue("job", queue=queue, request_id="third")
            expect_a(strange, Queued, "another request for an id that was forgotten")
            await worker.close()
            leases = (await h.kinds(job.key)).count("claimed")
            expect_equal(len(worker.jobs), leases, "deliveries and leases of an id that was used again")


@rule("ENQ-3")
async def keys_stay_unique_while_a_worker_waits(h: Harness) -> None:
    """The job that was delivered or waits holds the key until its policy releases it."""
    async with waiting_worker(h) as worker:
        await worker.register(5)
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
async def quotas_apply_while_a_worker_waits(h: Harness) -> None:
    """Over the quota nothing is accepted or delivered. Running jobs need no room."""
    async with waiting_worker(h) as worker:
        for queue, settings in (
            (h.name("q"), TenantSettings(None, max_waiting=1)), (h.queue, TenantSettings(h.queue, max_waiting=1))
        ):  # fmt: skip
            tenant = h.name("t")
            worker.jobs.clear()
            await worker.register(1, tenant=tenant, queue=queue)
            await h.store.set_tenant(tenant, settings)
            await h.queued("later", tenant=tenant, queue=queue, delay_ms=HOUR)
            before = await h.store.last_offset()
            refused = await h.enqueue("job", tenant=tenant, queue=queue)
            expect_equal(expect_a(refused, QuotaExceeded, "over the quota").limit, 1, "the limit")
            expect_equal(await h.find(h.key("job", tenant=tenant, queue=queue)), None, "a job that was refused")
            expect_equal(await h.events(tenant, after=before), [], "events of a refusal")
            await h.cancel(h.key("later", tenant=tenant, queue=queue))
            await h.queued("job", tenant=tenant, queue=queue)
            got = await worker.claim(1, tenant=tenant, queue=queue) or await worker.received(1)
            expect_equal([job.id for job in got], ["job"], "what the worker got")
            await h.queued("next", tenant=tenant, queue=queue)
