"""A tenant's jobs, of every kind that waits, and what the other store should have of them."""

import contextlib

from holdfast.core.job import (
    AttemptError,
    Backoff,
    ClaimRequest,
    Envelope,
    Finish,
    IdempotencyKey,
    JobKey,
    JobState,
    NewJob,
)
from holdfast.opening import open_store
from holdfast.store import ListQuery

TENANT = "acme"
HOUR = 3_600_000
WAITING = frozenset({JobState.READY, JobState.SCHEDULED, JobState.RETRYING})


@contextlib.asynccontextmanager
async def both(source, target):
    """The two stores, open."""
    here, there = await open_store(source), await open_store(target)
    try:
        yield here, there
    finally:
        await here.close()
        await there.close()


def new(id, queue="mail", run_at=None, **more):
    envelope = {"type": "send", "payload": b'{"to":"%s"}' % id.encode(), "request_id": f"r-{id}", **more}
    return NewJob(JobKey(TENANT, queue, id), Envelope(**envelope), run_at=run_at)


RICH = Envelope(
    "render", b"\x00\xff\x93", "msgpack", 3, 8, 7, Backoff(1_500, 3.5, 900_000, "equal"), 45_000, 7_200_000, "r-rich",
    IdempotencyKey("once", "until_terminal"), {"traceparent": "00-1-2-01", "b": "ü"},
)  # fmt: skip


async def fill(store, count=12):
    """Jobs in three queues: ready ones of several priorities, scheduled, retrying, finished; one with everything."""
    now = await store.now()
    await store.enqueue([new(f"a-{n}", priority=n % 3) for n in range(count)])
    await store.enqueue([NewJob(JobKey(TENANT, "video", "rich"), RICH, run_at=now + HOUR)])
    await store.enqueue([new("later", run_at=now + 2 * HOUR), new("ü/1", "video", run_at=now + 3 * HOUR)])
    await store.enqueue([new(id, "odd") for id in ("done", "dead", "again")])
    claimed = (await store.claim(ClaimRequest(TENANT, ("odd",), 3, 30_000, "w", 0.5))).jobs
    outcomes = {"done": "complete", "dead": "fail", "again": "retry"}
    error = AttemptError("ValueError", "no")
    await store.finish([Finish(job.key, job.token, outcomes[job.id], error=error, delay_ms=HOUR) for job in claimed])


async def waiting(store, queue, tenant=TENANT):
    """What waits in a queue, in claim order."""
    jobs, cursor = [], None
    while True:
        page = await store.list(ListQuery(tenant, queue, WAITING, cursor=cursor, limit=1000))
        jobs += page.jobs
        cursor = page.cursor
        if cursor is None:
            return jobs


async def names(store, *queues):
    """The ids of what waits, by queue, in claim order."""
    return {queue: [job.id for job in await waiting(store, queue)] for queue in queues}


async def run_all(store, *queues):
    """Claim and complete all that is ready; the ids in the order in which they came."""
    ids = []
    while jobs := (await store.claim(ClaimRequest(TENANT, queues, 100, 30_000, "w"))).jobs:
        ids += [job.id for job in jobs]
        await store.finish([Finish(job.key, job.token, "complete") for job in jobs])
    return ids
