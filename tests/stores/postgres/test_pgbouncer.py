"""Behind pgbouncer in transaction mode, with `listen=0`. Only where the program is installed."""

import asyncio

import asyncpg
import psycopg
import pytest

from holdfast import Queue, Worker, current_job, job
from holdfast.core.errors import StoreError
from tests.stores.load import running
from tests.stores.postgres.bouncer import bouncing, needs_bouncer
from tests.stores.postgres.support import claim, complete, fill, new, opened

pytestmark = needs_bouncer


@pytest.fixture(scope="module")
def bouncer(postgres):
    with bouncing(postgres) as bouncer:
        yield bouncer


async def test_the_store_works_through_pgbouncer(bouncer, database):
    async with opened(bouncer.url(database, listen=0)) as store:
        await fill(store, 300)
        jobs = [job for _ in range(3) for job in await claim(store, 100)]
        assert len({job.id for job in jobs}) == 300
        await complete(store, jobs)
        assert [job.state for job in await store.get([jobs[0].key])] == ["completed"]


async def test_many_starters_at_once_make_one_schema(bouncer, database):
    """The lock is held by a transaction: a lock of a session would stay with whatever connection it was taken on."""

    async def start():
        async with opened(bouncer.url(database, listen=0)):
            pass

    await asyncio.gather(*(start() for _ in range(8)))


async def test_a_worker_behind_pgbouncer_polls(bouncer, database):
    @job(queue="mail")
    async def double(n: int) -> int:
        return 2 * n

    async with Queue(bouncer.url(database, listen=0), tenant="acme") as queue, running(Worker(queue, jobs=[double])):
        assert await queue.enqueue_and_wait(double.message(1), timeout=20) == 2
        async with Queue(bouncer.url(database, listen=0), tenant="acme") as other:
            assert await other.enqueue_and_wait(double.message(2), timeout=20) == 4


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_transaction_through_pgbouncer_can_be_joined(bouncer, database, driver):
    async with opened(bouncer.url(database, listen=0)) as store:
        if driver == "asyncpg":
            connection = await asyncpg.connect(bouncer.url(database), statement_cache_size=0)
            async with connection.transaction():
                await store.enqueue([new("a")], connection=connection)
            await connection.close()
        else:
            connecting = psycopg.AsyncConnection.connect(bouncer.url(database), prepare_threshold=None)
            async with await connecting as connection:
                await store.enqueue([new("a")], connection=connection)
        assert [job.id for job in await claim(store, 10)] == ["a"]


async def test_a_job_can_be_completed_through_pgbouncer(bouncer, database):
    @job(queue="mail")
    async def pay() -> str:
        connection = await asyncpg.connect(bouncer.url(database), statement_cache_size=0)
        async with connection.transaction():
            await current_job().complete_in(connection, "paid")
        await connection.close()
        return "not this"

    async with Queue(bouncer.url(database, listen=0), tenant="acme") as queue, running(Worker(queue, jobs=[pay])):
        assert await queue.enqueue_and_wait(pay.message(), timeout=20) == "paid"


async def test_the_doctor_recognises_pgbouncer(bouncer, database):
    async with opened(bouncer.url(database, listen=0)) as store:
        found = {finding.subject: finding for finding in await store.doctor()}
    assert (found["pooler"].level, "pooler answers" in found["pooler"].text) == ("ok", True)
    assert "ALTER ROLE" in found["timeouts"].cure


async def test_without_listen_0_the_error_names_the_option_to_add(bouncer, database):
    with pytest.raises(StoreError, match="listen=0"):
        async with opened(bouncer.url(database)):
            pass
