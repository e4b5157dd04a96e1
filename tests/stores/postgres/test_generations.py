"""The server loses what it acknowledged last: a crash with synchronous_commit=off, a late standby, a restore.

Invariants verified, for processes that live through it, with new connections and with those that a pooler keeps:
- no worker gets a job of another tenant, and no acknowledged job goes where no worker looks [TENANT-3, ENQ-1]
- no token is granted twice, and none of before is accepted [LEASE-1, LEASE-5]
- a reader learns that events are lost, and goes on with all that come [EVENT-2]
"""

import asyncio
import logging
import shutil
import subprocess

import asyncpg
import pytest

from holdfast.core.errors import EventsTrimmed, JobNotFound, LeaseLost, StoreUnavailable
from holdfast.core.job import Cancel, Extend, Finish, IdempotencyKey, JobKey, JobState, Result
from holdfast.opening import open_store
from holdfast.store import ListQuery, Reader
from holdfast.stores.postgres import lanes
from holdfast.testing.postgres import PostgresServer
from tests.stores.postgres.bouncer import bouncing, needs_bouncer
from tests.stores.postgres.losses import Losing, Standby, dump, restore
from tests.stores.postgres.support import claim, complete, fill, judge, new, opened


class Standbys(list[Standby]):
    async def make(self, primary):
        """One that is as the primary is now."""
        primary.sql("CHECKPOINT")
        self.append(await asyncio.to_thread(Standby, primary))


@pytest.fixture
def standbys():
    made = Standbys()
    yield made
    for standby in made:
        standby.close()


@pytest.fixture
def postgres_alone():
    with PostgresServer(durable=False) as server:
        yield server


async def patiently(act, patience_s=30):
    """A client that must try again does so."""
    async with asyncio.timeout(patience_s):
        while True:
            try:
                return await act()
            except StoreUnavailable:
                await asyncio.sleep(0.05)


async def lives_through(store, url, hold, lose):
    """A process that knows of lanes, leases and events which are lost. `url` is how others reach the server."""
    await store.enqueue([new("warm", queue="old"), new("kept", queue="mail")])
    await hold()
    await store.enqueue([new("lost", queue="salaries"), new("first-9", queue="mail", priority=9)])
    (lost,) = await claim(store, 1, queue="salaries")
    (again,) = await claim(store, 1, queue="old")
    offset = await store.last_offset()
    await lose()
    # Another process, which gets the numbers that are free by now.
    lanes.forget(store.address.identity)
    other = await patiently(lambda: open_store(url))
    try:
        await other.enqueue([new("hers", tenant="mallory", queue="hers")])
        (renewed,) = await claim(other, 1, queue="old")
        fresh = [new("secret", queue="salaries"), new("urgent", queue="mail", priority=9)]
        await patiently(lambda: store.enqueue(fresh))
        assert [job.id for job in await claim(other, 9, "mallory", "hers")] == ["hers"]
        assert [job.id for job in await claim(other, 9, queue="salaries")] == ["secret"]
        assert {job.id for job in await claim(other, 9, queue="mail")} == {"kept", "urgent"}
        assert (renewed.id, again.id) == ("warm", "warm")
        assert renewed.token > max(lost.token, again.token)
        (secret,) = await other.get([JobKey("acme", "salaries", "secret")])
        assert secret.seq > lost.seq  # A purge or cancel that names the lost life never reaches a later one.
        late = [Finish(job.key, job.token, "complete", Result(b"1")) for job in (again, lost)]
        stale, gone = await patiently(lambda: store.finish(late))
        assert isinstance(stale, LeaseLost)
        assert isinstance(gone, JobNotFound)
        await complete(other, [renewed])
    finally:
        await other.close()
    with pytest.raises(EventsTrimmed) as trimmed:
        await store.events(None, offset, 100)
    with pytest.raises(EventsTrimmed):
        await store.set_reader(Reader(None, "late", offset))
    with pytest.raises(EventsTrimmed):
        await store.bounds(offset)
    assert trimmed.value.from_ == offset
    rest = (await store.events(None, trimmed.value.to, 100)).events
    assert [event.job_id for event in rest if event.kind == "enqueued"] == ["hers", "secret", "urgent"]
    assert [event.job_id for event in rest if event.kind == "completed"] == ["warm"]


async def test_a_new_schema_survives_a_crash():
    with Losing() as server:
        await asyncio.to_thread(server.hold)
        async with opened(server.url()) as store:
            await server.lose()
            await patiently(lambda: store.enqueue([new("a")]))
            assert [job.id for job in await claim(store, 9)] == ["a"]


async def test_no_old_data_is_used_after_a_crash_that_loses_commits(caplog):
    """The server was started when it was before, and its timeline is the same."""
    with Losing() as server, caplog.at_level(logging.WARNING, "holdfast"):
        async with opened(server.url()) as store:
            await lives_through(store, server.url(), lambda: asyncio.to_thread(server.hold), server.lose)
        warned = [record for record in caplog.records if "other data" in record.message]
        assert len(warned) == 1


@needs_bouncer
async def test_no_old_data_is_used_after_a_crash_behind_a_pooler():
    with Losing() as server, bouncing(server) as bouncer:
        async with opened(bouncer.url("postgres", listen=0)) as store:
            await lives_through(store, server.url(), lambda: asyncio.to_thread(server.hold), server.lose)


async def test_no_old_data_is_used_after_a_failover_to_a_late_standby(standbys):
    """It answers at the same address."""
    with PostgresServer() as primary:

        async def lose():
            primary.kill()
            await standbys[0].take_over(primary.port)

        async with opened(primary.url()) as store:
            await lives_through(store, primary.url(), lambda: standbys.make(primary), lose)


@needs_bouncer
async def test_no_old_data_is_used_after_a_failover_behind_a_pooler(standbys):
    with PostgresServer() as primary, bouncing(primary) as bouncer:

        async def lose():
            primary.kill()
            bouncer.lead_to(await standbys[0].take_over())

        url = bouncer.url("postgres", listen=0)
        async with opened(url) as store:
            await lives_through(store, url, lambda: standbys.make(primary), lose)


@pytest.mark.parametrize("unlogged", ["--schema=holdfast", "--no-unlogged-table-data"])
async def test_no_old_data_is_used_after_a_restore_in_place(postgres_alone, unlogged):
    """The connections live on, and the dump brings back all that the database knows of itself."""
    server = postgres_alone
    dumps = []

    async def hold():
        dumps.append(await asyncio.to_thread(dump, server, unlogged))

    async with opened(server.url()) as store:
        await lives_through(store, server.url(), hold, lambda: restore(server, dumps[0]))


async def test_no_old_data_is_used_after_the_files_of_a_stopped_server_are_restored(tmp_path):
    """Nothing was unlogged away, and every table is the one that it was."""
    with PostgresServer() as server:
        data = server.directory / "data"
        async with opened(server.url()) as store:

            async def hold():
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(subprocess.run, ["cp", "-a", str(data), str(tmp_path / "copy")], check=True)
                await asyncio.to_thread(server.restart)
                await patiently(store.now)

            async def lose():
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(shutil.rmtree, data)
                await asyncio.to_thread(subprocess.run, ["cp", "-a", str(tmp_path / "copy"), str(data)], check=True)
                await asyncio.to_thread(server.restart)

            await lives_through(store, server.url(), hold, lose)


# The parts of it ------------------------------------------------------------------------------------------------


async def test_a_second_store_in_the_process_does_not_clear_the_cache_of_the_first(postgres, database, caplog):
    """They share a cache for the same data. Without it, turns between tenants would restart with each opened Queue."""
    async with opened(postgres.url(database)) as store:
        await fill(store, 1)
        known = dict(store._cache.by_number)
        with caplog.at_level(logging.WARNING, "holdfast"):
            async with opened(postgres.url(database)) as second:
                assert second._cache is store._cache
        assert dict(store._cache.by_number) == known != {}
        assert caplog.records == []


async def test_a_cached_lane_that_now_has_another_name_is_never_used(postgres, database, caplog):
    """Also where nothing tells that the data is another: each statement compares the lane with its names. [TENANT-3]"""
    async with opened(postgres.url(database)) as store:
        await store.enqueue([new("a", "acme"), new("b", "beta")])
        (mine,) = await claim(store, 1, "acme")
        swap = "; ".join(
            f"UPDATE holdfast.lanes SET tenant = '{to}' WHERE tenant = '{name}'"
            for name, to in (("acme", "x"), ("beta", "acme"), ("x", "beta"))
        )
        postgres.sql(swap, database)
        # What was acme's is beta's now, and the other way round.
        with caplog.at_level(logging.WARNING, "holdfast"):
            assert [job.id for job in await claim(store, 9, "acme")] == ["b"]
        assert sum("other data" in record.message for record in caplog.records) == 1
        for act in (
            lambda: store.get([JobKey("acme", "mail", "a")]),
            lambda: store.cancel([Cancel(JobKey("acme", "mail", "a"))]),
            lambda: store.finish([Finish(mine.key, mine.token, "complete")]),
            lambda: store.finish([Finish(mine.key, mine.token, "release")]),
            lambda: store.extend([Extend(mine.key, mine.token, 1000)]),
            lambda: store.list(ListQuery("acme", "mail", frozenset(JobState), 10)),
            lambda: store.enqueue([new("a", "acme"), new("c", "acme", idempotency=IdempotencyKey("k"))]),
            lambda: store.pause("acme", "mail", paused=False),
        ):
            # The memory is as it was before the swap.
            store._cache._forget()
            postgres.sql(swap, database)
            await store.get([JobKey("acme", "mail", "x"), JobKey("beta", "mail", "x")])
            postgres.sql(swap, database)
            await act()
            assert postgres.sql("SELECT state FROM holdfast.jobs WHERE id = 'a' AND lane = 1", database) == [["4"]]


async def test_a_callers_transaction_must_begin_again(postgres, database):
    async with opened(postgres.url(database)) as store:
        # Read now, so that the budgets are not read in the background: that read would find the new generation first.
        await store.usage("acme")
        await store.enqueue([new("a")])
        connection = await asyncpg.connect(postgres.url(database))
        postgres.sql("DELETE FROM holdfast.generation", database)
        with pytest.raises(StoreUnavailable, match=r"rolled back.*again"):
            async with connection.transaction():
                await store.enqueue([new("b")], connection=connection)
        async with connection.transaction():
            await store.enqueue([new("b")], connection=connection)
        await connection.close()
        assert [job.id for job in await claim(store, 9)] == ["a", "b"]


async def test_a_new_generation_takes_as_long_however_many_jobs_there_are(postgres, database):
    """No job is rewritten."""
    async with opened(postgres.url(database)) as store:
        await fill(store, 3000)
        rows = "SELECT count(DISTINCT xmin::text), min(ctid)::text, max(ctid)::text FROM holdfast.jobs"
        before = postgres.sql(rows, database)
        postgres.sql("DELETE FROM holdfast.generation", database)
        await store.events(None, None, 1)
        assert postgres.sql(rows, database) == before
        jobs = await claim(store, 1000)
        await complete(store, jobs)
        await judge(store)


async def test_generations_in_a_row_never_run_ahead_of_the_clock(postgres, database):
    """Else one that is lost itself would be followed by one that grants the same tokens."""
    async with opened(postgres.url(database)) as store:
        await fill(store, 1)
        for _ in range(3):
            postgres.sql("DELETE FROM holdfast.generation", database)
            await store.last_offset()
        clock = "extract(epoch FROM clock_timestamp()) * 1000000"
        assert postgres.sql(f"SELECT last_value < {clock} FROM holdfast.tokens", database) == [["t"]]
        assert postgres.sql(f"SELECT count(*), max(xid) < {clock} FROM holdfast.epochs", database) == [["3", "t"]]


async def test_no_write_succeeds_in_the_middle_of_a_restore(postgres, database):
    """What it brings would be there twice."""
    async with opened(postgres.url(database)) as store:
        await fill(store, 1)
        postgres.sql("CREATE TABLE kept AS TABLE holdfast.meta; DELETE FROM holdfast.meta", database)
        postgres.sql("DELETE FROM holdfast.generation", database)
        for act in (lambda: store.enqueue([new("a", queue="new")]), lambda: store.pause("acme", "new", paused=True)):
            with pytest.raises(StoreUnavailable, match="restored"):
                await act()
        assert postgres.sql("SELECT count(*) FROM holdfast.queues", database) == [["1"]]
        postgres.sql("INSERT INTO holdfast.meta TABLE kept", database)
        await store.enqueue([new("a", queue="new")])
