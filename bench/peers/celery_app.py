"""Celery on Redis, as its page on optimizing says: many jobs ahead, and no results but where they are waited for."""

from __future__ import annotations

import os
import time

from celery import Celery
from first import first

URL = os.environ["BENCH_URL"]
RESULTS = "BENCH_RESULTS" in os.environ

app = Celery("bench", broker=URL, backend=URL if RESULTS else None)
app.conf.task_ignore_result = not RESULTS
app.conf.worker_prefetch_multiplier = int(os.environ.get("BENCH_PREFETCH", "128"))
app.conf.result_expires = 60


@app.task(name="noop", ignore_result=True)
def noop(n):  # noqa: ARG001 - a payload, as every job has one
    first()


@app.task(name="stamp")
def stamp():
    return time.monotonic()


async def one(n):
    noop.delay(n)


async def ask():
    return stamp.delay().get(timeout=30)
