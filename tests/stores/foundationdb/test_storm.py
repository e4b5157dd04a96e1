"""Producers, workers and upkeep on a cluster on a bad day: no job is lost, and none is leased twice at once.

`HOLDFAST_STORM_SEEDS=10000` runs that number of seeds.
"""

import asyncio
import os
from collections import defaultdict
from random import Random

import pytest

from holdfast.core.job import ClaimRequest, Finish, Finished, JobKey, JobState
from holdfast.stores.foundationdb import numbers
from holdfast.testing.fdb import SOME
from holdfast.testing.traces import History
from tests.stores.load import new

TENANTS = ("a", "b", "c")
QUEUE = "q"
JOBS = 24
LEASE_MS = 30_000
SEEDS = int(os.environ.get("HOLDFAST_STORM_SEEDS", "12"))


class Storm:
    """What goes on at once, until all jobs are completed."""

    def __init__(self, database, seed):
        self.database, self.random = database, Random(seed)
        self.keys = [JobKey(self.random.choice(TENANTS), QUEUE, f"job-{n}") for n in range(JOBS)]
        self.open = set(self.keys)
        self.accepted = []

    async def produce(self, store, keys):
        while keys:
            part = [keys.pop() for _ in range(min(len(keys), self.random.randint(1, 4)))]
            await store.enqueue([new(k.id, tenant=k.tenant, queue=k.queue, max_attempts=100) for k in part])

    async def work(self, store, tenant):
        while self.open:
            request = ClaimRequest(tenant, (QUEUE,), self.random.randint(1, 4), LEASE_MS, f"w-{tenant}")
            for job in (await store.claim(request)).jobs:
                await self.end(store, job)
            await asyncio.sleep(0)

    async def end(self, store, job):
        outcome = self.random.choices(("complete", "retry", "release", ""), (6, 2, 1, 1))[0]
        if not outcome:
            return  # The worker dies with the job.
        (answer,) = await store.finish([Finish(job.key, job.token, outcome, delay_ms=0)])
        if answer == Finished(JobState.COMPLETED):
            self.accepted.append(job.key)
            self.open.discard(job.key)

    async def look_after(self, store):
        while self.open:
            await store.shift_clock(self.random.randint(1, LEASE_MS))
            await store.reap(100, self.random.random())
            await store.prune(100)
            if self.random.random() < 0.1:
                self.database.recover()


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_nothing_is_lost_and_nothing_is_leased_twice(cluster, monkeypatch, seed):
    monkeypatch.setattr(numbers, "BLOCK", 5)
    database = cluster(faults=SOME, seed=seed)
    one, two, three, four = [await database.handle(test_clock=1) for _ in range(4)]
    storm = Storm(database, seed)
    await asyncio.gather(
        storm.produce(one, storm.keys[::2]),
        storm.produce(two, storm.keys[1::2]),
        storm.work(two, TENANTS[1]),
        storm.work(three, None),
        storm.work(four, TENANTS[0]),
        storm.look_after(one),
    )
    assert sorted(storm.accepted) == sorted(storm.keys)
    await the_log_is_possible(one, storm.keys)


async def the_log_is_possible(store, keys):
    """Each lease ended before the next one began, and each job was completed once. No two leases share a token.

    [CLAIM-1, STATE-1, LEASE-5]

    Job by job: transactions that do not meet may commit in another order than they began.
    """
    histories, after, completed, tokens = defaultdict(lambda: History(extensions=False)), None, [], []
    while True:
        page = await store.events(None, after, 100)
        for event in page.events:
            key = JobKey(event.tenant, event.queue, event.job_id)
            histories[key].add(event)
            if event.kind == "completed":
                completed.append(key)
            if event.kind == "claimed":
                tokens.append(event.token)
        after = page.next
        if not page.more:
            break
    assert sorted(completed) == sorted(keys)
    assert len(set(tokens)) == len(tokens)
    for key, job in zip(keys, await store.get(keys), strict=True):
        histories[key].check(key, job)
