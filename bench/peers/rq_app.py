"""RQ. `python rq_app.py` is its SimpleWorker: its other workers start a process for each job."""

from __future__ import annotations

import os
import time

from first import first
from redis import Redis
from rq import Queue, SimpleWorker

queue = Queue("bench", connection=Redis.from_url(os.environ["BENCH_URL"]))


def noop(n):  # noqa: ARG001 - a payload, as every job has one
    first()


def stamp():
    return time.monotonic()


async def one(n):
    queue.enqueue("rq_app.noop", n, result_ttl=0)


async def many(values):
    queue.enqueue_many([Queue.prepare_data("rq_app.noop", args=(n,), result_ttl=0) for n in values])


async def ask():
    return queue.enqueue("rq_app.stamp", result_ttl=60).latest_result(timeout=30).return_value


if __name__ == "__main__":
    SimpleWorker([queue]).work(logging_level="WARNING")
