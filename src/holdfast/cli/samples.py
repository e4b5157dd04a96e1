"""The jobs that `holdfast dev` has to show: one that goes well, a slow one, and two that do not go well."""

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
    """Take some time, and say how far it is."""
    for second in range(seconds):
        current_job().progress(second / seconds, f"{seconds - second} s to go")
        await asyncio.sleep(1)
    return "lift-off"


@job(queue=QUEUE, retry=_SOON)
async def flaky(failures: int = 1) -> str:
    """Fail so many times, and then not any more."""
    attempt = current_job().attempt
    if attempt <= failures:
        raise ConnectionError(f"attempt {attempt} went wrong")
    return f"done at attempt {attempt}"


@job(queue=QUEUE)
async def broken() -> None:
    """Fail for good: a dead letter."""
    raise Permanent("this one never works")


def echo(payload: Any) -> Any:
    """Answer with the payload of a job that has no type."""
    return payload


async def enqueue_some(queue: Queue) -> None:
    """One job of each kind and one for later; those of an earlier start are not enqueued again."""
    await queue.enqueue(hello.message(), id="sample-hello")
    await queue.enqueue(countdown.message(3), id="sample-countdown")
    await queue.enqueue(flaky.message(), id="sample-flaky")
    await queue.enqueue(broken.message(), id="sample-broken")
    await queue.enqueue(hello.message("from an hour ago"), id="sample-later", delay=timedelta(hours=1))
