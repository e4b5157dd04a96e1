"""ENQ-7 as a user meets it: `connection=`, `complete_in`, and the ways in which both can go wrong."""

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from holdfast import InvalidOption, JobCanceled, LeaseLost, Queue, StoreBusy, Unsupported, Worker, current_job, job
from holdfast.blocking import Queue as BlockingQueue
from holdfast.core.job import Cancel, JobKey, JobState
from holdfast.testing.postgres import PostgresServer
from tests.eventually import eventually
from tests.stores.postgres.support import all_events, claim, fill, new, opened


@job(queue="mail")
async def send(n: int = 0) -> None: ...


class Rolled(Exception):
    """Thrown to roll a transaction back."""


@asynccontextmanager
async def of_asyncpg(url):
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def of_a_pool(url):
    async with asyncpg.create_pool(url, min_size=1) as pool, pool.acquire() as connection, connection.transaction():
        yield connection


@asynccontextmanager
async def of_psycopg(url):
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection


@asynccontextmanager
async def of_psycopg_autocommit(url):
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection, connection.transaction():
        yield connection


def of_sqlalchemy(driver, kind):
    @asynccontextmanager
    async def begun(url):
        engine = create_async_engine(url.replace("postgresql:", f"postgresql+{driver}:"))
        try:
            if kind == "connection":
                async with engine.begin() as connection:
                    yield connection
            else:
                async with AsyncSession(engine) as session, session.begin():
                    yield session
        finally:
            await engine.dispose()

    return begun


WAYS = {
    "asyncpg": of_asyncpg,
    "asyncpg pool": of_a_pool,
    "psycopg": of_psycopg,
    "psycopg autocommit": of_psycopg_autocommit,
    "sqlalchemy asyncpg connection": of_sqlalchemy("asyncpg", "connection"),
    "sqlalchemy asyncpg session": of_sqlalchemy("asyncpg", "session"),
    "sqlalchemy psycopg connection": of_sqlalchemy("psycopg", "connection"),
    "sqlalchemy psycopg session": of_sqlalchemy("psycopg", "session"),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_queues_enqueues_come_and_go_with_the_transaction(postgres, database, way):
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


async def test_a_joined_enqueue_wakes_a_worker_when_it_commits(postgres, database):
    ran = asyncio.Event()

    @job(queue="mail")
    async def wake() -> None:
        ran.set()

    url = postgres.url(database)
    async with Queue(url, tenant="acme") as queue, running(Worker(queue, jobs=[wake])):
        await queue.enqueue_and_wait(wake.message(), timeout=30)
        ran.clear()
        async with of_asyncpg(url) as connection:
            ticket = await queue.enqueue(wake.message(), connection=connection)
            await asyncio.sleep(0.1)
            assert not ran.is_set()
        await ticket.wait(timeout=10)


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
    await listener.add_listener("hf_holdfast", lambda *args: heard.append(args))
    async with opened(postgres.url(database, notify=notify)) as store, of_asyncpg(url) as connection:
        await store.enqueue([new("a")], connection=connection)
    await listener.execute("NOTIFY hf_holdfast, 'end'")
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


@pytest.mark.parametrize("url", ["memory:joining", "file:"])
async def test_other_stores_say_what_to_do_instead(url, tmp_path):
    url = f"{url}{tmp_path}" if url == "file:" else url
    async with Queue(url, tenant="acme") as queue:
        with pytest.raises(Unsupported, match="postgresql:// does, elsewhere commit first"):
            await queue.enqueue(send.message(), connection=object())


@pytest.mark.parametrize("way", ["asyncpg", "psycopg"])
async def test_who_waits_for_an_id_of_another_open_transaction_is_told_so(postgres, database, way):
    url = postgres.url(database)
    async with opened(url) as store:
        await fill(store, 1)
        async with of_asyncpg(url) as first:
            await store.enqueue([new("same")], connection=first)
            with pytest.raises(StoreBusy, match="rolled back"):
                async with WAYS[way](url) as second:
                    await store.enqueue([new("same")], connection=second)


async def test_waiting_inside_the_transaction_is_refused(postgres, database):
    """Nobody can run what is not committed."""
    url = postgres.url(database)
    async with Queue(url, tenant="acme") as queue, of_asyncpg(url) as connection:
        with pytest.raises(InvalidOption, match="after the commit"):
            await queue.enqueue_and_wait(send.message(), timeout=30, connection=connection)


# complete_in ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def running(worker):
    task = asyncio.create_task(worker.run(handle_signals=False))
    try:
        yield worker
    finally:
        await worker.stop()
        await task


@asynccontextmanager
async def at_work(url, handler, **options):
    """A queue whose worker runs this handler, and what the worker was told became of jobs."""
    definition = job(queue="mail", max_attempts=1)(handler)
    told = []
    async with Queue(url, tenant="acme") as queue:
        worker = Worker(queue, jobs=[definition], **options)
        for name in ("completed", "failed", "canceled", "stalled"):
            worker.on(name, lambda event, name=name: told.append(name))
        async with running(worker):
            yield queue, definition.message(), told


async def finishes(store, id_):
    return [event.kind for event in await all_events(store) if event.job_id == id_][2:]


@pytest.mark.parametrize("way", WAYS)
async def test_a_job_is_completed_with_its_handlers_transaction(postgres, database, way):
    url = postgres.url(database)

    async def handler() -> str:
        async with WAYS[way](url) as connection:
            await current_job().complete_in(connection, "from the transaction")
        return "from the handler"

    async with at_work(url, handler) as (queue, message, told):
        ticket = await queue.enqueue(message, id="a")
        assert await ticket.wait(timeout=20) == "from the transaction"
        await eventually(lambda: told == ["completed"])
        assert await finishes(queue.store, "a") == ["completed"]


async def test_what_the_handler_does_after_the_commit_changes_nothing(postgres, database):
    """It may fail, and it may go on for longer than its lease."""
    url = postgres.url(database)
    going = asyncio.Event()

    async def handler() -> int:
        async with of_asyncpg(url) as connection:
            await current_job().complete_in(connection, 7)
        await asyncio.sleep(3)
        assert not current_job().cancelled.is_set()
        going.set()
        raise ValueError("too late")

    async with at_work(url, handler, lease=timedelta(seconds=1)) as (queue, message, told):
        assert await queue.enqueue_and_wait(message, timeout=20) == 7
        await asyncio.wait_for(going.wait(), 20)
        await eventually(lambda: told == ["completed"])


@pytest.mark.parametrize("outcome", ["returns", "raises"])
async def test_after_a_rollback_the_handlers_outcome_counts(postgres, database, outcome):
    url = postgres.url(database)

    async def handler() -> str:
        try:
            async with of_asyncpg(url) as connection:
                await current_job().complete_in(connection, "from the transaction")
                raise Rolled  # noqa: TRY301 - what a handler whose transaction fails does
        except Rolled:
            if outcome == "raises":
                raise
        return "from the handler"

    async with at_work(url, handler) as (queue, message, told):
        ticket = await queue.enqueue(message, id="a")
        if outcome == "returns":
            assert await ticket.wait(timeout=20) == "from the handler"
        await eventually(lambda: told == ["completed" if outcome == "returns" else "failed"])
        assert await finishes(queue.store, "a") == told


async def test_a_job_canceled_meanwhile_spoils_the_transaction(postgres, database):
    url = postgres.url(database)
    postgres.sql("CREATE TABLE paid (id text)", database)
    raised = []

    async def handler() -> None:
        try:
            async with of_asyncpg(url) as connection:
                await connection.execute("INSERT INTO paid VALUES ('a')")
                async with opened(url) as other:
                    await other.cancel([_cancel(current_job().id)])
                await current_job().complete_in(connection)
        except BaseException as error:
            raised.append(type(error))
            raise

    async with at_work(url, handler) as (queue, message, told):
        await queue.enqueue(message, id="a")
        await eventually(lambda: told)
        assert told == ["canceled"]
        assert (await queue.get("a", queue="mail")).state is JobState.CANCELED
    assert raised[0] in (JobCanceled, asyncio.CancelledError)
    assert postgres.sql("SELECT * FROM paid", database) == []


async def test_a_lease_that_is_lost_cannot_complete(postgres, database):
    """The store decides: a token that is not the last one granted is refused, and the transaction with it."""
    url = postgres.url(database, test_clock=1)
    postgres.sql("CREATE TABLE paid (id text)", database)
    refused = asyncio.Event()

    async def handler() -> None:
        if current_job().attempt > 1:
            return
        async with opened(url) as other:
            await other.shift_clock(3_600_000)
            await other.reap(10, 0.0)
            await other.shift_clock(3_600_000)
            assert len(await claim(other, 1)) == 1
        try:
            async with of_asyncpg(url.partition("?")[0]) as connection:
                await connection.execute("INSERT INTO paid VALUES ('a')")
                await current_job().complete_in(connection)
        except LeaseLost:
            refused.set()

    definition = job(queue="mail")(handler)
    async with Queue(url, tenant="acme") as queue:
        await queue.enqueue(definition.message(), id="a")
        async with running(Worker(queue, jobs=[definition], concurrency=1)):
            await asyncio.wait_for(refused.wait(), 20)
    assert postgres.sql("SELECT * FROM paid", database) == []


async def test_an_open_transaction_keeps_no_other_lease_from_being_renewed(postgres, database):
    """One handler sits in its transaction for longer than the lease; the other's job goes on, and stays its own."""
    url = postgres.url(database)
    stalled = []

    async def handler(sits: bool) -> str:
        if sits:
            async with of_asyncpg(url) as connection:
                await current_job().complete_in(connection)
                await asyncio.sleep(30)
        await asyncio.sleep(5)
        return "done"

    definition = job(queue="mail", max_attempts=1)(handler)
    async with Queue(url, tenant="acme") as queue:
        worker = Worker(queue, jobs=[definition], lease=timedelta(seconds=2))
        worker.on("stalled", lambda event: stalled.append(event.job.id))
        async with running(worker):
            await queue.enqueue(definition.message(True), id="sits")
            goes = await queue.enqueue(definition.message(False), id="goes")
            assert await goes.wait(timeout=20) == "done"
            assert stalled == ["sits"]
            # Its transaction was rolled back when it was told.
            await eventually(lambda: queue.get("sits", queue="mail"), lambda job: job.state is JobState.FAILED)


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read"])
async def test_a_renewal_since_the_transaction_began_is_told_apart_by_its_level(postgres, database, isolation):
    url = postgres.url(database)
    raised = []

    async def handler() -> str:
        connection = await asyncpg.connect(url)
        deadline = current_job().deadline
        try:
            async with connection.transaction(isolation=isolation):
                await connection.fetchval("SELECT count(*) FROM holdfast.jobs")
                await eventually(lambda: current_job().deadline > deadline)
                await current_job().complete_in(connection, "from the transaction")
        except StoreBusy as error:
            raised.append(str(error))
        finally:
            await connection.close()
        return "from the handler"

    async with at_work(url, handler, lease=timedelta(seconds=3)) as (queue, message, told):
        result = await queue.enqueue_and_wait(message, timeout=20)
        await eventually(lambda: told == ["completed"])
    assert result == ("from the handler" if raised else "from the transaction")
    assert [("rolled back" in text) for text in raised] == ([True] if isolation == "repeatable_read" else [])


async def test_a_handler_in_a_thread_completes_with_its_own_connection(postgres, database):
    url = postgres.url(database)

    def handler() -> str:
        with psycopg.connect(url) as connection:
            connection.execute("SELECT 1")
            current_job().complete_in_sync(connection, "from the transaction")
        return "from the handler"

    async with at_work(url, handler) as (queue, message, told):
        assert await queue.enqueue_and_wait(message, timeout=20) == "from the transaction"
        await eventually(lambda: told == ["completed"])


async def test_a_worker_on_another_store_says_that_it_cannot(postgres, database):
    async def handler() -> None:
        async with of_asyncpg(postgres.url(database)) as connection:
            await current_job().complete_in(connection)

    async with at_work("memory:complete-in", handler) as (queue, message, told):
        ticket = await queue.enqueue(message)
        await eventually(lambda: told == ["failed"])
        assert (await ticket.refresh()).errors[-1].type == "Unsupported"


async def test_outside_a_worker_there_is_nothing_to_complete():
    await current_job().complete_in(object())
    current_job().complete_in_sync(object())


def _cancel(id_):
    return Cancel(JobKey("acme", "mail", id_))
