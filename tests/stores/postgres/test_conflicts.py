"""Transactions that get in each other's way: batches in opposite order, and a database that insists on isolation.

Invariants verified:
- batches that name the same jobs in different orders all come through, each job changed once
- whatever default_transaction_isolation the database has, the store works as ever
- every change takes its locks in one order, also where a job ends while it waits, and where an enqueue looks again:
  ended jobs before ids, and nothing while it holds what an earlier look has locked. None waits in a circle
"""

import asyncio
import contextlib

import asyncpg
import pytest

from holdfast.core.job import (
    Cancel,
    Duplicate,
    Extend,
    Finish,
    IdempotencyKey,
    JobState,
    NewJob,
    Purge,
    Queued,
    Replayed,
)
from holdfast.opening import open_store
from holdfast.store import TenantSettings
from holdfast.stores.postgres import connection as client
from holdfast.stores.postgres import transactions
from tests.eventually import eventually
from tests.stores.load import LEASE_MS, complete, key, new, seeded, wish
from tests.stores.postgres.support import judge, opened, patiently

IDS = [f"id-{n:02}" for n in range(30)]


@pytest.fixture(params=["read committed", "repeatable read", "serializable"])
async def handles(request, postgres, database, url):
    """Several stores, on a database with this default."""
    postgres.sql(f"ALTER DATABASE {database} SET default_transaction_isolation = '{request.param}'")
    async with contextlib.AsyncExitStack() as stack:
        handles = []
        for _ in range(4):
            handles.append(await open_store(url))
            stack.push_async_callback(handles[-1].close)
        yield handles


async def test_batches_in_opposite_order_all_succeed(handles):
    chance = seeded()
    for round_ in range(5):
        queue = f"q{round_}"
        batches = [[new(id_, queue=queue) for id_ in chance.sample(IDS, len(IDS))] for _ in handles]
        answers = await asyncio.gather(*(store.enqueue(b) for store, b in zip(handles, batches, strict=True)))
        for id_ in IDS:
            kinds = [
                type(answer)
                for batch, part in zip(batches, answers, strict=True)
                for item, answer in zip(batch, part, strict=True)
                if item.key.id == id_
            ]
            assert sorted(kinds, key=str) == sorted([Queued] + [Duplicate] * (len(handles) - 1), key=str)
        jobs = (await handles[0].claim(wish(100, queues=(queue,)))).jobs
        assert sorted(job.id for job in jobs) == IDS
        # Renewals, completions and cancels of the same jobs, each in an order of its own.
        orders = [chance.sample(jobs, len(jobs)) for _ in handles]
        extended, done, again, canceled = await asyncio.gather(
            handles[0].extend([Extend(job.key, job.token, LEASE_MS) for job in orders[0]]),
            handles[1].finish([complete(job) for job in orders[1]]),
            handles[2].finish([complete(job) for job in orders[2]]),
            handles[3].cancel([Cancel(job.key) for job in orders[3]]),
        )
        assert len(extended) == len(done) == len(again) == len(canceled) == len(IDS)
        ends = dict(zip((job.id for job in orders[3]), canceled, strict=True))
        now = await handles[0].get([key(id_, queue=queue) for id_ in IDS])
        assert {job.id: job.state.value for job in now} == ends
    await judge(handles[0])


async def test_many_keyed_enqueues_make_one_job(handles):
    items = [new(f"{n}", idempotency=IdempotencyKey("one")) for n in range(20)]
    answers = await asyncio.gather(*(patiently(handles[n % 4], item) for n, item in enumerate(items)))
    assert sum(isinstance(answer, Queued) for (answer,) in answers) == 1
    assert len({answer.id for (answer,) in answers}) == 1
    await judge(handles[0])


async def test_concurrent_claims_and_completions_do_not_deadlock(handles):
    await handles[0].enqueue([new(f"{n}") for n in range(400)])

    async def work(store):
        done = 0
        while jobs := (await store.claim(wish(7))).jobs:
            await store.finish([complete(job) for job in jobs])
            done += len(jobs)
        return done

    assert sum(await asyncio.gather(*map(work, handles))) == 400
    jobs = await judge(handles[0])
    assert {(job.state, job.attempts) for job in jobs.values()} == {(JobState.COMPLETED, 1)}


@pytest.mark.parametrize("quota", [None, 100])
async def test_a_replay_and_a_replacement_do_not_deadlock(postgres, database, url, monkeypatch, quota):
    conflicts = []
    monkeypatch.setattr(client, "is_conflict", conflicts.append)
    item = new("a", idempotency=IdempotencyKey("k"))
    async with contextlib.AsyncExitStack() as stack:
        stores = [await open_store(url) for _ in range(2)]
        for store in stores:
            stack.push_async_callback(store.close)
        store, other = stores
        await store.set_tenant(item.key.tenant, TenantSettings(item.key.queue, None, quota))
        await store.enqueue([item])
        (job,) = (await store.claim(wish(1))).jobs
        await store.finish([Finish(job.key, job.token, "fail")])
        connection = await asyncpg.connect(postgres.url(database))
        stack.push_async_callback(connection.close)
        waiting = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"
        async with connection.transaction():
            await connection.execute("SELECT FROM holdfast.ids FOR UPDATE")
            replay = asyncio.create_task(store.replay([job.key]))
            await eventually(lambda: connection.fetchval(waiting), lambda count: count == 1)
            second = new("a", idempotency=IdempotencyKey("k"))
            enqueue = asyncio.create_task(other.enqueue([NewJob(second.key, second.envelope, replace_failed=True)]))
            await eventually(lambda: connection.fetchval(waiting), lambda count: count == 2)
        assert [type(answer) for answer in await replay + await enqueue] == [Replayed, Duplicate]
        assert conflicts == []


@pytest.fixture
async def pair(url):
    async with opened(url) as store, opened(url) as other:
        yield store, other


@pytest.fixture
async def admin(postgres, database):
    """A connection of another program."""
    connection = await asyncpg.connect(postgres.url(database))
    yield connection
    await connection.close()


@pytest.fixture
def conflicts(monkeypatch):
    """How the server ended transactions that were in each other's way."""
    found, judged = [], client.is_conflict

    def note(error):
        if judged(error):
            found.append(error.sqlstate)
        return judged(error)

    monkeypatch.setattr(client, "is_conflict", note)
    return found


def waiting(admin):
    """How many wait for a lock."""
    return admin.fetchval("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted")


async def blocked(admin, count):
    await eventually(lambda: waiting(admin), lambda found: found == count)


async def test_a_job_that_ends_while_a_cancel_waits_does_not_deadlock(pair, admin, conflicts):
    """The cancel has the id, an enqueue in place of the ended job has that job: one of the two starts again."""
    store, other = pair
    await store.enqueue([new("y", result_ttl_ms=0), new("z")])
    jobs = {job.id: job for job in (await store.claim(wish(2))).jobs}
    async with admin.transaction():
        await admin.execute("SELECT FROM holdfast.jobs WHERE id = 'z' FOR UPDATE")
        async with store.own_transaction() as connection:
            await store.finish([complete(jobs["y"])], connection=connection)
            canceling = asyncio.create_task(other.cancel([Cancel(key("y")), Cancel(key("z"))]))
            await blocked(admin, 1)
        await eventually(lambda: store.get([key("y")]), lambda found: found == [None])
        enqueuing = asyncio.create_task(store.enqueue([new("y")]))
        await blocked(admin, 2)
    assert type((await enqueuing)[0]) is Queued
    assert await canceling in (["not_found", "canceled"], ["canceled", "canceled"])
    assert conflicts == ["40001"]
    await judge(store)


async def test_an_enqueue_that_reads_again_keeps_no_lock_of_its_first_read(pair, admin, conflicts, monkeypatch):
    """Else it would wait for an id with an ended job in hand, as the other one does the other way round."""
    monkeypatch.setattr(transactions, "BRIEF_LOCK_MS", 5000)  # As for a batch of which much is blocked.
    store, other = pair
    await store.enqueue([new("w"), new("y")])
    await store.cancel([Cancel(key("w")), Cancel(key("y"))])
    value, looks, goes_on = client.AsyncpgSession.value, asyncio.Queue(), asyncio.Semaphore(0)

    async def slow(session, name, *args):
        if name == "take_ids" and asyncio.current_task() is first:
            looks.put_nowait(name)
            await goes_on.acquire()
        return await value(session, name, *args)

    async def settled():
        return second.done() or await waiting(admin)

    monkeypatch.setattr(client.AsyncpgSession, "value", slow)
    first = asyncio.create_task(store.enqueue([new("w"), new("y")]))
    await looks.get()
    await other.purge([Purge(key("w"))])  # What the first one has seen is not there any more: it looks again.
    goes_on.release()
    await looks.get()
    second = asyncio.create_task(other.enqueue([new("w"), new("y")]))
    await eventually(settled)
    for _ in range(3):
        goes_on.release()
    kinds = [[type(answer) for answer in answers] for answers in (await first, await second)]
    assert sorted(kinds, key=str) == [[Duplicate, Duplicate], [Queued, Queued]]
    assert conflicts == []
    await judge(store)
