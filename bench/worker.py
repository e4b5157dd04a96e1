"""Our worker process: `python -m bench.worker URL --until N` drains, without --until it works until stdin is closed.

Prints one line of JSON: the seconds from the first handler's beginning until the last acknowledgement was on the disk,
and the processor time that took.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any

from bench.jobs import JOBS, begun
from holdfast import Queue, Worker
from holdfast.worker.collecting import collect_seldom


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("--tenant", default="bench")
    parser.add_argument("--until", type=int, default=0)
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--prefetch", type=int, required=True)
    asyncio.run(work(parser.parse_args()))


async def work(arguments: argparse.Namespace) -> None:
    async with Queue(arguments.store, tenant=arguments.tenant) as queue:
        worker = Worker(queue, JOBS, concurrency=arguments.concurrency, prefetch=arguments.prefetch)
        collect_seldom()  # As `holdfast worker` does.
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


if __name__ == "__main__":
    main()
