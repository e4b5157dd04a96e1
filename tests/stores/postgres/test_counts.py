"""Counts of a queue are exact, and reading them takes no more work for a large backlog than for a small one."""

import json
from contextlib import asynccontextmanager

import asyncpg
import pytest
from msgspec.structs import replace

from holdfast.core.errors import JobNotFound
from holdfast.core.job import Cancel, Finish, JobKey, JobState
from holdfast.stores.postgres import usage
from tests.stores.postgres.support import claim, complete, fill, new, opened

SHOWN = """
SELECT CASE WHEN state IN (1, 3) AND visible_at <= holdfast.now_ms() THEN 2 ELSE state END AS state, count(*)
FROM holdfast.jobs GROUP BY 1
UNION ALL SELECT state, count(*) FROM holdfast.done WHERE expires_at > holdfast.now_ms() GROUP BY 1
"""
"""What the tables themselves say, by code."""


@asynccontextmanager
async def connected(postgres, database):
    connection = await asyncpg.connect(postgres.url(database))
    try:
        yield connection
    finally:
        await connection.close()


async def blocks_read(connection, lanes, scan=usage.SCAN_LIMIT):
    """The blocks that a count of these lanes reads, in all the statements of its function."""
    statement = f"SELECT * FROM holdfast.count_jobs(ARRAY{lanes}, {scan}, {usage.EXPIRED_LIMIT})"
    await connection.fetch(statement)  # Planning reads the catalog, after a vacuum once more.
    (row,) = await connection.fetch(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}")
    plan = json.loads(row[0])[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


async def test_the_work_of_a_count_does_not_grow_with_the_backlog(postgres, database):
    async with opened(postgres.url(database)) as store, connected(postgres, database) as connection:
        await fill(store, 200)
        await complete(store, await claim(store, 50))
        await store.prune(100)
        small = await blocks_read(connection, [1])
        await fill(store, 30_000, start=200)
        await complete(store, await claim(store, 5000))
        assert len(await claim(store, 5000)) == 5000
        await store.prune(100)
        # As autovacuum does: index entries of claimed jobs are gone.
        await connection.execute("VACUUM holdfast.jobs")
        large = await blocks_read(connection, [1])
        (stats,) = await store.stats("acme", ["mail"])
        assert stats.counts[JobState.READY] == 30_200 - 50 - 10_000
        assert stats.counts[JobState.LEASED] == 5000
        assert stats.counts[JobState.COMPLETED] == 5050
        assert large < small + 30, (small, large)


async def test_leases_and_queues_of_others_add_no_work_to_a_count(postgres, database):
    async with opened(postgres.url(database)) as store, connected(postgres, database) as connection:
        await fill(store, 10)
        await store.prune(100)
        alone = await blocks_read(connection, [1])
        await fill(store, 5000, tenant="busy")
        await claim(store, 4000, tenant="busy")
        await store.prune(100)
        assert await blocks_read(connection, [1]) < alone + 30


async def test_counts_are_exact_between_two_runs_of_upkeep(postgres, database):
    async with opened(postgres.url(database, test_clock="1")) as store, connected(postgres, database) as connection:

        async def check():
            (stats,) = await store.stats("acme", ["mail"])
            found = dict(await connection.fetch(SHOWN))
            assert [stats.counts[state] for state in usage.STATES] == [found.get(code, 0) for code in range(8)]

        await fill(store, 40)
        await store.enqueue([replace(new(f"later-{n}"), delay_ms=60_000) for n in range(5)])
        await check()
        jobs = await claim(store, 20)
        await check()
        await store.prune(100)
        outcomes = ["complete"] * 4 + ["fail", "retry", "release", "complete"]
        await store.finish([Finish(job.key, job.token, out) for job, out in zip(jobs, outcomes, strict=False)])
        await check()
        await store.cancel([Cancel(jobs[10].key), Cancel(JobKey("acme", "mail", "later-1"))])
        await check()
        assert not isinstance((await store.replay([jobs[4].key]))[0], JobNotFound)
        await store.shift_clock(61_000)
        await check()
        await store.reap(100, 0.5)
        await check()
        await store.prune(100)
        await check()
        postgres.sql("SELECT holdfast.recount()", database)
        await check()


async def test_the_sum_is_exact_with_many_due_and_later_jobs(postgres, database, monkeypatch):
    monkeypatch.setattr(usage, "SCAN_LIMIT", 10)
    async with opened(postgres.url(database, test_clock="1")) as store:
        await store.enqueue([replace(new(f"due-{n}"), delay_ms=1000) for n in range(30)])
        await store.enqueue([replace(new(f"later-{n}"), delay_ms=3_600_000) for n in range(30)])
        await store.shift_clock(2000)
        (stats,) = await store.stats("acme", ["mail"])
        assert stats.counts[JobState.READY] == 10
        assert stats.counts[JobState.SCHEDULED] == 50
        await claim(store, 25)
        (stats,) = await store.stats("acme", ["mail"])
        assert (stats.counts[JobState.READY], stats.counts[JobState.SCHEDULED]) == (5, 30)


async def test_a_read_counts_changes_that_upkeep_has_not_counted(postgres, database, monkeypatch):
    monkeypatch.setattr(usage, "MAX_UNCOUNTED", 20)
    async with opened(postgres.url(database)) as store:
        for n in range(30):
            await store.enqueue([new(f"job-{n}")])
        left = "SELECT count(*) FROM holdfast.uncounted()"
        assert postgres.sql(left, database) == [["30"]]
        assert (await store.stats("acme"))[0].counts[JobState.READY] == 30
        assert postgres.sql(left, database) == [["0"]]
        assert (await store.stats("acme"))[0].counts[JobState.READY] == 30


@pytest.mark.parametrize("scan", [1, 100])
async def test_the_work_of_a_count_is_bounded_for_delayed_jobs_too(postgres, database, scan):
    async with opened(postgres.url(database, test_clock="1")) as store, connected(postgres, database) as connection:
        for first in range(0, 4000, 1000):
            await store.enqueue([replace(new(f"due-{first + n}"), delay_ms=1000) for n in range(1000)])
            await store.enqueue([replace(new(f"later-{first + n}"), delay_ms=3_600_000) for n in range(1000)])
        await store.shift_clock(2000)
        await store.prune(100)
        assert await blocks_read(connection, [1], scan) < 150 + 4 * scan


async def test_calls_for_many_queues_at_once_are_cheap_to_count(postgres, database):
    """As of a worker for all tenants: the changes of such a call are stored compressed, and are read once."""
    async with opened(postgres.url(database)) as store, connected(postgres, database) as connection:
        for n in range(10):
            await store.enqueue([new(f"{n}-{tenant}", tenant=f"t{tenant:03}") for tenant in range(400)])
        (row,) = await connection.fetch("SELECT max(cardinality(usage)) AS numbers FROM holdfast.events")
        assert row["numbers"] == 400 * 11
        assert await blocks_read(connection, [1]) < 1000
