"""A job that another open transaction blocks, on PostgreSQL. [ENQ-7]"""

import asyncio

import asyncpg

from holdfast import Queue
from tests.service.support import problem, serving


async def test_only_the_job_that_is_blocked_is_refused(postgres, database):
    url = postgres.url(database)
    async with serving(url) as service:
        connection = await asyncpg.connect(url)
        transaction = connection.transaction()
        await transaction.start()
        async with Queue(url, tenant="acme") as queue:
            await queue.enqueue(1, id="held", connection=connection)
        client, other = await service.client(), await service.client("other")
        jobs = [{"id": "a"}, {"id": "held"}, {"id": "b"}]
        blocked, batch, free, others = await asyncio.gather(
            client.post("/v1/jobs", json={"id": "held"}),
            client.post("/v1/jobs:batch", json={"jobs": jobs}),
            client.post("/v1/jobs", json={"id": "free"}),
            other.post("/v1/jobs", json={"id": "held"}),
        )
        problem(blocked, 503, "store_busy")
        first, second, third = batch.json()["items"]
        assert (first["status"], second["error"]["code"], third["status"]) == ("queued", "store_busy", "queued")
        assert (free.status_code, others.status_code) == (201, 201)
        await transaction.rollback()
        await connection.close()
        assert (await client.enqueue(id="held"))["status"] == "queued"
