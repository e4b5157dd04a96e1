"""dramatiq on Redis. BENCH_MIDDLEWARE: `default`, or `least` for retries alone, without which a failed job is lost."""

from __future__ import annotations

import os
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import Retries
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend
from first import first

URL = os.environ["BENCH_URL"]

broker = RedisBroker(url=URL, middleware=[Retries()] if os.environ.get("BENCH_MIDDLEWARE") == "least" else None)
if "BENCH_RESULTS" in os.environ:
    broker.add_middleware(Results(backend=RedisBackend(url=URL)))
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name="bench")
def noop(n):  # noqa: ARG001 - a payload, as every job has one
    first()


async def one(n):
    noop.send(n)


if "BENCH_RESULTS" in os.environ:

    @dramatiq.actor(queue_name="bench", store_results=True)
    def stamp():
        return time.monotonic()

    async def ask():
        return stamp.send().get_result(block=True, timeout=30_000)
