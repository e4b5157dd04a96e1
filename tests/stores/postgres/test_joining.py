"""ENQ-7: enqueues and completions that join the caller's own transaction."""

import asyncio
import random
from functools import partial

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from holdfast.core.errors import InvalidOption, StoreBusy, StoreUnavailable
from holdfast.core.job import IdempotencyKey, JobState, Queued
from tests.log import all_events
from tests.stores.postgres.support import claim, complete, fill, new, opened


async def test_jobs_are_exactly_those_of_the_commits(postgres, database):
    """1,000 transactions that commit or roll back, with a row of the caller's own for each job."""
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    async with opened(postgres.url(database)) as store:
        connection = await asyncpg.connect(postgres.url(database))
        await connection.execute("CREATE TABLE orders (id text PRIMARY KEY)")
        for n in range(1000):
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute("INSERT INTO orders VALUES ($1)", f"job-{n}")
            key = IdempotencyKey(f"key-{n}") if chance.random() < 0.1 else None
            (answer,) = await store.enqueue([new(f"job-{n}", idempotency=key)], connection=connection)
            assert isinstance(answer, Queued)
            await (transaction.commit() if chance.random() < 0.5 else transaction.rollback())
        orders = {row["id"] for row in await connection.fetch("SELECT id FROM orders")}
        await connection.close()
        jobs = {job.id for _ in range(12) for job in await claim(store, 100)}
        assert jobs == orders, f"seed {seed}"
        enqueued = [event.job_id for event in await all_events(store) if event.kind == "enqueued"]
        assert len(enqueued) == len(orders)


async def test_an_open_transaction_delays_no_other_job(postgres, database):
    """Neither in its own lane nor with the first job of it; only an enqueue of the same id waits."""
    async with opened(postgres.url(database)) as store:
        connection = await asyncpg.connect(postgres.url(database))
        async with connection.transaction():
            await store.enqueue([new("mine")], connection=connection)
            for n in range(5):
                assert isinstance((await store.enqueue([new(f"other-{n}")]))[0], Queued)
            assert [job.id for job in await claim(store, 10)] == [f"other-{n}" for n in range(5)]
        await connection.close()
        # It became visible before what was claimed meanwhile: who hears no hint finds it with the next full look.
        found = []
        async with asyncio.timeout(60):
            while not found:
                found = await claim(store, 10)
                await asyncio.sleep(0.05)
        assert [job.id for job in found] == ["mine"]


async def test_a_completion_joins_too(postgres, database):
    async with opened(postgres.url(database)) as store:
        await fill(store, 2)
        first, second = await claim(store, 2)
        connection = await asyncpg.connect(postgres.url(database))
        transaction = connection.transaction()
        await transaction.start()
        await complete(store, [first], connection=connection)
        await transaction.rollback()
        assert (await store.get([first.key]))[0].state is JobState.LEASED
        async with connection.transaction():
            await complete(store, [first, second], connection=connection)
        assert [job.state for job in await store.get([first.key, second.key])] == ["completed", "completed"]
        await connection.close()


async def test_a_psycopg_transaction_can_be_joined(postgres, database):
    async with opened(postgres.url(database)) as store:
        async with await psycopg.AsyncConnection.connect(postgres.url(database)) as connection:
            await store.enqueue([new("gone")], connection=connection)
            await connection.rollback()
            await store.enqueue([new("kept"), new("keyed", idempotency=IdempotencyKey("k"))], connection=connection)
            await connection.commit()
        jobs = await claim(store, 10)
        assert sorted(job.id for job in jobs) == ["kept", "keyed"]
        async with await psycopg.AsyncConnection.connect(postgres.url(database)) as connection:
            await complete(store, jobs, connection=connection)
        assert [job.state for job in await store.get([job.key for job in jobs])] == ["completed", "completed"]


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_sqlalchemy_transaction_can_be_joined_with_either_driver(postgres, database, driver):
    async with opened(postgres.url(database)) as store:
        engine = create_async_engine(postgres.url(database).replace("postgresql:", f"postgresql+{driver}:"))
        async with engine.connect() as connection:
            await connection.execute(text("CREATE TABLE orders (id text PRIMARY KEY)"))
            await connection.commit()
            await connection.execute(text("INSERT INTO orders VALUES ('gone')"))
            await store.enqueue([new("gone")], connection=connection)
            await connection.rollback()
            await connection.execute(text("INSERT INTO orders VALUES ('kept')"))
            await store.enqueue([new("kept")], connection=connection)
            await connection.commit()
        async with AsyncSession(engine) as session, session.begin():
            await session.execute(text("INSERT INTO orders VALUES ('by-session')"))
            await store.enqueue([new("by-session")], connection=session)
        await engine.dispose()
        assert sorted(job.id for job in await claim(store, 10)) == ["by-session", "kept"]


async def test_an_unsupported_driver_is_named_even_behind_sqlalchemy(postgres, database):
    """For `postgresql://` SQLAlchemy uses psycopg2, which may not be installed."""
    psycopg2 = type("connection", (), {"__module__": "psycopg2.extensions"})
    engine = create_engine("sqlite://", connect_args={"check_same_thread": False}, poolclass=StaticPool)
    async with opened(postgres.url(database)) as store:
        with pytest.raises(InvalidOption, match=r"psycopg2's connection cannot be joined; pass .* psycopg 3"):
            await store.enqueue([new("a")], connection=psycopg2())
        for make in (engine.connect, partial(Session, engine)):
            with make() as connection, pytest.raises(InvalidOption) as caught:
                await store.enqueue([new("a")], connection=connection)
            assert f"{type(connection).__name__} over sqlite3 cannot be joined" in str(caught.value)
            assert "postgresql+psycopg://" in str(caught.value)
    engine.dispose()


async def test_a_call_that_cannot_join_is_refused(postgres, database):
    async with opened(postgres.url(database)) as store:
        with pytest.raises(InvalidOption, match="cannot be joined"):
            await store.enqueue([new("a")], connection=object())
        connection = await asyncpg.connect(postgres.url(database))
        with pytest.raises(InvalidOption, match="no transaction is open"):
            await store.enqueue([new("a")], connection=connection)
        await connection.close()


@pytest.mark.parametrize("driver", [asyncpg, psycopg])
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("new_thing", [{"queue": "new"}, {"priority": 9}])
async def test_a_transaction_with_a_snapshot_older_than_the_queue_must_begin_again(
    postgres, database, caplog, driver, level, new_thing
):
    """And that is all: the process forgets nothing, and a second try succeeds."""
    async with opened(postgres.url(database)) as store:
        await store.enqueue([new("old")])
        lane = store._cache.find("acme", "mail")
        connect = asyncpg.connect if driver is asyncpg else partial(psycopg.AsyncConnection.connect, autocommit=True)
        connection = await connect(postgres.url(database))
        item = new("joined", **new_thing)
        for busy in (True, False):
            await connection.execute(f"BEGIN ISOLATION LEVEL {level}")
            await connection.execute("SELECT count(*) FROM pg_class")
            if busy:
                with pytest.raises(StoreBusy, match=r"your transaction began before .* begin it again"):
                    await store.enqueue([item], connection=connection)
                await connection.execute("ROLLBACK")
            else:
                assert await store.enqueue([item], connection=connection) == [Queued("joined", JobState.READY)]
                await connection.execute("COMMIT")
        await connection.close()
        assert store._cache.find("acme", "mail") is lane
        assert [record for record in caplog.records if "other data" in record.message] == []
        assert (await store.get([item.key]))[0].state is JobState.READY


async def test_a_cached_lane_that_changed_is_dropped_in_a_callers_transaction(postgres, database):
    async with opened(postgres.url(database)) as store:
        await store.enqueue([new("old")])
        postgres.sql("UPDATE holdfast.lanes SET tenant = 'other'", database)
        connection = await asyncpg.connect(postgres.url(database))
        with pytest.raises(StoreUnavailable, match=r"other data .* rolled back"):
            async with connection.transaction():
                await store.enqueue([new("a")], connection=connection)
        async with connection.transaction():
            assert await store.enqueue([new("a")], connection=connection) == [Queued("a", JobState.READY)]
        await connection.close()
        assert [job.id for job in await claim(store, 9)] == ["a"]
