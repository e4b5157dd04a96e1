"""How Holdfast is measured."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

from bench.jobs import JOBS, letter, nap, noop, stamp
from bench.measure import (
    ALL_CORES,
    CORES,
    CROWD,
    EVERY,
    FINISHED,
    NAPS,
    TEXT,
    WAITING,
    WARM_UP,
    Figures,
    Place,
    Server,
    add_crowd,
    percentile,
)
from bench.worker import Tally, drain
from holdfast import Queue, Worker


class Settings(NamedTuple):
    """How our worker is set."""

    concurrency: int = 100
    prefetch: int | None = 500


class Sizes(NamedTuple):
    """How many jobs each measure takes."""

    bulk: int = 20_000
    memory: int = 40_000
    server: int = 40_000
    singles: int = 300
    concurrent: int = 5_000
    warm_up: int = 30
    waits: int = 100
    letters: int = 20_000
    leases: int = 10_000


SIZES = Sizes()


async def fill(figures: Figures, subject: str, url: str, jobs: int) -> None:
    """Bulk enqueue."""
    async with Queue(url, tenant="bench") as queue:
        seconds = await bulk(queue, jobs)
        figures.add("bulk enqueue", subject, jobs / seconds)


async def empty(figures: Figures, subject: str, url: str, jobs: int, settings: Settings) -> None:
    """Drain, by a worker process."""
    drained = await asyncio.to_thread(drain_in_a_process, url, jobs, settings)
    _add_drained(figures, "drain", subject, drained, jobs)


async def empty_on_all_cores(figures: Figures, subject: str, url: str, jobs: int, settings: Settings) -> None:
    """Drain, by as many worker processes as there are cores."""
    drained = await asyncio.to_thread(drain_in_processes, url, jobs, settings, CORES)
    _add_drained(figures, ALL_CORES, subject, drained, jobs)


def _add_drained(figures: Figures, measure: str, subject: str, drained: Tally, jobs: int) -> None:
    figures.add(measure, subject, jobs / drained.seconds)
    figures.add(f"{measure}, processor time", subject, drained.cpu_seconds / jobs * 1e6)


async def enqueues(figures: Figures, subject: str, url: str) -> None:
    """Single enqueues, one after another and together."""
    async with Queue(url, tenant="bench") as queue:
        await singles(figures, subject, queue)


async def idle(figures: Figures, subject: str, url: str, settings: Settings) -> None:
    """Latency on an idle queue; the worker is another process."""
    with idle_worker(url, settings):
        async with Queue(url, tenant="bench") as queue:
            await waits(figures, subject, queue, SIZES.waits)


async def rates(figures: Figures, subject: str, server: Server, settings: Settings) -> None:
    """Enqueue and drain on a server, and what the server itself used."""
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


async def drain_on_all_cores(figures: Figures, subject: str, server: Server, settings: Settings) -> None:
    server.empty()
    async with Queue(server.url, tenant="bench") as queue:
        await bulk(queue, SIZES.server)
    before = server.cpu()
    await empty_on_all_cores(figures, subject, server.url, SIZES.server, settings)
    figures.add(f"{ALL_CORES}, server time", subject, (server.cpu() - before) / SIZES.server * 1e6)


async def kept(figures: Figures, subject: str, place: Place, settings: Settings) -> None:
    """What it holds more with jobs of a text of 100 characters waiting, and with the same jobs finished."""
    place.empty()
    async with Queue(place.url, tenant="bench") as queue:
        await _letters(queue, WARM_UP)
        await drain(queue, _worker(queue, settings), WARM_UP)
        before = place.memory()
        await _letters(queue, SIZES.letters)
        figures.add(WAITING, subject, (place.memory() - before) / SIZES.letters)
        await drain(queue, _worker(queue, settings), SIZES.letters)
        figures.add(FINISHED, subject, (place.memory() - before) / SIZES.letters)


async def crowd(figures: Figures, subject: str, place: Place) -> None:
    """How soon jobs of ten small tenants begin while a big one has 2,000 of 10 ms waiting, ten at once."""
    place.empty()
    async with contextlib.AsyncExitStack() as stack:
        big = await stack.enter_async_context(Queue(place.url, tenant="big"))
        small = [await stack.enter_async_context(Queue(place.url, tenant=f"small-{n}")) for n in range(10)]
        await big.enqueue_many(nap.message() for _ in range(NAPS))
        stack.enter_context(idle_worker(place.url, Settings(10, None), "--all-tenants"))
        await small[0].enqueue_and_wait(stamp.message(), timeout=60)  # The worker is there.

        async def ask(number: int) -> float:
            await asyncio.sleep(EVERY * number)
            asked = time.monotonic()
            return (await small[number % 10].enqueue_and_wait(stamp.message(), timeout=60) - asked) * 1000

        add_crowd(figures, subject, await asyncio.gather(*map(ask, range(CROWD))))


async def memory(figures: Figures, number: int, settings: Settings) -> None:
    """All of these in this process."""
    async with Queue(f"memory:bench-{number}", tenant="bench") as queue:
        seconds = await bulk(queue, SIZES.memory)
        figures.add("bulk enqueue", "memory", SIZES.memory / seconds)
        drained = await drain(queue, _worker(queue, settings), SIZES.memory)
        figures.add("drain", "memory", SIZES.memory / drained.seconds)
        figures.add("drain, processor time", "memory", drained.cpu_seconds / SIZES.memory * 1e6)
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


def drain_in_a_process(url: str, jobs: int, settings: Settings) -> Tally:
    """A worker process that starts, drains what is there, and says how long it took."""
    command = [*_command(url, settings), "--until", str(jobs)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, timeout=120)
    return Tally(**json.loads(done.stdout))


def drain_in_processes(url: str, jobs: int, settings: Settings, processes: int) -> Tally:
    """Several of them, which drain together: from the first handler of one to the last acknowledgement of one."""
    answered: SimpleQueue[str] = SimpleQueue()
    left = jobs
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen(
                    [*_command(url, settings), "--counted"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for _ in range(processes)
        ]
        readers = [Thread(target=_pass_on, args=(worker, answered), daemon=True) for worker in workers]
        for reader in readers:
            reader.start()
        while left > 0:
            left -= int(answered.get(timeout=120))
        for worker in workers:
            worker.stdin.close()
        for reader in readers:
            reader.join(timeout=30)
    shares = [Tally(**json.loads(answered.get_nowait())) for _ in workers]
    worked = [share for share in shares if share.done]
    return Tally(
        done=sum(share.done for share in worked),
        ended=max(share.ended for share in worked),
        cpu_seconds=sum(share.cpu_seconds for share in worked),
        begun=min(share.begun for share in worked),
    )


def _pass_on(worker: subprocess.Popen, lines: SimpleQueue[str]) -> None:
    for line in worker.stdout:
        lines.put(line)


@contextlib.contextmanager
def idle_worker(url: str, settings: Settings, *flags: str) -> Iterator[None]:
    process = subprocess.Popen([*_command(url, settings), *flags], stdin=subprocess.PIPE)
    try:
        yield
    finally:
        process.communicate(timeout=30)


def _command(url: str, settings: Settings) -> list[str]:
    flags = ["--concurrency", str(settings.concurrency)]
    if settings.prefetch is not None:
        flags += ["--prefetch", str(settings.prefetch)]
    return [sys.executable, "-m", "bench.worker", url, *flags]


async def _letters(queue: Queue, jobs: int) -> None:
    await queue.enqueue_many(letter.message("x" * TEXT) for _ in range(jobs))


def _worker(queue: Queue, settings: Settings) -> Worker:
    return Worker(queue, JOBS, concurrency=settings.concurrency, prefetch=settings.prefetch)
