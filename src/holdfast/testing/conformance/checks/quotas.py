"""TENANT-5: quotas of waiting jobs."""

from __future__ import annotations

import asyncio

from holdfast.core.errors import QuotaExceeded
from holdfast.core.job import HOUR, ClaimRequest, Duplicate, IdempotencyKey, JobState, Queued, Replayed
from holdfast.store import TenantSettings
from holdfast.testing.conformance.expect import expect, expect_a, expect_between, expect_equal
from holdfast.testing.conformance.harness import DELAY, LEASE, Harness
from holdfast.testing.conformance.rules import rule


async def limit(h: Harness, most: int, *, queue: str | None) -> None:
    """Set a quota on one queue of the tenant, or on all its queues together."""
    await h.store.set_tenant(h.tenant, TenantSettings(queue, max_waiting=most))


@rule("TENANT-5")
async def an_enqueue_over_the_quota_is_refused_and_changes_nothing(h: Harness) -> None:
    """The refusal says how many jobs wait. It leaves no record, no event and no key."""
    await limit(h, 3, queue=h.queue)
    await h.queued("a", "b")
    await h.queued("c", delay_ms=HOUR)  # A scheduled job is a waiting one.
    key = IdempotencyKey("once")
    async with h.no_event("by a refused enqueue"):
        refusal = expect_a(await h.enqueue("d", idempotency=key), QuotaExceeded, "enqueue over the quota")
        expect_equal((refusal.queue, refusal.waiting, refusal.limit), (h.queue, 3, 3), "fields of the refusal")
        expect_equal(await h.find(h.key("d")), None, "record of a refused job")
        expect_equal(sum((await h.stats()).counts.values()), 3, "jobs counted")
    await h.claim_one("a")
    expect_a(await h.enqueue("e", idempotency=key), Queued, "enqueue with the key, once there is room again")
    expect_a(await h.enqueue("f"), QuotaExceeded, "enqueue over the quota again")


@rule("TENANT-5")
async def a_batch_is_accepted_up_to_the_quota(h: Harness) -> None:
    """Item by item: what fits is queued, duplicates are answered, the rest is refused."""
    await limit(h, 2, queue=h.queue)
    answers = await h.store.enqueue([h.new(id) for id in ("a", "b", "c", "a", "d")])
    kinds = [type(answer) for answer in answers]
    expect_equal(kinds, [Queued, Queued, QuotaExceeded, Duplicate, QuotaExceeded], "answers to a batch")
    expect_equal(await h.list_ids(), ["a", "b"], "jobs that are there")


@rule("TENANT-5")
async def a_quota_of_the_tenant_bounds_all_its_queues_together(h: Harness) -> None:
    """Without a queue's name it counts over all queues. It does not apply to other tenants."""
    await limit(h, 3, queue=None)
    queues = [h.name("q") for _ in range(3)]
    for queue in queues:
        await h.queued("a", queue=queue)
    refusal = expect_a(await h.enqueue("b", queue=queues[0]), QuotaExceeded, "enqueue over the tenant's quota")
    expect_equal((refusal.queue, refusal.waiting, refusal.limit), (None, 3, 3), "fields of the refusal")
    expect_a(await h.enqueue("b", queue=h.name("q")), QuotaExceeded, "enqueue into one more queue")
    expect_a(await h.enqueue("b", queue=queues[0], tenant=h.other), Queued, "enqueue of another tenant")
    await h.claim_one(queue=queues[1])
    expect_a(await h.enqueue("b", queue=queues[0]), Queued, "enqueue once a job of another queue runs")


@rule("TENANT-5")
async def retries_releases_and_expiry_are_never_refused_by_a_quota(h: Harness) -> None:
    """A running job may wait again although the queue is full."""
    await limit(h, 2, queue=h.queue)
    await h.queued("a", "b")
    a, b = await h.claim(2)
    await h.queued("c", "d")
    h.accepted(await h.retry(a), JobState.RETRYING)
    h.accepted(await h.release(b), JobState.READY)
    waiting = expect_a(await h.enqueue("e"), QuotaExceeded, "enqueue while four wait")
    expect_equal((waiting.waiting, waiting.limit), (4, 2), "how many wait, and the quota")
    got = await h.claim(4)  # `a` waits for its retry.
    expect_equal(sorted(job.id for job in got), ["b", "c", "d"], "jobs claimed")
    await h.queued("e")
    await h.advance(LEASE)
    await h.store.reap(1000, 0.0)
    await h.advance(DELAY)
    expect_equal((await h.stats()).counts[JobState.READY], 5, "jobs that wait after all leases ran out")


@rule("TENANT-5")
async def a_replay_is_refused_by_a_quota(h: Harness) -> None:
    """A dead letter cannot be replayed while the queue is full; once there is room, it can."""
    queue = h.name("q")
    job = await h.leased("dead", queue=queue)
    h.accepted(await h.fail(job), JobState.FAILED)
    await limit(h, 1, queue=queue)
    await h.queued("a", queue=queue)
    before = await h.get(job.key)
    async with h.no_event("by a refused replay"):
        expect_a(await h.replay(job.key), QuotaExceeded, "replay into a full queue")
        expect_equal(await h.get(job.key), before, "record after a refused replay")
    await h.claim_one("a", queue=queue)
    expect_a(await h.replay(job.key), Replayed, "replay once there is room")


@rule("TENANT-5")
async def a_quota_can_be_raised_lowered_and_read(h: Harness) -> None:
    """A setting leaves the others as they are. A lower quota removes no jobs. The tenant's own are listed first."""
    await limit(h, 1, queue=h.queue)
    await h.store.set_tenant(h.tenant, TenantSettings(h.queue, weight=2.0))
    await h.store.set_tenant(h.tenant, TenantSettings(weight=3.0))
    second = h.name("q")
    await h.store.set_tenant(h.tenant, TenantSettings(second, max_waiting=7))
    queues = sorted([TenantSettings(h.queue, 2.0, 1), TenantSettings(second, None, 7)], key=lambda s: s.queue or "")
    expect_equal(list(await h.store.tenant_settings(h.tenant)), [TenantSettings(None, 3.0), *queues], "settings")
    await h.queued("a")
    expect_a(await h.enqueue("b"), QuotaExceeded, "enqueue over a quota of 1")
    await limit(h, 2, queue=h.queue)
    expect_a(await h.enqueue("b"), Queued, "enqueue after the quota was raised")
    await limit(h, 0, queue=h.queue)
    expect_a(await h.enqueue("c"), QuotaExceeded, "enqueue under a quota of 0")
    expect_equal(await h.list_ids(), ["a", "b"], "jobs after the quota was lowered")
    expect_equal(len(await h.claim(5)), 2, "jobs claimed after the quota was lowered")


@rule("TENANT-5")
async def settings_left_out_stay_unchanged(h: Harness) -> None:
    """A new quota does not change the weight, nor a new weight the quota, for the tenant and for a queue."""
    for queue in (None, h.queue):
        for new, want in (
            (TenantSettings(queue, weight=2.0), TenantSettings(queue, 2.0)),
            (TenantSettings(queue, max_waiting=5), TenantSettings(queue, 2.0, 5)),
            (TenantSettings(queue, weight=3.0), TenantSettings(queue, 3.0, 5)),
        ):
            await h.store.set_tenant(h.tenant, new)
            found = [s for s in await h.store.tenant_settings(h.tenant) if s.queue == queue]
            expect_equal(found, [want], "settings")


@rule("TENANT-5")
async def concurrent_enqueues_do_not_exceed_a_quota(h: Harness) -> None:
    """An exact quota is never exceeded. Any other quota is exceeded by at most the jobs in flight."""
    most, flights = 5, 20
    await limit(h, most, queue=h.queue)
    stores = await h.handles(4)
    calls = [stores[number % 4].enqueue([h.new(f"job-{number}")]) for number in range(flights)]
    answers = [answer for batch in await asyncio.gather(*calls) for answer in batch]
    queued = sum(isinstance(answer, Queued) for answer in answers)
    refused = sum(isinstance(answer, QuotaExceeded) for answer in answers)
    expect_equal(queued + refused, flights, "enqueues that were either queued or refused")
    expect_between(queued, most, most if h.exact_quota else flights, "jobs queued under a quota of 5")
    expect_equal((await h.stats()).counts[JobState.READY], queued, "jobs counted")
    expect_a(await h.enqueue("late"), QuotaExceeded, "an enqueue after all that")
    expect(await h.find(h.key("late")) is None, "a refused job has a record")


@rule("TENANT-5")
async def a_batch_over_several_queues_obeys_the_quota_of_each(h: Harness) -> None:
    """This holds at any place in the batch, and whether or not the queue exists yet."""
    free, full = h.name("q"), h.name("q")
    await limit(h, 1, queue=full)
    answers = await h.store.enqueue([h.new("a", queue=free), h.new("a", queue=full), h.new("b", queue=full)])
    expect_equal([type(answer) for answer in answers], [Queued, Queued, QuotaExceeded], "answers with a queue's quota")
    queues = [h.name("q") for _ in range(4)]
    items = [h.new("a", queue=queue, tenant=h.other) for queue in queues]
    await h.store.set_tenant(h.other, TenantSettings(max_waiting=2))
    kinds = [type(answer) for answer in await h.store.enqueue(items)]
    expect_equal(kinds, [Queued, Queued, QuotaExceeded, QuotaExceeded], "answers with a quota over new queues")


@rule("TENANT-5")
async def replays_are_accepted_up_to_the_quota(h: Harness) -> None:
    """One by one: the jobs that fit are replayed, the rest stays failed."""
    await h.queued("a", "b", "c")
    for job in await h.claim(3):
        h.accepted(await h.fail(job), JobState.FAILED)
    await limit(h, 2, queue=h.queue)
    kinds = [type(answer) for answer in await h.store.replay([h.key(id) for id in ("a", "b", "c")])]
    expect_equal(kinds, [Replayed, Replayed, QuotaExceeded], "answers to a set of replays")
    await h.expect_state(h.key("c"), JobState.FAILED, "whose replay was refused")


@rule("TENANT-5")
async def jobs_of_other_queues_do_not_count_against_a_queues_quota(h: Harness) -> None:
    """A quota on one queue counts only the jobs that wait there."""
    await h.queued("x", "y", "z", queue=h.name("q"))
    await h.queued("x", "y", "z", tenant=h.other)
    await h.store.set_tenant(h.tenant, TenantSettings(h.queue, max_waiting=2))
    await h.queued("a", "b")
    refusal = expect_a(await h.enqueue("c"), QuotaExceeded, "enqueue over the quota")
    expect_equal((refusal.queue, refusal.waiting, refusal.limit), (h.queue, 2, 2), "what the refusal says")


async def waiting(h: Harness) -> int:
    """How many jobs of the tenant wait, as the refusal of an enqueue says."""
    await limit(h, 0, queue=None)
    refusal = expect_a(await h.enqueue(h.name("probe")), QuotaExceeded, "enqueue under a quota of 0")
    await limit(h, 1000, queue=None)
    return refusal.waiting


@rule("TENANT-5")
async def a_quota_of_the_tenant_counts_all_its_waiting_jobs(h: Harness) -> None:
    """It counts jobs that waited before it was set, and every way to begin and to stop waiting."""
    queues = [h.name("q") for _ in range(3)]
    for queue in queues:
        await h.queued("a", "b", "c", "d", queue=queue)
    expect_equal(await waiting(h), 12, "jobs that waited before the quota was set")
    first = await h.claim_one("a", queue=queues[0])
    expect_equal(await waiting(h), 11, "after a claim of one")
    batch = await h.claim(2, queue=queues[1])
    expect_equal(await waiting(h), 9, "after a claim of two")
    h.accepted(await h.release(first), JobState.READY)
    h.accepted(await h.retry(batch[0]), JobState.RETRYING)
    expect_equal(await waiting(h), 11, "after a release and a retry")
    h.accepted(await h.fail(batch[1]), JobState.FAILED)
    expect_equal(await waiting(h), 11, "after a failure")
    expect_a(await h.replay(batch[1].key), Replayed, "replay")
    expect_equal(await waiting(h), 12, "after a replay")
    expect_equal(await h.cancel(h.key("d", queue=queues[2])), "canceled", "cancel")
    expect_equal(await waiting(h), 11, "after a cancel")
    await h.queued("d", queue=queues[2])
    expect_equal(await waiting(h), 12, "after an enqueue in place of a canceled job")
    await h.store.enqueue([h.new(f"more-{n}", queue=queue) for n in range(2) for queue in queues])
    expect_equal(await waiting(h), 18, "after a batch over the queues")
    await h.queued("other", queue=queues[0], tenant=h.other)
    expect_equal(await waiting(h), 18, "after an enqueue of another tenant")
    await h.claim(3, queue=queues[0], lease_ms=LEASE)
    expect_equal(await waiting(h), 15, "after a claim of three")
    await h.advance(LEASE)
    await h.reap_all()
    expect_equal(await waiting(h), 18, "after leases ran out")
    over_all = (await h.store.claim(ClaimRequest(None, tuple(queues), 4, LEASE, "w"))).jobs
    expect_equal(await waiting(h), 18 - sum(job.tenant == h.tenant for job in over_all), "after a claim for all")
