"""Transactions of other databases on the same server, which cannot write here. [EVENT-2]

Invariants verified:
- readers of the log and trimming do not wait for them, idle or prepared, whatever rights the role has
- they wait for every transaction of their own database, idle or prepared, also beside one elsewhere
- a role that may not look waits for all: an event is late then, never missed
- an offset that was read stays one when what it went past has ended
"""

import asyncio

import asyncpg
import pytest

from holdfast.opening import open_store
from holdfast.testing.postgres import PostgresServer
from tests.stores.postgres.support import new, opened

LOOK = ("pg_lock_status()", "pg_stat_get_activity(integer)", "pg_prepared_xact()")


@pytest.fixture(scope="module")
def server():
    with PostgresServer(durable=False, max_prepared_transactions=4) as server:
        server.sql("CREATE DATABASE stranger")
        server.sql("CREATE ROLE plain LOGIN")
        yield server


@pytest.fixture
def database(server):
    """A database of the test's own, of a role without privileges."""
    server.sql("DROP DATABASE IF EXISTS own")
    server.sql("CREATE DATABASE own OWNER plain")
    yield "own"
    for row in server.sql("SELECT gid, database FROM pg_prepared_xacts"):
        server.sql(f"ROLLBACK PREPARED '{row[0]}'", row[1])


@pytest.fixture
def url(server, database):
    return server.url(database, keep_events=10, notify=0).replace("postgres@", "plain@")


@pytest.fixture
async def begun(server):
    """Begin a transaction with a number of its own in a database; answer its connection."""
    connections = []

    async def begin(database):
        connection = await asyncpg.connect(server.url(database))
        connections.append(connection)
        await connection.execute("BEGIN")
        await connection.execute("SELECT pg_current_xact_id()")
        return connection

    yield begin
    for connection in connections:
        await connection.close()


async def fill(store, count=5):
    for n in range(count):
        await store.enqueue([new(f"job-{n}-{k}") for k in range(10)])


async def seen(store):
    return len((await store.events(None, None, 1000)).events)


@pytest.mark.parametrize("how", ["idle", "prepared"])
async def test_a_transaction_in_another_database_delays_no_reader_and_no_trimming(url, begun, how):
    async with opened(url) as store:
        stuck = await begun("stranger")
        if how == "prepared":
            await stuck.execute("PREPARE TRANSACTION 'elsewhere'")
        await fill(store)
        assert await seen(store) == 50
        assert (await store.prune(100)).events == 40
        assert await seen(store) == 10


@pytest.mark.parametrize("how", ["idle", "prepared"])
async def test_a_transaction_of_this_database_is_waited_for(url, begun, how):
    async with opened(url) as store:
        await store.enqueue([new("first")])
        await begun("stranger")
        ours = await asyncpg.connect(url.partition("?")[0])
        await ours.execute("BEGIN")
        await store.enqueue([new("late")], connection=ours)
        if how == "prepared":
            await ours.execute("PREPARE TRANSACTION 'here'")
        await begun("stranger")
        await fill(store)
        page = await store.events(None, None, 1000)
        assert [event.job_id for event in page.events] == ["first"]
        assert (await store.prune(100)).events == 0
        await ours.execute("COMMIT PREPARED 'here'" if how == "prepared" else "COMMIT")
        await ours.close()
        rest = [event.job_id for event in (await store.events(None, page.next, 1000)).events]
        assert rest[0] == "late"
        assert len(rest) == 51


async def test_an_offset_stays_valid_when_a_transaction_in_another_database_ends(url, begun):
    async with opened(url) as store:
        stuck = await begun("stranger")
        await fill(store)
        page = await store.events(None, None, 1000)
        await stuck.execute("COMMIT")
        await stuck.close()
        assert (await store.events(None, page.next, 1000)).events == []
        await store.enqueue([new("more")])
        assert [event.job_id for event in (await store.events(None, page.next, 1000)).events] == ["more"]


@pytest.mark.parametrize("function", LOOK)
async def test_a_role_without_the_right_to_look_waits_for_all_transactions(server, url, database, begun, function):
    server.sql(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC", database)
    async with opened(url) as store:
        stuck = await begun("stranger")
        await fill(store)
        assert await seen(store) == 0
        await stuck.execute("ROLLBACK")
        assert await seen(store) == 50


async def test_no_event_is_missed_while_transactions_come_and_go_everywhere(server, url):
    """Writers here, numbers drawn elsewhere, and a reader that never looks back."""
    stop = asyncio.Event()

    async def elsewhere():
        connection = await asyncpg.connect(server.url("stranger"))
        while not stop.is_set():
            async with connection.transaction():
                await connection.execute("SELECT pg_current_xact_id()")
                await asyncio.sleep(0.002)
        await connection.close()

    async def write(store, name):
        for n in range(60):
            connection = await asyncpg.connect(url.partition("?")[0]) if n % 10 == 0 else None
            if connection is None:
                await store.enqueue([new(f"{name}-{n}")])
                continue
            async with connection.transaction():
                await store.enqueue([new(f"{name}-{n}")], connection=connection)
                await asyncio.sleep(0.01)
            await connection.close()

    async def read(store):
        found, after = [], None
        while True:
            over = stop.is_set()
            page = await store.events(None, after, 7)
            found += [event.job_id for event in page.events]
            after = page.next
            if over and not page.events:
                return found

    writers = [await open_store(url) for _ in range(3)]
    others = [asyncio.create_task(elsewhere()) for _ in range(2)]
    async with opened(url) as store:
        reading = asyncio.create_task(read(store))
        await asyncio.gather(*(write(writer, name) for writer, name in zip(writers, "abc", strict=True)))
        stop.set()
        await asyncio.gather(*others)
        found = await reading
    for writer in writers:
        await writer.close()
    assert sorted(found) == sorted(f"{name}-{n}" for name in "abc" for n in range(60))
