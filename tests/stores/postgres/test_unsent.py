"""Hand-offs whose message cannot be sent, or is lost on its way.

Invariants verified:
- while the server's queue of notifications is full, enqueues and completions are answered as what they are: done
- what was leased to a waiting worker and could not be sent is released at once, with no attempt lost [RETRY-1]
- a worker gives back what was sent to it and did not arrive, long before the lease is over, and runs it once
- also when its connection has ended, and other enqueues, a prune or a restart of the server came in between
"""

import asyncio
from contextlib import asynccontextmanager, suppress

import asyncpg
import pytest

from holdfast.core import waiters as core_waiters
from holdfast.core.errors import StoreUnavailable
from holdfast.core.job import Finished, JobState, Queued
from holdfast.stores.postgres import connection as client
from holdfast.stores.postgres import handoff as offering
from holdfast.stores.postgres.unit_of_work import UnitOfWork
from holdfast.testing.postgres import PostgresServer
from tests.eventually import eventually
from tests.stores.handing_off import place
from tests.stores.load import complete, key, kinds, new, wish
from tests.stores.postgres.support import judge, opened

KEY = key("x")


async def answer_of(url, what):
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(what)
    finally:
        await connection.close()


@asynccontextmanager
async def filled(url):
    """Notifications that a listener which is idle in a transaction never reads."""
    idle, sender = await asyncpg.connect(url), await asyncpg.connect(url)
    await idle.execute("LISTEN stuck")
    await idle.execute("BEGIN")
    await idle.execute("SELECT 1")
    size = 7000
    while size:
        try:
            await sender.execute("SELECT pg_notify('stuck', repeat('x', $1) || random())", size)
        except asyncpg.ProgramLimitExceededError:
            size //= 2
    try:
        yield
    finally:
        await sender.close()
        await idle.close()


async def test_a_hand_off_that_cannot_be_sent_is_released_at_once():
    with PostgresServer(durable=False, max_notify_queue_pages=64) as server:
        server.sql("CREATE DATABASE stranger")
        url = server.url()

        def waiting_now():
            return answer_of(url, "SELECT count(*) FROM holdfast.waiters WHERE expires_at > 0")

        async with opened(url) as store, opened(url) as producer:
            await producer.enqueue([new("warm")])
            (job,) = (await store.claim(wish(1))).jobs
            async with place(store, waiting_now) as (post, came), filled(server.url("stranger")):
                (answer,) = await producer.enqueue([new("x", max_attempts=1)])
                assert answer == Queued("x", JobState.READY)
                assert came == []
                assert await kinds(store, KEY) == ["enqueued", "claimed", "released"]
                # Completions too; and the next one is not even tried.
                assert await producer.finish([complete(job)]) == [Finished(JobState.COMPLETED)]
                assert await producer.enqueue([new("y"), new("z")]) != []
                await producer.enqueue([new("w")])
                assert await kinds(store, key("w")) == ["enqueued"]
                (job,) = (await post.claim(wish(1))).jobs
                assert (job.id, job.attempts) == ("x", 1)
                assert await store.finish([complete(job)]) == [Finished(JobState.COMPLETED)]
            await judge(store)


async def test_a_producer_that_dies_before_it_releases_unsent_jobs_leaves_that_to_the_worker(monkeypatch):
    class DiedError(Exception):
        pass

    async def dies(_):
        raise DiedError

    with PostgresServer(durable=False, max_notify_queue_pages=64) as server:
        server.sql("CREATE DATABASE stranger")
        url = server.url()

        def waiting_now():
            return answer_of(url, "SELECT count(*) FROM holdfast.waiters WHERE expires_at > 0")

        async with opened(url) as store, opened(url) as producer, place(store, waiting_now, limit=3) as (post, _):
            async with filled(server.url("stranger")):
                with monkeypatch.context() as patch:
                    patch.setattr(UnitOfWork, "save", dies)
                    with pytest.raises(DiedError):
                        await producer.enqueue([new("x", max_attempts=1)])
            assert (await comes_back(post, "x")).attempts == 1
            assert await kinds(store, KEY) == ["enqueued", "claimed", "released", "claimed"]


@pytest.mark.parametrize("how", ["claims again", "leaves"])
async def test_a_worker_releases_jobs_that_were_sent_and_did_not_arrive(url, waiting_workers, monkeypatch, how):
    monkeypatch.setattr(core_waiters, "IN_FLIGHT_S", 0.0)
    arrived, take = [], offering.PostgresInbox._take
    monkeypatch.setattr(offering.PostgresInbox, "_take", lambda post, data: arrived.append((post, data)))
    async with opened(url) as store, opened(url) as producer:
        async with place(store, waiting_workers) as (post, came):
            await producer.enqueue([new("x", max_attempts=1)])
            await eventually(lambda: arrived)
            if how == "claims again":
                (job,) = (await post.claim(wish(3))).jobs
                assert (job.id, job.attempts) == ("x", 1)
                take(*arrived[0])  # Too late: another may have it by now.
                assert came == []
        assert (await kinds(store, KEY))[:3] == ["enqueued", "claimed", "released"]
        jobs = (await judge(store)).values()
        assert {(job.attempts, job.state) for job in jobs} <= {(0, JobState.READY), (1, JobState.LEASED)}


@pytest.mark.parametrize(
    "how, cut_at", [("has no room", "withdraw_waiter"), ("leaves", "withdraw_waiter"), ("leaves", "find_leased")]
)
async def test_a_registration_withdrawn_twice_lists_its_handoffs_both_times(
    url, waiting_workers, asked, monkeypatch, how, cut_at
):
    """The reply to the first one is lost with the queue_id, as is the job's message."""
    monkeypatch.setattr(core_waiters, "IN_FLIGHT_S", 0.0)
    arrived, lost = [], []
    monkeypatch.setattr(offering.PostgresInbox, "_take", lambda _, data: arrived.append(data))
    rows = client.AsyncpgSession.rows

    async def cut(session, name, *args):
        found = await rows(session, name, *args)
        if name == cut_at and not lost and (name == "find_leased" or args[2]):
            lost.append(name)
            raise ConnectionResetError
        return found

    async with opened(url) as store, opened(url) as producer:
        async with place(store, waiting_workers) as (post, _):
            await producer.enqueue([new("x", max_attempts=1)])
            await eventually(lambda: arrived)
            monkeypatch.setattr(client.AsyncpgSession, "rows", cut)
            if how == "has no room":
                # Too short a lease to register: it withdraws.
                await post.claim(wish(1, lease_ms=core_waiters.MIN_LEASE_MS - 1))
        assert lost == [cut_at]
        assert (await kinds(store, KEY))[:3] == ["enqueued", "claimed", "released"]
        assert await asked("SELECT count(*) FROM holdfast.waiters") == 0


async def comes_back(post, id_):
    """The job, claimed by this worker, which is patient with a server that was away."""

    async def found():
        with suppress(StoreUnavailable):
            return next((job for job in (await post.claim(wish(3))).jobs if job.id == id_), None)

    return await eventually(found)


@pytest.mark.parametrize("between", ["an enqueue", "a prune"])
async def test_a_worker_whose_connection_ended_releases_the_jobs_sent_to_it(
    url, waiting_workers, hang_up, monkeypatch, between
):
    arrived = []
    monkeypatch.setattr(offering.PostgresInbox, "_take", lambda _, data: arrived.append(data))
    async with opened(url) as store, opened(url) as producer, place(store, waiting_workers, limit=3) as (post, _):
        await producer.enqueue([new("x", max_attempts=1)])
        await eventually(lambda: arrived)
        number = post._channel.number
        assert await hang_up() == 1
        await eventually(lambda: post._channel.number not in (0, number))
        # Nothing has the lock of that registration any more.
        await producer.enqueue([new("y")])
        assert await kinds(store, key("y")) == ["enqueued"]
        if between == "a prune":
            await producer.prune(100)
        assert (await comes_back(post, "x")).attempts == 1
        assert await kinds(store, KEY) == ["enqueued", "claimed", "released", "claimed"]


async def test_a_worker_releases_jobs_sent_before_a_restart_of_the_server(monkeypatch):
    arrived = []
    monkeypatch.setattr(offering.PostgresInbox, "_take", lambda _, data: arrived.append(data))
    with PostgresServer(durable=False) as server:

        def waiting_now():
            return answer_of(server.url(), "SELECT count(*) FROM holdfast.waiters WHERE expires_at > 0")

        async with opened(server.url()) as store, place(store, waiting_now, limit=3) as (post, _):
            await store.enqueue([new("x", max_attempts=1)])
            await eventually(lambda: arrived)
            await asyncio.to_thread(server.restart)
            assert (await comes_back(post, "x")).attempts == 1
            assert await kinds(store, KEY) == ["enqueued", "claimed", "released", "claimed"]


async def test_a_worker_that_waits_during_a_restore_gets_an_error(url, waiting_workers, asked, monkeypatch):
    """A restore has made the tables and has not filled them yet: there is not even a clock."""
    arrived = []
    monkeypatch.setattr(offering.PostgresInbox, "_take", lambda _, data: arrived.append(data))
    async with opened(url) as store, place(store, waiting_workers, limit=1) as (post, _):
        await store.enqueue([new("x", max_attempts=1)])
        await eventually(lambda: arrived)
        kept = await asked("DELETE FROM holdfast.meta RETURNING meta::text")
        for act in (lambda: post.claim(wish(1)), store.now, lambda: store.claim(wish(1)), lambda: store.prune(9)):
            with pytest.raises(StoreUnavailable, match="has no data"):
                await act()
        await asked(f"INSERT INTO holdfast.meta SELECT (x).* FROM (SELECT '{kept}'::holdfast.meta AS x) y")
        assert (await comes_back(post, "x")).attempts == 1
