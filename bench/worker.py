"""Our worker process: `python -m bench.worker URL`, until stdin is closed, or with `--until N` until N jobs are done.

With `--until` or `--counted` its last line is JSON: when its first handler began, when its last acknowledgement was
answered, and the processor time it used until then. `--counted` also says, on a line each, how many were acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from bench.jobs import JOBS, begun
from holdfast import Queue, Worker
from holdfast.worker.collecting import collect_seldom


@dataclass
class Tally:
    """What was acknowledged since it was made."""

    done: int = 0
    ended: float = 0.0
    cpu_seconds: float = 0.0
    begun: float = 0.0

    @property
    def seconds(self) -> float:
        return self.ended - self.begun


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("--all-tenants", action="store_true", help="in fair turns, where it is one otherwise")
    parser.add_argument("--until", type=int, default=0)
    parser.add_argument("--counted", action="store_true")
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--prefetch", type=int)
    asyncio.run(work(parser.parse_args()))


async def work(arguments: argparse.Namespace) -> None:
    options = {"concurrency": arguments.concurrency, "prefetch": arguments.prefetch}
    collect_seldom()  # As `holdfast worker` does.
    if arguments.all_tenants:
        await _until_alone(Worker.for_all_tenants(arguments.store, JOBS, **options))
        return
    async with Queue(arguments.store, tenant="bench") as queue:
        worker = Worker(queue, JOBS, **options)
        if arguments.until:
            print(json.dumps(asdict(await drain(queue, worker, arguments.until))), flush=True)
        elif arguments.counted:
            with counted(queue, lambda _, answered: print(answered, flush=True)) as tally:
                await _until_alone(worker)
            print(json.dumps(asdict(tally)), flush=True)
        else:
            await _until_alone(worker)


async def drain(queue: Queue, worker: Worker, jobs: int) -> Tally:
    """Run `jobs` jobs, from the first handler's beginning until the last acknowledgement was answered."""
    done = asyncio.Event()

    def seen(tally: Tally, _: int) -> None:
        if tally.done >= jobs:
            done.set()

    with counted(queue, seen) as tally:
        running = asyncio.create_task(worker.run())
        try:
            await done.wait()
        finally:
            await worker.stop()
            await running
    return tally


@contextlib.contextmanager
def counted(queue: Queue, seen: Callable[[Tally, int], None]) -> Iterator[Tally]:
    """Count what is acknowledged; `seen` is called each time, with how many there were."""
    store: Any = queue.store
    finish = store.finish
    tally = Tally()
    begun[0] = 0.0
    cpu_before = time.process_time()

    async def counting(items: Any, **options: Any) -> Any:
        answers = await finish(items, **options)
        tally.done += len(answers)
        tally.ended, tally.cpu_seconds, tally.begun = time.monotonic(), time.process_time() - cpu_before, begun[0]
        seen(tally, len(answers))
        return answers

    # On this one store object, in place of its method: what is timed is the worker as it is, to the last answer.
    store.finish = counting
    try:
        yield tally
    finally:
        store.finish = finish


async def _until_alone(worker: Worker) -> None:
    """Work until stdin is closed."""
    alone = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), alone.set)
    running = asyncio.create_task(worker.run())
    await alone.wait()
    asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
    await worker.stop()
    await running


if __name__ == "__main__":
    main()
