"""The server fails in all the ways a server does, under load, again and again, and comes back.

    a backend is killed         the server ends all others, recovers, and answers 57P03 to new connections meanwhile
    the whole server is killed  SIGKILL to all its processes; what it had flushed is there again
    an immediate shutdown       SIGQUIT: connections end with 57P01 or without a word, the next start recovers
    a fast shutdown             SIGINT: 57P01
    connections are ended       pg_terminate_backend on all of them

The clock of the server is that of the machine: it cannot be moved from here (shift_clock moves the store's own).

Invariants verified:
- no acknowledged enqueue is lost, and none is doubled [ENQ-1, ENQ-8]
- no acknowledged completion is undone, and its job never runs again [STATE-2]
- leases never overlap, attempts and tokens are exact over all the lives of the server [CLAIM-1, RETRY-1, LEASE-5]
- workers, producers and waiters go on by themselves, without a restart
"""

import asyncio
import os
import signal
import time

import pytest

from holdfast import Queue
from holdfast.core.errors import StoreError
from holdfast.core.job import JobState
from holdfast.testing.processes import ServerError
from tests.chaos import ledger
from tests.chaos.workers import notes, work
from tests.eventually import eventually
from tests.log import all_events
from tests.stores.load import claim_one, complete, drained, end_gently, seeded, under_way
from tests.stores.postgres.support import judge

FAULTS = 3
OURS = "application_name = 'holdfast' AND pid <> pg_backend_pid()"


def backends(server):
    return [int(pid) for (pid,) in server.sql(f"SELECT pid FROM pg_stat_activity WHERE {OURS}")]


def kill_a_backend(server, chance):
    os.kill(chance.choice(backends(server)), signal.SIGKILL)


def kill_the_server(server, _):
    server.kill()
    server.restart()


def shut_down_at_once(server, _):
    os.kill(server.pid, signal.SIGQUIT)
    server.restart()


def shut_down_fast(server, _):
    server.restart()


def end_all_connections(server, _):
    server.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OURS}")


FAULTY = {
    "a backend is killed": kill_a_backend,
    "the whole server is killed": kill_the_server,
    "an immediate shutdown": shut_down_at_once,
    "a fast shutdown": shut_down_fast,
    "connections are ended": end_all_connections,
}


def strike(fault, server, chance):
    """Do it; a server that is just coming back from the last one is waited for."""
    for _ in range(200):
        try:
            return FAULTY[fault](server, chance)
        except (ServerError, ProcessLookupError, IndexError):
            time.sleep(0.05)
    raise AssertionError("the server does not come back")


@pytest.mark.parametrize("fault", FAULTY)
async def test_no_acknowledged_change_is_lost_or_undone(durable, zygote, log, fault):
    chance = seeded()
    url = durable.url(test_clock=1, timeout_s=2)
    producers = [await zygote.start(url, role="produce", log=log, name=f"p{n}") for n in range(2)]
    workers = [await zygote.start(url, log=log, lease_s=1, concurrency=5) for _ in range(2)]
    await under_way(log, producers, workers)
    for _ in range(FAULTS):
        # Under way again: every process has found the server by itself.
        before = len(notes(log, "queued")), len(notes(log, "completed"))
        more = chance.randint(20, 60)
        await eventually(lambda before=before, more=more: len(notes(log, "queued")) > before[0] + more, patience_s=60)
        await eventually(lambda before=before: len(notes(log, "completed")) > before[1] + 20, patience_s=60)
        await asyncio.to_thread(strike, fault, durable, chance)
    before = len(notes(log, "queued"))
    await eventually(lambda: len(notes(log, "queued")) > before + 20, patience_s=60)
    assert not any(map(zygote.has_ended, [*producers, *workers])), "a process did not survive"
    await end_gently(zygote, *producers)
    async with Queue(url, tenant="acme") as queue:
        store = queue.store
        counts = await drained(store, "acme", "default", step_ms=300, patience_s=60)
        await end_gently(zygote, *workers)
        jobs = {k.id: job for k, job in (await judge(store)).items()}
        assert counts == {JobState.COMPLETED: len(jobs)}
        queued = [id_ for id_, *_ in notes(log, "queued")]
        assert len(queued) == len(set(queued))
        assert set(queued) <= set(jobs), "an acknowledged enqueue was lost"
        # Each producer may have been at one more when it was asked to end.
        assert len(jobs) <= len(queued) + len(producers)
        for id_, _, token, _ in notes(log, "completed"):
            assert jobs[id_].token == token, f"the acknowledged completion of {id_} was undone"
        last = {}
        for id_, _, token, _ in notes(log, "started"):
            last[id_] = max(token, last.get(id_, 0))
        assert last == {id_: job.token for id_, job in jobs.items()}, "a job ran after its completion"
        await ledger.check(store, "acme", list(jobs))


async def patient(call, *arguments, **options):
    """The answer, or None while the server is not back."""
    try:
        return await call(*arguments, **options)
    except StoreError:
        return None


@pytest.mark.parametrize("fault", FAULTY)
async def test_a_waiter_gets_its_result_after_a_failure_of_the_server(durable, fault):
    """A wait survives the server: the hint that was lost with it is made up for."""
    url = durable.url(test_clock=1, timeout_s=2)
    async with Queue(url, tenant="acme") as queue, Queue(url, tenant="acme") as other:
        ticket = await queue.enqueue(work.message("/dev/null"), id="x")
        waiting = asyncio.create_task(ticket.wait(timeout=60))
        await eventually(lambda: durable.sql("SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"))
        await asyncio.to_thread(strike, fault, durable, seeded())
        job = await eventually(lambda: patient(claim_one, other.store, queues=("default",)), patience_s=60)
        await eventually(lambda: patient(other.store.finish, [complete(job, b"7")]), patience_s=60)
        assert await asyncio.wait_for(waiting, 30) == 7


async def test_a_restarted_server_has_all_data(durable):
    """Settings, leases, results, the log and the clock's shift: all that was answered is there; tokens grow on."""
    url = durable.url(test_clock=1, timeout_s=2)
    async with Queue(url, tenant="acme", name="default") as queue:
        store = queue.store
        for id_ in ("done", "held", "waits"):
            await queue.enqueue(work.message("/dev/null"), id=id_)
        await queue.enqueue(work.message("/dev/null"), id="later", delay=3600)
        done = await claim_one(store, queues=("default",))
        held = await claim_one(store, queues=("default",))
        await store.finish([complete(done, b"42")])
        await store.pause("acme", "other", paused=True)
        await store.shift_clock(5_000)
        before = await store.get([done.key, held.key])
        events = await all_events(store)
        now = await store.now()
        await asyncio.to_thread(durable.kill)
        await asyncio.to_thread(durable.restart)
        assert await eventually(lambda: patient(store.get, [done.key, held.key])) == before
        assert await all_events(store) == events
        assert await store.now() >= now
        job = await claim_one(store, queues=("default",))
        assert job.id == "waits"
        assert job.token > held.token
        assert (await store.finish([complete(held)]))[0].state is JobState.COMPLETED
        await judge(store)
