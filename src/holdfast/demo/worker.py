"""A worker process of the demo. It serves all tenants until it is stopped or killed, or its parent is gone.

It does the same as `holdfast worker holdfast.demo.jobs --store file:./demo-data --all-tenants`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from holdfast import Worker
from holdfast.demo.jobs import JOBS
from holdfast.telemetry import logging


def main() -> None:
    """Run the worker."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.demo.worker")
    parser.add_argument("store", help="the store's URL")
    parser.add_argument("--id", required=True, help="the id of this worker")
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--lease", type=float, required=True, help="seconds")
    arguments = parser.parse_args()
    logging.configure(level="WARNING")
    asyncio.run(_work(arguments.store, arguments.id, arguments.concurrency, arguments.lease))


async def _work(store: str, worker_id: str, concurrency: int, lease_s: float) -> None:
    worker = Worker.for_all_tenants(
        store, JOBS, worker_id=worker_id, concurrency=concurrency, prefetch=concurrency // 2, lease=lease_s
    )
    orphaned = asyncio.Event()
    # Nothing writes to standard input. It becomes readable when the parent process closes it or dies.
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), orphaned.set)
    running = asyncio.create_task(worker.run())
    waiting = asyncio.create_task(orphaned.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
    waiting.cancel()
    await worker.stop()
    await running


if __name__ == "__main__":
    main()
