"""huey on Redis, with blocking reads and a notification of the result for waiters."""

from __future__ import annotations

import os
import time

from first import first
from huey import RedisHuey

huey = RedisHuey("bench", url=os.environ["BENCH_URL"], notify_result=True)


@huey.task()
def noop(n):  # noqa: ARG001 - a payload, as every job has one
    """Nothing is returned: huey stores no result then."""
    first()


@huey.task()
def stamp():
    return time.monotonic()


async def one(n):
    noop(n)


async def ask():
    return stamp()(blocking=True, timeout=30)
