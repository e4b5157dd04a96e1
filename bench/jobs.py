"""What our worker runs: nothing, as fast as it can."""

from __future__ import annotations

import asyncio
import time

from holdfast import job

begun = [0.0]
"""When the first handler of this process began, by the monotonic clock that all processes of the machine share."""


@job(queue="bench")
async def noop(n: int) -> None:  # noqa: ARG001 - a payload, as every job has one
    if not begun[0]:
        begun[0] = time.monotonic()


@job(queue="bench")
async def stamp() -> float:
    """When the handler began."""
    return time.monotonic()


@job(queue="bench")
async def letter(text: str) -> None:
    """A job with a payload of some size."""


@job(queue="bench")
async def nap() -> None:
    """A job that takes 10 ms, and no processor."""
    await asyncio.sleep(0.01)


JOBS = [noop, stamp, letter, nap]
