"""A store that does not answer: nothing is lost, and the worker goes on when it is back."""

import asyncio

import pytest

from holdfast import job
from holdfast.core.errors import StoreBusy, StoreMismatch, StoreUnavailable
from holdfast.core.job import JobState
from holdfast.worker import Worker
from tests.eventually import eventually
from tests.unit.running import turns
from tests.unit.worker.serving import heard, serving, until


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr("holdfast.maintenance.backoff.FIRST_S", 0.01)


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), StoreBusy("busy"), OSError("cut"), ValueError("a bug")])
async def test_failed_claims_are_tried_again(queue, store, error):
    @job
    async def fine() -> str:
        return "ok"

    store.fail("claim", error, times=3)
    async with serving(queue, fine) as worker:
        reported = heard(worker)
        assert await queue.enqueue_and_wait(fine.message(), timeout=60) == "ok"
    assert reported.count(("error", type(error).__name__)) == 3


@pytest.mark.parametrize("reply_lost", [False, True])
async def test_outcomes_are_sent_until_they_are_accepted(queue, store, reply_lost):
    @job
    async def fine(n: int) -> int:
        return n

    store.fail("finish", StoreUnavailable("gone"), times=3, after=reply_lost)
    async with serving(queue, fine) as worker:
        reported = heard(worker)
        tickets = await queue.enqueue_many([fine.message(n) for n in range(20)])
        assert [await ticket.wait(timeout=60) for ticket in tickets] == list(range(20))
        await eventually(lambda: sum(name == "completed" for name, _ in reported) >= 20)
    assert sum(name == "completed" for name, _ in reported) == 20
    events = await store.events("acme", None, 1000)
    assert sum(event.kind == "completed" for event in events.events) == 20


async def test_an_outcome_that_the_store_refuses_does_not_delay_the_others(queue, store):
    @job(max_attempts=1)
    async def fine(n: int) -> int:
        return n

    real = store.inner.finish

    async def finish(items, **kwargs):
        if any(item.key.id == "bad" for item in items):
            raise ValueError("cannot take this")
        return await real(items, **kwargs)

    store.inner.finish = finish
    async with serving(queue, fine, lease=1) as worker:
        reported = heard(worker)
        tickets = [await queue.enqueue(fine.message(n), id="bad" if n == 5 else str(n)) for n in range(10)]
        for ticket in tickets:
            if ticket.id != "bad":
                await ticket.wait(timeout=60)
        assert ("error", "ValueError") in reported
        store.inner.finish = real
        assert (await until(queue, tickets[5])).state is JobState.COMPLETED


async def test_a_store_with_other_data_ends_the_worker(queue, store):
    @job
    async def fine() -> None: ...

    store.fail("claim", StoreMismatch("not ours"))
    with pytest.raises(StoreMismatch):
        await asyncio.wait_for(Worker(queue, jobs=[fine]).run(signals=False), 15)


async def test_a_bug_in_the_worker_ends_it_and_is_raised(queue, monkeypatch):
    @job
    async def fine() -> None: ...

    def broken(self):
        raise ZeroDivisionError

    monkeypatch.setattr("holdfast.worker.claiming.Claiming._room", broken)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(Worker(queue, jobs=[fine]).run(signals=False), 15)


async def test_outcomes_are_batched_while_others_are_in_flight(queue, store):
    ran = 0

    @job
    async def fine() -> None:
        nonlocal ran
        ran += 1

    gate = store.hold("finish")
    async with serving(queue, fine, concurrency=5, prefetch=5):
        await queue.enqueue_many([fine.message() for _ in range(50)])
        await eventually(lambda: ran == 50)
        gate.set()
        await eventually(lambda: sum(map(len, store.batches["finish"])) >= 50)
    assert len(store.batches["finish"]) <= 3
    assert store.calls["claim"] >= 5


async def test_no_more_is_claimed_while_too_many_outcomes_wait(queue, store, monkeypatch):
    monkeypatch.setattr("holdfast.worker.claiming.MAX_ACK_BACKLOG", 20)
    ran = 0

    @job
    async def fine() -> None:
        nonlocal ran
        ran += 1

    gate = store.hold("finish")
    async with serving(queue, fine, concurrency=5, prefetch=0):
        await queue.enqueue_many([fine.message() for _ in range(100)])
        await eventually(lambda: ran >= 20)
        await turns(1000)  # Enough to run all of them, were they claimed.
        assert ran <= 30
        gate.set()
        await eventually(lambda: ran == 100)
