"""No two enqueues write the same key: they never conflict, and claims only over the jobs that they lease. [CLAIM-4]"""

import asyncio
from collections import Counter

import pytest

from holdfast.core.job import Cancel, ClaimRequest, Finish, JobKey
from tests.stores.load import new

TENANT, QUEUE = "t", "q"


def items(count, tenant=TENANT, stem="job"):
    return [new(f"{stem}-{n:05}", tenant=tenant, queue=QUEUE) for n in range(count)]


def conflicts(*stores):
    return sum(store._transactions.conflicts for store in stores)


async def test_enqueues_of_different_jobs_never_conflict(cluster):
    """Not even those that find the queue empty, in the middle of one another."""
    database = cluster()
    stores = [await database.handle() for _ in range(8)]
    for round_ in range(5):
        batches = [items(3, stem=f"{round_}-{number}") for number in range(8)]
        await asyncio.gather(*(store.enqueue(batch) for store, batch in zip(stores, batches, strict=True)))
    assert conflicts(*stores) == 0
    (stats,) = await stores[0].stats(TENANT, [QUEUE])
    assert sum(stats.counts.values()) == 120


@pytest.mark.parametrize("tenant", [TENANT, None], ids=["one tenant", "all tenants"])
@pytest.mark.parametrize("claimers", [1, 4, 16])
async def test_claimers_do_not_stop_each_other(cluster, claimers, tenant):
    """Every job is leased once. After the first conflict, claimers begin in different places."""
    database = cluster()
    stores = [await database.handle() for _ in range(claimers)]
    await stores[0].enqueue(items(1_500))
    leases = Counter()
    claims = 0

    async def work(store, number):
        nonlocal claims
        while True:
            claimed = await store.claim(ClaimRequest(tenant, (QUEUE,), 5, 30_000, f"w{number}"))
            claims += 1
            if not claimed.jobs:
                return
            leases.update(job.id for job in claimed.jobs)
            await store.finish([Finish(job.key, job.token, "complete") for job in claimed.jobs])

    await asyncio.gather(*(work(store, number) for number, store in enumerate(stores)))
    assert len(leases) == 1_500
    assert set(leases.values()) == {1}
    if claimers == 1:
        assert conflicts(*stores) == 0
    # Without different places, all but one of them would conflict in each round.
    assert conflicts(*stores) < claims


async def test_an_enqueue_and_a_claim_that_leaves_the_queue_empty_do_not_lose_the_job(cluster):
    """Taking the pointer of an empty queue conflicts with adding a job that relies on it. [TENANT-4]"""
    database = cluster()
    producer, worker = await database.handle(), await database.handle()
    request = ClaimRequest(None, (QUEUE,), 10, 30_000, "w")
    for number in range(60):
        await producer.enqueue([new(f"a{number}", tenant=TENANT, queue=QUEUE)])
        assert [job.id for job in (await worker.claim(request)).jobs] == [f"a{number}"]
        turns = worker._claims._turns[QUEUE]
        await asyncio.gather(
            worker._claims._leave_turns(QUEUE, turns),
            producer.enqueue([new(f"b{number}", tenant=TENANT, queue=QUEUE)]),
        )
        found = (await worker.claim(request)).jobs + (await (await database.handle()).claim(request)).jobs
        assert [job.id for job in found] == [f"b{number}"]


async def test_a_resumed_queue_gets_its_pointer_back(cluster):
    """A claim for all tenants finds that a queue is paused, and takes its pointer. [CLAIM-5]"""
    database = cluster()
    store, other = await database.handle(), await database.handle()
    request = ClaimRequest(None, (QUEUE,), 10, 30_000, "w")
    await store.enqueue(items(2))
    await store.pause(TENANT, QUEUE, paused=True)
    assert (await store.claim(request)).jobs == []
    await store._claims._leave_turns(QUEUE, store._claims._turns[QUEUE])
    await store.enqueue(items(1, stem="while paused"))
    await store.pause(TENANT, QUEUE, paused=False)
    assert len((await other.claim(request)).jobs) == 3


async def test_a_thousand_idle_tenants_cost_a_claim_nothing(cluster):
    """Tenants whose jobs have ended, or come due in a year, have no pointer in the turns. [CLAIM-4]"""
    database = cluster()
    store = await database.handle()
    request = ClaimRequest(None, (QUEUE,), 1, 30_000, "w")
    year = 365 * 24 * 3_600_000
    await store.enqueue([new("later", tenant=f"t{n}", queue=QUEUE, delay_ms=year) for n in range(500)])
    await store.enqueue([new("gone", tenant=f"u{n}", queue=QUEUE) for n in range(500)])
    await store.cancel([Cancel(JobKey(f"u{n}", QUEUE, "gone")) for n in range(500)])
    while (await store.claim(request)).jobs or store._claims._turns[QUEUE].lanes:
        await store._claims._leave_turns(QUEUE, store._claims._turns[QUEUE])
    reads = await reads_of_a_claim(await database.handle(), request)
    await store.enqueue([new("job", tenant="busy", queue=QUEUE)])
    assert await reads_of_a_claim(await database.handle(), request) <= reads + 4


async def reads_of_a_claim(store, request):
    """How many reads a claim makes."""
    count = 0
    transactions = store._transactions
    make = transactions.database.transaction

    def counted():
        transaction = make()
        for name in ("get", "get_range"):
            read = getattr(transaction, name)

            def stand_in(*args, read=read, **options):
                nonlocal count
                count += 1
                return read(*args, **options)

            setattr(transaction, name, stand_in)
        return transaction

    class Database:
        transaction = staticmethod(counted)

    transactions.database = Database()
    await store.claim(request)
    return count
