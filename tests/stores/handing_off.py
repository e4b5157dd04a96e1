"""Workers that wait and are handed jobs as they come: what the tests of that share."""

import asyncio
import contextlib

from holdfast import Queue, current_job, job
from holdfast.worker import Worker
from tests.chaos.workers import AT_ONCE, TENANT
from tests.eventually import eventually
from tests.stores.load import wish

SOON_S = 15.0
"""Generous, and far below a lease or a fallback poll."""
LEASE_S = 60


def waiting(waiting_workers, count):
    """Wait until this many workers have registered for jobs."""
    return eventually(waiting_workers, lambda found: found == count)


async def states(queue, *ids):
    return [(await queue.get(id_)).state for id_ in ids]


class Runs:
    """A job that notes its runs: each id at most once at a time."""

    def __init__(self, seconds=0.0):
        self.now, self.all, self.twice = set(), [], []

        @job(max_attempts=100, retry=AT_ONCE)
        async def run(n: int) -> int:
            id_ = current_job().id
            if id_ in self.now:
                self.twice.append(id_)
            self.now.add(id_)
            self.all.append(id_)
            try:
                await asyncio.sleep(seconds)
            finally:
                self.now.discard(id_)
            return n

        self.job = run


@contextlib.asynccontextmanager
async def working(source, *jobs, **options):
    """A worker in this process."""
    options = {"concurrency": 4, "lease": LEASE_S} | options
    async with contextlib.AsyncExitStack() as stack:
        queue = source
        if isinstance(source, str):
            queue = await stack.enter_async_context(Queue(source, tenant=TENANT))
        worker = Worker(queue, jobs=jobs, **options)
        running = asyncio.create_task(worker.run(signals=False))
        try:
            yield running
        finally:
            await worker.stop()
            await asyncio.wait([running])


@contextlib.asynccontextmanager
async def place(store, waiting_workers, *, queues=("mail",), limit=2):
    """A worker's inbox, with its registration, and the jobs that were handed off."""
    came = []
    post = store.open_inbox(lambda claimed, sent: came.extend(claimed.jobs))
    try:
        async with asyncio.timeout(SOON_S):
            while not await waiting_workers():
                assert (await post.claim(wish(limit, queues=queues))).jobs == []
                await asyncio.sleep(0.01)
        yield post, came
    finally:
        await post.close()
