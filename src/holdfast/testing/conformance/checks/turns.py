"""TENANT-4: weighted turns between the tenants that have visible work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.core.job import HOUR, SECOND, JobState
from holdfast.store import TenantSettings
from holdfast.testing.conformance.expect import Skipped, expect, expect_between, expect_equal
from holdfast.testing.conformance.harness import DELAY, Harness
from holdfast.testing.conformance.rules import rule


async def backlog(h: Harness, tenant: str, count: int, queue: str | None = None, **fields: object) -> None:
    """Ready jobs of one tenant, in the order of their ids."""
    stem = h.name("b")
    await h.queued(*(f"{stem}-{number:05}" for number in range(count)), tenant=tenant, queue=queue, **fields)


async def served(h: Harness, turns: int, queues: Sequence[str] | None = None) -> list[str]:
    """The tenants whose jobs a worker for all tenants gets, claiming one at a time."""
    tenants: list[str] = []
    for _ in range(turns):
        tenants += [job.tenant for job in await h.claim(1, tenant=None, queue=queues)]
    expect_equal(len(tenants), turns, "turns that were given")
    return tenants


def expect_share(h: Harness, tenants: Sequence[str], shares: dict[str, int], what: str) -> None:
    """Fail unless each tenant had its share of the turns: exactly if turns are exact, else in proportion."""
    total = sum(shares.values())
    for tenant, share in shares.items():
        fair = len(tenants) * share / total
        slack = 1.0 if h.exact_turns else max(2.0, fair / 2)
        got = Counter(tenants)[tenant]
        expect(abs(got - fair) <= slack, f"{what}: {tenant} had {got} of {len(tenants)} turns, fair is {fair:g}")


@rule("TENANT-4")
async def a_backlog_delays_another_tenant_by_one_turn(h: Harness) -> None:
    """However many jobs of one tenant wait, another tenant's next job is claimed after at most one of them."""
    await backlog(h, h.tenant, 200)
    await served(h, 20)
    await h.queued("small", tenant=h.other)
    expect(h.other in await served(h, 2), "the other tenant's only job did not come within two turns")
    expect_equal(set(await served(h, 5)), {h.tenant}, "tenants served once the other has nothing left")


@rule("TENANT-4")
async def tenants_take_turns_one_by_one_and_within_a_batch(h: Harness) -> None:
    """Tenants of equal weight alternate, whether jobs are claimed one by one or many at once."""
    names = [h.tenant, h.other, h.name("v")]
    for tenant in names:
        await backlog(h, tenant, 20)
    expect_share(h, await served(h, 15), dict.fromkeys(names, 1), "turns one by one")
    batch = [job.tenant for job in await h.claim(15, tenant=None)]
    expect_equal(len(batch), 15, "jobs in a batch")
    expect_share(h, batch, dict.fromkeys(names, 1), "turns in a batch")
    if h.exact_turns:
        for start in range(0, 15, 3):
            expect_equal(len(set(batch[start : start + 3])), 3, f"tenants in the round that starts at {start}")


@rule("TENANT-4")
async def turns_follow_the_weights(h: Harness) -> None:
    """A tenant of weight 3 gets three turns for each turn of a tenant of weight 1, even over a few turns."""
    await h.store.set_tenant(h.tenant, TenantSettings(weight=3.0))
    await backlog(h, h.tenant, 60)
    await backlog(h, h.other, 60)
    weights = {h.tenant: 3, h.other: 1}
    got = await served(h, 40)
    expect_share(h, got, weights, "weights 3 and 1")
    expect_share(h, got[:8], weights, "weights 3 and 1 at the start")
    batch = [job.tenant for job in await h.claim(20, tenant=None)]
    expect_share(h, batch, weights, "weights 3 and 1 in a batch")


@rule("TENANT-4")
async def a_weight_for_one_queue_overrides_the_tenants_weight(h: Harness) -> None:
    """A weight can be set for one queue of a tenant. Other queues keep the tenant's weight."""
    await h.store.set_tenant(h.tenant, TenantSettings(weight=4.0))
    await h.store.set_tenant(h.tenant, TenantSettings(h.queue, weight=1.0))
    elsewhere = h.name("q")
    for tenant in (h.tenant, h.other):
        await backlog(h, tenant, 20)
        await backlog(h, tenant, 20, queue=elsewhere)
    expect_share(h, await served(h, 10), {h.tenant: 1, h.other: 1}, "the queue's own weight")
    expect_share(h, await served(h, 10, [elsewhere]), {h.tenant: 4, h.other: 1}, "the tenant's weight")


@rule("TENANT-4")
async def a_newcomer_does_not_catch_up(h: Harness) -> None:
    """A tenant that starts late gets its share from then on, not the turns that it missed."""
    await backlog(h, h.tenant, 60)
    await served(h, 30)
    await backlog(h, h.other, 30)
    got = await served(h, 10)
    expect_share(h, got, {h.tenant: 1, h.other: 1}, "turns after a newcomer came")


@rule("TENANT-4")
async def a_tenant_that_leaves_and_returns_gains_nothing(h: Harness) -> None:
    """A tenant that never has more than one job gets no more turns than one with a backlog."""
    await backlog(h, h.tenant, 40)
    got: list[str] = []
    for _ in range(20):
        await backlog(h, h.other, 1)
        got += await served(h, 1)
    expect_share(h, got, {h.tenant: 1, h.other: 1}, "turns of a tenant that leaves and returns")


@rule("TENANT-4")
async def a_tenant_that_returns_to_an_idle_queue_gains_nothing(h: Harness) -> None:
    """The tenant that was served last is served after a newcomer, even if no tenant had work in between."""
    for first, second in ((h.tenant, h.other), (h.other, h.tenant)):
        queue = h.name("q")
        await backlog(h, first, 1, queue)
        expect_equal(await served(h, 1, [queue]), [first], "the only tenant")
        await h.claim_none(tenant=None, queue=queue)
        await backlog(h, first, 1, queue)
        await backlog(h, second, 1, queue)
        order = await served(h, 2, [queue])
        if h.exact_turns:
            expect_equal(order, [second, first], "turns after the queue was idle")


@rule("TENANT-4")
async def a_tenant_with_nothing_visible_takes_no_turn(h: Harness) -> None:
    """Paused, delayed and leased jobs give their tenant no turn. It enters when they become visible."""
    paused, delayed, running = h.name("v"), h.name("w"), h.name("x")
    for tenant in (paused, running, h.tenant):
        await backlog(h, tenant, 12)
    await backlog(h, delayed, 12, delay_ms=HOUR)
    await h.store.pause(paused, h.queue, paused=True)
    await h.claim(12, tenant=running)
    expect_equal(set(await served(h, 6)), {h.tenant}, "tenants served while the others have nothing visible")
    await h.store.pause(paused, h.queue, paused=False)
    await h.advance(HOUR)
    await h.reap_all()  # The leases expire; the jobs are retried in a second.
    await h.advance(DELAY)
    shares = dict.fromkeys((h.tenant, paused, delayed, running), 1)
    expect_share(h, await served(h, 16), shares, "turns once all have visible work")


@rule("TENANT-4")
async def priorities_do_not_count_between_tenants(h: Harness) -> None:
    """Priority 9 of one tenant does not overtake priority 0 of another, only its own."""
    await backlog(h, h.tenant, 10, priority=9)
    await backlog(h, h.other, 10, priority=0)
    await h.queued("own-last", priority=0)
    await h.queued("other-first", tenant=h.other, priority=9)
    got = await h.claim(10, tenant=None)
    expect_share(h, [job.tenant for job in got], {h.tenant: 1, h.other: 1}, "turns with unequal priorities")
    own = [job.id for job in got if job.tenant == h.other]
    expect_equal(own[:1], ["other-first"], "first job of the tenant that has one of priority 9")
    expect("own-last" not in [job.id for job in got], "priority 0 came before priority 9 of the same tenant")


@rule("TENANT-4")
async def a_claim_over_several_queues_takes_from_them_in_rotation(h: Harness) -> None:
    """A full queue does not starve the next one, for one tenant and for all. An empty one is skipped."""
    for tenant in (h.tenant, None):
        long, short, empty = h.name("q"), h.name("q"), h.name("q")
        await backlog(h, h.tenant, 10, queue=long)
        await backlog(h, h.tenant, 2, queue=short)
        got = await h.claim(3, tenant=tenant, queue=(long, empty, short))
        expect_equal([job.queue for job in got], [long, short, long], f"queues of the jobs that {tenant} got")
        got = await h.claim(4, tenant=tenant, queue=(short, empty, long))
        expect_equal([job.queue for job in got], [short, long, long, long], f"queues of the jobs that {tenant} got")
        await backlog(h, h.tenant, 3, queue=short)
        got = await h.claim(6, tenant=tenant, queue=(long, short))
        expect_equal([job.queue for job in got], [long, short] * 3, f"queues of six jobs that {tenant} got")


@rule("TENANT-4")
async def each_queue_name_has_its_own_turns(h: Harness) -> None:
    """Turns are counted by queue name. A turn in one queue costs nothing in another."""
    elsewhere = h.name("q")
    await backlog(h, h.tenant, 20, queue=elsewhere)
    await served(h, 20, [elsewhere])
    for tenant in (h.tenant, h.other):
        await backlog(h, tenant, 10)
    expect_share(h, await served(h, 10), {h.tenant: 1, h.other: 1}, "turns in the second queue")


@rule("TENANT-4")
async def every_tenant_of_many_is_served_once_a_round(h: Harness) -> None:
    """With 40 tenants waiting, 40 turns serve each of them once."""
    tenants = [h.name("m") for _ in range(40)]
    for tenant in tenants:
        await backlog(h, tenant, 2)
    got = await served(h, 20) + [job.tenant for job in await h.claim(20, tenant=None)]
    if h.exact_turns:
        expect_equal(Counter(got), Counter(tenants), "turns of 40 tenants in one round")
    expect_between(len(set(got)), 20, 40, "tenants served in one round")
    expect_equal((await h.stats(tenant=tenants[0])).counts[JobState.BLOCKED], 0, "blocked jobs")


@rule("TENANT-4")
async def a_newcomer_to_an_idle_queue_does_not_catch_up(h: Harness) -> None:
    """A tenant that starts when no tenant has work begins where the others stopped."""
    await backlog(h, h.tenant, 20)
    await served(h, 20)
    await h.claim_none(tenant=None)
    await backlog(h, h.other, 20)
    await served(h, 2)
    await backlog(h, h.tenant, 20)
    expect_share(h, await served(h, 10), {h.tenant: 1, h.other: 1}, "turns after both returned")


@rule("TENANT-4")
async def a_tenant_whose_own_workers_took_its_jobs_takes_no_turn(h: Harness) -> None:
    """A claim for all tenants skips those that have no jobs left, and still gets all the jobs there are."""
    tenants = sorted(h.name("m") for _ in range(5))
    for tenant in tenants:
        await backlog(h, tenant, 2)
    await h.claim(5, tenant=None)
    for tenant in tenants[1:4]:
        await h.claim(5, tenant=tenant)
    left = [tenant for tenant in tenants if (await h.stats(tenant=tenant)).counts[JobState.READY]]
    got = await h.claim(len(left), tenant=None)
    expect_equal(sorted(job.tenant for job in got), left, "tenants served beside some that have nothing left")


@rule("TENANT-4")
async def a_tenant_takes_turns_as_soon_as_its_first_job_is_due(h: Harness) -> None:
    """A worker for all tenants finds it, whatever jobs came after it, with it in one batch, or were claimed before."""
    async with h.frozen(keep_events="1000") as f:
        for order in (("ready", "later"), ("later", "ready")):
            for in_one_batch in (False, True):
                queue = f.name("q")
                new = [f.new(id, queue=queue, delay_ms=HOUR if id == "later" else 0) for id in order]
                for items in [new] if in_one_batch else [[item] for item in new]:
                    await f.store.enqueue(items)
                await f.claim_one("ready", tenant=None, queue=queue)
        own, all_ = f.name("q"), f.name("q")
        for queue, whose in ((own, f.tenant), (all_, None)):
            await f.queued("now", queue=queue)
            await f.queued("later", queue=queue, delay_ms=HOUR)
            await f.claim_one("now", queue=queue, tenant=whose, lease_ms=2 * HOUR)
            await f.claim_none(queue=queue, tenant=None)
        await f.advance(HOUR)
        for queue in (own, all_):
            await f.claim_one("later", queue=queue, tenant=None)


@rule("TENANT-4")
async def a_tenant_skipped_for_want_of_work_takes_turns_again_when_it_has_work(h: Harness) -> None:
    """The tenant's own worker took its job. It takes no turn, and its next job is found when that is due."""
    async with h.frozen() as f:
        for limit in (1, 3, 9):
            queue = f.name("q")
            await backlog(f, f.tenant, 5, queue)
            await f.queued("now", tenant=f.other, queue=queue)
            await f.queued("later", tenant=f.other, queue=queue, delay_ms=SECOND)
            await f.claim_one("now", tenant=f.other, queue=queue)
            got = await f.claim(limit, tenant=None, queue=queue)
            expect_equal({job.tenant for job in got}, {f.tenant}, "tenants with visible work")
            page = await f.claim_page(9, tenant=None, queue=queue)
            expect_equal(len(got) + len(page.jobs), 5, "visible jobs")
            expect_equal(page.next_at, await f.now() + SECOND, "when to claim again")
            await f.advance(SECOND)
            await f.claim_one("later", tenant=None, queue=queue)


@rule("TENANT-4")
async def a_tenant_skipped_for_want_of_work_gains_nothing(h: Harness) -> None:
    """It returns with the virtual time it had: its earlier turns still count."""
    async with h.frozen() as f:
        if not f.exact_turns:
            return
        await f.store.set_tenant(f.other, TenantSettings(weight=0.1))
        for count, limit in ((30, 1), (2, 5)):
            queue = f.name("q")
            await backlog(f, f.other, 1, queue)
            expect_equal(await served(f, 1, [queue]), [f.other], "a turn that costs as much as ten")
            await f.claim_none(tenant=None, queue=queue)
            await f.queued("taken", tenant=f.other, queue=queue)
            await f.claim_one("taken", tenant=f.other, queue=queue)
            await backlog(f, f.tenant, count, queue)
            got = [job.tenant for job in await f.claim(limit, tenant=None, queue=queue)]
            expect_equal(got, [f.tenant] * min(count, limit), "turns while the other has nothing visible")
            await backlog(f, f.other, 5, queue)
            await backlog(f, f.tenant, 10, queue)
            expect_equal(await served(f, 6, [queue]), [f.tenant] * 6, "turns when the other is back")


@rule("TENANT-4")
async def a_worker_that_starts_finds_all_tenants(h: Harness) -> None:
    """Jobs that were enqueued before it started are served in turns, too."""
    if not h.capabilities.durable:
        raise Skipped("the store does not outlive the process")
    tenants = [h.tenant, h.other, h.name("v")]
    for tenant in tenants:
        await backlog(h, tenant, 4)
    await h.reopen()
    expect_share(h, await served(h, 12), dict.fromkeys(tenants, 1), "turns of a worker that has just started")
