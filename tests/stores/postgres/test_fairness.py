"""One tenant's backlog of any size delays another tenant's next job by one turn, not by the backlog. [TENANT-4]

Counted in turns, not in seconds: the n-th job that is handed out has waited n turns. Virtual times live in each process
of a worker: each is fair by itself, and so are several together, in proportion.
"""

import asyncio
import os

import pytest

from holdfast.opening import open_store
from tests.stores.load import QUEUE, complete, new, wish
from tests.stores.postgres.support import apart, fill, opened

BACKLOG = 20_000
SMALL = [f"small-{n}" for n in range(99)]
EACH = 10
CLAIM = 50


async def small_ones_arrive(store):
    for tenant in SMALL:
        await store.enqueue([new(f"{n}", tenant=tenant) for n in range(EACH)])


async def waits_of_the_small(stores):
    """The small tenants' jobs arrive; how many turns each of them waits, with claims of these stores in rotation."""
    await small_ones_arrive(stores[0])
    waits, turns = {}, 0
    while len(waits) < len(SMALL) * EACH:
        handed = 0
        for store in stores:
            jobs = (await store.claim(wish(CLAIM, tenant=None))).jobs
            handed += len(jobs)
            for job in jobs:
                turns += 1
                if job.tenant != "big":
                    waits[job.key] = turns
            await store.finish([complete(job) for job in jobs])
        if not handed:
            # A process without a hint looks for itself once a second.
            await asyncio.sleep(0.1)
        assert turns < BACKLOG, "the small ones wait for the backlog"
    return waits


def p99(waits):
    return sorted(waits.values())[len(waits) * 99 // 100]


async def has_had_its_turns(stores):
    for _ in range(10):
        for store in stores:
            jobs = (await store.claim(wish(CLAIM, tenant=None))).jobs
            await store.finish([complete(job) for job in jobs])


async def test_a_backlog_of_another_tenant_delays_a_job_by_one_turn(postgres, database):
    alone = await open_store(postgres.url(database, schema="alone"))
    beside = await open_store(postgres.url(database, schema="beside"))
    try:
        await fill(beside, BACKLOG, tenant="big")
        await has_had_its_turns([beside])
        without = await waits_of_the_small([alone])
        with_it = await waits_of_the_small([beside])
        assert p99(with_it) <= 2 * p99(without)
        # Nor does any one of them wait for its first job longer than a round or two.
        first = [min(wait for k, wait in with_it.items() if k.tenant == tenant) for tenant in SMALL]
        assert max(first) <= 2 * (len(SMALL) + 1) + CLAIM
        (stats,) = await beside.stats("big", [QUEUE])
        assert stats.counts["ready"] > BACKLOG * 0.9
    finally:
        await alone.close()
        await beside.close()


async def test_independent_workers_are_fair_together(postgres, database):
    """Two memories: what one handed out, the other does not know. Each gives the big one a turn in each round.

    The second one gets no hint of the small ones. Until it looks for itself, within a second, which may be longer than
    all this takes, it hands out the big one's jobs alone: claim by claim as many as the first one gives to the small.
    """
    url = postgres.url(database, schema="beside")
    async with opened(postgres.url(database, schema="alone")) as alone, apart(url) as first, apart(url) as second:
        assert first._cache is not second._cache
        await fill(first, BACKLOG, tenant="big")
        await has_had_its_turns([first, second])
        (before,) = await first.stats("big", [QUEUE])
        without = await waits_of_the_small([alone])
        with_it = await waits_of_the_small([first, second])
        assert p99(with_it) <= 2 * p99(without)
        (after,) = await first.stats("big", [QUEUE])
        # A job for each of the small ones' jobs, a turn in each round, and the claim that the last of them fell into.
        assert before.counts["ready"] - after.counts["ready"] <= len(with_it) + 2 * EACH + CLAIM


@pytest.mark.parametrize("workers", [1, 2])
async def test_processes_that_share_the_work_are_fair_together(postgres, database, zygote, log, workers):
    """Workers in processes of their own, for all tenants: by the order of the claims in the log.

    Stated bound: with P processes of concurrency C, the small ones' p99 wait is at most twice the turns that they need
    without the big one, and what each process held at the time when they came.
    """
    url = postgres.url(database)
    store = await open_store(url)
    try:
        await fill(store, BACKLOG, tenant="big", queue="default")
        pids = [
            await zygote.start(url, role="serve_all", log=log, concurrency=CLAIM, type="send") for _ in range(workers)
        ]
        await claims_of(store, lambda claims: len(claims) > 500)
        await store.enqueue([new(f"{n}", tenant=tenant, queue="default") for tenant in SMALL for n in range(EACH)])
        total = len(SMALL) * EACH

        def all_small(claims):
            return sum(event.tenant != "big" for event in claims) >= total

        claims = await claims_of(store, all_small)
        for pid in pids:
            os.kill(pid, 15)
        for pid in pids:
            assert await zygote.end(pid) == 0
        first = next(n for n, event in enumerate(claims) if event.tenant != "big")
        waits = [n - first + 1 for n, event in enumerate(claims) if event.tenant != "big"]
        assert sorted(waits)[len(waits) * 99 // 100] <= 2 * total + workers * 2 * CLAIM
    finally:
        await store.close()


async def claims_of(store, enough):
    """The claims of the log, once there are enough of them."""
    claims, after = [], None
    async with asyncio.timeout(60):
        while not enough(claims):
            page = await store.events(None, after, 1000)
            claims += [event for event in page.events if event.kind == "claimed"]
            after = page.next
            if not page.more:
                await asyncio.sleep(0.05)
    return claims
