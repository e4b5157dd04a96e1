"""What the fault tests share: jobs to put in, wishes to claim, and the judgement of a log."""

import asyncio
import contextlib
import os
import random
import signal

from holdfast.core.job import ClaimRequest, Envelope, Finish, JobKey, NewJob, Result
from holdfast.ids import new_id
from holdfast.testing.traces import History
from tests.chaos.ledger import all_jobs
from tests.chaos.workers import notes
from tests.eventually import eventually
from tests.log import all_events

TENANT = "acme"
QUEUE = "mail"
LEASE_MS = 30_000


def seeded():
    """Chance that can be had again: the seed is shown with a failure."""
    seed = int(os.environ.get("HOLDFAST_SEED", random.randrange(2**32)))
    print(f"HOLDFAST_SEED={seed}")  # noqa: T201
    return random.Random(seed)


def key(id_, *, tenant=TENANT, queue=QUEUE):
    return JobKey(tenant, queue, id_)


def new(id_, payload=b"{}", *, tenant=TENANT, queue=QUEUE, delay_ms=0, **envelope):
    envelope.setdefault("request_id", new_id())
    return NewJob(JobKey(tenant, queue, id_), Envelope("send", payload, **envelope), delay_ms)


def wish(limit=10, *, tenant=TENANT, queues=(QUEUE,), worker="w", lease_ms=LEASE_MS):
    return ClaimRequest(tenant, queues, limit, lease_ms, worker)


def complete(job, data=b"null"):
    return Finish(job.key, job.token, "complete", Result(data))


async def claim_one(store, **options):
    (job,) = (await store.claim(wish(1, **options))).jobs
    return job


async def kinds(store, key_):
    """What happened to one job, in order."""
    return [e.kind for e in await all_events(store, key_.tenant) if (e.queue, e.job_id) == (key_.queue, key_.id)]


async def judge(store, *, whole=True):
    """Every event of the log is a legal move, and every record is what its events say. The jobs by key.

    `whole`: all jobs are still there. Tenant by tenant: each lives in one shard, which has one order and one counter.
    """
    found = {}
    for tenant in await store.tenants():
        history = History(extensions=False)
        for event in await all_events(store, tenant):
            history.add(event)
        keys = list(history.jobs)
        jobs = await all_jobs(store, keys)
        for key_, job in zip(keys, jobs, strict=True):
            assert job is not None or not whole, f"{key_} is gone"
            history.check(key_, job)
        found.update(zip(keys, jobs, strict=True))
    return found


@contextlib.asynccontextmanager
async def running(worker):
    """A worker in this process."""
    task = asyncio.create_task(worker.run(signals=False))
    try:
        yield worker
    finally:
        await worker.stop()
        await task


async def under_way(log, producers, workers):
    """Wait until each of these processes has got something done."""
    await eventually(lambda: {pid for *_, pid in notes(log, "queued")} >= set(producers))
    await eventually(lambda: {pid for *_, pid in notes(log, "completed")} >= set(workers))


async def end_gently(zygote, *pids):
    """SIGTERM, and a clean end."""
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    for pid in pids:
        assert await zygote.end(pid) == 0


async def drained(store, tenant, queue, *, patience_s=30, step_ms=0):
    """Wait until no job of the queue waits or is leased; `step_ms` moves the clock on at each look."""

    async def look():
        if step_ms:
            await store.shift_clock(step_ms)
        (stats,) = await store.stats(tenant, [queue])
        return {state: count for state, count in stats.counts.items() if count}

    ended = {"completed", "failed", "canceled"}
    return await eventually(look, lambda counts: set(counts) <= ended, patience_s=patience_s, every_s=0.1)
