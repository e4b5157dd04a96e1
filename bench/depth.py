"""How long a claim takes with few and with many jobs waiting. It should not matter. [CLAIM-4]"""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from bench.jobs import noop
from bench.measure import Figures
from holdfast import Queue
from holdfast.core.job import ClaimRequest, Finish, JobKey, NewJob
from holdfast.store import Store, open_store

DEPTHS = (1_000, 100_000, 1_000_000)
LIMITS = (1, 100)
TIMES = 40
LEASE_MS = 60_000


def measure(limit: int, waiting: int) -> str:
    return f"claim of {limit}, {waiting:,} waiting"


async def file(figures: Figures, directory: Path) -> None:
    stores: list[Store] = []
    for depth in DEPTHS:
        url = f"file:{directory / str(depth)}"
        await _enqueue_one(url)
        await asyncio.to_thread(multiply, directory / str(depth) / "holdfast.db", depth)
        stores.append(await open_store(url))
    await _claims(figures, "file", stores)
    for store in stores:
        await store.close()


async def memory(figures: Figures) -> None:
    stores: list[Store] = []
    gc.disable()
    for depth in DEPTHS:
        store = await open_store(f"memory:depth-{depth}")
        async with Queue(store=store, tenant="bench") as queue:
            first = queue._new_job(noop.message(0), noop.message(0).resolved)  # noqa: SLF001 - one envelope for all
        for start in range(0, depth, 1000):
            await store.enqueue(
                [
                    NewJob(JobKey("bench", "bench", f"{n:07}"), first.envelope)
                    for n in range(start, min(depth, start + 1000))
                ]
            )
        stores.append(store)
    gc.freeze()
    gc.enable()
    await _claims(figures, "memory", stores)


async def _claims(figures: Figures, subject: str, stores: list[Store]) -> None:
    """In turns between the depths, so that a noisy moment hits them alike. What was claimed is given back."""
    taken: dict[tuple[int, int], list[float]] = {}
    for n in range(TIMES):
        for depth, store in zip(DEPTHS, stores, strict=True):
            for limit in LIMITS:
                request = ClaimRequest("bench", ("bench",), limit, LEASE_MS, "bench")
                began = time.perf_counter()
                claimed = await store.claim(request)
                seconds = time.perf_counter() - began
                if n >= TIMES // 8:  # The first ones find cold pages.
                    taken.setdefault((limit, depth), []).append(seconds * 1000)
                if len(claimed.jobs) != limit:
                    raise RuntimeError(f"{subject}: claimed {len(claimed.jobs)} of {limit} at {depth}")
                await store.finish([Finish(job.key, job.token, "release") for job in claimed.jobs])
    for (limit, depth), values in taken.items():
        figures.add(measure(limit, depth), subject, *values)


async def _enqueue_one(url: str) -> None:
    async with Queue(url, tenant="bench") as queue:
        await queue.enqueue(noop.message(0), id="template")


def multiply(path: Path, jobs: int) -> None:
    """Make `jobs` jobs of one, below the store: what is timed is claiming, and this is much faster than enqueueing."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        columns = [row[1] for row in db.execute("PRAGMA table_info(jobs)")]
        changed = {"seq": "jobs.seq + n", "id": "printf('%08d', n)"}
        values = ", ".join(changed.get(column, f"jobs.{column}") for column in columns)
        db.execute("PRAGMA synchronous = OFF")
        db.execute("BEGIN")
        db.execute(
            f"WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?) "
            f"INSERT INTO jobs ({', '.join(columns)}) SELECT {values} FROM numbers, jobs WHERE jobs.id = 'template'",
            (jobs - 1,),
        )
        db.execute("UPDATE lanes SET waiting = waiting + ?", (jobs - 1,))
        db.execute("UPDATE counters SET seq = seq + ?", (jobs - 1,))
        db.execute("COMMIT")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
