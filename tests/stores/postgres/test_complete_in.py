"""`complete_in`: a job is completed with its handler's own transaction, or not at all. [ENQ-7]"""

import asyncio
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

import asyncpg
import psycopg
import pytest

from holdfast import JobCanceled, LeaseLost, Queue, StoreBusy, Worker, current_job, job
from holdfast.core.job import Cancel, JobKey, JobState
from tests.eventually import eventually
from tests.log import all_events
from tests.stores.load import running
from tests.stores.postgres.support import claim, opened
from tests.stores.postgres.transactions import WAYS, Rolled, of_asyncpg


@asynccontextmanager
async def at_work(url, handler, **options):
    """A queue whose worker runs this handler, and the worker's callbacks about its jobs."""
    definition = job(queue="mail", max_attempts=1)(handler)
    reported = []
    async with Queue(url, tenant="acme") as queue:
        worker = Worker(queue, jobs=[definition], **options)
        for name in ("completed", "failed", "canceled", "stalled"):
            worker.on(name, lambda event, name=name: reported.append(name))
        async with running(worker):
            yield queue, definition.message(), reported


async def finishes(store, id_):
    return [event.kind for event in await all_events(store) if event.job_id == id_][2:]


@pytest.mark.parametrize("way", WAYS)
async def test_a_job_is_completed_with_its_handlers_transaction(postgres, database, way):
    url = postgres.url(database)

    async def handler() -> str:
        async with WAYS[way](url) as connection:
            await current_job().complete_in(connection, "from the transaction")
        return "from the handler"

    async with at_work(url, handler) as (queue, message, reported):
        ticket = await queue.enqueue(message, id="a")
        assert await ticket.wait(timeout=20) == "from the transaction"
        await eventually(lambda: reported == ["completed"])
        assert await finishes(queue.store, "a") == ["completed"]


async def test_errors_of_the_handler_after_the_commit_change_nothing(postgres, database):
    """It may fail, or run for longer than its lease."""
    url = postgres.url(database)
    going = asyncio.Event()

    async def handler() -> int:
        async with of_asyncpg(url) as connection:
            await current_job().complete_in(connection, 7)
        # Long enough for a renewal to be refused, and for the lease to run out.
        await eventually(lambda: datetime.now(UTC) > current_job().deadline + timedelta(seconds=0.2))
        assert not current_job().canceled.is_set()
        going.set()
        raise ValueError("too late")

    async with at_work(url, handler, lease=timedelta(seconds=1)) as (queue, message, reported):
        assert await queue.enqueue_and_wait(message, timeout=20) == 7
        await asyncio.wait_for(going.wait(), 20)
        await eventually(lambda: reported == ["completed"])


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

    async with at_work(url, handler) as (queue, message, reported):
        ticket = await queue.enqueue(message, id="a")
        if outcome == "returns":
            assert await ticket.wait(timeout=20) == "from the handler"
        await eventually(lambda: reported == ["completed" if outcome == "returns" else "failed"])
        assert await finishes(queue.store, "a") == reported


async def test_a_job_canceled_meanwhile_fails_the_transaction(postgres, database):
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

    async with at_work(url, handler) as (queue, message, reported):
        await queue.enqueue(message, id="a")
        await eventually(lambda: reported)
        assert reported == ["canceled"]
        assert (await queue.get("a", queue="mail")).state is JobState.CANCELED
    assert raised[0] in (JobCanceled, asyncio.CancelledError)
    assert postgres.sql("SELECT * FROM paid", database) == []


async def test_a_lease_that_is_lost_cannot_complete(postgres, database):
    """The store decides: a token that is not the last one granted is refused, and the transaction with it."""
    url = postgres.url(database, test_clock=1)
    postgres.sql("CREATE TABLE paid (id text)", database)
    key = JobKey("acme", "mail", "a")
    began, lost, refused = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def late() -> None:
        began.set()
        await lost.wait()
        try:
            async with of_asyncpg(url.partition("?")[0]) as connection:
                await connection.execute("INSERT INTO paid VALUES ('a')")
                await current_job().complete_in(connection)
        except LeaseLost:
            refused.set()

    async def handler() -> None:
        if current_job().attempt == 1:
            task = asyncio.create_task(late())
            while not task.done():  # It is asked to stop, and does not.
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(task)

    definition = job(queue="mail")(handler)
    async with Queue(url, tenant="acme") as queue:
        await queue.enqueue(definition.message(), id="a")
        async with running(Worker(queue, jobs=[definition], concurrency=1, prefetch=0)), opened(url) as other:
            await asyncio.wait_for(began.wait(), 20)
            (first,) = await other.get([key])
            await other.shift_clock(3_600_000)
            await other.reap(10, 0.0)
            await other.shift_clock(3_600_000)
            # A process that is just mending the lease may have the row.
            (second,) = await eventually(lambda: claim(other, 1))
            assert second.token > first.token
            lost.set()
            await asyncio.wait_for(refused.wait(), 20)
    assert postgres.sql("SELECT * FROM paid", database) == []


async def test_an_open_transaction_does_not_block_other_renewals(postgres, database):
    """One handler is in its transaction for longer than the lease; the other's lease is still renewed."""
    url = postgres.url(database)
    stalled = []

    async def handler(sits: bool) -> str:
        if sits:
            async with of_asyncpg(url) as connection:
                await current_job().complete_in(connection)
                await asyncio.Event().wait()
        await eventually(lambda: stalled)
        deadline = current_job().deadline
        await eventually(lambda: current_job().deadline > deadline)
        return "done"

    definition = job(queue="mail", max_attempts=1)(handler)
    async with Queue(url, tenant="acme") as queue:
        worker = Worker(queue, jobs=[definition], lease=timedelta(seconds=2))
        worker.on("stalled", lambda event: stalled.append(event.job.id))
        async with running(worker):
            await queue.enqueue(definition.message(True), id="sits")
            goes = await queue.enqueue(definition.message(False), id="events_to_remove")
            assert await goes.wait(timeout=20) == "done"
            assert stalled == ["sits"]
            # Its transaction was rolled back when it learned that.
            await eventually(lambda: queue.get("sits", queue="mail"), lambda job: job.state is JobState.FAILED)


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read"])
async def test_a_transaction_sees_a_later_renewal_by_its_isolation_level(postgres, database, isolation):
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

    async with at_work(url, handler, lease=timedelta(seconds=3)) as (queue, message, reported):
        result = await queue.enqueue_and_wait(message, timeout=20)
        await eventually(lambda: reported == ["completed"])
    assert result == ("from the handler" if raised else "from the transaction")
    assert [("rolled back" in text) for text in raised] == ([True] if isolation == "repeatable_read" else [])


async def test_a_handler_in_a_thread_completes_with_its_own_connection(postgres, database):
    url = postgres.url(database)

    def handler() -> str:
        with psycopg.connect(url) as connection:
            connection.execute("SELECT 1")
            current_job().complete_in_sync(connection, "from the transaction")
        return "from the handler"

    async with at_work(url, handler) as (queue, message, reported):
        assert await queue.enqueue_and_wait(message, timeout=20) == "from the transaction"
        await eventually(lambda: reported == ["completed"])


async def test_a_worker_on_another_store_says_that_it_cannot(postgres, database):
    async def handler() -> None:
        async with of_asyncpg(postgres.url(database)) as connection:
            await current_job().complete_in(connection)

    async with at_work("memory:complete-in", handler) as (queue, message, reported):
        ticket = await queue.enqueue(message)
        await eventually(lambda: reported == ["failed"])
        assert (await ticket.refresh()).errors[-1].type == "Unsupported"


async def test_outside_a_worker_there_is_nothing_to_complete():
    await current_job().complete_in(object())
    current_job().complete_in_sync(object())


def _cancel(id_):
    return Cancel(JobKey("acme", "mail", id_))
