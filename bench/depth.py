"""How long a claim takes with few and with many jobs waiting. It should not matter. [CLAIM-4]"""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from bench.jobs import noop
from bench.measure import RECOVERED, Figures
from holdfast import Queue
from holdfast.core.job import ClaimRequest, Finish, JobKey, NewJob
from holdfast.maintenance import reaper
from holdfast.opening import open_store
from holdfast.store import Store

DEPTHS = (1_000, 10_000, 100_000, 1_000_000)
LIMITS = (1, 100)
TENANTS = (1, 10, 100, 1_000, 10_000)
SHARED = 20_000
"""Jobs that the tenants have between them."""
CHUNK = 1_000
CHUNKS_AT_ONCE = 4
TIMES = 40
LEASE_MS = 60_000
SHORT_MS = 4_000
"""Long enough to claim all that are to expire."""


def measure(limit: int, waiting: int) -> str:
    return f"claim of {limit}, {waiting:,} waiting"


def measure_tenants(tenants: int) -> str:
    return f"claim of {LIMITS[-1]}, {tenants:,} tenants"


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
    shared = await open_store(f"file:{directory / 'shared'}")
    await _share(shared)
    await _claims_of_all(figures, "file", shared)
    await shared.close()


async def memory(figures: Figures) -> None:
    stores: list[Store] = []
    gc.disable()
    for depth in DEPTHS:
        store = await open_store(f"memory:depth-{depth}")
        await _fill(store, [JobKey("bench", "bench", f"{n:07}") for n in range(depth)])
        stores.append(store)
    gc.freeze()
    gc.enable()
    await _claims(figures, "memory", stores)
    shared = await open_store("memory:shared")
    await _share(shared)
    await _claims_of_all(figures, "memory", shared)


async def on_server(figures: Figures, subject: str, url: str) -> None:
    """All on one server: a tenant for each depth, and a queue for each number of tenants."""
    store = await open_store(url)
    for depth in DEPTHS:
        await _fill(store, [JobKey(f"depth-{depth}", "bench", f"{n:07}") for n in range(depth)])
    await _share(store)
    await _claims(figures, subject, [store] * len(DEPTHS), [f"depth-{depth}" for depth in DEPTHS])
    await _claims_of_all(figures, subject, store)
    await store.close()


async def recovery(figures: Figures, subject: str, url: str, leases: int) -> None:
    """How long it takes to end `leases` expired leases, as the upkeep of a worker does."""
    store = await open_store(url)
    await _fill(store, [JobKey("bench", "recovery", f"{n:07}") for n in range(leases)])
    held = 0
    while held < leases:
        held += len((await store.claim(ClaimRequest("bench", ("recovery",), CHUNK, SHORT_MS, "bench"))).jobs)
    await asyncio.sleep(SHORT_MS / 1000 + 0.1)
    began = time.perf_counter()
    while held > 0:
        held -= len((await store.reap(reaper.BATCH, 0.0)).jobs)
    figures.add(RECOVERED, subject, (time.perf_counter() - began) * 1000)
    await store.close()


async def _fill(store: Store, keys: list[JobKey]) -> None:
    async with Queue(store=store, tenant="bench") as queue:
        envelope = queue._producer.new_job(noop.message(0), noop.message(0).resolved, None).envelope  # noqa: SLF001 - one for all
    for start in range(0, len(keys), CHUNK * CHUNKS_AT_ONCE):
        now = keys[start : start + CHUNK * CHUNKS_AT_ONCE]
        chunks = [now[n : n + CHUNK] for n in range(0, len(now), CHUNK)]
        await asyncio.gather(*(store.enqueue([NewJob(key, envelope) for key in chunk]) for chunk in chunks))


async def _share(store: Store) -> None:
    """A queue for each number of tenants, who have the same jobs between them."""
    for tenants in TENANTS:
        keys = [JobKey(f"tenant-{n % tenants}", f"shared-{tenants}", f"{n:07}") for n in range(SHARED)]
        await _fill(store, keys)


async def _claims(figures: Figures, subject: str, stores: list[Store], tenants: Sequence[str] = ()) -> None:
    """In turns between the depths, so that a noisy moment hits them alike."""
    for n in range(TIMES):
        for number, (depth, store) in enumerate(zip(DEPTHS, stores, strict=True)):
            for limit in LIMITS:
                tenant = tenants[number] if tenants else "bench"
                took = await _claim(store, ClaimRequest(tenant, ("bench",), limit, LEASE_MS, "bench"))
                if n >= TIMES // 8:  # The first ones find cold pages.
                    figures.add(measure(limit, depth), subject, took)


async def _claims_of_all(figures: Figures, subject: str, store: Store) -> None:
    """For all tenants in fair turns; in turns between few and many of them."""
    for n in range(TIMES):
        for tenants in TENANTS:
            took = await _claim(store, ClaimRequest(None, (f"shared-{tenants}",), LIMITS[-1], LEASE_MS, "bench"))
            if n >= TIMES // 8:
                figures.add(measure_tenants(tenants), subject, took)


async def _claim(store: Store, request: ClaimRequest) -> float:
    """Milliseconds. What was claimed is given back."""
    began = time.perf_counter()
    claimed = await store.claim(request)
    seconds = time.perf_counter() - began
    if len(claimed.jobs) != request.limit:
        raise RuntimeError(f"claimed {len(claimed.jobs)} of {request.limit} from {request.queues}")
    await store.finish([Finish(job.key, job.token, "release") for job in claimed.jobs])
    return seconds * 1000


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
