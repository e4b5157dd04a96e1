"""A flow that is started in the caller's own transaction: all of it, or nothing. [ENQ-7]"""

import asyncpg
import pytest

from holdfast import Flow, JobState


@pytest.fixture
def url(postgres, flow_database):
    return postgres.url(flow_database)


async def test_a_flow_starts_with_the_commit_and_leaves_nothing_behind_a_rollback(queue, url):
    connection = await asyncpg.connect(url)
    flow = Flow("report")
    flow.add("one", name="one")
    try:
        transaction = connection.transaction()
        await transaction.start()
        await queue.start(flow, connection=connection)
        await transaction.rollback()
        assert await queue.flow(flow.id) is None
        async with connection.transaction():
            await queue.start(flow, connection=connection)
            assert await queue.flow(flow.id) is None, "not before the commit"
        assert (await queue.flow(flow.id)).state is JobState.READY
    finally:
        await connection.close()
