"""streaq, on uvloop."""

from __future__ import annotations

import os
import time

from first import first
from streaq import Worker

TOGETHER = True

worker = Worker(
    redis_url=os.environ["BENCH_URL"],
    queue_name="bench",
    concurrency=int(os.environ.get("BENCH_CONCURRENCY", "100")),
    anyio_kwargs={"use_uvloop": True},
)


@worker.task(ttl=0, silent=True)
async def noop(n):  # noqa: ARG001 - a payload, as every job has one
    first()


@worker.task(ttl=60, silent=True)
async def stamp():
    return time.monotonic()


async def begin():
    await worker.__aenter__()


async def end():
    await worker.__aexit__(None, None, None)


async def one(n):
    await noop.enqueue(n)


async def many(values):
    await worker.enqueue_many([noop.enqueue(n) for n in values])


async def ask():
    task = await stamp.enqueue()
    return (await task.result(30)).result
