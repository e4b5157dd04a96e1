"""Enqueues in a caller's own transaction as a user meets them: `connection=`, and how it can go wrong. [ENQ-7]"""

import asyncio

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from holdfast import (
    InvalidOption,
    PartlyRefused,
    Queue,
    QuotaExceeded,
    StoreBusy,
    Unsupported,
    Worker,
    job,
)
from holdfast.blocking import Queue as BlockingQueue
from holdfast.core.job import IdempotencyKey, JobState
from holdfast.store import TenantSettings
from holdfast.testing.postgres import PostgresServer
from tests.eventually import eventually
from tests.stores.load import running
from tests.stores.postgres.support import claim, fill, new, opened
from tests.stores.postgres.transactions import WAYS, Rolled, of_asyncpg, of_psycopg


@job(queue="mail")
async def send(n: int = 0) -> None: ...


@pytest.mark.parametrize("way", WAYS)
async def test_enqueues_commit_and_roll_back_with_the_transaction(postgres, database, way):
    """Also where ours is the first statement in it. [ENQ-7]"""
    url = postgres.url(database)
    async with Queue(url, tenant="acme") as queue:

        async def in_vain():
            async with WAYS[way](url) as connection:
                ticket = await queue.enqueue(send.message(), id="a", idempotency_key="k", connection=connection)
                assert ticket.status == "queued"
                await queue.enqueue_many([send.message(n) for n in range(1500)], connection=connection)
                raise Rolled

        with pytest.raises(Rolled):
            await in_vain()
        assert (await queue.stats("mail")).counts[JobState.READY] == 0
        async with WAYS[way](url) as connection:
            ticket = await queue.enqueue(send.message(), id="a", idempotency_key="k", connection=connection)
            assert ticket.status == "queued"
            assert (await queue.enqueue(send.message(), id="a", connection=connection)).status == "duplicate"
            assert await queue.get("a", queue="mail") is None
            tickets = await queue.enqueue_many([send.message(n) for n in range(1500)], connection=connection)
            assert {ticket.status for ticket in tickets} == {"queued"}
        assert (await queue.stats("mail")).counts[JobState.READY] == 1501


@pytest.mark.parametrize("kind", ["psycopg", "connection", "session"])
def test_blocking_code_joins_with_a_blocking_connection(postgres, database, kind):
    url = postgres.url(database)
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))

    def transaction():
        if kind == "psycopg":
            return psycopg.connect(url)
        return engine.begin() if kind == "connection" else Session(engine)

    with BlockingQueue(url, tenant="acme") as queue:
        with transaction() as connection:
            queue.enqueue(send.message(), id="gone", connection=connection)
            connection.rollback()
        with transaction() as connection:
            queue.enqueue(send.message(), id="kept", connection=connection)
            queue.enqueue_many([send.message(n) for n in range(10)], connection=connection)
            connection.commit()
        assert queue.get("gone", queue="mail") is None
        assert queue.get("kept", queue="mail").state is JobState.READY
        assert queue.stats("mail").counts[JobState.READY] == 11
    engine.dispose()


async def test_refusals_in_a_transaction_are_returned_or_raised_as_asked(postgres, database):
    """[ENQ-4, ENQ-7] An exception would decide what is the caller's to decide: to commit, or not."""
    async with Queue(postgres.url(database), tenant="acme") as queue:
        await queue.set_tenant(max_waiting=3)
        async with WAYS["asyncpg"](postgres.url(database)) as connection:
            tickets = await queue.enqueue_many([send.message(n) for n in (1, 2)], connection=connection)
            tickets += await queue.enqueue_many([float("nan"), send.message(3)], connection=connection)
            assert [ticket.status for ticket in tickets] == ["queued", "queued", "refused", "queued"]
            with pytest.raises(PartlyRefused) as caught:
                await queue.enqueue_many([send.message(4)], connection=connection, on_refused="raise")
            assert isinstance(caught.value.refused[0].error, QuotaExceeded)
        assert (await queue.stats("mail")).counts[JobState.READY] == 3


async def test_a_joined_enqueue_wakes_a_worker_when_it_commits(postgres, database):
    ran = asyncio.Event()

    @job(queue="mail")
    async def wake() -> None:
        ran.set()

    url = postgres.url(database)
    async with Queue(url, tenant="acme") as queue, running(Worker(queue, jobs=[wake, send])):
        async with of_asyncpg(url) as connection:
            ticket = await queue.enqueue(wake.message(), connection=connection)
            # The worker comes by, and passes it over.
            await queue.enqueue_and_wait(send.message(), timeout=30)
            assert not ran.is_set()
        await ticket.wait(timeout=10)
        assert ran.is_set()


@pytest.mark.parametrize("what", ["plain", "key", "quota"])
async def test_an_enqueue_uses_no_further_transaction_id(postgres, database, what):
    """As a subtransaction that writes would. More than 64 of them slow down every snapshot on the server."""
    url = postgres.url(database)
    numbers = (
        "SELECT (pg_stat_get_backend_subxact(i)).subxact_count FROM pg_stat_get_backend_idset() AS i "
        "WHERE pg_stat_get_backend_pid(i) = $1"
    )
    async with opened(url) as store, of_asyncpg(url) as connection, of_asyncpg(url) as other:
        if await other.fetchval("SELECT current_setting('server_version_num')::int") < 160_000:
            pytest.skip("the server does not tell")
        if what == "quota":
            await store.set_tenant("acme", TenantSettings("mail", None, 100))
        for n in range(3):
            key = IdempotencyKey(f"key-{n}") if what == "key" else None
            await store.enqueue([new(f"{n}", idempotency=key)], connection=connection)
        assert await other.fetchval(numbers, connection.get_server_pid()) == 0


async def test_the_callers_commit_stays_as_durable_as_the_caller_set_it(postgres, database):
    """Our own hints go without a flush; that must not rub off."""
    url = postgres.url(database)
    async with Queue(url, tenant="acme") as queue, of_asyncpg(url) as connection:
        await queue.enqueue(send.message(), connection=connection)
        assert await connection.fetchval("SHOW synchronous_commit") == "on"


@pytest.mark.parametrize("notify", [0, 1])
async def test_hints_can_be_left_out_of_the_transaction(postgres, database, notify):
    url = postgres.url(database)
    heard = []
    listener = await asyncpg.connect(url)
    async with opened(postgres.url(database, notify=notify)) as store, of_asyncpg(url) as connection:
        channel = "hfr" + (await listener.fetchval("SELECT id FROM holdfast.meta")).hex
        await listener.add_listener(channel, lambda *args: heard.append(args))
        await store.enqueue([new("a")], connection=connection)
    await listener.execute(f"NOTIFY {channel}, 'end'")
    await eventually(lambda: heard and heard[-1][3] == "end")
    assert len(heard) == 1 + notify
    await listener.close()


# What is refused ------------------------------------------------------------------------------------------------


async def test_a_connection_without_a_transaction_is_refused_with_what_to_do(postgres, database):
    url = postgres.url(database)
    async with opened(url) as store:
        plain = await asyncpg.connect(url)
        with pytest.raises(InvalidOption, match=r"async with connection\.transaction"):
            await store.enqueue([new("a")], connection=plain)
        await plain.close()
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            with pytest.raises(InvalidOption, match="autocommit"):
                await store.enqueue([new("a")], connection=connection)
        for driver in ("asyncpg", "psycopg"):
            engine = create_async_engine(
                url.replace("postgresql:", f"postgresql+{driver}:"), isolation_level="AUTOCOMMIT"
            )
            async with engine.connect() as connection:
                with pytest.raises(InvalidOption, match="transaction"):
                    await store.enqueue([new("a")], connection=connection)
            await engine.dispose()
        assert await claim(store, 10) == []


async def test_a_transaction_of_another_database_is_refused(postgres, database):
    """Another database of the server, one with a store of its own, and another server."""
    postgres.sql(f"CREATE DATABASE {database}_b")
    try:
        async with opened(postgres.url(database)) as store:
            async with of_asyncpg(postgres.url(f"{database}_b")) as connection:
                with pytest.raises(InvalidOption, match=f"leads to the database '{database}_b'"):
                    await store.enqueue([new("a")], connection=connection)
                assert await connection.fetchval("SELECT 1") == 1  # It is not spoilt.
            there = postgres.url(f"{database}_b")
            async with opened(there), of_psycopg(there) as connection:
                with pytest.raises(InvalidOption, match="leads to the database"):
                    await store.enqueue([new("a")], connection=connection)
            with PostgresServer(durable=False) as other:
                other.sql(f"CREATE DATABASE {database}")
                async with opened(other.url(database)), of_asyncpg(other.url(database)) as connection:
                    with pytest.raises(InvalidOption, match="another server"):
                        await store.enqueue([new("a")], connection=connection)
    finally:
        postgres.sql(f"DROP DATABASE {database}_b WITH (FORCE)")


async def test_a_connection_of_another_kind_is_refused_by_name(postgres, database):
    async with opened(postgres.url(database)) as store:
        with pytest.raises(InvalidOption, match="asyncpg, psycopg 3 or SQLAlchemy"):
            await store.enqueue([new("a")], connection=object())


@pytest.mark.parametrize("url", ["memory:joining", "file:{}"])
async def test_other_stores_say_what_to_do_instead(url, tmp_path):
    async with Queue(url.format(tmp_path), tenant="acme") as queue:
        with pytest.raises(Unsupported, match="only postgresql:// does; commit first"):
            await queue.enqueue(send.message(), connection=object())


@pytest.mark.parametrize("way", ["asyncpg", "psycopg"])
async def test_an_enqueue_that_waits_for_an_id_of_another_transaction_says_so(postgres, database, way):
    url = postgres.url(database)
    async with opened(url) as store:
        await fill(store, 1)
        async with of_asyncpg(url) as first:
            await store.enqueue([new("same")], connection=first)
            with pytest.raises(StoreBusy, match="rolled back"):
                async with WAYS[way](url) as second:
                    await store.enqueue([new("same")], connection=second)


async def test_waiting_inside_the_transaction_is_refused(postgres, database):
    """No worker can run an uncommitted job."""
    url = postgres.url(database)
    async with Queue(url, tenant="acme") as queue, of_asyncpg(url) as connection:
        with pytest.raises(InvalidOption, match="after the commit"):
            await queue.enqueue_and_wait(send.message(), timeout=30, connection=connection)
