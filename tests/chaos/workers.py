"""What the processes of the chaos tests run: workers, and producers beside them."""

import asyncio
import contextlib
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

from holdfast import Queue, current_job, job
from holdfast.core import failpoint
from holdfast.core.errors import StoreError
from holdfast.jobs.definition import RetryPolicy
from holdfast.migrate import MovePlan, move, steps
from holdfast.testing import failpoints
from holdfast.worker import Worker
from tests.eventually import eventually

AT_ONCE = RetryPolicy(base=timedelta(0), jitter="none")
TENANT = "acme"


def note(log, word):
    """Append a line for the running job, in one write, so that lines of several processes never mix."""
    me = current_job()
    _write(log, (word, me.id, me.attempt, me.fence, os.getpid()))


def notes(log, word):
    """The recorded runs: (id, attempt, fence, pid)."""
    if not Path(log).exists():
        return []
    # Without the last line if it is just being written.
    lines = [line.split() for line in Path(log).read_text().rpartition("\n")[0].splitlines()]
    return [(id_, int(attempt), int(fence), int(pid)) for w, id_, attempt, fence, pid in lines if w == word]


@job(max_attempts=100, retry=AT_ONCE, result_ttl=timedelta(days=30))
async def work(log: str, seconds: float = 0, file: str = "") -> int:
    """Wait for the file, have an effect, and return the fence of this run."""
    note(log, "started")
    failpoint.hit("chaos.mid_run")
    if seconds:
        await asyncio.sleep(seconds)
    if file:
        await eventually(lambda: os.access(file, os.F_OK))
    note(log, "effect")
    return current_job().fence


@job(max_attempts=3, retry=AT_ONCE, priority=9)
async def poison(log: str) -> None:
    """Kill the process that runs it."""
    note(log, "started")
    os.kill(os.getpid(), signal.SIGKILL)


@job(max_attempts=3, retry=AT_ONCE)
async def wait_for_file(log: str, file: str) -> str:
    """Block the whole event loop until the file exists. Returns the worker's process id."""
    note(log, "started")
    while not os.access(file, os.F_OK):
        time.sleep(0.005)  # noqa: ASYNC251 - it is to block
    return f"worker {os.getpid()}"


@job(max_attempts=3, retry=AT_ONCE)
async def wait_politely(log: str, file: str) -> str:
    """Wait for a file. It can be canceled."""
    note(log, "started")
    try:
        await eventually(lambda: os.access(file, os.F_OK), patience_s=60)
    except asyncio.CancelledError:
        note(log, "canceled")
        raise
    return "done"


@job(name="send")
async def nothing() -> None:
    """The type of the jobs that tests of stores enqueue directly."""


JOBS = [work, poison, wait_for_file, wait_politely, nothing]


async def serve(order):
    """The work of a process of the zygote: `role` is work, serve_all, produce, race or move."""
    await ROLES[order.get("role", "work")](order)


async def run_worker(order):
    """Run a worker: url, and optionally failpoint, freeze, lease_s, concurrency, prefetch, grace_s, log."""
    if order.get("failpoint"):
        failpoints.arm_spec(order["failpoint"])
    if order.get("freeze"):
        failpoints.arm(order["freeze"], _freeze)
    async with Queue(order["url"], tenant=TENANT) as queue:
        worker = Worker(
            queue,
            jobs=JOBS,
            lease=order.get("lease_s", 30),
            concurrency=order.get("concurrency", 4),
            prefetch=order.get("prefetch"),
            shutdown_grace=order.get("grace_s", 20),
        )
        log = order.get("log")
        if log:
            for name in ("completed", "stalled", "canceled"):
                worker.on(name, lambda event: _reported(log, event))
        await worker.run()


async def serve_all(order):
    """Run a worker for all tenants: url, concurrency."""
    worker = Worker.for_all_tenants(order["url"], jobs=JOBS, concurrency=order.get("concurrency", 4))
    await worker.run()


async def produce(order):
    """Enqueue jobs one by one until SIGTERM, and record each that was acknowledged: url, log, name.

    One that was not is enqueued again, as a caller does who must know: under the same id.
    """
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    number = 0
    async with Queue(order["url"], tenant=TENANT) as queue:
        while not stop.is_set():
            id_ = f"{order['name']}-{number}"
            try:
                await queue.enqueue(work.message(order["log"]), id=id_)
            except StoreError:
                await asyncio.sleep(0.02)
                continue
            _write(order["log"], ("queued", id_, 0, 0, os.getpid()))
            number += 1


async def race(order):
    """Enqueue under each of the `keys`, `times` times concurrently, when the file `go` exists: url, log."""
    async with contextlib.AsyncExitStack() as stack:
        queues = [await stack.enter_async_context(Queue(order["url"], tenant=TENANT)) for _ in range(order["times"])]
        _write(order["log"], ("ready", "-", 0, 0, os.getpid()))
        await eventually(lambda: os.access(order["go"], os.F_OK), every_s=0.001)
        for key in order["keys"]:
            for ticket in await asyncio.gather(
                *(queue.enqueue(work.message(order["log"]), **{order["what"]: key}) for queue in queues)
            ):
                _write(order["log"], (f"{ticket.status}:{key}", ticket.id, 0, 0, os.getpid()))


async def move_tenant(order):
    """Move the tenant to another store: url, target, failpoint."""
    failpoints.arm_spec(order["failpoint"])
    steps.PAGE = 5
    await move(MovePlan(order["url"], order["target"], TENANT))


ROLES = {"work": run_worker, "serve_all": serve_all, "produce": produce, "race": race, "move": move_tenant}


def _freeze():
    # Not in the middle of a commit: a process frozen there holds the lock of the file store, and all wait for it.
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGSTOP)


def _reported(log, event):
    _write(log, (event.name, event.job.id, event.job.attempts, event.job.token, os.getpid()))


def _write(log, fields):
    with Path(log).open("ab", buffering=0) as file:
        file.write((" ".join(map(str, fields)) + "\n").encode())
