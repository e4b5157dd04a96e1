"""Every statement of queries.sql is one that the server takes."""

import asyncpg
import pytest

from holdfast.stores.postgres.sql import statements
from tests.stores.postgres.support import opened

NAMES = sorted(statements("holdfast"))


@pytest.fixture(scope="module")
def schema(postgres):
    import asyncio

    async def make():
        async with opened(postgres.url(schema="statements")):
            pass

    asyncio.run(make())
    return "statements"


@pytest.mark.parametrize("name", NAMES)
async def test_a_statement_can_be_prepared(postgres, schema, name):
    connection = await asyncpg.connect(postgres.url())
    try:
        await connection.prepare(statements(schema)[name])
    finally:
        await connection.close()
