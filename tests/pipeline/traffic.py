"""Something to read: jobs of several tenants that take every way a job can take."""

from __future__ import annotations

import asyncio
import json
import random
from datetime import UTC

from holdfast.core.events import Event
from holdfast.core.job import AttemptError, Cancel, ClaimRequest, Envelope, Finish, JobKey, NewJob
from holdfast.opening import open_store

TENANTS = ("acme", "globex", "initech")
QUEUES = ("mail", "video")


async def make_traffic(store, jobs=60, seed=1, prefix="job"):
    """Enqueue `jobs` jobs in batches of several sizes and let them complete, retry, fail, be released and canceled."""
    chance = random.Random(seed)
    keys = [JobKey(chance.choice(TENANTS), chance.choice(QUEUES), f"{prefix}-{seed}-{n}") for n in range(jobs)]
    at = 0
    while at < jobs:
        size = chance.choice((1, 3, 20))
        batch = keys[at : at + size]
        at += size
        await store.enqueue([
            NewJob(key, Envelope(f"type{len(key.id) % 2}", b'{"n":"%s"}' % key.id.encode(), max_attempts=2))
            for key in batch
        ])  # fmt: skip
        claimed = await store.claim(ClaimRequest(None, QUEUES, size, 60_000, f"w{size}", chance.random()))
        await store.finish([_finish(job, chance) for job in claimed.jobs])
        await store.cancel([Cancel(key) for key in batch if chance.random() < 0.1])


def _finish(job, chance):
    outcome = chance.choice(("complete", "complete", "complete", "retry", "fail", "release"))
    error = AttemptError("ValueError", f"bad value {chance.randrange(100)}") if outcome in ("retry", "fail") else None
    return Finish(job.key, job.token, outcome, None, error, delay_ms=0, random=chance.random())


def of_store(url, act):
    """What `act` makes of the store, from a test without an event loop."""

    async def ask():
        store = await open_store(url)
        try:
            return await act(store)
        finally:
            await store.close()

    return asyncio.run(ask())


def as_rows(found):
    """Events of a store, or rows that Spark made of them, as what can be compared whatever their order."""
    return sorted(map(_reported, found))


def _reported(event):
    if isinstance(event, Event):
        at, data = event.at, event.data
    else:
        at, data = round(event.at.replace(tzinfo=UTC).timestamp() * 1000), json.loads(event.data)
    names = (event.kind, event.tenant, event.queue, event.job_id, event.type, event.worker_id)
    return (*names, at, event.attempt, event.token, json.dumps(data, sort_keys=True))
