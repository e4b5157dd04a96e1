"""The server dies by SIGKILL under load, again and again, and comes back with what it had written.

`appendonly yes`, `appendfsync always`: an answer means that it is on disk.

Invariants verified:
- no acknowledged enqueue is lost, and none is doubled [ENQ-1, ENQ-8]
- no acknowledged completion is undone, and its job never runs again [STATE-2]
- workers and producers continue without a restart
- attempts, tokens and moves are legal by the log, over all the lives of the server [RETRY-1, LEASE-5, EVENT-1]
"""

import asyncio

import pytest

from holdfast import Queue
from holdfast.core.errors import StoreUnavailable
from holdfast.core.job import JobState
from holdfast.opening import open_store
from tests.chaos import ledger
from tests.chaos.workers import notes, work
from tests.eventually import eventually
from tests.log import all_events
from tests.stores.load import claim_one, complete, drained, end_gently, judge, new, seeded, under_way, wish

KILLS = 6


@pytest.fixture
def url(durable):
    return durable.url(test_clock=1, timeout_s=2)


async def test_no_acknowledged_change_is_lost_or_undone(durable, zygote, url, log):
    chance = seeded()
    producers = [await zygote.start(url, role="produce", log=log, name=f"p{n}") for n in range(2)]
    workers = [await zygote.start(url, log=log, lease_s=1, concurrency=5) for _ in range(2)]
    await under_way(log, producers, workers)
    for _ in range(KILLS):
        # Under way again: every process has found the server by itself.
        before = len(notes(log, "queued")), len(notes(log, "completed"))
        more = chance.randint(20, 60)
        await eventually(lambda before=before, more=more: len(notes(log, "queued")) > before[0] + more)
        await eventually(lambda before=before: len(notes(log, "completed")) > before[1] + 20)
        durable.kill()
        await asyncio.sleep(chance.random() * 0.3)
        await asyncio.to_thread(durable.restart)
    before = len(notes(log, "queued"))
    await eventually(lambda: len(notes(log, "queued")) > before + 20)
    await end_gently(zygote, *producers)
    async with Queue(durable.url(test_clock=1), tenant="acme") as queue:  # Who judges has patience.
        store = queue.store
        counts = await drained(store, "acme", "default", step_ms=300)
        assert not any(map(zygote.has_ended, workers)), "a worker did not survive"
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


async def test_a_restarted_server_without_scripts_has_all_data(durable, url):
    """Settings, leases, keys, results, the log and the clock's shift: all that was answered is there."""
    store = await open_store(url)
    try:
        await store.enqueue([new("done"), new("held"), new("waits"), new("later", delay_ms=3_600_000)])
        done, held = (await store.claim(wish(2))).jobs
        await store.finish([complete(done, b"42")])
        await store.pause("acme", "other", paused=True)
        await store.shift_clock(5_000)
        before = await store.get([job.key for job in (done, held)])
        events = await all_events(store)
        now = await store.now()
        durable.kill()
        durable.restart()
        assert await eventually(lambda: patient(store.get, [job.key for job in (done, held)])) == before
        assert await all_events(store) == events
        assert await store.now() >= now
        job = await claim_one(store)
        assert job.id == "waits"
        assert job.token > held.token
        assert (await store.finish([complete(held)]))[0].state is JobState.COMPLETED
        await judge(store)
    finally:
        await store.close()


async def patient(call, *arguments, **options):
    """The answer, or None while the server is not back."""
    try:
        return await call(*arguments, **options)
    except StoreUnavailable:
        return None


async def test_a_waiter_gets_its_result_after_the_server_is_killed(durable, url):
    """A wait survives the server: the hint that was lost with it is made up for."""
    async with Queue(url, tenant="acme") as queue, Queue(url, tenant="acme") as other:
        ticket = await queue.enqueue(work.message("/dev/null"), id="x")
        waiting = asyncio.create_task(ticket.wait(timeout=20))
        await eventually(lambda: durable.info("clients")["pubsub_clients"] == "1")
        # A subscription that has begun makes it look once more: let that be over.
        for _ in range(5):
            await queue.get("x")
        durable.kill()
        await asyncio.sleep(0.2)
        durable.restart()
        job = await eventually(lambda: patient(claim_one, other.store, queues=("default",)))
        await other.store.finish([complete(job, b"7")])
        assert await asyncio.wait_for(waiting, 10) == 7
