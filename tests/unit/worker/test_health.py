"""Whether a worker lives: the rule by instants, and workers that are busy, idle, cut off and stopping."""

import asyncio
import threading

import pytest

from holdfast import job
from holdfast.core.errors import StoreBusy, StoreMismatch, StoreUnavailable
from holdfast.worker import Worker, health, heartbeat
from holdfast.worker.health import LOOP_S, STORE_S, TURN_S, why_not_live
from tests.eventually import eventually
from tests.unit.worker.serving import serving

NOW = 1000.0


@pytest.mark.parametrize(
    "turned_s, reached_s, problem",
    [
        (0, 0, ""),
        (LOOP_S - 0.1, STORE_S - 0.1, ""),
        (LOOP_S, 0, "the event loop has stood still for 20 s: a handler blocks it"),
        (0, STORE_S, "the store has not answered for 25 s"),
        (90, 90, "the event loop has stood still for 90 s: a handler blocks it"),
        (None, 0, ""),
        (0, None, ""),
        (None, None, ""),
    ],
)
def test_a_worker_lives_by_the_instants_that_it_left(turned_s, reached_s, problem):
    turned, reached = (None if ago is None else NOW - ago for ago in (turned_s, reached_s))
    assert why_not_live(NOW, turned, reached) == problem


def test_a_worker_is_found_dead_within_30_s_and_has_room_while_it_lives():
    assert LOOP_S + TURN_S <= 30
    assert STORE_S <= 30
    # A heartbeat may be late by its whole interval.
    assert 2 * heartbeat.BEAT_EVERY_S + heartbeat.RECOUNT_S < STORE_S
    assert 10 * TURN_S < LOOP_S


@pytest.fixture
def quick(monkeypatch):
    """Instants are left ten times a second."""
    monkeypatch.setattr(health, "TURN_S", 0.1)
    monkeypatch.setattr(heartbeat, "BEAT_EVERY_S", 0.1)
    monkeypatch.setattr(heartbeat, "RECOUNT_S", 0.1)


async def new_instants(worker, count=5):
    """Wait until the worker has left this many more instants of each kind."""
    seen = {"turned_at": set(), "reached_at": set()}

    def look():
        for name, found in seen.items():
            found.add(getattr(worker.health, name))
        return all(len(found) > count for found in seen.values())

    await eventually(look)


async def test_a_worker_is_ready_between_its_start_and_its_stop(queue, quick):
    release = asyncio.Event()

    @job
    async def waits() -> None:
        await release.wait()

    worker = Worker(queue, jobs=[waits])
    for _ in range(2):
        assert worker.health.why_not_live() == ""
        assert worker.health.why_not_ready() == "the worker has not started"
        running = asyncio.create_task(worker.run(signals=False))
        await eventually(lambda: worker.health.why_not_ready() == "")
        ticket = await queue.enqueue(waits.message())
        await eventually(lambda: worker._loop.state.running)
        stopping = asyncio.create_task(worker.stop())
        await eventually(lambda: worker.health.why_not_ready() == "the worker is stopping")
        assert worker.health.why_not_live() == ""
        release.set()
        await stopping
        await running
        await ticket.wait(timeout=60)
        release.clear()


async def test_a_busy_worker_lives(queue, quick):
    """Handlers that compute and yield, and a pool of threads that compute, keep the processor and no instant back."""
    enough = threading.Event()

    @job
    async def yields() -> None:
        while not enough.is_set():
            sum(range(20_000))
            await asyncio.sleep(0)

    @job
    def computes() -> None:
        while not enough.is_set():
            sum(range(20_000))

    async with serving(queue, yields, computes, concurrency=16) as worker:
        tickets = await queue.enqueue_many([one.message() for one in (yields, computes) for _ in range(8)])
        try:
            await eventually(lambda: len(worker._loop.state.running) == 16)
            await new_instants(worker)
            assert worker.health.why_not_live() == ""
            assert worker.health.why_not_ready() == ""
        finally:
            enough.set()
        for ticket in tickets:
            await ticket.wait(timeout=60)


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), OSError("cut"), ValueError("a bug")])
async def test_a_store_that_does_not_answer_is_not_reached_and_then_is(queue, store, quick, monkeypatch, error):
    monkeypatch.setattr("holdfast.maintenance.backoff.FIRST_S", 0.01)
    monkeypatch.setattr("holdfast.maintenance.backoff.CAP_S", 0.1)
    monkeypatch.setattr(health, "STORE_S", 1.0)

    @job
    async def never() -> None: ...

    async with serving(queue, never) as worker:
        await new_instants(worker)
        store.fail("beat", error, times=1000)
        await eventually(lambda: worker.health.why_not_live().startswith("the store has not answered"))
        assert worker.health.why_not_ready().startswith("the store has not answered")
        store.heal()
        await eventually(lambda: worker.health.why_not_live() == "")


@pytest.mark.parametrize("error", [StoreBusy("locked"), StoreMismatch("full")])
async def test_a_store_that_refuses_has_answered(queue, store, quick, error):
    @job
    async def never() -> None: ...

    async with serving(queue, never) as worker:
        store.fail("beat", error, times=1000)
        await eventually(lambda: store.calls["beat"] > 2)
        await new_instants(worker)
        store.heal()
