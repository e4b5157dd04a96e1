"""A change that comes upon a job which was enqueued after it had taken its locks.

Invariants verified:
- a call that found no job to lock acts on none, whatever is there by the next statement [CANCEL-1, STATE-2, KEEP-1]
- a purge and a change of the result TTL reach the life of an id that they locked, and leave the next one alone [ENQ-2]
- a write that does not reach what it means is rolled back, tried again, and raises if that goes on
- an expired key that another job binds at this moment is not dropped by the pruner [ENQ-3]
"""

import asyncio

import asyncpg
import pytest

from holdfast import StoreBusy
from holdfast.core.errors import JobNotFound
from holdfast.core.job import (
    Cancel,
    Duplicate,
    Finish,
    Finished,
    IdempotencyKey,
    JobState,
    Purge,
    Queued,
    Replayed,
    SetResultTtl,
)
from holdfast.stores.postgres import connection as client
from tests.eventually import eventually
from tests.stores.load import claim_one, complete, key, new
from tests.stores.postgres.support import judge, opened

KEY = key("x")
WRITES = ("end_jobs", "revive_jobs", "save_jobs", "save_expiry", "forget_jobs", "drop_ids")


class Late:
    """A call that is stopped when it has its locks, and again before it writes."""

    def __init__(self, monkeypatch):
        self._task = None
        self._locked, self._goes_on = asyncio.Event(), asyncio.Event()
        self._writes, self._may_write = asyncio.Event(), asyncio.Event()
        value, rows = client.AsyncpgSession.value, client.AsyncpgSession.rows

        async def slow_value(session, name, *args):
            found = await value(session, name, *args)
            if name == "lock_jobs" and asyncio.current_task() is self._task:
                self._locked.set()
                await self._goes_on.wait()
            return found

        async def slow_rows(session, name, *args):
            if name in WRITES and asyncio.current_task() is self._task:
                self._writes.set()
                await self._may_write.wait()
            return await rows(session, name, *args)

        monkeypatch.setattr(client.AsyncpgSession, "value", slow_value)
        monkeypatch.setattr(client.AsyncpgSession, "rows", slow_rows)

    async def begin(self, call):
        """Until it has its locks."""
        self._task = asyncio.create_task(call)
        await self._locked.wait()

    async def go_on(self):
        """Until it is about to write, or done."""
        self._goes_on.set()
        writes = asyncio.create_task(self._writes.wait())
        await asyncio.wait({self._task, writes}, return_when=asyncio.FIRST_COMPLETED)
        writes.cancel()

    async def end(self):
        self._may_write.set()
        return (await self._task)[0]


@pytest.fixture
async def late(monkeypatch):
    return Late(monkeypatch)


@pytest.fixture
async def stores(url):
    async with opened(url) as store, opened(url) as other:
        await store.enqueue([new("warm", delay_ms=9_000_000)])
        yield store, other


async def end_badly(store):
    job = await claim_one(store)
    await store.finish([Finish(job.key, job.token, "fail")])


async def test_a_cancel_does_not_touch_a_job_that_came_after_its_lock(late, stores):
    store, other = stores
    await late.begin(other.cancel([Cancel(KEY)]))
    await store.enqueue([new("x")])
    await late.go_on()
    assert await store.finish([complete(await claim_one(store))]) == [Finished(JobState.COMPLETED)]
    assert await late.end() == "not_found"
    assert (await judge(store))[KEY].state is JobState.COMPLETED


async def test_a_late_purge_leaves_the_next_life_alone(late, stores, asked):
    store, other = stores
    await late.begin(other.purge([Purge(KEY)]))
    await store.enqueue([new("x")])
    await store.cancel([Cancel(KEY)])
    await late.go_on()
    assert type((await store.enqueue([new("x")]))[0]) is Queued
    assert await late.end() == "not_found"
    assert type((await store.enqueue([new("x")]))[0]) is Duplicate
    assert (await judge(store))[KEY].state is JobState.READY
    assert await asked("SELECT count(*) FROM holdfast.jobs j LEFT JOIN holdfast.ids i USING (seq) WHERE i IS NULL") == 0


async def test_a_change_of_the_ttl_does_not_answer_for_a_removed_job(late, stores):
    store, other = stores
    await late.begin(other.set_result_ttl([SetResultTtl(KEY, 1)]))
    await store.enqueue([new("x")])
    await store.cancel([Cancel(KEY)])
    await late.go_on()
    await store.enqueue([new("x")])
    assert await late.end() == "not_found"
    assert (await judge(store))[KEY].state is JobState.READY


async def test_a_late_replay_does_not_start_a_job_a_second_time(late, stores):
    store, other = stores
    await late.begin(other.replay([KEY]))
    await store.enqueue([new("x")])
    await end_badly(store)
    await late.go_on()
    assert await store.replay([KEY]) == [Replayed()]
    assert type(await late.end()) is JobNotFound
    assert (await judge(store))[KEY].state is JobState.READY


async def test_a_write_that_changes_too_few_rows_is_rolled_back_and_repeated(monkeypatch, stores):
    """The row is deleted in the same transaction, despite its lock; a rollback restores everything."""
    store, _ = stores
    rows, tries = client.AsyncpgSession.rows, []
    limit = 2

    async def lose_it_before(session, name, *args):
        if name == "end_jobs" and len(tries) < limit:
            tries.append(name)
            await session.execute("DELETE FROM holdfast.jobs WHERE id = 'x'")
        return await rows(session, name, *args)

    monkeypatch.setattr(client.AsyncpgSession, "rows", lose_it_before)
    monkeypatch.setattr(client, "PAUSE_S", 0)
    await store.enqueue([new("x")])
    assert await store.cancel([Cancel(KEY)]) == ["canceled"]
    assert len(tries) == 2
    await store.enqueue([new("x")])
    limit = 100
    with pytest.raises(StoreBusy, match="0 of 1 rows were changed"):
        await store.cancel([Cancel(KEY)])
    assert len(tries) == 2 + client.TRIES
    assert (await judge(store))[KEY].state is JobState.READY


async def test_the_pruner_keeps_a_key_that_is_bound_again(postgres, database, stores, asked):
    store, other = stores
    bound = IdempotencyKey("k", "ttl", 1000)
    await store.enqueue([new("a", idempotency=bound)])
    await store.shift_clock(1000)
    connection = await asyncpg.connect(postgres.url(database))
    try:
        async with connection.transaction():
            (answer,) = await store.enqueue([new("b", idempotency=bound)], connection=connection)
            assert type(answer) is Queued
            pruning = asyncio.create_task(other.prune(100))

            async def done_or_waiting():
                return pruning.done() or await asked("SELECT count(*) FROM pg_locks WHERE NOT granted")

            await eventually(done_or_waiting)
        await pruning
    finally:
        await connection.close()
    (answer,) = await store.enqueue([new("c", idempotency=bound)])
    assert answer == Duplicate("b", JobState.READY)
