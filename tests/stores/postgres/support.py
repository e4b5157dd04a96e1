"""What the tests of this store share."""

from contextlib import asynccontextmanager

from holdfast.core.job import ClaimRequest, Envelope, Finish, JobKey, NewJob, Result
from holdfast.store import open_store


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


async def fill(store, count, tenant="acme", queue="mail", start=0):
    """Ready jobs, in batches."""
    for first in range(start, start + count, 1000):
        ids = range(first, min(first + 1000, start + count))
        await store.enqueue([new(f"job-{n:07}", tenant, queue) for n in ids])


async def claim(store, limit, tenant="acme", queue="mail"):
    return (await store.claim(ClaimRequest(tenant, (queue,), limit, 60_000, "worker"))).jobs


async def complete(store, jobs, **options):
    return await store.finish([Finish(job.key, job.token, "complete", Result(b"1")) for job in jobs], **options)


async def all_events(store, tenant=None, page=100):
    """The whole log."""
    found, after = [], None
    while True:
        answer = await store.events(tenant, after, page)
        found += answer.events
        after = answer.next
        if not answer.more:
            return found
