"""Every named statement is one that the server takes, and has a name of its own."""

import re
from pathlib import Path

import asyncpg
import pytest

from holdfast.stores.postgres import sql
from holdfast.stores.postgres.sql import SLOTS, statements
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


def test_no_statement_is_defined_twice():
    texts = [path.read_text() for path in (Path(sql.__file__).parent / "statements").glob("*.sql")]
    names = [name for text in texts for name in re.findall(r"^-- name: (.+)$", text, re.MULTILINE)]
    assert len(names) == len(set(names)) > 100
    assert sorted({name.replace("{slot}", str(slot)) for name in names for slot in range(SLOTS)}) == NAMES
