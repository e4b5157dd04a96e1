"""What the tests of this store share."""

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager

from holdfast.core.errors import StoreBusy
from holdfast.core.job import ClaimRequest, Envelope, Finish, JobKey, NewJob, Result
from holdfast.opening import open_store
from holdfast.stores.postgres import lanes
from holdfast.testing.traces import History
from tests.chaos.ledger import all_jobs
from tests.log import all_events


@asynccontextmanager
async def opened(url):
    """A store, open."""
    store = await open_store(url)
    try:
        yield store
    finally:
        await store.close()


def new(id_, tenant="acme", queue="mail", **fields):
    return NewJob(JobKey(tenant, queue, id_), Envelope("send", b"{}", request_id=f"r-{id_}", **fields))


async def patiently(store, item):
    """Enqueue, and repeat the request when others block it."""
    while True:
        try:
            return await store.enqueue([item])
        except StoreBusy:
            await asyncio.sleep(0.05)


async def fill(store, count, tenant="acme", queue="mail", start=0):
    """Ready jobs, in batches."""
    for first in range(start, start + count, 1000):
        ids = range(first, min(first + 1000, start + count))
        await store.enqueue([new(f"job-{n:07}", tenant, queue) for n in ids])


async def claim(store, limit, tenant="acme", queue="mail"):
    return (await store.claim(ClaimRequest(tenant, (queue,), limit, 60_000, "worker"))).jobs


async def complete(store, jobs, **options):
    return await store.finish([Finish(job.key, job.token, "complete", Result(b"1")) for job in jobs], **options)


async def judge(store, *, whole=True):
    """Every event of the log is a legal move, and every record is what its events say. The jobs by key.

    Job by job: between jobs the log is in the order of transactions, which is not that of their clocks. `whole`: all
    jobs are still there.
    """
    stories = defaultdict(list)
    for event in await all_events(store, limit=1000):
        stories[JobKey(event.tenant, event.queue, event.job_id)].append(event)
    keys = list(stories)
    found = dict(zip(keys, await all_jobs(store, keys), strict=True))
    tokens = []
    for key, story in stories.items():
        history = History(extensions=False)
        for event in story:
            history.add(event)
        history.check(key, found[key])
        assert found[key] is not None or not whole, f"{key} is gone"
        tokens += [event.token for event in story if event.kind == "claimed"]
    assert len(set(tokens)) == len(tokens), "a token was granted twice"
    return found


@asynccontextmanager
async def apart(url):
    """A store that those opened after it share no memory with, as if it were of another process."""
    store = await open_store(url)
    lanes.forget(store.address.identity)
    try:
        yield store
    finally:
        await store.close()
