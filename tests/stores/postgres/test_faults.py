"""Real faults: connections that are cut, a server that dies, a pool that is full."""

import asyncio

import asyncpg
import pytest

from holdfast.core.errors import StoreBusy, StoreUnavailable
from holdfast.core.job import Cancel, Extend, Extended, JobKey, JobState, Lease, Queued, SetResultTtl
from holdfast.stores.postgres.connection import AsyncpgSession
from tests.eventually import eventually
from tests.log import all_events
from tests.stores import load
from tests.stores.postgres.support import claim, complete, fill, new, opened


async def test_a_blocked_id_blocks_only_itself(postgres, database):
    """All items of a batch are stored but the one whose id an open transaction has."""
    async with opened(postgres.url(database)) as store:
        connection = await asyncpg.connect(postgres.url(database))
        async with connection.transaction():
            await store.enqueue([new("held")], connection=connection)
            with pytest.raises(StoreBusy, match="open transaction"):
                await store.enqueue([new(f"other-{n}") for n in range(5)] + [new("held")] + [new("last")])
            assert len(await claim(store, 10)) == 6
        await connection.close()


async def test_an_enqueue_under_a_lease_waits_for_the_transaction_that_has_its_id(postgres, database):
    """As any other does: longer than the fast path, which gives up at once."""
    async with opened(postgres.url(database)) as store:
        await fill(store, 1)
        (job,) = await claim(store, 1)
        connection = await asyncpg.connect(postgres.url(database))
        transaction = connection.transaction()
        await transaction.start()
        await store.enqueue([new("x")], connection=connection)
        enqueuing = asyncio.create_task(store.enqueue([load.new("x")], under=Lease(job.key, job.token)))
        waits = f"SELECT 1 FROM pg_stat_activity WHERE datname = '{database}' AND wait_event_type = 'Lock'"
        slowly = f"{waits} AND query LIKE '%take_ids%'"
        await eventually(lambda: enqueuing.done() or postgres.sql(slowly, database))
        await transaction.rollback()
        assert await enqueuing == [Queued("x", JobState.READY)]
        await connection.close()


async def test_lost_connections_are_replaced(postgres, database):
    async with opened(postgres.url(database)) as store:
        await fill(store, 10)
        jobs = await claim(store, 5)
        postgres.sql(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}' "
            "AND pid <> pg_backend_pid()"
        )
        assert all(answer.state is JobState.COMPLETED for answer in await complete(store, jobs))
        postgres.sql(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}' "
            "AND pid <> pg_backend_pid()"
        )
        assert isinstance((await store.enqueue([new("after")]))[0], Queued)


async def test_no_acknowledged_job_is_lost_when_the_server_dies(durable):
    async with opened(durable.url()) as store:
        acknowledged, stop = [], asyncio.Event()

        async def produce(number):
            n = 0
            while not stop.is_set():
                ids = [f"{number}-{n + k}" for k in range(20)]
                try:
                    await store.enqueue([new(id_) for id_ in ids])
                except (StoreUnavailable, StoreBusy):
                    await asyncio.sleep(0.05)
                    continue
                acknowledged.extend(ids)
                n += 20

        producing = [asyncio.create_task(produce(number)) for number in range(3)]
        await eventually(lambda: len(acknowledged) >= 400)
        await asyncio.to_thread(durable.kill)
        before = len(acknowledged)
        await asyncio.to_thread(durable.restart)
        await eventually(lambda: len(acknowledged) >= before + 200)
        stop.set()
        await asyncio.gather(*producing)
        there = await store.get([new(id_).key for id_ in acknowledged])
        assert all(job is not None for job in there)


async def test_a_full_pool_is_reported_and_renewals_continue(postgres, database):
    """Two connections and a hundred blocked callers: they get StoreBusy, and extend still works."""
    async with opened(postgres.url(database, connections=2, wait_s=2)) as store:
        await fill(store, 2)
        job, other = await claim(store, 2)
        connection = await asyncpg.connect(postgres.url(database))
        async with connection.transaction():
            await connection.execute("SELECT FROM holdfast.jobs WHERE seq = $1 FOR UPDATE", other.seq)
            calls = [asyncio.create_task(complete(store, [other])) for _ in range(100)]
            # One connection waits for the lock; the other one is for renewals.
            await eventually(lambda: connection.fetchval("SELECT 1 FROM pg_locks WHERE NOT granted LIMIT 1"))
            (answer,) = await store.extend([Extend(job.key, job.token, 60_000)])
            assert isinstance(answer, Extended)
            assert not all(call.done() for call in calls), "it had to wait for them"
            ends = await asyncio.gather(*calls, return_exceptions=True)
        assert any(isinstance(end, StoreBusy) and "connections" in str(end) for end in ends)
        await connection.close()


def losing_a_reply(monkeypatch, meanwhile):
    """The next transaction is committed, `meanwhile` happens, and its connection is lost before that is answered."""
    execute, due = AsyncpgSession.execute, [True]

    async def executed(session, text):
        await execute(session, text)
        if text == "COMMIT" and due:
            due.clear()
            await meanwhile()
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

    monkeypatch.setattr(AsyncpgSession, "execute", executed)


async def test_a_repeated_cancel_cancels_one_life_of_the_id(postgres, database, monkeypatch):
    async with opened(postgres.url(database)) as store:
        await store.enqueue([new("x"), new("y")])
        losing_a_reply(monkeypatch, lambda: store.enqueue([load.new("x")]))
        keys = [JobKey("acme", "mail", id_) for id_ in "xy"]
        assert await store.cancel([Cancel(key) for key in keys]) == ["not_found", "canceled"]
        assert [job.state for job in await store.get(keys)] == [JobState.READY, JobState.CANCELED]
        assert [event.kind for event in await all_events(store) if event.job_id == "x"] == [
            "enqueued",
            "canceled",
            "enqueued",
        ]


async def test_a_repeated_change_of_the_result_ttl_changes_one_life(postgres, database, monkeypatch):
    async with opened(postgres.url(database)) as store:
        await store.enqueue([new("x")])
        key = JobKey("acme", "mail", "x")
        await store.cancel([Cancel(key)])

        async def another_life():
            await store.enqueue([load.new("x")])
            await store.cancel([Cancel(key)])

        losing_a_reply(monkeypatch, another_life)
        assert await store.set_result_ttl([SetResultTtl(key, 60_000)]) == ["not_found"]
        (job,) = await store.get([key])
        assert job.result_ttl_ms != 60_000
