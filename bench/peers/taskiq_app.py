"""taskiq on Redis. BENCH_BROKER: `stream`, with acknowledgements, or `list`, without."""

from __future__ import annotations

import asyncio
import os
import time

from first import first
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend, RedisStreamBroker

URL = os.environ["BENCH_URL"]
TOGETHER = True

if os.environ.get("BENCH_BROKER") == "list":
    broker = ListQueueBroker(URL, queue_name="bench")
else:
    count = int(os.environ.get("BENCH_READ_COUNT", "100"))
    broker = RedisStreamBroker(URL, queue_name="bench", consumer_id="0", xread_count=count)
if "BENCH_RESULTS" in os.environ:
    broker = broker.with_result_backend(RedisAsyncResultBackend(URL, keep_results=False, result_ex_time=60))


@broker.task(task_name="noop")
async def noop(n) -> None:  # noqa: ARG001 - a payload, as every job has one
    first()


@broker.task(task_name="nap")
async def napping() -> None:
    first()
    await asyncio.sleep(0.01)


@broker.task(task_name="stamp")
async def stamp() -> float:
    return time.monotonic()


async def begin():
    await broker.startup()


async def end():
    await broker.shutdown()


async def one(n):
    await noop.kiq(n)


async def nap():
    await napping.kiq()


async def ask():
    task = await stamp.kiq()
    result = await task.wait_result(check_interval=0.001, timeout=60)
    return result.return_value
