"""Another open transaction has locked a job, or waits for it: which calls wait, which must not. [ENQ-7, LEASE-4]

Invariants verified:
- an enqueue that joined a transaction and was a duplicate holds nothing: not the job, its id or its key
- of a batch with a job that another transaction has locked, all others are renewed and finished, and none twice
- a call that waits for an id delays no other call of the tenant, and no prune
- a call that waited for a lock until the lease had run out is late [LEASE-1]
"""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import pytest
from msgspec.structs import replace

from holdfast import Queue, StoreBusy, Worker, current_job, job
from holdfast.core.errors import LeaseExpired, NotReplayable
from holdfast.core.job import (
    AlreadyCompleted,
    Cancel,
    Duplicate,
    Extend,
    Extended,
    Finish,
    Finished,
    IdempotencyKey,
    JobKey,
    JobState,
    NewJob,
    Queued,
    Replayed,
)
from holdfast.store import TenantSettings
from holdfast.stores.postgres.connection import PATIENT_LOCK_MS, PostgresClient
from holdfast.stores.postgres.transactions import BRIEF_LOCK_MS
from tests.eventually import eventually
from tests.log import all_events
from tests.stores.load import running
from tests.stores.postgres.support import claim, complete, fill, judge, new, opened, patiently
from tests.stores.postgres.transactions import WAYS

DRIVERS = ["asyncpg", "psycopg"]
LONG_MS = 4_000
"""A lease that a slow machine keeps too."""
# Not pg_stat_activity, which stays within a transaction as it was at the first look.
WAITING = "SELECT virtualtransaction FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted"


def again(id_, n=0, *, replace_failed=False, **fields):
    """Another request for an id."""
    item = new(id_, **fields)
    return NewJob(item.key, replace(item.envelope, request_id=f"again-{n}"), replace_failed=replace_failed)


def renewals(jobs, lease_ms=120_000):
    return [Extend(job.key, job.token, lease_ms) for job in jobs]


@asynccontextmanager
async def held(url, id_):
    """The row of a job, locked by another transaction."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute("SELECT FROM holdfast.jobs WHERE id = $1 FOR UPDATE", id_)
            yield connection
    finally:
        await connection.close()


# Duplicates hold nothing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", DRIVERS)
async def test_a_duplicate_of_a_running_job_does_not_lock_it(postgres, database, way):
    url = postgres.url(database)
    async with opened(url) as store:
        await fill(store, 10)
        jobs = await claim(store, 10)
        async with WAYS[way](url) as connection:
            (answer,) = await store.enqueue([again(jobs[4].id)], connection=connection)
            assert answer == Duplicate(jobs[4].id, JobState.LEASED)
            assert all(isinstance(answer, Extended) for answer in await store.extend(renewals(jobs)))
            assert {answer.state for answer in await complete(store, jobs)} == {JobState.COMPLETED}
        await judge(store)


@pytest.mark.parametrize("way", DRIVERS)
async def test_a_duplicate_of_a_waiting_job_does_not_lock_it(postgres, database, way):
    """Other calls claim, fail, cancel and enqueue it as if it were not locked."""
    url = postgres.url(database)
    async with opened(url) as store:
        await store.enqueue([new("a"), new("b")])
        async with WAYS[way](url) as connection:
            answers = await store.enqueue([again("a"), again("b"), new("c")], connection=connection)
            assert [type(answer) for answer in answers] == [Duplicate, Duplicate, Queued]
            assert type((await store.enqueue([again("a")]))[0]) is Duplicate
            first, second = await claim(store, 10)
            await store.finish([Finish(first.key, first.token, "fail")])
            assert await store.cancel([Cancel(second.key)]) == ["canceled"]
        await judge(store)


async def test_a_duplicate_by_key_or_of_a_completed_job_does_not_lock_it(postgres, database):
    url = postgres.url(database)
    key = IdempotencyKey("k")
    async with opened(url) as store:
        await fill(store, 1)
        jobs = await claim(store, 1)
        await complete(store, jobs)
        await store.enqueue([new("a", idempotency=key)])
        async with WAYS["asyncpg"](url) as connection:
            items = [again("b", idempotency=key), again(jobs[0].id, idempotency=key)]
            answers = await store.enqueue(items, connection=connection)
            assert [type(answer) for answer in answers] == [Duplicate, AlreadyCompleted]
            assert type((await store.enqueue([again("c", idempotency=key)]))[0]) is Duplicate
            assert [job.id for job in await claim(store, 1)] == ["a"]
            assert isinstance((await store.enqueue([again("b")]))[0], Queued)


async def test_a_batch_is_answered_in_order_whatever_jobs_exist(postgres, database):
    """An enqueue after one that is accepted is a duplicate of that one, and not of the job that it replaced."""
    key = IdempotencyKey("k")
    async with opened(postgres.url(database)) as store:
        await store.enqueue([new("a"), new("b")])
        await store.cancel([Cancel(new("a").key)])
        items = [again("b"), again("a"), new("a"), new("c", idempotency=key), new("d", idempotency=key), new("e")]
        answers = await store.enqueue(items)
        kinds = [Duplicate, Queued, Duplicate, Queued, Duplicate, Queued]
        assert [type(answer) for answer in answers] == kinds
        assert [answer.id for answer in answers] == ["b", "a", "a", "c", "c", "e"]
        await judge(store)


async def test_of_concurrent_replacements_of_an_ended_job_one_is_queued(postgres, database):
    async with opened(postgres.url(database)) as store, opened(postgres.url(database)) as other:
        for round_ in range(10):
            id_ = f"job-{round_}"
            await store.enqueue([new(id_)])
            await store.cancel([Cancel(new(id_).key)])
            calls = [patiently((store, other)[n % 2], again(id_, n)) for n in range(20)]
            answers = [answer for (answer,) in await asyncio.gather(*calls)]
            assert Counter(map(type, answers)) == {Queued: 1, Duplicate: 19}
        await judge(store)


async def test_of_a_concurrent_replay_and_replacement_one_wins(postgres, database):
    async with opened(postgres.url(database)) as store, opened(postgres.url(database)) as other:
        won = Counter()
        for round_ in range(20):
            id_ = f"job-{round_}"
            await store.enqueue([new(id_)])
            (one,) = await claim(store, 1)
            await store.finish([Finish(one.key, one.token, "fail")])
            (replayed,), (queued,) = await asyncio.gather(
                store.replay([one.key]), patiently(other, again(id_, replace_failed=True))
            )
            assert isinstance(replayed, Replayed) != isinstance(queued, Queued)
            assert isinstance(replayed, (Replayed, NotReplayable))
            won[type(queued)] += 1
            await store.cancel([Cancel(one.key)])
        assert won.total() == 20
        await judge(store)


# An id that another has locked --------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["enqueue", "replay"])
async def test_an_enqueue_that_waits_for_an_id_does_not_block_its_tenant(postgres, database, what):
    """Also where a quota makes its enqueues wait for each other. [ENQ-7]"""
    url = postgres.url(database)
    async with opened(url) as store, opened(url) as other:
        await store.set_tenant("acme", TenantSettings("mail", None, 1000))
        await store.enqueue([new("a")])
        (one,) = await claim(store, 1)
        await store.finish([Finish(one.key, one.token, "fail")])
        async with WAYS["asyncpg"](url) as connection:
            await store.enqueue([again("a", replace_failed=True)], connection=connection)
            call = store.replay([one.key]) if what == "replay" else store.enqueue([again("a", 1, replace_failed=True)])
            waiting = asyncio.create_task(call)
            await eventually(lambda: connection.fetchval(WAITING))
            assert isinstance((await other.enqueue([new("b")]))[0], Queued)
            assert not waiting.done()
        assert isinstance((await waiting)[0], NotReplayable if what == "replay" else Duplicate)
        await judge(store)


async def test_a_batch_with_keys_waits_briefly_until_the_blocked_item_is_known(postgres, database, monkeypatch):
    url = postgres.url(database)
    waits = []
    change = PostgresClient.change

    async def noted(self, work, **options):
        waits.append(options["lock_ms"])
        return await change(self, work, **options)

    monkeypatch.setattr(PostgresClient, "change", noted)
    items = [new(f"job-{n}", idempotency=IdempotencyKey(f"key-{n}")) for n in range(4)]
    async with opened(url) as store:
        async with WAYS["asyncpg"](url) as connection:
            await store.enqueue([new("other", idempotency=IdempotencyKey("key-1"))], connection=connection)
            enqueueing = asyncio.create_task(store.enqueue(items))
            await eventually(lambda: PATIENT_LOCK_MS in waits)
            assert [job is None for job in await store.get([item.key for item in items])] == [False, True, False, False]
        assert [type(answer) for answer in await enqueueing] == [Queued, Duplicate, Queued, Queued]
        assert set(waits[:-1]) == {BRIEF_LOCK_MS}


async def test_the_second_replacement_of_an_ended_job_holds_no_lock(postgres, database):
    url = postgres.url(database)
    first, second = (again("a", n, idempotency=IdempotencyKey(f"key-{n}")) for n in range(2))
    async with opened(url) as store:
        await store.enqueue([new("a")])
        await store.cancel([Cancel(new("a").key)])
        async with WAYS["asyncpg"](url) as late:
            async with WAYS["asyncpg"](url) as early:
                await store.enqueue([first], connection=early)
                waiting = asyncio.create_task(store.enqueue([second], connection=late))
                await eventually(lambda: early.fetchval(WAITING))
            assert await waiting == [Duplicate("a", JobState.READY)]
            assert await store.cancel([Cancel(first.key)]) == ["canceled"]
        await judge(store)


async def test_ids_are_taken_all_or_none(postgres, database):
    url = postgres.url(database)
    async with opened(url) as store:
        await store.enqueue([new("b")])
        async with WAYS["asyncpg"](url) as connection:
            lane = await connection.fetchval("SELECT lane FROM holdfast.ids")
            take = "SELECT holdfast.take_ids($1, $2, $3, ARRAY[value]) FROM holdfast.generation"
            assert await connection.fetchval(take, [lane] * 3, ["a", "b", "c"], [0] * 3) is None
            assert await connection.fetchval("SELECT array_agg(id) FROM holdfast.ids") == ["b"]
            assert await connection.fetchval(take, [lane] * 2, ["a", "c"], [0] * 2) is not None


async def test_the_pruner_skips_a_job_while_its_id_is_locked(postgres, database):
    url = postgres.url(database)
    async with opened(url) as store:
        await store.enqueue([new(id_, result_ttl_ms=0) for id_ in ("a", "b")])
        await complete(store, await claim(store, 2))
        async with WAYS["asyncpg"](url) as connection:
            await connection.execute("SELECT FROM holdfast.ids WHERE id = 'a' FOR UPDATE")
            assert (await store.prune(100)).jobs == 1
        assert (await store.prune(100)).jobs == 1


# A job that another has locked --------------------------------------------------------------------------------


async def test_a_locked_job_is_renewed_and_completed_separately(postgres, database):
    url = postgres.url(database)
    async with opened(url) as store:
        await fill(store, 10)
        jobs = await claim(store, 10)
        others = [job for job in jobs if job is not jobs[4]]
        async with held(url, jobs[4].id):
            with pytest.raises(StoreBusy, match="open transaction"):
                await store.extend(renewals(jobs))
            now = await store.get([job.key for job in others])
            assert all(found.deadline > job.deadline for found, job in zip(now, others, strict=True))
            with pytest.raises(StoreBusy, match="open transaction"):
                await complete(store, jobs)
            assert {job.state for job in await store.get([job.key for job in others])} == {JobState.COMPLETED}
        assert {answer.state for answer in await complete(store, jobs)} == {JobState.COMPLETED}
        assert Counter(event.kind for event in await all_events(store))["completed"] == 10
        await judge(store)


async def test_no_outcome_of_a_batch_waits_for_a_locked_job(postgres, database):
    url = postgres.url(database)
    async with opened(url) as store:
        await fill(store, 10)
        jobs = await claim(store, 10)
        async with held(url, jobs[4].id):
            with pytest.raises(StoreBusy):
                await store.finish([Finish(job.key, job.token, "fail") for job in jobs])
            states = Counter(job.state for job in await store.get([job.key for job in jobs]))
            assert states == {JobState.FAILED: 9, JobState.LEASED: 1}
        await judge(store)


async def test_a_job_completed_in_a_batch_with_a_locked_job_is_completed_once(postgres, database):
    """Asked again, a job that is not kept would not be found."""
    url = postgres.url(database)
    async with opened(url) as store:
        await store.enqueue([new(f"job-{n:02}", result_ttl_ms=0) for n in range(16)])
        jobs = await claim(store, 16)
        outcomes = ["complete"] * 14 + ["release"] * 2
        items = [Finish(job.key, job.token, outcome) for job, outcome in zip(jobs, outcomes, strict=True)]
        tries = set()

        async def look():
            tries.add(await connection.fetchval(WAITING))
            return len(tries - {None}) >= 2

        async with held(url, jobs[15].id) as connection:
            finishing = asyncio.create_task(store.finish(items))
            await eventually(look)
        states = [JobState.COMPLETED] * 14 + [JobState.READY] * 2
        assert await finishing == [Finished(state) for state in states]
        assert Counter(event.kind for event in await all_events(store))["completed"] == 14


async def test_the_other_outcomes_of_a_batch_do_not_wait_for_a_blocked_completion(postgres, database):
    url = postgres.url(database)
    async with opened(url) as store:
        await fill(store, 16)
        jobs = await claim(store, 16)
        outcomes = ["complete"] * 8 + ["fail"] * 8
        async with held(url, jobs[0].id):
            with pytest.raises(StoreBusy):
                await store.finish([Finish(job.key, job.token, end) for job, end in zip(jobs, outcomes, strict=True)])
            states = Counter(job.state for job in await store.get([job.key for job in jobs]))
            assert states == {JobState.COMPLETED: 7, JobState.FAILED: 8, JobState.LEASED: 1}
        await judge(store)


async def test_a_worker_keeps_the_leases_of_the_others(postgres, database):
    """Another transaction locks one of its jobs for longer than a lease."""
    url = postgres.url(database)
    stalled, started, go_on = [], [], asyncio.Event()

    @job(queue="mail", max_attempts=1)
    async def sit() -> str:
        started.append(current_job().id)
        await go_on.wait()
        return "sat"

    async with Queue(url, tenant="acme") as queue:
        worker = Worker(queue, jobs=[sit], concurrency=5, lease=timedelta(milliseconds=LONG_MS))
        worker.on("stalled", lambda event: stalled.append(event.job.id))
        async with running(worker):
            tickets = await queue.enqueue_many([sit.message().options(id=f"job-{n}") for n in range(5)])
            await eventually(lambda: len(started) == 5)
            async with held(url, "job-2"):
                others = [ticket for ticket in tickets if ticket.id != "job-2"]
                keys = [JobKey("acme", "mail", ticket.id) for ticket in others]
                first = {one.deadline for one in await queue.store.get(keys)}
                # Each was renewed, and again: the last of the first leases would be over by then.
                await eventually(
                    lambda: queue.store.get(keys),
                    lambda jobs: min(one.deadline for one in jobs) > max(first) + LONG_MS,
                )
                go_on.set()
                assert [await ticket.wait(timeout=20) for ticket in others] == ["sat"] * 4
            assert set(stalled) <= {"job-2"}


@pytest.mark.parametrize("what", ["complete", "extend", "fail"])
async def test_a_completion_that_waited_past_its_deadline_is_too_late(postgres, database, url, what):
    """Also if the lock was all there was, and the row is as it had been."""
    async with opened(url) as store:
        await fill(store, 1)
        jobs = await claim(store, 1)

        async def act():
            if what == "extend":
                return await store.extend(renewals(jobs))
            return await store.finish([Finish(job.key, job.token, what) for job in jobs])

        async with held(postgres.url(database), jobs[0].id) as connection:
            acting = asyncio.create_task(act())
            await eventually(lambda: connection.fetchval(WAITING))
            await store.shift_clock(60_000)
        (answer,) = await acting
        assert isinstance(answer, LeaseExpired)
        assert (await store.get([jobs[0].key]))[0].state is JobState.LEASED
