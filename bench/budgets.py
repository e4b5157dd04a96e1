"""What budgets cost an enqueue: a store with and without its enforcer, in turns. `python -m bench.budgets [URL]`."""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
import uuid

from holdfast import Queue
from holdfast.budgets import BudgetEnforcer

ROUNDS, BATCH, SINGLE = 15, 10_000, 1_000


async def measure(queue: Queue) -> tuple[float, float]:
    """Processor time for a bulk enqueue, and for single ones: the clock says more about what else runs."""
    began = time.process_time()
    await queue.enqueue_many([{"n": n} for n in range(BATCH)])
    middle = time.process_time()
    for n in range(SINGLE):
        await queue.enqueue({"n": n})
    return middle - began, time.process_time() - middle


async def main(url: str) -> None:
    admits = BudgetEnforcer.admits
    ratios: list[tuple[float, float]] = []
    for number in range(ROUNDS):
        seconds: dict[bool, tuple[float, float]] = {}
        for kept in (True, False) if number % 2 else (False, True):
            BudgetEnforcer.admits = admits if kept else lambda _enforcer, _items: True  # pyright: ignore[reportAttributeAccessIssue]
            async with Queue(url, tenant=f"t{uuid.uuid4().hex[:8]}") as queue:
                seconds[kept] = await measure(queue)
        ratios.append((seconds[True][0] / seconds[False][0], seconds[True][1] / seconds[False][1]))
    for n, what in enumerate((f"bulk, {BATCH} jobs", f"single, {SINGLE} jobs")):
        found = sorted(ratio[n] for ratio in ratios)
        print(
            f"{what}: with / without budgets, median {statistics.median(found):.3f}, {found[0]:.3f} to {found[-1]:.3f}"
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else f"file:{directory}/data"))
