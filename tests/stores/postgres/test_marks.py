"""Jobs that a transaction of another process commits behind the marks of a lane."""

import asyncio

import asyncpg

from tests.stores.postgres.support import claim, fill, opened


async def test_a_job_that_commits_before_the_scan_position_is_found_within_a_second(postgres, database):
    async with opened(postgres.url(database)) as store:
        await fill(store, 10)
        await claim(store, 10)
        lane = store._cache.find("acme", "mail")
        assert max(lane.low_water) > 0
        connection = await asyncpg.connect(postgres.url(database))
        await fill(store, 1, start=10)
        await connection.execute("UPDATE holdfast.jobs SET visible_at = visible_at - 60000 WHERE state < 4")
        await connection.close()
        lane.low_water = [2**60] * 10
        async with asyncio.timeout(60):
            found = []
            while not found:
                found = await claim(store, 1)
                await asyncio.sleep(0.05)
        assert [job.id for job in found] == ["job-0000010"]
