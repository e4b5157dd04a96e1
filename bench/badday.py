"""The bad day on PostgreSQL, by hand: `.venv/bin/python -m bench.badday [--jobs 200000] [--passed 1000000]`.

A transaction is held open elsewhere while jobs pass, so that no dead row can be removed: what does a claim cost,
without it and with it, for one tenant and in fair turns over 1,000? What does it cost with 1,000,000 finished jobs in
the store? How large is everything after 1,000,000 jobs have passed through and were forgotten?

On a server of its own, with PostgreSQL's own settings: a commit is on the disk before it is answered. One process, one
claim of 100 after the other, each followed by its completion.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from bench.measure import percentile
from holdfast.core.job import ClaimRequest, Envelope, Finish, Job, JobKey, NewJob, Result
from holdfast.opening import open_store
from holdfast.store import Store
from holdfast.testing.postgres import PostgresServer

BATCH = 1000
CLAIM = 100
QUEUE = "bench"
LAST = 0.2
"""The part of a run that is compared: its end, when the most rows are dead."""


async def connect(url: str) -> Any:
    """A connection beside the store's."""
    return await cast("Any", asyncpg).connect(url)


@asynccontextmanager
async def place(server: PostgresServer, name: str, **options: str | int) -> AsyncGenerator[tuple[Store, str]]:
    """A database of its own, and a store in it."""
    server.sql(f"CREATE DATABASE {name}")
    store = await open_store(server.url(name, **options))
    try:
        yield store, server.url(name)
    finally:
        await store.close()
        server.sql(f"DROP DATABASE {name} WITH (FORCE)")


async def fill(store: Store, jobs: int, tenants: int, *, start: int = 0, ttl_ms: int = 3_600_000) -> None:
    """Ready jobs, of one tenant after the other."""
    envelope = Envelope("bench", b'{"n": 1}', result_ttl_ms=ttl_ms)
    for first in range(start, start + jobs, 4 * BATCH):
        batches = [
            [
                NewJob(JobKey(f"t{n % tenants}", QUEUE, f"{n:08}"), envelope)
                for n in range(at, min(at + BATCH, start + jobs))
            ]
            for at in range(first, min(first + 4 * BATCH, start + jobs), BATCH)
        ]
        await asyncio.gather(*(store.enqueue(batch) for batch in batches))


async def claim(store: Store, tenant: str | None) -> tuple[float, int]:
    """Claim and complete once: the milliseconds of the claim, and how many jobs it got."""
    began = time.perf_counter()
    found: Sequence[Job] = (await store.claim(ClaimRequest(tenant, (QUEUE,), CLAIM, 60_000, "bench"))).jobs
    took = 1000 * (time.perf_counter() - began)
    await store.finish([Finish(job.key, job.token, "complete", Result(b"1")) for job in found])
    return took, len(found)


async def drain(store: Store, jobs: int) -> list[float]:
    """Claim and complete `jobs` jobs of one tenant; return the milliseconds of each claim."""
    times: list[float] = []
    while jobs > 0:
        took, got = await claim(store, "t0")
        times.append(took)
        jobs -= got
    return times


async def held_open(server: PostgresServer, jobs: int, tenants: int) -> None:
    """The same in two databases, one beside a transaction that stays open; in turns, so that noise hits them alike."""
    tenant = "t0" if tenants == 1 else None
    async with place(server, f"free_{tenants}") as (free, _), place(server, f"held_{tenants}") as (held, url):
        connection: Any = await connect(url)
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await connection.fetchval("SELECT count(*) FROM holdfast.jobs")
        for store in (free, held):
            await fill(store, jobs, tenants)
        times: list[list[float]] = [[], []]
        left = [jobs, jobs]
        while max(left) > 0:
            for n, store in enumerate((free, held)):
                took, got = await claim(store, tenant)
                left[n] -= got
                if got:
                    times[n].append(took)
        await connection.close()
    print(f"{tenants:,} tenants, {jobs:,} jobs: a claim of {CLAIM}, ms")
    ends = [part[-int(len(part) * LAST) :] for part in times]
    for name, all_, end in zip(("no transaction held open", "a transaction held open"), times, ends, strict=True):
        print(
            f"    {name:28} p50 {percentile(all_, 50):6.2f}   in the last fifth p50 {percentile(end, 50):6.2f}"
            f"   p99 {percentile(end, 99):6.2f}"
        )
    first, second = (percentile(end, 50) for end in ends)
    print(f"    with it {second / first:.2f} times what it is without", flush=True)


async def many_finished(server: PostgresServer, finished: int) -> None:
    """Claims beside `finished` finished jobs."""
    async with place(server, "finished") as (store, url):
        await fill(store, 1, 1)
        await drain(store, 1)
        medians: list[float] = []
        for count in (0, max(finished, 20_000)):
            if count:
                connection: Any = await connect(url)
                await multiply(connection, count)
                await connection.close()
            await fill(store, 20_000, 1, start=10_000_000 + 2 * count)
            times = await drain(store, 20_000)
            medians.append(percentile(times, 50))
            print(f"    1 tenant, {count:,} finished: claim of {CLAIM} p50 {medians[-1]:6.2f} ms")
        print(f"      with them {medians[1] / medians[0]:.2f} times what it is without")


async def multiply(connection: Any, count: int) -> None:
    """Copy one finished job many times in the tables: much faster than running that many."""
    rows = await connection.fetch(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = 'holdfast' AND table_name = 'done'"
    )
    columns = [row["column_name"] for row in rows]
    changed = {"seq": "-n", "id": "'done-' || n"}
    values = ", ".join(changed.get(column, f"d.{column}") for column in columns)
    await connection.execute(
        f"INSERT INTO holdfast.done ({', '.join(columns)}) SELECT {values} FROM generate_series(1, {count}) AS n,"
        " (SELECT * FROM holdfast.done LIMIT 1) d",
        timeout=600,
    )
    await connection.execute(
        "INSERT INTO holdfast.ids (lane, id, seq) SELECT lane, id, seq FROM holdfast.done WHERE seq < 0", timeout=600
    )
    await connection.execute("ANALYZE holdfast.done, holdfast.ids", timeout=600)


SIZES = """
SELECT c.relname, pg_table_size(c.oid) AS data, pg_indexes_size(c.oid) AS indexes
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'holdfast' AND c.relkind = 'r' AND pg_total_relation_size(c.oid) > 1000000 ORDER BY c.relname
"""


async def passed_through(server: PostgresServer, jobs: int) -> None:
    """Run jobs that are forgotten a second later; measure repeatedly what is left on the disk."""
    async with place(server, "passed", keep_events=100_000) as (store, url):
        connection: Any = await connect(url)
        stop = asyncio.Event()

        async def prune() -> int:
            forgotten = 0
            while not stop.is_set():
                pruned = await store.prune(5000)
                forgotten += pruned.jobs
                if not pruned.more:
                    await asyncio.sleep(0.2)
            return forgotten

        pruning = asyncio.create_task(prune())
        began = time.perf_counter()
        part = max(jobs // 5, 1)
        for number in range(5):
            for first in range(0, part, 20_000):
                some = min(20_000, part - first)
                await fill(store, some, 1, start=number * part + first, ttl_ms=1000)
                await drain(store, some)
            await show(connection, (number + 1) * part)
        seconds = time.perf_counter() - began
        print(f"      {jobs / seconds:,.0f} jobs/s through enqueue, claim, completion and forgetting")
        await asyncio.sleep(3)
        stop.set()
        forgotten = await pruning
        while (pruned := await store.prune(5000)).more:
            forgotten += pruned.jobs
        left = await connection.fetchval("SELECT count(*) FROM holdfast.done")
        print(f"      forgotten {forgotten + pruned.jobs:,}, still kept {left:,}")
        await connection.execute("VACUUM", timeout=600)
        await show(connection, jobs)
        await connection.close()


async def show(connection: Any, passed: int) -> None:
    rows = await connection.fetch(SIZES)
    parts = [f"{row['relname']} {row['data'] / 1e6:.0f}+{row['indexes'] / 1e6:.0f}" for row in rows]
    total = await connection.fetchval("SELECT pg_database_size(current_database())")
    print(f"      {passed:>9,} passed: {total / 1e6:.0f} MB in all; table+indexes in MB: {', '.join(parts)}")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200_000, help="that pass while a transaction is held open")
    parser.add_argument("--finished", type=int, default=1_000_000, help="finished jobs that are kept")
    parser.add_argument("--passed", type=int, default=1_000_000, help="jobs that pass through and are forgotten")
    parser.add_argument("--tenants", type=int, default=1000)
    chosen = parser.parse_args()
    with PostgresServer(max_wal_size="4GB") as server:
        for tenants in (1, chosen.tenants):
            await held_open(server, chosen.jobs, tenants)
        await many_finished(server, chosen.finished)
        await passed_through(server, chosen.passed)


if __name__ == "__main__":
    asyncio.run(main())
