"""How Holdfast is measured."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from bench.jobs import JOBS, noop, stamp
from bench.measure import Figures, Server, percentile
from bench.worker import drain
from holdfast import Queue, Worker


class Settings(NamedTuple):
    """How our worker is set."""

    concurrency: int = 100
    prefetch: int = 500


class Sizes(NamedTuple):
    """How many jobs each measure takes."""

    bulk: int = 20_000
    memory: int = 40_000
    server: int = 40_000
    singles: int = 300
    concurrent: int = 5_000
    warm_up: int = 30
    waits: int = 100


SIZES = Sizes()


async def fill(figures: Figures, subject: str, url: str, jobs: int) -> None:
    """Bulk enqueue."""
    async with Queue(url, tenant="bench") as queue:
        seconds = await bulk(queue, jobs)
        figures.add("bulk enqueue", subject, jobs / seconds)


async def empty(figures: Figures, subject: str, url: str, jobs: int, settings: Settings) -> None:
    """Drain, by a worker process."""
    drained = await asyncio.to_thread(drain_in_a_process, url, jobs, settings)
    figures.add("drain", subject, jobs / drained["seconds"])
    figures.add("drain, processor time", subject, drained["cpu_seconds"] / jobs * 1e6)


async def enqueues(figures: Figures, subject: str, url: str) -> None:
    """Single enqueues, one after another and together."""
    async with Queue(url, tenant="bench") as queue:
        await singles(figures, subject, queue)


async def idle(figures: Figures, subject: str, url: str, settings: Settings) -> None:
    """Latency on an idle queue; the worker is another process."""
    with idle_worker(url, settings):
        async with Queue(url, tenant="bench") as queue:
            await waits(figures, subject, queue, SIZES.waits)


async def on_server(figures: Figures, subject: str, server: Server, settings: Settings) -> None:
    """All of these on a server, and what the server itself used."""
    server.empty()
    used = [server.cpu()]
    await fill(figures, subject, server.url, SIZES.server)
    used.append(server.cpu())
    await empty(figures, subject, server.url, SIZES.server, settings)
    used.append(server.cpu())
    figures.add("enqueue, server time", subject, (used[1] - used[0]) / SIZES.server * 1e6)
    figures.add("drain, server time", subject, (used[2] - used[1]) / SIZES.server * 1e6)
    server.empty()
    await enqueues(figures, subject, server.url)
    server.empty()
    await idle(figures, subject, server.url, settings)


async def memory(figures: Figures, number: int, settings: Settings) -> None:
    """All of these in this process."""
    async with Queue(f"memory:bench-{number}", tenant="bench") as queue:
        seconds = await bulk(queue, SIZES.memory)
        figures.add("bulk enqueue", "memory", SIZES.memory / seconds)
        drained = await drain(queue, _worker(queue, settings), SIZES.memory)
        figures.add("drain", "memory", SIZES.memory / drained["seconds"])
        figures.add("drain, processor time", "memory", drained["cpu_seconds"] / SIZES.memory * 1e6)
    async with Queue(f"memory:bench-single-{number}", tenant="bench") as queue:
        await singles(figures, "memory", queue)
    async with Queue(f"memory:bench-idle-{number}", tenant="bench") as queue:
        worker = _worker(queue, settings)
        running = asyncio.create_task(worker.run())
        await waits(figures, "memory", queue, SIZES.waits)
        await worker.stop()
        await running


async def bulk(queue: Queue, jobs: int) -> float:
    """Seconds, with the making of the messages, as a program would have it."""
    began = time.perf_counter()
    await queue.enqueue_many(noop.message(n) for n in range(jobs))
    return time.perf_counter() - began


async def singles(figures: Figures, subject: str, queue: Queue) -> None:
    began = time.perf_counter()
    for n in range(SIZES.singles):
        await queue.enqueue(noop.message(n))
    figures.add("awaited enqueue", subject, SIZES.singles / (time.perf_counter() - began))
    began = time.perf_counter()
    await asyncio.gather(*(queue.enqueue(noop.message(n)) for n in range(SIZES.concurrent)))
    figures.add("concurrent enqueue", subject, SIZES.concurrent / (time.perf_counter() - began))


async def waits(figures: Figures, subject: str, queue: Queue, times: int) -> None:
    to_start: list[float] = []
    to_answer: list[float] = []
    for _ in range(SIZES.warm_up):
        await queue.enqueue_and_wait(stamp.message(), timeout=30)
    for _ in range(times):
        await asyncio.sleep(0.005)
        asked = time.monotonic()
        started = await queue.enqueue_and_wait(stamp.message(), timeout=30)
        to_answer.append((time.monotonic() - asked) * 1000)
        to_start.append((started - asked) * 1000)
    for percent in (50, 99):
        figures.add(f"idle enqueue to start p{percent}", subject, percentile(to_start, percent))
        figures.add(f"request/response p{percent}", subject, percentile(to_answer, percent))


def drain_in_a_process(url: str, jobs: int, settings: Settings) -> dict[str, float]:
    """A worker process that starts, drains what is there, and says how long it took."""
    command = [*_command(url, settings), "--until", str(jobs)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, timeout=120)
    return json.loads(done.stdout)


@contextlib.contextmanager
def idle_worker(url: str, settings: Settings) -> Iterator[None]:
    process = subprocess.Popen(_command(url, settings), stdin=subprocess.PIPE)
    try:
        yield
    finally:
        process.communicate(timeout=30)


def _command(url: str, settings: Settings) -> list[str]:
    flags = ["--concurrency", str(settings.concurrency), "--prefetch", str(settings.prefetch)]
    return [sys.executable, "-m", "bench.worker", url, *flags]


def _worker(queue: Queue, settings: Settings) -> Worker:
    return Worker(queue, JOBS, concurrency=settings.concurrency, prefetch=settings.prefetch)
