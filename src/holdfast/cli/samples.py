"""The sample jobs of `holdfast dev`: one that succeeds, a slow one, and two that fail."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import Permanent
from holdfast.jobs.context import current_job
from holdfast.jobs.definition import RetryPolicy, job

if TYPE_CHECKING:
    from holdfast.queue.queue import Queue

QUEUE = "samples"
_SOON = RetryPolicy(base=timedelta(seconds=1), jitter="none")


@job(queue=QUEUE)
async def hello(name: str = "world") -> str:
    """Say hello."""
    return f"hello, {name}"


@job(queue=QUEUE)
async def countdown(seconds: int = 5) -> str:
    """Take some seconds, and report progress."""
    for second in range(seconds):
        current_job().progress(second / seconds, f"{seconds - second} s to go")
        await asyncio.sleep(1)
    return "lift-off"


@job(queue=QUEUE, retry=_SOON)
async def flaky(failures: int = 1) -> str:
    """Fail in the first attempts, then succeed."""
    attempt = current_job().attempt
    if attempt <= failures:
        raise ConnectionError(f"attempt {attempt} failed")
    return f"done at attempt {attempt}"


@job(queue=QUEUE)
async def broken() -> None:
    """Fail for good: a dead letter."""
    raise Permanent("this one never works")


def echo(payload: Any) -> Any:
    """Return the payload of a job without a type."""
    return payload


async def enqueue_some(queue: Queue) -> None:
    """Enqueue one job of each type and one for later. Jobs of an earlier start are not enqueued again."""
    await queue.enqueue(hello.message(), id="sample-hello")
    await queue.enqueue(countdown.message(3), id="sample-countdown")
    await queue.enqueue(flaky.message(), id="sample-flaky")
    await queue.enqueue(broken.message(), id="sample-broken")
    await queue.enqueue(hello.message("from an hour ago"), id="sample-later", delay=timedelta(hours=1))
