"""Workers that wait and are handed jobs as they come: what becomes of the jobs when one of the two is gone.

Invariants verified:
- a frozen worker delays at most the jobs that it registered for, and for no longer than a lease
- the registration of a dead worker is not used; a job that was sent and did not arrive is released by its worker
- a worker that leaves gets what is on its way and gives it back: no attempt is lost, and nothing comes afterwards
- no worker gets a job that it has no room for while others are free
"""

import asyncio
import os
import signal
import threading
from datetime import timedelta

import pytest

from holdfast import Queue
from holdfast.core.job import JobState
from holdfast.opening import open_store
from holdfast.stores.postgres import handoff as postgres_handoff
from holdfast.stores.redis import handoff as redis_handoff
from tests.chaos import ledger
from tests.chaos.workers import TENANT, notes, wait_politely, work
from tests.eventually import eventually
from tests.log import all_events
from tests.stores.handing_off import LEASE_S, SOON_S, Runs, place, states, waiting, working
from tests.stores.load import drained, key, new, wish


@pytest.fixture
async def queue(url):
    async with Queue(url, tenant=TENANT) as queue:
        yield queue


# Processes ----------------------------------------------------------------------------------------------------


async def test_a_frozen_worker_delays_no_more_jobs_than_it_registered_for(zygote, queue, url, log, waiting_workers):
    frozen = await zygote.start(url, log=log, concurrency=2, lease_s=LEASE_S)
    await waiting(waiting_workers, 1)
    os.kill(frozen, signal.SIGSTOP)
    await zygote.stopped(frozen)
    ids = [f"job-{n}" for n in range(5)]
    for id_ in ids:
        await queue.enqueue(work.message(log), id=id_)
    assert await states(queue, *ids) == [JobState.LEASED] * 2 + [JobState.READY] * 3
    other = await zygote.start(url, log=log, concurrency=2, lease_s=LEASE_S)
    await eventually(lambda: states(queue, *ids[2:]), lambda found: found == [JobState.COMPLETED] * 3)
    assert await states(queue, *ids[:2]) == [JobState.LEASED] * 2
    await queue.store.shift_clock(LEASE_S * 1000)
    await eventually(lambda: states(queue, *ids), lambda found: found == [JobState.COMPLETED] * 5)
    assert {pid for *_, pid in notes(log, "effect")} == {other}
    os.kill(frozen, signal.SIGCONT)
    for pid in (frozen, other):
        os.kill(pid, signal.SIGTERM)
        assert await zygote.end(pid) == 0
    jobs = await ledger.check(queue.store, TENANT, ids)
    assert [jobs[id_].attempts for id_ in ids] == [2, 2, 1, 1, 1]


async def test_jobs_for_a_killed_worker_are_run_by_another(zygote, queue, url, log, waiting_workers, heard):
    pids = [await zygote.start(url, log=log, concurrency=4, lease_s=LEASE_S) for _ in range(3)]
    await waiting(waiting_workers, 3)
    for pid in pids[:2]:
        os.kill(pid, signal.SIGKILL)
        await zygote.end(pid)
    await eventually(heard, lambda found: found == 1)
    ids = [f"job-{n}" for n in range(12)]
    for id_ in ids:
        ticket = await queue.enqueue(work.message(log), id=id_)
        await ticket.wait(timeout=SOON_S)
    jobs = await ledger.check(queue.store, TENANT, ids)
    assert {job.attempts for job in jobs.values()} == {1}
    assert {pid for *_, pid in notes(log, "effect")} == {pids[2]}


async def test_jobs_wait_for_the_next_worker_after_the_last_was_killed(zygote, queue, url, log, waiting_workers, heard):
    first = await zygote.start(url, log=log, concurrency=4, lease_s=LEASE_S)
    await waiting(waiting_workers, 1)
    os.kill(first, signal.SIGKILL)
    await zygote.end(first)
    await eventually(heard, lambda found: found == 0)
    ticket = await queue.enqueue(work.message(log), id="x")
    assert await states(queue, "x") == [JobState.READY]
    await zygote.start(url, log=log, lease_s=LEASE_S)
    await ticket.wait(timeout=SOON_S)
    jobs = await ledger.check(queue.store, TENANT, ["x"])
    assert jobs["x"].attempts == 1


async def test_a_short_job_does_not_wait_behind_a_long_one_while_another_worker_is_free(
    zygote, queue, url, log, tmp_path
):
    """Also when the workers were busy just before, and would claim ahead."""
    pids = [await zygote.start(url, log=log, concurrency=1, lease_s=LEASE_S) for _ in range(2)]
    ids = []
    for round_ in range(5):
        go_on = tmp_path / f"go on {round_}"
        ids += (rush := [f"{round_}-rush-{n}" for n in range(30)])
        messages = [work.message(log).options(id=id_) for id_ in rush]
        ids.append(long := f"{round_}-long")
        await queue.enqueue_many([*messages, wait_politely.message(log, str(go_on)).options(id=long)])
        await eventually(lambda long=long: [line for line in notes(log, "started") if line[0] == long])
        for n in range(4):
            ids.append(short := f"{round_}-short-{n}")
            ticket = await queue.enqueue(work.message(log), id=short)
            await ticket.wait(timeout=SOON_S)
        assert await states(queue, long) == [JobState.LEASED]
        go_on.touch()
        await eventually(lambda long=long: states(queue, long), lambda found: found == [JobState.COMPLETED])
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
        assert await zygote.end(pid) == 0
    jobs = await ledger.check(queue.store, TENANT, ids)
    assert {job.attempts for job in jobs.values()} == {1}


# The line -----------------------------------------------------------------------------------------------------


async def test_a_lost_connection_loses_no_later_job(proxy, far_url, queue, waiting_workers, store, judge):
    runs = Runs()
    async with working(far_url, runs.job):
        for n in range(5):
            await waiting(waiting_workers, 1)
            assert proxy.drop_all() > 0
            ticket = await queue.enqueue(runs.job.message(n), id=f"{n}")
            # It may have been sent on the line while the server did not know yet that this was cut.
            await eventually(
                lambda n=n: states(queue, f"{n}"),
                lambda found: found in ([JobState.COMPLETED], [JobState.LEASED]),
            )
            if await states(queue, f"{n}") == [JobState.LEASED] and f"{n}" not in runs.all:
                await queue.store.shift_clock(LEASE_S * 1000)
            assert await ticket.wait(timeout=SOON_S) == n
    assert runs.twice == []
    assert set(runs.all) == {f"{n}" for n in range(5)}
    jobs = await judge(store)
    assert {job.state for job in jobs.values()} == {JobState.COMPLETED}
    # One that was just about to start when the clock was moved has run again, and that was counted.
    assert all(runs.all.count(found.id) <= found.attempts for found in jobs.values())


async def test_a_job_that_did_not_arrive_costs_no_attempt(proxy, far_url, queue, waiting_workers, heard, store, judge):
    """The worker lives and connects again: it learns what was sent, and releases what never came. [RETRY-2]"""
    runs = Runs()
    async with working(far_url, runs.job):
        await waiting(waiting_workers, 1)
        proxy.freeze()
        tickets = [await queue.enqueue(runs.job.message(n), id=f"{n}") for n in range(3)]
        assert await states(queue, "0", "1", "2") == [JobState.LEASED] * 3
        proxy.drop_all()
        await eventually(heard, lambda found: found == 0)
        proxy.thaw()
        assert await queue.enqueue_and_wait(runs.job.message(3), id="3", timeout=SOON_S) == 3
        assert [await ticket.wait(timeout=SOON_S) for ticket in tickets] == [0, 1, 2]
    assert runs.twice == []
    assert sorted(runs.all) == ["0", "1", "2", "3"]
    jobs = await judge(store)
    assert [jobs[key(f"{n}", queue="default")].attempts for n in range(4)] == [1, 1, 1, 1]
    kinds = [event.kind for event in await all_events(store, TENANT)]
    assert kinds.count("released") == 3
    assert "expired" not in kinds


@pytest.mark.parametrize("how", ["kill", "cut"])
async def test_no_job_is_lost_when_connections_are_cut_under_load(proxy, hang_up, far_url, queue, store, judge, how):
    runs = Runs()
    done = asyncio.Event()
    cuts = 0

    async def cut():
        nonlocal cuts
        while not done.is_set():
            await asyncio.sleep(0.03)
            cuts += proxy.drop_all() if how == "cut" else await hang_up()

    async with working(far_url, runs.job, concurrency=8):
        cutting = asyncio.create_task(cut())
        for n in range(300):
            # The clock is moved on below, by hours on a slow machine: the records are to be there at the end.
            await queue.enqueue(runs.job.message(n), id=f"{n}", result_ttl=timedelta(days=30))
            await asyncio.sleep(0.002)
        done.set()
        await cutting
        await drained(store, TENANT, "default", step_ms=LEASE_S * 1000)
    assert cuts > 3
    assert runs.twice == []
    jobs = await judge(store)
    assert len(jobs) == 300
    assert {job.state for job in jobs.values()} == {JobState.COMPLETED}
    # Each run that was not completed has cost an attempt, and no attempt was without a lease.
    assert all(runs.all.count(found.id) <= found.attempts for found in jobs.values())


# The end of a worker ------------------------------------------------------------------------------------------


async def test_workers_that_start_and_stop_under_load_waste_no_attempt(url, queue, store, judge):
    """What came too late to be started is given back, and its attempt with it. [RETRY-5]"""
    runs = Runs(0.003)
    done = asyncio.Event()
    ids = []

    async def produce():
        while not done.is_set():
            ids.append(f"{len(ids)}")
            await queue.enqueue(runs.job.message(0), id=ids[-1])

    producing = asyncio.create_task(produce())
    for n in range(15):
        async with working(url, runs.job, concurrency=2):
            before = len(ids)
            await eventually(lambda before=before, n=n: len(ids) > before + 10 + n, every_s=0.001)
    done.set()
    await producing
    async with working(url, runs.job, concurrency=50):
        await drained(store, TENANT, "default")
    jobs = await judge(store)
    assert len(jobs) == len(ids)
    assert {found.state for found in jobs.values()} == {JobState.COMPLETED}
    assert {found.attempts for found in jobs.values()} == {1}
    assert sorted(runs.all) == sorted(ids)
    kinds = {event.kind for event in await all_events(store, TENANT)}
    assert "expired" not in kinds


async def test_processes_that_end_under_load_waste_no_attempt(zygote, queue, url, log, store):
    producer = await zygote.start(url, role="produce", name="p", log=log)
    for _ in range(4):
        pid = await zygote.start(url, log=log, concurrency=2, lease_s=LEASE_S)
        await eventually(lambda pid=pid: [line for line in notes(log, "completed") if line[-1] == pid])
        os.kill(pid, signal.SIGTERM)
        assert await zygote.end(pid) == 0
    os.kill(producer, signal.SIGTERM)
    assert await zygote.end(producer) == 0
    last = await zygote.start(url, log=log, concurrency=50, lease_s=LEASE_S)
    await drained(store, TENANT, "default")
    os.kill(last, signal.SIGTERM)
    assert await zygote.end(last) == 0
    ids = [id_ for id_, *_ in notes(log, "queued")]
    jobs = await ledger.check(store, TENANT, ids)
    assert {found.attempts for found in jobs.values()} == {1}
    assert {found.state for found in jobs.values()} == {JobState.COMPLETED}


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_a_worker_that_ended_gets_no_jobs_while_its_store_is_open(queue, waiting_workers, heard, how):
    """Also one that had to end at once."""
    runs = Runs()
    async with working(queue, runs.job) as running:
        await waiting(waiting_workers, 1)
        if how == "cancel":
            running.cancel()
            await asyncio.wait([running])
    await queue.enqueue(runs.job.message(1), id="x")
    assert await states(queue, "x") == [JobState.READY]
    assert await waiting_workers() == 0
    await eventually(heard, lambda found: found == 0)
    async with working(queue, runs.job):
        assert await (await queue.enqueue(runs.job.message(2), id="y")).wait(timeout=SOON_S) == 2
    assert sorted(runs.all) == ["x", "y"]


# One place ----------------------------------------------------------------------------------------------------


async def test_closing_an_inbox_does_not_wait_for_jobs_that_arrived(store, url, waiting_workers, monkeypatch):
    """It waits once for jobs that were in flight when it began to close."""
    for module in (redis_handoff, postgres_handoff):
        monkeypatch.setattr(module, "IN_FLIGHT_S", 10 * SOON_S)

    async def enqueue():
        near = await open_store(url)
        for n in range(6):
            await near.enqueue([new(f"{n}")])
        await near.close()

    async with place(store, waiting_workers, limit=8) as (post, came):
        # While this event loop is blocked: all of it is sent, and nothing has come.
        thread = threading.Thread(target=lambda: asyncio.run(enqueue()))
        thread.start()
        thread.join()
        async with asyncio.timeout(SOON_S):
            await post.close()
        assert [found.id for found in came] == [f"{n}" for n in range(6)]


async def test_an_inbox_that_could_not_close_properly_gets_no_more_jobs(proxy, far, store, waiting_workers, heard):
    """A worker that stops at once does not wait for the answer."""
    async with place(far, waiting_workers) as (post, came):
        assert await heard() == 1
        proxy.freeze()
        leaving = asyncio.create_task(post.close())
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        proxy.thaw()
        await eventually(heard, lambda found: found == 0)
        await store.enqueue([new("x")])
        assert [found.id for found in (await store.claim(wish(1))).jobs] == ["x"]
        assert came == []
