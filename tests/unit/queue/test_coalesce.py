from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar

import pytest

from holdfast import StoreUnavailable
from holdfast.queue.coalesce import Coalescer
from tests.unit.running import asynchronous, turns


class Trips:
    """Round trips that end when the test says so."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gates: list[asyncio.Future[None]] = []

    async def __call__(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        gate = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        await gate
        return [item * 10 for item in items]

    async def arrive(self) -> None:
        self.gates.pop(0).set_result(None)
        await turns()


@asynchronous
async def test_an_idle_coalescer_sends_at_once_and_gathers_the_next_batch_meanwhile():
    trips = Trips()
    calls = Coalescer(trips)
    first = asyncio.ensure_future(calls(1))
    await turns()
    assert trips.batches == [[1]]
    rest = [asyncio.ensure_future(calls(number)) for number in (2, 3, 4)]
    await turns()
    assert trips.batches == [[1]]
    await trips.arrive()
    assert await first == 10
    assert trips.batches == [[1], [2, 3, 4]]
    await trips.arrive()
    assert await asyncio.gather(*rest) == [20, 30, 40]


@asynchronous
async def test_calls_of_one_turn_of_the_loop_are_sent_together():
    trips = Trips()
    calls = Coalescer(trips)
    answers = asyncio.gather(*(calls(number) for number in range(5)))
    await turns()
    assert trips.batches == [[0, 1, 2, 3, 4]]
    await trips.arrive()
    assert await answers == [0, 10, 20, 30, 40]


@asynchronous
async def test_a_batch_is_never_larger_than_the_limit():
    trips = Trips()
    calls = Coalescer(trips, limit=3)
    answers = asyncio.gather(*(calls(number) for number in range(7)))
    for _ in range(3):
        await turns()
        await trips.arrive()
    assert [len(batch) for batch in trips.batches] == [3, 3, 1]
    assert await answers == [number * 10 for number in range(7)]


@asynchronous
async def test_a_canceled_caller_does_not_affect_the_others():
    trips = Trips()
    calls = Coalescer(trips)
    one, two = asyncio.ensure_future(calls(1)), asyncio.ensure_future(calls(2))
    await turns()
    one.cancel()
    await turns()
    await trips.arrive()
    assert await two == 20
    assert one.cancelled()


@asynchronous
async def test_a_call_canceled_before_its_batch_is_not_sent():
    trips = Trips()
    calls = Coalescer(trips)
    first = asyncio.ensure_future(calls(1))
    await turns()
    second, third = asyncio.ensure_future(calls(2)), asyncio.ensure_future(calls(3))
    await turns()
    second.cancel()
    await turns()
    await trips.arrive()
    await trips.arrive()
    assert (await first, await third) == (10, 30)
    assert trips.batches == [[1], [3]]


@asynchronous
async def test_every_caller_of_a_failed_batch_gets_the_error_and_the_next_batch_is_sent():
    failing = True

    async def send(items: Sequence[int]) -> list[int]:
        if failing:
            raise StoreUnavailable("gone")
        return list(items)

    calls = Coalescer(send)
    answers = await asyncio.gather(*(calls(number) for number in range(3)), return_exceptions=True)
    assert [str(answer) for answer in answers] == ["gone"] * 3
    assert len({id(answer) for answer in answers}) == 3
    failing = False
    assert await calls(5) == 5


@asynchronous
async def test_an_error_that_cannot_be_copied_reaches_every_caller():
    async def send(items: Sequence[int]) -> list[int]:
        raise KeyError(len(items))

    answers = await asyncio.gather(*(Coalescer(send)(n) for n in range(2)), return_exceptions=True)
    assert all(isinstance(answer, KeyError) for answer in answers)


@asynchronous
async def test_a_batch_runs_in_no_callers_context():
    var: ContextVar[str] = ContextVar("var", default="none")
    seen: list[str] = []

    async def send(items: Sequence[int]) -> list[int]:
        seen.append(var.get())
        return list(items)

    var.set("caller")
    await Coalescer(send)(1)
    assert seen == ["none"]


@asynchronous
async def test_settle_waits_for_all_calls():
    trips = Trips()
    calls = Coalescer(trips, limit=1)
    await calls.settle()
    answers = [asyncio.ensure_future(calls(number)) for number in (1, 2)]
    await turns()
    settled = asyncio.create_task(calls.settle())
    await trips.arrive()
    assert not settled.done()
    await trips.arrive()
    await settled
    assert [await answer for answer in answers] == [10, 20]


@asynchronous
async def test_callers_are_canceled_when_the_round_trip_is():
    trips = Trips()
    calls = Coalescer(trips, limit=1)
    waiting = [asyncio.ensure_future(calls(number)) for number in (1, 2)]
    await turns()
    assert calls._running is not None
    calls._running.cancel()
    for task in waiting:
        with pytest.raises(asyncio.CancelledError):
            await task


@asynchronous
async def test_a_call_that_no_other_can_join_is_sent_inline():
    """Without a task of its own: it begins before anything else runs."""
    trips = Trips()
    calls = Coalescer(trips)
    one = calls.one(1)
    one.send(None)
    assert trips.batches == [[1]]
    rest = [asyncio.ensure_future(calls.one(2)), asyncio.ensure_future(calls.one(3)), calls(4)]
    await turns()
    assert trips.batches == [[1]]
    trips.gates.pop(0).set_result(None)
    with pytest.raises(StopIteration, match="10"):
        one.send(None)
    await turns()
    assert trips.batches[0] == [1]
    assert sorted(trips.batches[1]) == [2, 3, 4]
    await trips.arrive()
    assert await asyncio.gather(*rest) == [20, 30, 40]


@asynchronous
async def test_inline_calls_of_one_turn_are_sent_together():
    trips = Trips()
    calls = Coalescer(trips)
    answers = asyncio.gather(*(calls.one(number) for number in range(5)))
    await turns()
    assert trips.batches == [[0, 1, 2, 3, 4]]
    await trips.arrive()
    assert await answers == [0, 10, 20, 30, 40]


@asynchronous
async def test_a_canceled_inline_call_cancels_only_its_own_round_trip():
    trips = Trips()
    calls = Coalescer(trips)
    first = asyncio.ensure_future(calls.one(1))
    await asyncio.sleep(0.01)  # Not by `turns`, which is always about to run.
    second = asyncio.ensure_future(calls.one(2))
    await turns()
    first.cancel()
    await turns()
    assert first.cancelled()
    assert trips.gates[0].cancelled()
    assert trips.batches == [[1], [2]]
    trips.gates[1].set_result(None)
    assert await second == 20


@asynchronous
async def test_settle_waits_for_inline_calls():
    trips = Trips()
    calls = Coalescer(trips)
    first = asyncio.ensure_future(calls.one(1))
    await asyncio.sleep(0.01)  # Not by `turns`, which is always about to run.
    assert calls._alone
    settling = [asyncio.ensure_future(calls.settle()) for _ in range(2)]
    second = asyncio.ensure_future(calls.one(2))
    await turns()
    await trips.arrive()
    assert first.done()
    assert not any(one.done() for one in settling)
    await trips.arrive()
    assert await second == 20
    await asyncio.gather(*settling)


@asynchronous
async def test_a_failed_inline_call_raises_to_its_caller():
    async def fail(_: Sequence[int]) -> list[int]:
        raise StoreUnavailable("gone")

    calls = Coalescer(fail)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="gone"):
            await calls.one(1)
    await calls.settle()


def test_calls_are_batched_on_a_loop_that_does_not_show_its_ready_queue():
    uvloop = pytest.importorskip("uvloop")

    async def main() -> list[list[int]]:
        trips = Trips()
        calls = Coalescer(trips)
        first = asyncio.ensure_future(calls.one(1))
        second = asyncio.ensure_future(calls.one(2))
        await turns()
        await trips.arrive()
        assert await asyncio.gather(first, second) == [10, 20]
        return trips.batches

    assert uvloop.run(main()) == [[1, 2]]
