"""A slot that moves from node to node while jobs are enqueued and worked on there."""

import asyncio

from redis.crc import key_slot

from holdfast.core.errors import StoreError
from holdfast.core.job import ClaimRequest, Envelope, Finish, Finished, JobKey, NewJob
from holdfast.store import open_store
from holdfast.testing.servers import ValkeyCluster

TENANTS = 60
JOBS = 600


async def insist(call):
    """Call until the store takes it."""
    while True:
        try:
            return await call()
        except StoreError:
            await asyncio.sleep(0.005)


async def test_nothing_is_lost_while_a_slot_moves_key_by_key():
    """As operators reshard a live cluster: calls may be refused meanwhile, and what was refused was not half done."""
    with ValkeyCluster(3) as cluster:
        store = await open_store(cluster.url(shards=1, test_clock=1))
        slot = key_slot(b"hf:{0}:c")
        acknowledged, done = set(), set()

        async def produce(first):
            for number in range(first, JOBS, 3):
                key = JobKey(f"t{number % TENANTS}", "q", f"job-{number}")
                new = NewJob(key, Envelope("t", b"{}", request_id=f"r{number}"))
                await insist(lambda new=new: store.enqueue([new]))
                acknowledged.add(key)

        async def work(limit):
            while True:
                try:
                    jobs = (await store.claim(ClaimRequest(None, ("q",), limit, 1000, "w"))).jobs
                except StoreError:
                    jobs = []
                if not jobs:
                    await asyncio.sleep(0.002)
                    continue
                items = [Finish(job.key, job.token, "complete") for job in jobs]
                answers = await insist(lambda items=items: store.finish(items))
                done.update(job.key for job, answer in zip(jobs, answers, strict=True) if isinstance(answer, Finished))

        def reshard():
            place = cluster.nodes.index(cluster.owner(slot))
            cluster.move_slot(slot, cluster.nodes[(place + 1) % 3])

        workers = [asyncio.create_task(work(limit)) for limit in (1, 7, 50)]
        await asyncio.gather(asyncio.to_thread(reshard), *(produce(first) for first in range(3)))
        async with asyncio.timeout(60):
            while acknowledged - done:
                await insist(lambda: store.shift_clock(400_000))  # Leases whose reply was lost run out.
                await asyncio.sleep(0.05)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        assert len(done) == JOBS
        await store.close()
