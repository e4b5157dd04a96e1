"""SAQ on Redis, on uvloop."""

from __future__ import annotations

import asyncio
import os
import time

import uvloop
from first import first
from saq import Queue

TOGETHER = True

uvloop.install()
queue = Queue.from_url(os.environ["BENCH_URL"], name="bench")


async def noop(ctx, *, n):  # noqa: ARG001 - a payload, as every job has one
    first()


async def stamp(ctx):  # noqa: ARG001
    return time.monotonic()


settings = {
    "queue": queue,
    "functions": [noop, stamp],
    "concurrency": int(os.environ.get("BENCH_CONCURRENCY", "20")),
}


async def begin():
    await queue.connect()
    # A worker's first sweep, as it starts, can end a job that is just being taken: nothing is asked before it is there.
    while "BENCH_RESULTS" in os.environ and not (await queue.info())["workers"]:  # noqa: ASYNC110 - of another process
        await asyncio.sleep(0.05)


async def end():
    await queue.disconnect()


async def one(n):
    await queue.enqueue("noop", n=n, ttl=-1)


async def ask():
    # It polls. `Job.refresh` waits for a message: one that comes before it listens is lost, and a second with it.
    return await queue.apply("stamp", timeout=30, poll_interval=0.001)
