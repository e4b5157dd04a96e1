"""How tests run async code: each in an event loop of its own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from holdfast import Queue
from holdfast.core.job import AttemptError, ClaimRequest, Finish, Job, Outcome, Result

_numbers = itertools.count()


def asynchronous(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(_within_a_minute(test(*args, **kwargs)))

    return run


async def _within_a_minute(test: Awaitable[None]) -> None:
    async with asyncio.timeout(60):
        await test


def memory_queue(tenant: str = "acme", url: str = "", **options: Any) -> Queue:
    """A Queue on a memory store of its own, with a frozen clock."""
    return Queue(url or f"memory:unit-{next(_numbers)}?test_clock=frozen", tenant=tenant, **options)


async def turns(count: int = 20) -> None:
    """Let all ready tasks run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def claim(queue: Queue, *queues: str, limit: int = 1) -> list[Job]:
    request = ClaimRequest(queue.tenant, queues or (queue.name,), limit, 30_000, "w1")
    return (await queue.store.claim(request)).jobs


async def finish(queue: Queue, job: Job, outcome: Outcome = "complete", result: bytes = b"null") -> None:
    error = None if outcome in ("complete", "release") else AttemptError("ValueError", "it broke", "trace")
    item = Finish(job.key, job.token, outcome, Result(result) if outcome == "complete" else None, error)
    await queue.store.finish([item])


async def run_one(queue: Queue, *queues: str, outcome: Outcome = "complete", result: bytes = b"null") -> Job:
    (job,) = await claim(queue, *queues)
    await finish(queue, job, outcome, result)
    return job
