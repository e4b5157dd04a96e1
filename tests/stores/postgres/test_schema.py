"""The schema is made once, by several starters at once. One that is not ours is recognised."""

import asyncio

import asyncpg
import pytest

from holdfast.core.errors import StoreMismatch
from holdfast.opening import make_store
from holdfast.stores.postgres.sql import migrations
from tests.stores.postgres.support import claim, fill, opened


@pytest.fixture
def database(empty_database):
    return empty_database


async def test_many_starters_at_once_make_one_schema(postgres, database):
    stores = [make_store(postgres.url(database)) for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    await fill(stores[0], 10)
    assert len(await claim(stores[5], 20)) == 10
    for store in stores:
        await store.close()


async def test_without_migrate_the_error_says_what_to_run(postgres, database):
    store = make_store(postgres.url(database, migrate=0))
    with pytest.raises(StoreMismatch, match="migrate"):
        await store.open()
    assert await store.migrate() == len(migrations())
    assert await store.migrate() == 0
    await store.open()
    await store.close()


async def test_a_newer_schema_is_not_changed(postgres, database):
    async with opened(postgres.url(database)):
        pass
    connection = await asyncpg.connect(postgres.url(database))
    await connection.execute("INSERT INTO holdfast.migrations VALUES (9999, 'from the future')")
    await connection.close()
    with pytest.raises(StoreMismatch, match="newer"):
        await make_store(postgres.url(database)).open()


@pytest.mark.parametrize(
    "change",
    ["UPDATE holdfast.migrations SET digest = 'other' WHERE number = 1", "ALTER TABLE holdfast.migrations DROP digest"],
)
async def test_a_schema_of_another_layout_is_refused_with_what_to_do(postgres, database, change):
    """One that other steps have made, or that is from before their digests were kept."""
    async with opened(postgres.url(database)) as store:
        await fill(store, 1)
    postgres.sql(change, database)
    for url in (postgres.url(database), postgres.url(database, migrate=0)):
        with pytest.raises(StoreMismatch, match=r"another layout: its version 0001.*DROP SCHEMA.*schema=NAME"):
            await make_store(url).open()
    with pytest.raises(StoreMismatch, match="another layout"):
        await make_store(postgres.url(database)).migrate()
    store = make_store(postgres.url(database))
    found = {finding.subject: finding for finding in await store.doctor()}
    await store.close()
    assert (found["schema"].level, "another layout" in found["schema"].text) == ("bad", True)
    assert postgres.sql("SELECT count(*) FROM holdfast.jobs", database) == [["1"]]


async def test_a_frozen_clock_is_refused_as_a_running_one(postgres, database):
    async with opened(postgres.url(database, test_clock="frozen")):
        pass
    with pytest.raises(StoreMismatch, match="frozen"):
        await make_store(postgres.url(database)).open()


async def test_the_doctor_checks_everything(postgres, database):
    async with opened(postgres.url(database)) as store:
        found = {finding.subject: finding for finding in await store.doctor()}
    assert found["schema"].text == f"version {len(migrations())} of {len(migrations())}"
    assert found["durability"].level == "bad"  # This server flushes nothing.
    assert {"store", "primary", "transactions", "bloat", "size", "partitions"} <= set(found)
