"""Jobs for child processes: they must be found by name from another process."""

import asyncio
import os
import signal
import time
from pathlib import Path

from holdfast import current_job, job
from holdfast.core.errors import Permanent, RetryLater


def _write(path, text):
    Path(path).write_text(text)


@job(executor="process")
def pid() -> int:
    return os.getpid()


@job(executor="process")
async def pid_async() -> int:
    await asyncio.sleep(0)
    return os.getpid()


@job(executor="process", max_attempts=1)
def die(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "exit":
        os._exit(3)
    elif how == "sys.exit":
        raise SystemExit(3)
    elif how == "permanent":
        raise Permanent("never")
    elif how == "later":
        raise RetryLater("later", delay=3600)
    raise ValueError(how)


@job(executor="process")
def report_and_wait(done: str, started: str) -> None:
    current_job().progress(0.25, "a quarter")
    _write(started, str(os.getpid()))
    try:
        time.sleep(60)
    finally:
        _write(done, str(current_job().canceled.is_set()))


@job(executor="process", timeout=0.5, max_attempts=1)
def too_slow(started: str) -> None:
    _write(started, str(os.getpid()))
    time.sleep(60)


@job(executor="process")
async def async_and_wait(done: str, started: str) -> None:
    _write(started, str(os.getpid()))
    try:
        await asyncio.sleep(60)
    finally:
        _write(done, "cleaned up")


@job(executor="process")
def stubborn(started: str) -> None:
    _write(started, str(os.getpid()))
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            time.sleep(60)
        except SystemExit:
            continue


@job(executor="process")
def facts() -> list[object]:
    me = current_job()
    return [me.id, me.tenant, me.attempt, me.fence > 0]


@job(executor="process")
def odd_result() -> object:
    return object()


@job(executor="process")
def large_result() -> str:
    return "x" * 300_000


@job(executor="process")
def enqueue_another(id: str) -> list[str]:
    me = current_job()
    ticket = me.enqueue(facts.message(), id=id, queue="other")
    again = me.client.enqueue(facts.message(), id=id, queue="other")
    return [me.client.tenant, ticket.status, again.status]


@job(executor="process")
async def await_another(id: str) -> list[str]:
    me = current_job()
    ticket = await me.enqueue(facts.message(), id=id, queue="other")
    tickets = await me.client.enqueue_many([facts.message().options(id=id, queue="other")])
    return [me.client.tenant, ticket.status, (await tickets[0].refresh()).id]
