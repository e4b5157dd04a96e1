"""In memory too, the jobs ahead are counted without a look at the whole backlog."""

from heapq import heapify
from random import Random

from holdfast import Queue
from holdfast.core.explain import AHEAD_LIMIT
from holdfast.core.job import JobKey


class Counted(list):
    """A list that counts the places that were read."""

    def __init__(self, items):
        super().__init__(items)
        self.looks = 0

    def __getitem__(self, place):
        self.looks += 1
        return super().__getitem__(place)


async def looks_for(queue, id, count):
    """How many entries of the heap were looked at to count the jobs ahead, which must be `count`."""
    ready = queue.store.tables.jobs.queues["default"].tenants["acme"].ready
    ready.entries = Counted(ready.entries)
    assert (await queue.store.standing(JobKey("acme", "default", id))).ahead == count
    return ready.entries.looks


async def test_the_heap_is_looked_at_as_far_as_jobs_are_ahead():
    async with Queue("memory:explain-work", tenant="acme") as queue:
        ids = [f"j{n:05}" for n in range(20_000)]
        for start in range(0, len(ids), 1000):
            for id in ids[start : start + 1000]:
                await queue.enqueue({}, id=id)
        ready = queue.store.tables.jobs.queues["default"].tenants["acme"].ready
        Random(1).shuffle(ready.entries)  # A heap may be in any order that is one.
        heapify(ready.entries)
        assert await looks_for(queue, ids[0], 0) <= 10
        assert await looks_for(queue, ids[300], 300) <= 10 + 5 * 300
        assert await looks_for(queue, ids[-1], AHEAD_LIMIT + 1) <= 10 + 5 * AHEAD_LIMIT
