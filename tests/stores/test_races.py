"""Many at once for one thing: exactly one gets it.

Invariants verified:
- of N concurrent enqueues of one id or key, by tasks, connections and processes, one is queued [ENQ-2, ENQ-3]
- of a cancel and a claim that race for a job, one is first, and both get the same story [CANCEL-1]
"""

import asyncio
import contextlib
from collections import Counter, defaultdict

import pytest

from holdfast import Queue
from holdfast.core.errors import JobCanceled
from holdfast.core.job import Cancel, Duplicate, Finish, IdempotencyKey, JobState, Queued, Replayed
from holdfast.opening import open_store
from tests.chaos.workers import notes, work
from tests.eventually import eventually
from tests.log import all_events
from tests.stores.load import claim_one, complete, end_gently, key, new, seeded, wish

HANDLES = 5
TIMES = 10
ROUNDS = 10


@pytest.fixture
async def handles(url):
    """Several stores on the same data, each with connections of its own."""
    async with contextlib.AsyncExitStack() as stack:
        handles = []
        for _ in range(HANDLES):
            handles.append(await open_store(url))
            stack.push_async_callback(handles[-1].close)
        yield handles


@pytest.fixture
def enqueue(backend):
    return backend.enqueue


@pytest.mark.parametrize("what", ["id", "key"])
async def test_of_fifty_enqueues_at_once_one_is_queued(enqueue, handles, judge, what):
    for round_ in range(ROUNDS):

        def item(n, round_=round_):
            if what == "id":
                return new(f"id-{round_}")
            return new(f"id-{round_}-{n}", idempotency=IdempotencyKey(f"key-{round_}"))

        calls = [enqueue(store, item(n)) for n, store in enumerate(handles * TIMES)]
        answers = [answer for (answer,) in await asyncio.gather(*calls)]
        assert Counter(map(type, answers)) == {Queued: 1, Duplicate: HANDLES * TIMES - 1}
        assert len({answer.id for answer in answers}) == 1
    (stats,) = await handles[0].stats("acme")
    assert stats.counts[JobState.READY] == ROUNDS
    await judge(handles[0])


@pytest.mark.parametrize("what", ["id", "idempotency_key"])
async def test_of_fifty_enqueues_by_processes_one_is_queued(zygote, url, store, judge, log, tmp_path, what):
    go, keys = tmp_path / "go", [f"k{n}" for n in range(5)]
    order = {"role": "race", "what": what, "keys": keys, "times": 13, "log": log, "go": str(go)}
    pids = [await zygote.start(url, **order) for _ in range(4)]
    await eventually(lambda: len(notes(log, "ready")) == 4)
    go.touch()
    assert [await zygote.end(pid) for pid in pids] == [0] * 4
    for name in keys:
        queued, duplicates = notes(log, f"queued:{name}"), notes(log, f"duplicate:{name}")
        assert (len(queued), len(duplicates)) == (1, 51)
        assert {id_ for id_, *_ in duplicates} == {queued[0][0]}
    assert len(await judge(store)) == len(keys)


async def test_of_many_replays_at_once_one_wins(handles, judge):
    for round_ in range(ROUNDS):
        await handles[0].enqueue([new(f"id-{round_}")])
        job = await claim_one(handles[0])
        await handles[0].finish([Finish(job.key, job.token, "fail")])
        answers = await asyncio.gather(*(store.replay([job.key]) for store in handles * 4))
        assert sum(isinstance(answer, Replayed) for (answer,) in answers) == 1
        await handles[0].cancel([Cancel(job.key)])
    await judge(handles[0])


async def test_no_two_claims_get_the_same_job(handles, judge):
    ids = [f"id-{n}" for n in range(2000)]
    for start in range(0, 2000, 500):
        await handles[0].enqueue([new(id_) for id_ in ids[start : start + 500]])

    async def claim_all(store):
        got = []
        while jobs := (await store.claim(wish(7))).jobs:
            got += jobs
            await store.finish([complete(job) for job in jobs])
        return got

    got = [job for jobs in await asyncio.gather(*map(claim_all, handles * 2)) for job in jobs]
    assert sorted(job.id for job in got) == sorted(ids)
    assert len({job.token for job in got}) == len(got)
    jobs = await judge(handles[0])
    assert {(job.state, job.attempts) for job in jobs.values()} == {(JobState.COMPLETED, 1)}


# Rounds, and jobs in each.
MEETINGS = {"valkey": (100, 100), "postgres": (40, 50)}


async def test_cancel_against_claim_has_one_winner_thousands_of_times(kind, handles, judge):
    rounds, each = MEETINGS[kind]
    claimer, canceler, *_ = handles
    chance = seeded()
    claimed, answers = {}, {}

    async def claim_all(size):
        while jobs := (await claimer.claim(wish(size))).jobs:
            claimed.update({job.id: job for job in jobs})

    async def cancel_all(ids, size):
        for start in range(0, len(ids), size):
            part = ids[start : start + size]
            statuses = await canceler.cancel([Cancel(key(id_)) for id_ in part])
            answers.update(zip(part, statuses, strict=True))

    for round_ in range(rounds):
        ids = [f"{round_}-{n}" for n in range(each)]
        await claimer.enqueue([new(id_) for id_ in ids])
        # Along with the claims, against them, or all over the place: they meet in every way.
        order = {0: ids, 1: ids[::-1], 2: chance.sample(ids, each)}[round_ % 3]
        calls = [claim_all(chance.randint(1, 20)), cancel_all(order, chance.randint(1, 20))]
        await asyncio.gather(*(calls if chance.random() < 0.5 else calls[::-1]))

    assert len(answers) == rounds * each
    assert set(answers.values()) == {"canceled"}
    moves = defaultdict(list)
    for event in await all_events(claimer, "acme"):
        moves[event.job_id].append(event.kind)
    assert {tuple(kinds) for id_, kinds in moves.items() if id_ in claimed} == {("enqueued", "claimed", "canceled")}
    assert {tuple(kinds) for id_, kinds in moves.items() if id_ not in claimed} == {("enqueued", "canceled")}
    # Both were first many times over: it was a race.
    assert len(claimed) > rounds
    assert rounds * each - len(claimed) > rounds
    held = list(claimed.values())
    for start in range(0, len(held), 500):
        acks = await claimer.finish([complete(job) for job in held[start : start + 500]])
        assert {type(ack) for ack in acks} == {JobCanceled}
    jobs = await judge(claimer)
    assert {job.state for job in jobs.values()} == {JobState.CANCELED}


async def test_cancel_against_completion_has_one_winner(handles, judge):
    worker, canceler, *_ = handles
    seen = Counter()
    for round_ in range(25):
        await worker.enqueue([new(f"{round_}-{n}") for n in range(20)])
        jobs = (await worker.claim(wish(20))).jobs

        async def finish_all(jobs=jobs):
            return [(await worker.finish([complete(job)]))[0] for job in jobs]

        async def cancel_all(jobs=jobs):
            return [(await canceler.cancel([Cancel(job.key)]))[0] for job in reversed(jobs)]

        acks, statuses = await asyncio.gather(finish_all(), cancel_all())
        for ack, status in zip(acks, reversed(statuses), strict=True):
            assert isinstance(ack, JobCanceled) == (status == "canceled")
            assert status in ("canceled", "completed")
            seen[status] += 1
    assert seen["canceled"] > 50
    assert seen["completed"] > 50
    await judge(worker)


async def test_one_process_at_a_time_runs_a_job(zygote, url, store, judge, log):
    """Three workers in processes of their own share a queue: no job runs twice."""
    pids = [await zygote.start(url, log=log, concurrency=5) for _ in range(3)]
    async with Queue(url, tenant="acme") as queue:
        ids = [f"job-{n}" for n in range(300)]
        tickets = await queue.enqueue_many([work.message(log).options(id=id_) for id_ in ids])
        await asyncio.gather(*(ticket.wait(timeout=30) for ticket in tickets))
    await end_gently(zygote, *pids)
    assert sorted(id_ for id_, *_ in notes(log, "started")) == sorted(ids)
    jobs = await judge(store)
    assert {(job.state, job.attempts) for job in jobs.values()} == {(JobState.COMPLETED, 1)}
