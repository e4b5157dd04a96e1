"""LEASE-3: an expired lease is found exactly, by any claim and by the reaper."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from holdfast.core.job import HOUR, SECOND, Extended, JobState
from holdfast.testing.conformance.expect import expect_a, expect_between, expect_equal
from holdfast.testing.conformance.harness import LEASE, Harness
from holdfast.testing.conformance.rules import rule

# LEASE-3 ------------------------------------------------------------------------------------------------------


async def _by_reaper(f: Harness) -> None:
    await f.store.reap(1000, 0.0)


async def _by_claim_of_the_queue(f: Harness) -> None:
    await f.claim_none()


async def _by_claim_of_another(f: Harness) -> None:
    await f.claim_none(tenant=f.other, queue=f.name("q"))


async def _by_claim_for_all(f: Harness) -> None:
    await f.claim_none(tenant=None, queue=f.name("q"))


@rule("LEASE-3")
async def any_claim_and_the_reaper_end_a_lease_exactly_at_its_deadline(h: Harness) -> None:
    """Not a millisecond before the deadline, but at it, even by a claim of another tenant and queue."""
    finders: tuple[Callable[[Harness], Awaitable[None]], ...] = (
        _by_reaper,
        _by_claim_of_the_queue,
        _by_claim_of_another,
        _by_claim_for_all,
    )
    for find in finders:
        async with h.frozen() as f:
            await f.queued("job")
            job = await f.claim_one("job", lease_ms=LEASE)
            await f.advance(LEASE - 1)
            await find(f)
            await f.expect_state(job.key, JobState.LEASED, f"a millisecond early, {find.__name__}")
            await f.advance(1)
            await find(f)
            await f.expect_state(job.key, JobState.RETRYING, f"at the deadline, {find.__name__}")
            expect_equal(await f.kinds(job.key), ["enqueued", "claimed", "expired"], f"events, {find.__name__}")


@rule("LEASE-3")
async def the_reaper_ends_the_oldest_deadlines_first_up_to_its_limit(h: Harness) -> None:
    """It returns the jobs whose leases it ended, and the next deadline."""
    async with h.frozen(keep_events="1000") as f:
        leases = (50, 20, 40, 10, 30)
        start = await f.now()
        jobs = {lease: await f.leased(f"job-{lease}", lease_ms=lease * SECOND) for lease in leases}
        expect_equal((await f.store.reap(10, 0.0)).next_at, start + 10 * SECOND, "the earliest deadline")
        await f.advance(30 * SECOND)
        reaped = await f.store.reap(2, 0.0)
        expect_equal(reaped.jobs, [jobs[10].key, jobs[20].key], "leases ended first")
        expect_equal(reaped.now, start + 30 * SECOND, "the store's clock in the answer")
        reaped = await f.store.reap(10, 0.0)
        expect_equal(reaped.jobs, [jobs[30].key], "leases ended then")
        expect_equal(reaped.next_at, start + 40 * SECOND, "the earliest deadline still running")
        await f.advance(20 * SECOND)
        reaped = await f.store.reap(10, 0.0)
        expect_equal((reaped.jobs, reaped.next_at), ([jobs[40].key, jobs[50].key], None), "the last ones")


@rule("LEASE-3")
async def hundreds_of_expired_leases_are_all_found(h: Harness) -> None:
    """Repeated reaping ends every expired lease, and none of the jobs that were completed or extended."""
    await h.queued(*(f"job-{number}" for number in range(350)), max_attempts=1)
    jobs = await h.claim(350)
    kept, done = jobs[10], jobs[20]
    expect_a(await h.extend(kept, HOUR), Extended, "extend")
    h.accepted(await h.complete(done), JobState.COMPLETED)
    await h.advance(LEASE)
    mine = 0
    while reaped := (await h.store.reap(100, 0.0)).jobs:
        expect_between(len(reaped), 1, 100, "leases ended by one call")
        mine += sum(key.tenant == h.tenant for key in reaped)
    expect_equal(mine, 348, "leases ended")
    await h.expect_state(kept.key, JobState.LEASED, "whose lease was extended")
    await h.expect_state(done.key, JobState.COMPLETED, "that was completed in time")
    expect_equal((await h.stats()).counts[JobState.LEASED], 1, "leased jobs counted")


@rule("LEASE-3")
async def leases_of_many_tenants_are_all_found(h: Harness) -> None:
    """One claim over all tenants grants them, in different numbers, with long ones among the short."""
    tenants = [h.name("v") for _ in range(4)]
    for number, tenant in enumerate(tenants):
        await h.queued(*(f"job-{n}" for n in range(1 + number % 2)), tenant=tenant)
        await h.queued("long", tenant=tenant, priority=0)
    short = await h.claim(6, tenant=None)
    long = [job for tenant in tenants for job in await h.claim(5, tenant=tenant, lease_ms=HOUR)]
    expect_equal((len(short), len(long)), (6, 4), "jobs leased for short and for long")
    await h.advance(LEASE)
    reaped = [key for key in (await h.store.reap(1000, 0.0)).jobs if key.tenant in tenants]
    expect_equal(sorted(reaped), sorted(job.key for job in short), "leases that have expired")
    await h.advance(HOUR - LEASE)
    reaped = [key for key in (await h.store.reap(1000, 0.0)).jobs if key.tenant in tenants]
    expect_equal(sorted(reaped), sorted(job.key for job in long), "long leases that have expired")


@rule("LEASE-3")
async def claims_alone_find_hundreds_of_expired_leases(h: Harness) -> None:
    """Each claim ends a bounded number of them. Enough claims end all, without a reaper."""
    await h.queued(*(f"job-{number}" for number in range(250)), max_attempts=1)
    await h.claim(250)
    await h.advance(LEASE)
    elsewhere = h.name("q")
    for _ in range(250):
        await h.claim_none(queue=elsewhere)
        if not (await h.stats()).counts[JobState.LEASED]:
            return
    await h.claim_none(queue=elsewhere)
    expect_equal((await h.stats()).counts[JobState.LEASED], 0, "leases left after 250 claims")
