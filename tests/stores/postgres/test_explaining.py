"""What `standing` reads does not grow with the backlog: counted are the blocks that its statement looks at."""

import json

import asyncpg

from holdfast.core.explain import AHEAD_LIMIT, OTHERS_LIMIT, OTHERS_SCAN
from holdfast.core.job import JobKey
from holdfast.stores.postgres import connection as connections
from holdfast.stores.postgres.sql import statements
from tests.stores.postgres.support import claim, complete, fill, new, opened


async def blocks_read(postgres, database, store, id):
    """The standing of a job, and the blocks that the statement looks at."""
    found = await store.standing(JobKey("acme", "mail", id))
    lane = store._cache.find("acme", "mail")
    arguments = (
        lane.queue_id, lane.number, id, store._cache.fingerprint([lane]), AHEAD_LIMIT + 1, OTHERS_LIMIT + 1, OTHERS_SCAN
    )  # fmt: skip
    connection = await asyncpg.connect(postgres.url(database), server_settings=connections._SETTINGS)
    try:
        statement = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statements('holdfast')['standing']}"
        await connection.fetch(statement, *arguments)  # Planning reads the catalog, after a vacuum once more.
        (row,) = await connection.fetch(statement, *arguments)
        plan = json.loads(row[0])[0]["Plan"]
        return found, plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    finally:
        await connection.close()


async def test_the_work_of_standing_does_not_grow_with_the_backlog(postgres, database):
    async with opened(postgres.url(database)) as store:
        await fill(store, AHEAD_LIMIT + 300)
        await store.enqueue([new("last", priority=0)])
        _, small = await blocks_read(postgres, database, store, "last")
        await fill(store, 30_000, start=10_000)
        await store.enqueue([new("very-last", priority=0)])
        await complete(store, await claim(store, 200))
        assert len(await claim(store, 3000)) == 3000
        async with asyncpg.create_pool(postgres.url(database), min_size=1, max_size=1) as pool:
            # As autovacuum does: index entries of claimed jobs are gone.
            await pool.execute("VACUUM holdfast.jobs")
        for id in ("last", "very-last"):
            found, large = await blocks_read(postgres, database, store, id)
            assert found.ahead == AHEAD_LIMIT + 1
            assert large < 1.5 * small, (small, large)


async def test_old_statistics_do_not_make_standing_read_the_backlog(postgres, database):
    """As after a burst: by these statistics the lane has a few jobs, so a plan may join them all."""
    async with opened(postgres.url(database)) as store:
        async with asyncpg.create_pool(postgres.url(database), min_size=1, max_size=1) as pool:
            await fill(store, AHEAD_LIMIT + 300)
            await pool.execute("ALTER TABLE holdfast.jobs SET (autovacuum_enabled = off)")
            await pool.execute("ANALYZE holdfast.jobs")
        await store.enqueue([new("last")])
        _, small = await blocks_read(postgres, database, store, "last")
        await fill(store, 20_000, start=10_000)
        await store.enqueue([new("very-last")])
        for id in ("last", "very-last"):
            found, large = await blocks_read(postgres, database, store, id)
            assert found.ahead == AHEAD_LIMIT + 1
            assert large < 1.5 * small, (small, large)


async def test_standing_looks_at_a_bounded_number_of_tenants(postgres, database):
    async with opened(postgres.url(database)) as store:
        await store.enqueue([new("last")])
        for n in range(2 * OTHERS_LIMIT):
            await store.enqueue([new("theirs", tenant=f"t{n:04}")])
        found, crowded = await blocks_read(postgres, database, store, "last")
        assert found.others == OTHERS_LIMIT + 1
        for n in range(2 * OTHERS_LIMIT, 6 * OTHERS_LIMIT):
            await store.enqueue([new("theirs", tenant=f"t{n:04}")])
        _, more = await blocks_read(postgres, database, store, "last")
        assert more < 1.2 * crowded, (crowded, more)
