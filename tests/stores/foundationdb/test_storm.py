"""Producers, workers and upkeep on a cluster on a bad day: no job is lost, and none is leased twice at once.

`HOLDFAST_STORM_SEEDS=10000` runs that number of seeds.
"""

import asyncio
import os
from collections import defaultdict
from random import Random

import pytest

from holdfast.core.job import ClaimRequest, Finish, Finished, JobKey, JobState
from holdfast.testing.fdb import SOME
from holdfast.testing.traces import History
from tests.stores.load import new

TENANTS = ("a", "b", "c")
QUEUE = "q"
JOBS = 24
LEASE_MS = 30_000
SEEDS = int(os.environ.get("HOLDFAST_STORM_SEEDS", "12"))


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_nothing_is_lost_and_nothing_is_leased_twice(cluster, seed):
    random = Random(seed)
    database = cluster(faults=SOME, seed=seed)
    stores = [await database.handle(test_clock=1) for _ in range(4)]
    keys = [JobKey(random.choice(TENANTS), QUEUE, f"job-{n}") for n in range(JOBS)]
    open_, accepted = set(keys), []

    async def produce(store, mine):
        while mine:
            part = [mine.pop() for _ in range(min(len(mine), random.randint(1, 4)))]
            await store.enqueue([new(k.id, tenant=k.tenant, queue=k.queue, max_attempts=100) for k in part])

    async def work(store, tenant):
        while open_:
            request = ClaimRequest(tenant, (QUEUE,), random.randint(1, 4), LEASE_MS, f"w-{tenant}")
            jobs = (await store.claim(request)).jobs
            if not jobs:
                await asyncio.sleep(0)
            for job in jobs:
                outcome = random.choices(("complete", "retry", "release", ""), (6, 2, 1, 1))[0]
                if outcome:  # Else the worker dies with the job.
                    (answer,) = await store.finish([Finish(job.key, job.token, outcome, delay_ms=0)])
                    if answer == Finished(JobState.COMPLETED):
                        accepted.append(job.key)
                        open_.discard(job.key)

    async def look_after(store):
        while open_:
            await store.shift_clock(random.randint(1, LEASE_MS))
            await store.reap(100, random.random())
            await store.prune(100)
            if random.random() < 0.1:
                database.recover()

    work_of = [work(stores[2], None), work(stores[3], TENANTS[0]), work(stores[1], TENANTS[1])]
    await asyncio.gather(produce(stores[0], keys[::2]), produce(stores[1], keys[1::2]), *work_of, look_after(stores[0]))
    assert sorted(accepted) == sorted(keys)
    await the_log_is_possible(stores[0], keys)


async def the_log_is_possible(store, keys):
    """Each lease ended before the next one began, and each job was completed once. [CLAIM-1, STATE-1]

    Job by job: transactions that do not meet may commit in another order than they began.
    """
    histories, after, completed = defaultdict(lambda: History(extensions=False)), None, []
    while True:
        page = await store.events(None, after, 100)
        for event in page.events:
            key = JobKey(event.tenant, event.queue, event.job_id)
            histories[key].add(event)
            if event.kind == "completed":
                completed.append(key)
        after = page.next
        if not page.more:
            break
    assert sorted(completed) == sorted(keys)
    for key, job in zip(keys, await store.get(keys), strict=True):
        histories[key].check(key, job)
