"""The bad day: a transaction held open elsewhere keeps every dead row in place."""

import asyncio
import statistics
import time

import asyncpg

from tests.stores.postgres.support import claim, complete, fill, opened

JOBS = 30_000
BATCH = 100


async def _pass_through(store, jobs, tenant):
    times = []
    passed = 0
    while passed < jobs:
        started = time.perf_counter()
        found = await claim(store, BATCH, tenant=tenant)
        times.append(time.perf_counter() - started)
        await complete(store, found)
        passed += len(found)
    return times


async def test_claims_stay_fast_while_a_transaction_is_held_open(postgres, database):
    """The median of the last claims is at most three times that of the first, with 30,000 dead rows before them.

    Without marks it grows with what has passed: each claim would walk over all of it.
    """
    async with opened(postgres.url(database)) as store:
        await fill(store, JOBS)
        connection = await asyncpg.connect(postgres.url(database))
        transaction = connection.transaction(isolation="repeatable_read")
        await transaction.start()
        await connection.fetchval("SELECT count(*) FROM holdfast.jobs")
        times = await _pass_through(store, JOBS, "acme")
        await transaction.rollback()
        await connection.close()
        early, late = statistics.median(times[20:60]), statistics.median(times[-40:])
        assert late < 3 * early, f"{1000 * early:.1f} ms at first, {1000 * late:.1f} ms at the end"


async def test_what_commits_behind_the_marks_is_found_within_a_second(postgres, database):
    async with opened(postgres.url(database)) as store:
        await fill(store, 10)
        await claim(store, 10)
        lane = store._memory.find("acme", "mail")
        assert max(lane.marks) > 0
        connection = await asyncpg.connect(postgres.url(database))
        await fill(store, 1, start=10)
        await connection.execute("UPDATE holdfast.jobs SET visible_at = visible_at - 60000 WHERE state < 4")
        await connection.close()
        lane.marks = [2**60] * 10
        async with asyncio.timeout(5):
            found = []
            while not found:
                found = await claim(store, 1)
                await asyncio.sleep(0.05)
        assert [job.id for job in found] == ["job-0000010"]
