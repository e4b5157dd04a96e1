"""One tenant's backlog of any size delays another tenant's next job by one turn, not by the backlog. [TENANT-4]

Counted in turns, not in seconds: the n-th job that is handed out has waited n turns.
"""

import pytest

from holdfast.opening import open_store
from holdfast.testing.servers import ValkeyServer
from tests.stores.load import QUEUE, complete, new, wish

BACKLOG = 100_000
SMALL = [f"small-{n}" for n in range(99)]
EACH = 10
CLAIM = 50


@pytest.fixture(scope="module")
def server():
    """A server of its own: the rest of the backlog disappears with it."""
    with ValkeyServer() as server:
        yield server


async def fill(store, count):
    for start in range(0, count, 1000):
        await store.enqueue([new(f"{n}", tenant="big") for n in range(start, min(count, start + 1000))])


async def waits_of_the_small(store):
    """The small tenants' jobs arrive; how many turns each of them waits."""
    for tenant in SMALL:
        await store.enqueue([new(f"{n}", tenant=tenant) for n in range(EACH)])
    waits, turns = {}, 0
    while len(waits) < len(SMALL) * EACH:
        jobs = (await store.claim(wish(CLAIM, tenant=None))).jobs
        assert jobs, "nothing is handed out although jobs wait"
        for job in jobs:
            turns += 1
            if job.tenant != "big":
                waits[job.key] = turns
        await store.finish([complete(job) for job in jobs])
        assert turns < BACKLOG, "the small ones wait for the backlog"
    return waits


def p99(waits):
    return sorted(waits.values())[len(waits) * 99 // 100]


@pytest.mark.parametrize("shards, backlog", [(1, BACKLOG), (4, BACKLOG // 5)])
async def test_a_backlog_of_another_tenant_delays_a_job_by_one_turn(server, shards, backlog):
    alone = await open_store(server.url(prefix=f"alone-{shards}", shards=shards))
    beside = await open_store(server.url(prefix=f"beside-{shards}", shards=shards))
    try:
        await fill(beside, backlog)
        # It has had its turns for a while when the others come.
        for _ in range(10):
            jobs = (await beside.claim(wish(CLAIM, tenant=None))).jobs
            await beside.finish([complete(job) for job in jobs])
        without = await waits_of_the_small(alone)
        with_it = await waits_of_the_small(beside)
        assert p99(with_it) <= 2 * p99(without)
        # Nor does any one of them wait for its first job longer than a round or two.
        first = [min(wait for k, wait in with_it.items() if k.tenant == tenant) for tenant in SMALL]
        assert max(first) <= 2 * (len(SMALL) + 1) + CLAIM
        (stats,) = await beside.stats("big", [QUEUE])
        assert stats.counts["ready"] > backlog * 0.9
    finally:
        await alone.close()
        await beside.close()
