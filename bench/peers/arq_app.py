"""arq. `python arq_app.py` is its worker, on uvloop and without a line of log for each job."""

from __future__ import annotations

import os
import time

import uvloop
from arq import create_pool, func, run_worker
from arq.connections import RedisSettings
from first import first

SETTINGS = RedisSettings.from_dsn(os.environ["BENCH_URL"])
TOGETHER = True

_mine: dict = {}


async def noop(ctx, n):  # noqa: ARG001 - a payload, as every job has one
    first()


async def stamp(ctx):  # noqa: ARG001
    return time.monotonic()


class WorkerSettings:
    functions = (func(noop, keep_result=0), func(stamp, keep_result=60))
    redis_settings = SETTINGS
    max_jobs = int(os.environ.get("BENCH_CONCURRENCY", "100"))
    poll_delay = float(os.environ.get("BENCH_POLL", "0.01"))


async def begin():
    _mine["pool"] = await create_pool(SETTINGS)


async def end():
    await _mine["pool"].aclose()


async def one(n):
    await _mine["pool"].enqueue_job("noop", n)


async def ask():
    job = await _mine["pool"].enqueue_job("stamp")
    return await job.result(timeout=30, poll_delay=0.001)


if __name__ == "__main__":
    uvloop.install()
    run_worker(WorkerSettings)
