"""EVENT-2 after a restore into another cluster, where transactions have other numbers than those in the log.

Invariants verified:
- what is logged there comes after all that was logged before, also by a process that lived through the restore
- one epoch begins for each generation of the data, and none while a transaction still writes in the one before
"""

import asyncio
import subprocess

import asyncpg
import pytest

from holdfast import StoreUnavailable
from holdfast.core.job import Finish, Purge, Replayed
from holdfast.opening import open_store
from holdfast.stores.postgres.log import parse_offset
from holdfast.testing.postgres import PostgresServer
from tests.eventually import eventually
from tests.log import all_events
from tests.stores.postgres.support import claim, complete, fill, new, opened

FAR = 10**15


def restore(postgres, database):
    """As if all that is here had been logged in a cluster where transactions have larger numbers."""
    postgres.sql(
        f"UPDATE holdfast.events SET xid = {FAR}; UPDATE holdfast.jobs SET logged = {FAR};"
        f"UPDATE holdfast.done SET logged = {FAR}; SELECT setval('holdfast.freed_xid', {FAR});"
        "DELETE FROM holdfast.generation",
        database,
    )


def run(server, program, *flags, given=None):
    """Run a program of the server's on its database: what it wrote."""
    command = [server._bin / program, *flags, server.url()]
    return subprocess.run(command, input=given, check=True, capture_output=True).stdout


def epochs(postgres, database):
    """How many there were, with the first."""
    ((number,),) = postgres.sql("SELECT count(*) + 1 FROM holdfast.epochs", database)
    return int(number)


def stories(events):
    return sorted((event.job_id, event.kind) for event in events)


async def test_a_restore_into_another_cluster_hides_no_event(postgres, database):
    async with opened(postgres.url(database)) as store:
        await store.enqueue([new("waits"), new("runs"), new("fails")])
        running, failing = await claim(store, 2)
        await store.finish([Finish(failing.key, failing.token, "fail")])
        before = await store.last_offset()
    restore(postgres, database)
    after = str(parse_offset(before)._replace(xid=FAR))
    async with opened(postgres.url(database)) as store:
        assert await store.replay([failing.key]) == [Replayed()]
        await complete(store, [running])
        await complete(store, await claim(store, 2))
        await store.enqueue([new("later")])
        found = (await store.events(None, after, 100)).events
    assert stories(found) == sorted(
        [(failing.id, "replayed"), (running.id, "completed"), ("later", "enqueued")]
        + [(id_, kind) for id_ in ("waits", "runs", "fails") if id_ != running.id for kind in ("claimed", "completed")]
    )


async def test_a_process_that_survives_a_restore_hides_no_event():
    """A dump of one cluster is loaded into another, which then answers at the same address."""
    with PostgresServer(durable=False) as old:
        old.sql("DO $$ BEGIN FOR i IN 1..5000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
        store = await open_store(old.url())
        await fill(store, 2)
        jobs = await claim(store, 2)
        await complete(store, jobs[:1])
        await store.purge([Purge(jobs[0].key)])
        seen = await all_events(store)
        dump = run(old, "pg_dump")
    with PostgresServer(durable=False, port=old.port) as other:
        run(other, "psql", "--no-psqlrc", "--set=ON_ERROR_STOP=1", given=dump)
        assert epochs(other, "postgres") == 1
        await complete(store, jobs[1:])
        await store.enqueue([new(jobs[0].id)])
        page = await store.events(None, seen[-1].offset, 100)
        assert stories(page.events) == sorted([(jobs[1].id, "completed"), (jobs[0].id, "enqueued")])
        async with opened(other.url()) as late:
            await late.enqueue([new("latest")])
            assert stories((await store.events(None, page.next, 100)).events) == [("latest", "enqueued")]
        assert epochs(other, "postgres") == 2
        await store.close()


async def test_a_call_in_the_middle_of_a_restore_must_be_repeated(postgres, database):
    async with opened(postgres.url(database)) as store:
        await fill(store, 1)
        store._client.drop_idle()
        postgres.sql("CREATE TABLE meta AS TABLE holdfast.meta; DELETE FROM holdfast.meta", database)
        with pytest.raises(StoreUnavailable, match="try again"):
            await claim(store, 1)
        restore(postgres, database)
        postgres.sql("INSERT INTO holdfast.meta TABLE meta", database)
        assert len(await claim(store, 1)) == 1
    assert epochs(postgres, database) == 2


async def test_connections_opened_at_once_begin_one_epoch(postgres, database):
    async with opened(postgres.url(database)) as store:
        await fill(store, 1)
        restore(postgres, database)
        links = await asyncio.gather(*(store._client.connect() for _ in range(5)))
        for client in links:
            await client.close()
    assert epochs(postgres, database) == 2


async def test_an_event_in_an_open_purge_begins_no_epoch(postgres, database):
    """It is of a transaction that is newer than all that is committed, but none that is still to come."""
    async with opened(postgres.url(database)) as store:
        await store.enqueue([new("a")])
        early, writer, purger = [await asyncpg.connect(postgres.url(database)) for _ in range(3)]
        async with writer.transaction(), purger.transaction():
            async with early.transaction():
                await early.execute("SELECT pg_current_xact_id()")
                await store.enqueue([new("open")], connection=writer)
                await purger.execute("SELECT holdfast.note_freed(holdfast.xid())")
                await store.enqueue([new("filed")], connection=early)
            async with opened(postgres.url(database)):
                assert epochs(postgres, database) == 1
            page = await store.events(None, None, 100)
        rest = await store.events(None, page.next, 100)
        assert sorted(event.job_id for event in page.events + rest.events) == ["a", "filed", "open"]
        for connection in (early, writer, purger):
            await connection.close()


async def test_a_new_epoch_waits_for_writers_of_the_old_one(postgres, database):
    """Otherwise a reader would continue in the new one, and miss events committed late in the old one."""
    async with opened(postgres.url(database)) as store:
        await store.enqueue([new("a")])
        connection = await asyncpg.connect(postgres.url(database))
        async with connection.transaction():
            await store.enqueue([new("open")], connection=connection)
            restore(postgres, database)
            opening = asyncio.create_task(open_store(postgres.url(database)))
            waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'holdfast.events'::regclass AND NOT granted"
            await eventually(lambda: connection.fetchval(waiting), lambda count: count or opening.done())
        await (await opening).close()
        assert epochs(postgres, database) == 2
        await store.enqueue([new("later")])
        ids = [event.job_id for event in (await store.events(None, None, 100)).events]
        assert sorted(ids) == ["a", "later", "open"]
        assert ids[-1] == "later"
        await connection.close()
