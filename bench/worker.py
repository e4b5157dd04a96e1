"""Our worker process: `python -m bench.worker URL --until N` drains, without --until it works until stdin is closed.

Prints one line of JSON: when the first handler began, when the last acknowledgement was on the disk, and the processor
time in between. With --profile FILE the main thread and the store's writer thread are profiled.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import sys
import threading
import time
from typing import Any

from bench.jobs import JOBS, begun
from holdfast import Queue, Worker


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("--tenant", default="bench")
    parser.add_argument("--until", type=int, default=0)
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--prefetch", type=int, required=True)
    parser.add_argument("--profile", default="")
    arguments = parser.parse_args()
    if arguments.profile:
        _profile_threads(arguments.profile)
        own = cProfile.Profile(time.thread_time)
        own.runcall(asyncio.run, work(arguments))
        own.dump_stats(f"{arguments.profile}.MainThread.pstats")
    else:
        asyncio.run(work(arguments))


async def work(arguments: argparse.Namespace) -> None:
    async with Queue(arguments.store, tenant=arguments.tenant) as queue:
        worker = Worker(queue, JOBS, concurrency=arguments.concurrency, prefetch=arguments.prefetch)
        if arguments.until:
            print(json.dumps(await drain(queue, worker, arguments.until)), flush=True)
            return
        alone = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), alone.set)
        running = asyncio.create_task(worker.run())
        await alone.wait()
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        await worker.stop()
        await running


async def drain(queue: Queue, worker: Worker, jobs: int) -> dict[str, float]:
    """Run `jobs` jobs; seconds from the first handler's beginning until the last acknowledgement was answered."""
    store: Any = queue.store
    finish = store.finish
    left = jobs
    done = asyncio.Event()
    ended = cpu = 0.0

    async def counted(items: Any, **options: Any) -> Any:
        nonlocal left, ended, cpu
        answers = await finish(items, **options)
        left -= len(answers)
        if left <= 0:
            ended, cpu = time.monotonic(), time.process_time()
            done.set()
        return answers

    # On this one store object, in place of its method: what is timed is the worker as it is, to the last answer.
    store.finish = counted
    begun[0] = 0.0
    cpu_before = time.process_time()
    running = asyncio.create_task(worker.run())
    try:
        await done.wait()
    finally:
        await worker.stop()
        await running
        store.finish = finish
    return {"seconds": ended - begun[0], "cpu_seconds": cpu - cpu_before}


def _profile_threads(path: str) -> None:
    """Profile every thread that is started from here on, each into a file of its name."""
    run = threading.Thread.run

    def profiled(thread: threading.Thread) -> None:
        profile = cProfile.Profile(time.thread_time)
        try:
            profile.runcall(run, thread)
        finally:
            profile.dump_stats(f"{path}.{thread.name.replace(' ', '-')}.pstats")

    threading.Thread.run = profiled


if __name__ == "__main__":
    main()
