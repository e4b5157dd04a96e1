"""A line that is dead although both ends have it open: a router that forgot it, a machine that is gone.

Invariants verified:
- a call that waits on such a connection notices within its timeout, and goes on: on a new one, or on the thawed one
- no hint is lost for good: a job or a result that came meanwhile is found soon, not by the fallback poll of 30 s
- a call that cannot be answered fails in time, and acknowledges nothing
"""

import asyncio
import contextlib
import gc
import time

import pytest

from holdfast import Queue, job
from holdfast.core.errors import StoreError, StoreUnavailable
from holdfast.core.job import JobState
from holdfast.opening import open_store
from holdfast.queue.claims import POLL_S, Claimer
from holdfast.queue.waiting import FALLBACK_S
from holdfast.worker import Worker, health, heartbeat
from tests.chaos.workers import AT_ONCE
from tests.eventually import eventually
from tests.stores.load import claim_one, complete, key, kinds, new, running, wish

SOON_S = 14.0
"""Generous, and far below the fallback polls."""

assert min(POLL_S, FALLBACK_S) / 2 > SOON_S


@job(max_attempts=100, retry=AT_ONCE)
async def work(n: int) -> int:
    return n


@contextlib.asynccontextmanager
async def working(url):
    """A worker at the other end of the proxy, idle and listening; it reports errors of the store.

    Its leases are short: a claim that is under way when the line freezes is lost and costs one.
    """
    troubles = []
    async with Queue(url, tenant="acme") as queue:
        worker = Worker(queue, jobs=[work], concurrency=4, lease=2)
        worker.on("error", troubles.append)
        async with running(worker):
            yield troubles


@pytest.fixture
def at_rest(proxy, backend):
    async def at_rest(what):
        """Wait until the store behind the proxy listens and receives nothing more."""
        await eventually(lambda: backend.listens(what))
        counts, since = None, time.monotonic()
        while time.monotonic() < since + 0.2:
            now = (proxy.counts.requests, proxy.counts.replies)
            if now != counts:
                counts, since = now, time.monotonic()
            await asyncio.sleep(0.01)

    return at_rest


async def run_one(queue, n):
    """Have a job run, and so know that the worker is there and idle again."""
    assert await queue.enqueue_and_wait(work.message(n), timeout=SOON_S) == n


@pytest.fixture
async def queue(url):
    async with Queue(url, tenant="acme") as queue:
        yield queue


async def test_an_idle_worker_opens_another_connection(proxy, far_url, queue, at_rest):
    """Its old connections are dead, new ones would work: it must notice by itself."""
    async with working(far_url):
        await run_one(queue, 1)
        await at_rest("ready")
        proxy.freeze(new=False)
        await run_one(queue, 2)
        assert proxy.open_connections > 1
        proxy.thaw()


async def test_an_idle_worker_continues_when_the_connection_does(proxy, far_url, queue, at_rest):
    async with working(far_url):
        await run_one(queue, 1)
        await at_rest("ready")
        proxy.freeze()
        made = proxy.counts.connections
        ticket = await queue.enqueue(work.message(2))
        # It has noticed: it tries to connect anew, in vain.
        await eventually(lambda: proxy.counts.connections > made)
        assert (await ticket.refresh()).state is JobState.READY
        proxy.thaw()
        assert await ticket.wait(timeout=SOON_S) == 2


@pytest.mark.parametrize("kind", ["valkey"])  # On PostgreSQL the same takes ten seconds.
async def test_a_worker_that_ends_on_a_dead_connection_leaves_nothing_open(proxy, far_url, queue, at_rest):
    async with working(far_url):
        await run_one(queue, 1)
        await at_rest("ready")
        proxy.freeze()
    proxy.thaw()
    await eventually(lambda: proxy.open_connections == 0)
    # What was dropped without being closed says so now, and that is an error.
    gc.collect()


async def test_a_busy_worker_continues_after_a_freeze(proxy, far_url, queue, store, judge):
    async with working(far_url) as troubles:
        tickets = await queue.enqueue_many([work.message(n) for n in range(500)])
        await eventually(lambda: proxy.counts.requests > 5)
        proxy.freeze()
        await eventually(lambda: troubles)
        assert all(isinstance(trouble.error, StoreError) for trouble in troubles)
        proxy.thaw()
        results = await asyncio.gather(*(ticket.wait(timeout=30) for ticket in tickets))
        assert results == list(range(500))
    await judge(store)


async def test_a_waiter_gets_a_result_over_another_connection(proxy, far_url, store, at_rest):
    """`queue.result` waits on a dead connection; another handle ends the job."""
    await store.enqueue([new("x", queue="default")])
    async with Queue(far_url, tenant="acme") as far_queue:
        waiting = asyncio.create_task(far_queue.result("x", timeout=20))
        await at_rest("done")
        proxy.freeze(new=False)
        await store.finish([complete(await claim_one(store, queues=("default",)), b"7")])
        assert await asyncio.wait_for(waiting, SOON_S) == 7


async def test_a_waiter_gets_a_result_when_the_connection_continues(proxy, far_url, store, at_rest):
    await store.enqueue([new("x", queue="default")])
    async with Queue(far_url, tenant="acme") as far_queue:
        waiting = asyncio.create_task(far_queue.result("x", timeout=20))
        await at_rest("done")
        proxy.freeze()
        made = proxy.counts.connections
        await store.finish([complete(await claim_one(store, queues=("default",)), b"7")])
        await eventually(lambda: proxy.counts.connections > made)
        assert not waiting.done()
        proxy.thaw()
        assert await asyncio.wait_for(waiting, SOON_S) == 7


@pytest.mark.parametrize("kind", ["valkey"])  # On PostgreSQL the claim may fail, once.
async def test_a_waiting_claim_gets_a_job_over_another_connection(proxy, far, store, at_rest):
    claimer = Claimer(far)
    claimer.start()
    try:
        waiting = asyncio.create_task(claimer.claim(wish(1), wait_s=20))
        await at_rest("ready")
        proxy.freeze(new=False)
        await store.enqueue([new("x")])
        claimed = await asyncio.wait_for(waiting, SOON_S)
        assert [job.id for job in claimed.jobs] == ["x"]
    finally:
        claimer.close()


async def test_a_disconnected_listener_is_notified_and_connected_again(proxy, far, store, at_rest):
    """Hints lost with the connection are replaced: when it is back, every listener is notified."""
    claimer = Claimer(far)
    claimer.start()
    try:
        for n in range(3):
            waiting = asyncio.create_task(claimer.claim(wish(1), wait_s=20))
            await at_rest("ready")
            proxy.drop_all()
            await store.enqueue([new(f"{n}")])
            claimed = await asyncio.wait_for(waiting, SOON_S)
            assert [job.id for job in claimed.jobs] == [f"{n}"]
            # And hints come through again.
            waiting = asyncio.create_task(claimer.claim(wish(1), wait_s=20))
            await store.enqueue([new(f"again-{n}")])
            claimed = await asyncio.wait_for(waiting, SOON_S)
            assert [job.id for job in claimed.jobs] == [f"again-{n}"]
    finally:
        claimer.close()


async def test_a_call_on_a_dead_connection_fails_in_time_and_the_next_succeeds(proxy, far, store):
    await far.enqueue([new("before")])
    proxy.freeze(new=False)
    try:
        async with asyncio.timeout(SOON_S):
            await far.enqueue([new("x")])
    except StoreUnavailable:
        assert await kinds(store, key("x")) == []
    # The dead lines are not tried one after the other: one trouble is enough.
    async with asyncio.timeout(SOON_S):
        await far.enqueue([new("y")])
    assert await kinds(store, key("y")) == ["enqueued"]


async def test_many_dead_connections_fail_one_call_and_not_one_each(proxy, far, store):
    """A pool full of connections that all died at once."""
    await asyncio.gather(*(far.enqueue([new(f"before-{n}")]) for n in range(50)))
    assert proxy.open_connections > 3
    proxy.freeze(new=False)
    failed = 0
    for n in range(4):
        try:
            await far.enqueue([new(f"{n}")])
        except StoreUnavailable:
            failed += 1
    assert failed <= 1


async def test_a_late_message_after_a_freeze_makes_no_second_job(proxy, far, store):
    """The request was in flight when the connection froze, and the caller sent it again; now both arrive."""
    await far.enqueue([new("before")])
    proxy.freeze()
    item = new("x")
    with pytest.raises(StoreUnavailable):
        await far.enqueue([item])
    proxy.thaw()
    assert (await far.enqueue([item]))[0].id == "x"
    await eventually(lambda: kinds(store, key("x")), bool)
    assert await kinds(store, key("x")) == ["enqueued"]


async def test_workers_survive_a_frozen_server(backend, judge):
    """SIGSTOP: it accepts connections and answers nothing."""
    with backend.new_server() as server:
        url = server.url(timeout_s=1, connect_timeout_s=1)
        async with Queue(server.url(timeout_s=20), tenant="acme") as queue, working(url) as troubles:
            tickets = await queue.enqueue_many([work.message(n) for n in range(500)])
            await tickets[0].wait(timeout=SOON_S)
            server.pause()
            enqueued = asyncio.create_task(queue.enqueue(work.message(500)))
            await eventually(lambda: troubles, patience_s=30)
            server.resume()
            tickets.append(await enqueued)
            assert await asyncio.gather(*(ticket.wait(timeout=30) for ticket in tickets)) == list(range(501))
            await judge(queue.store)


async def test_a_worker_on_a_dead_connection_does_not_live_until_it_thaws(proxy, far_url, monkeypatch):
    """New connections are dead too, so that nothing can be reached. `STORE_S` is 25 s otherwise."""
    monkeypatch.setattr(health, "STORE_S", 3.0)
    monkeypatch.setattr(heartbeat, "BEAT_EVERY_S", 0.5)
    async with Queue(far_url, tenant="acme") as queue:
        worker = Worker(queue, jobs=[work])
        async with running(worker):
            await eventually(lambda: worker.health.why_not_ready() == "")
            proxy.freeze()
            await eventually(lambda: worker.health.why_not_live().startswith("the store has not answered"))
            proxy.thaw()
            await eventually(lambda: worker.health.why_not_ready() == "")


async def test_opening_on_a_dead_connection_fails_in_time(proxy, far_url):
    proxy.freeze()
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(open_store(far_url), SOON_S)
