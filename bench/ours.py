"""How Holdfast is measured."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.jobs import JOBS, noop, stamp
from bench.measure import Figures, percentile
from bench.worker import drain
from holdfast import Queue, Worker

CONCURRENCY = 100
PREFETCH = 500


class Sizes(NamedTuple):
    """How many jobs each measure takes."""

    bulk: int = 20_000
    memory: int = 40_000
    singles: int = 300
    concurrent: int = 5_000
    waits: int = 80


SIZES = Sizes()


async def file_rates(figures: Figures, directory: Path) -> None:
    """Bulk enqueue and drain of the same jobs, then single enqueues, one after another and together."""
    url = f"file:{directory}"
    async with Queue(url, tenant="bench") as queue:
        seconds = await bulk(queue, SIZES.bulk)
        figures.add("bulk enqueue", "file", SIZES.bulk / seconds)
    drained = await asyncio.to_thread(drain_in_a_process, url, SIZES.bulk)
    figures.add("drain", "file", SIZES.bulk / drained["seconds"])
    figures.add("drain, processor time", "file", drained["cpu_seconds"] / SIZES.bulk * 1e6)


async def file_singles(figures: Figures, directory: Path) -> None:
    async with Queue(f"file:{directory}", tenant="bench") as queue:
        await singles(figures, "file", queue)


async def file_waits(figures: Figures, directory: Path) -> None:
    """Latency on an idle queue; the worker is another process."""
    url = f"file:{directory}"
    with idle_worker(url):
        async with Queue(url, tenant="bench") as queue:
            await waits(figures, "file", queue, SIZES.waits)


async def memory(figures: Figures, number: int) -> None:
    """The same, all in this process."""
    async with Queue(f"memory:bench-{number}", tenant="bench") as queue:
        seconds = await bulk(queue, SIZES.memory)
        figures.add("bulk enqueue", "memory", SIZES.memory / seconds)
        drained = await drain(queue, _worker(queue), SIZES.memory)
        figures.add("drain", "memory", SIZES.memory / drained["seconds"])
        figures.add("drain, processor time", "memory", drained["cpu_seconds"] / SIZES.memory * 1e6)
    async with Queue(f"memory:bench-single-{number}", tenant="bench") as queue:
        await singles(figures, "memory", queue)
    async with Queue(f"memory:bench-idle-{number}", tenant="bench") as queue:
        worker = _worker(queue)
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


def drain_in_a_process(url: str, jobs: int) -> dict[str, float]:
    """A worker process that starts, drains what is there, and says how long it took."""
    command = [*_command(url), "--until", str(jobs)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, timeout=300)
    return json.loads(done.stdout)


@contextlib.contextmanager
def idle_worker(url: str) -> Iterator[None]:
    process = subprocess.Popen(_command(url), stdin=subprocess.PIPE)
    try:
        yield
    finally:
        process.communicate(timeout=30)


def _command(url: str) -> list[str]:
    settings = ["--concurrency", str(CONCURRENCY), "--prefetch", str(PREFETCH)]
    return [sys.executable, "-m", "bench.worker", url, *settings]


def _worker(queue: Queue) -> Worker:
    return Worker(queue, JOBS, concurrency=CONCURRENCY, prefetch=PREFETCH)
