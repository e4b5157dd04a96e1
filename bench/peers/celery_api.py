"""Celery behind FastAPI, as its users write it: an endpoint that validates a body and calls `delay`.

In both of the ways that there are: in the event loop, which waits for the broker meanwhile, and in a thread.
"""

from __future__ import annotations

import os

from celery import Celery
from fastapi import FastAPI
from pydantic import BaseModel

celery = Celery("bench", broker=os.environ["BENCH_URL"])
celery.conf.task_ignore_result = True
app = FastAPI()


@celery.task(name="noop")
def noop(n: int) -> None: ...


class Job(BaseModel):
    n: int


@app.post("/in-the-loop", status_code=201)
async def in_the_loop(job: Job) -> dict[str, str]:
    return {"id": noop.delay(job.n).id, "status": "queued"}


@app.post("/in-a-thread", status_code=201)
def in_a_thread(job: Job) -> dict[str, str]:
    return {"id": noop.delay(job.n).id, "status": "queued"}
