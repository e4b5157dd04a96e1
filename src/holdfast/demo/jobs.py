"""The demo's handlers. Their work is pretended, but they really fail, sleep and die."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from datetime import timedelta

from holdfast import Permanent, RetryPolicy, current_job, job
from holdfast.demo.effects import logged

# Short delays, so that the demo takes seconds. Many attempts, so that a healthy job survives several dead workers.
QUICKLY = RetryPolicy(base=timedelta(milliseconds=200), factor=2, cap=timedelta(seconds=1))
ATTEMPTS = 12
KEPT = timedelta(days=7)


@job(queue="images", max_attempts=ATTEMPTS, retry=QUICKLY, result_ttl=KEPT)
async def thumbnail(picture: int, seconds: float) -> str:
    """The most frequent job."""
    with logged():
        await asyncio.sleep(seconds)
        return f"thumbnail-{picture}.png"


@job(queue="emails", max_attempts=ATTEMPTS, retry=QUICKLY, result_ttl=KEPT)
async def send_email(to: str, refusals: int = 0) -> str:
    """Fails `refusals` times before it succeeds, like a busy mail server."""
    with logged():
        await asyncio.sleep(0.02)
        if current_job().attempt <= refusals:
            raise ConnectionError(f"{to}: 421 try again later")
        return f"delivered to {to}"


@job(queue="billing", max_attempts=ATTEMPTS, retry=QUICKLY, result_ttl=KEPT)
def charge_card(customer: int, declined: bool = False) -> str:  # noqa: FBT001, FBT002 - the arguments of a job
    """A plain function, which runs in a thread. A declined card fails for good."""
    with logged():
        time.sleep(0.03)
        if declined:
            raise Permanent(f"customer {customer}: card declined")
        return f"charged customer {customer}"


@job(queue="emails", max_attempts=ATTEMPTS, retry=QUICKLY, result_ttl=KEPT)
async def remind(user: int) -> str:
    """Enqueued with a delay."""
    with logged():
        await asyncio.sleep(0.01)
        return f"reminded user {user}"


@job(queue="billing", max_attempts=ATTEMPTS, retry=QUICKLY, result_ttl=KEPT)
async def export_everything() -> None:
    """Runs until it is canceled."""
    with logged():
        await asyncio.sleep(600)


@job(queue="images", max_attempts=3, retry=QUICKLY, result_ttl=KEPT)
async def decode_broken_video() -> None:
    """Poison: it kills its worker process, like a crash in a C library."""
    with logged():
        os.kill(os.getpid(), signal.SIGKILL)


JOBS = [thumbnail, send_email, charge_card, remind, export_everything, decode_broken_video]
QUEUES = ("billing", "emails", "images")
