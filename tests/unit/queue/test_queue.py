from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import (
    InvalidName,
    InvalidOption,
    InvalidPayload,
    JobCanceled,
    JobFailed,
    JobNotFound,
    JobState,
    Message,
    PartlyRefused,
    PayloadTooLarge,
    Queue,
    QuotaExceeded,
    ResultExpired,
    StoreUnavailable,
    UnknownCodec,
    Unsupported,
    WaitTimeout,
    job,
)
from holdfast.blobs import Blobs, result_name
from holdfast.core.job import Finish, NewJob, Result
from holdfast.opening import make_store
from holdfast.store import EnqueueAnswer
from tests.unit.running import asynchronous, claim, finish, memory_queue, run_one, turns


@job(queue="emails", max_attempts=5, timeout=30, priority=7)
async def send_email(to: str, template: str = "welcome") -> str:
    return f"{template} -> {to}"


@job
def total(numbers: list[int]) -> dict[str, int]: ...


# Opening and closing -------------------------------------------------------------------------------------------


@asynchronous
async def test_opening_and_closing_twice_is_harmless_and_a_closed_queue_can_be_opened_again():
    queue = memory_queue()
    await queue.open()
    assert await queue.open() is queue
    await queue.enqueue(1, id="a")
    await queue.close()
    await queue.close()
    async with queue:
        assert await queue.get("a") is not None


@asynchronous
async def test_a_queue_that_is_not_open_says_so():
    queue = memory_queue()
    for call in (
        queue.enqueue(1),
        queue.enqueue_many([1]),
        queue.enqueue_and_wait(1),
        queue.get("a"),
        queue.result("a"),
        queue.cancel("a"),
        queue.stats(),
        queue.replay("a"),
    ):
        with pytest.raises(InvalidOption, match="not open"):
            await call


@asynchronous
async def test_a_store_that_was_given_is_used_as_it_is_and_left_open():
    store = make_store("memory:given")
    closed: list[bool] = []

    class Watched(type(store)):
        async def close(self) -> None:
            closed.append(True)

    store.__class__ = Watched
    queue = Queue(store=store, tenant="acme")
    assert queue.store is store
    assert (await queue.enqueue(1)).status == "queued"
    waiting = asyncio.create_task(queue.enqueue_and_wait(2))
    await turns()
    await queue.close()
    await queue.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await waiting
    with pytest.raises(InvalidOption, match="not open"):
        await queue.stats()
    async with queue:
        assert (await queue.stats()).counts[JobState.READY] == 2
    assert closed == []
    assert queue.capabilities.name == "memory"


@pytest.mark.parametrize(
    "options, error",
    [
        ({}, InvalidOption),
        ({"url": "memory:", "store": object()}, InvalidOption),
        ({"url": "nowhere"}, InvalidOption),
        ({"url": "nowhere:x"}, InvalidOption),
        ({"url": "memory:x?sharps=1"}, InvalidOption),
        ({"url": "memory:", "tenant": "-x"}, InvalidName),
        ({"url": "memory:", "name": ""}, InvalidName),
        ({"url": "memory:", "codec": "cbor"}, UnknownCodec),
        ({"store": object(), "events": "all"}, InvalidOption),
    ],
)
def test_a_queue_with_invalid_arguments_is_refused_at_once(options, error):
    with pytest.raises(error):
        Queue(**{"tenant": "acme", **options})


def test_a_queue_shows_whose_it_is_and_no_url():
    shown = repr(memory_queue(name="inbox", url="memory:secret"))
    assert shown == "<Queue 'inbox' of tenant 'acme' on memory>"


@asynchronous
async def test_events_all_is_an_option_of_the_store():
    async with memory_queue(events="all") as queue:
        await queue.enqueue(1)
        (leased,) = await claim(queue)
        from holdfast.core.job import Extend

        await queue.store.extend([Extend(leased.key, leased.token, 60_000)])
        assert [event.kind async for event in queue.events()] == ["enqueued", "claimed", "extended"]


# Enqueue -------------------------------------------------------------------------------------------------------


@asynchronous
async def test_a_message_becomes_a_job_as_its_definition_says():
    async with memory_queue() as queue:
        ticket = await queue.enqueue(send_email.message("a@example.com"), id="email-123")
        assert (ticket.status, ticket.id, ticket.queue, ticket.tenant) == ("queued", "email-123", "emails", "acme")
        assert ticket.state is JobState.READY
        record = await queue.get("email-123", queue="emails")
        assert record is not None
        assert (record.type, record.priority, record.max_attempts, record.payload) == (
            "send_email",
            7,
            5,
            {"to": "a@example.com", "template": "welcome"},
        )
        (leased,) = await claim(queue, "emails")
        assert leased.envelope.timeout_ms == 30_000
        assert leased.envelope.request_id


@asynchronous
async def test_options_of_the_call_win_over_the_definition():
    async with memory_queue() as queue:
        ticket = await queue.enqueue(
            send_email.message("a"), queue="other", priority=0, max_attempts=1, result_ttl=5, idempotency_key="k"
        )
        record = await ticket.refresh()
        assert (record.queue, record.priority, record.max_attempts, record.idempotency_key) == ("other", 0, 1, "k")
        (leased,) = await claim(queue, "other")
        assert leased.envelope.result_ttl_ms == 5000


@asynchronous
async def test_a_payload_without_a_type_uses_the_queues_own_name():
    async with memory_queue(name="inbox") as queue:
        ticket = await queue.enqueue({"any": "json"}, id="job-1")
        assert (ticket.queue, ticket.id) == ("inbox", "job-1")
        record = await queue.get("job-1")
        assert record is not None
        assert (record.type, record.payload) == ("", {"any": "json"})


@asynchronous
async def test_ids_are_made_in_order_where_none_is_given():
    async with memory_queue() as queue:
        ids = [(await queue.enqueue(n)).id for n in range(20)]
        assert ids == sorted(set(ids))


@asynchronous
async def test_a_second_enqueue_of_an_id_answers_with_the_existing_job():
    async with memory_queue() as queue:
        await queue.enqueue(send_email.message("a"), id="1")
        again = await queue.enqueue(send_email.message("a"), id="1")
        assert (again.status, again.state, again.result) == ("duplicate", JobState.READY, None)
        await run_one(queue, "emails", result=b'"sent"')
        done = await queue.enqueue(send_email.message("a"), id="1")
        assert (done.status, done.state, done.result, await done.wait()) == (
            "completed",
            JobState.COMPLETED,
            "sent",
            "sent",
        )


@asynchronous
async def test_a_second_enqueue_of_a_key_answers_with_the_first_job():
    async with memory_queue() as queue:
        first = await queue.enqueue(send_email.message("a"), idempotency_key="k")
        second = await queue.enqueue(send_email.message("b"), idempotency_key="k")
        assert (second.status, second.id) == ("duplicate", first.id)


@asynchronous
async def test_of_many_concurrent_enqueues_of_one_id_exactly_one_is_queued():
    async with memory_queue() as queue:
        tickets = await asyncio.gather(*(queue.enqueue(n, id="x") for n in range(50)))
        assert [ticket.status for ticket in tickets].count("queued") == 1


@asynchronous
async def test_a_failed_job_is_replaced_only_when_asked():
    async with memory_queue() as queue:
        await queue.enqueue(1, id="x")
        await run_one(queue, outcome="fail")
        assert (await queue.enqueue(1, id="x")).status == "duplicate"
        assert (await queue.enqueue(1, id="x", replace_failed=True)).status == "queued"


@asynchronous
async def test_delay_and_run_at_make_a_scheduled_job():
    async with memory_queue() as queue:
        now = await queue.store.now()
        later = await (await queue.enqueue(1, delay=timedelta(hours=1))).refresh()
        assert later.state is JobState.SCHEDULED
        assert later.visible_at == datetime.fromtimestamp(now / 1000, UTC) + timedelta(hours=1)
        at = datetime(2100, 1, 1, tzinfo=UTC)
        assert (await (await queue.enqueue(1, run_at=at)).refresh()).visible_at == at
        past = await queue.enqueue(1, run_at=datetime(2000, 1, 1, tzinfo=UTC))
        assert past.state is JobState.READY


@pytest.mark.parametrize(
    "payload, options, error",
    [
        (float("nan"), {}, InvalidPayload),
        ("x" * 300_000, {}, PayloadTooLarge),
        (1, {"id": ""}, InvalidName),
        (1, {"queue": "no spaces"}, InvalidName),
        (1, {"priority": 10}, InvalidOption),
        (1, {"delay": -1}, InvalidOption),
    ],
)
@asynchronous
async def test_an_invalid_enqueue_is_refused_and_changes_nothing(payload, options, error):
    async with memory_queue() as queue:
        with pytest.raises(error):
            await queue.enqueue(payload, **options)
        with pytest.raises(error):
            await queue.enqueue_and_wait(payload, **options)
        assert [event async for event in queue.events()] == []


@asynchronous
async def test_a_job_in_place_of_a_message_is_refused_with_what_to_write():
    async with memory_queue() as queue:
        with pytest.raises(InvalidPayload, match=r"<job send_email> is not a message; enqueue its .message\(...\)"):
            await queue.enqueue(send_email)
        (ticket,) = await queue.enqueue_many([send_email], on_refused="return")
        assert ticket.status == "refused"


@asynchronous
async def test_over_the_quota_is_a_typed_error():
    async with memory_queue() as queue:
        await queue.set_tenant(max_waiting=1)
        await queue.enqueue(1)
        with pytest.raises(QuotaExceeded) as caught:
            await queue.enqueue(2)
        assert (caught.value.waiting, caught.value.limit) == (1, 1)
        with pytest.raises(QuotaExceeded):
            await queue.enqueue_and_wait(2)


@asynchronous
async def test_the_codec_of_the_queue_is_that_of_the_payload():
    async with memory_queue(codec="msgpack") as queue:
        record = await (await queue.enqueue(send_email.message("a"))).refresh()
        assert record.payload == {"to": "a", "template": "welcome"}
        assert (await claim(queue, "emails"))[0].envelope.codec == "msgpack"


@asynchronous
async def test_a_connection_is_handed_to_the_store():
    async with memory_queue() as queue:
        with pytest.raises(Unsupported, match="transaction"):
            await queue.enqueue(1, connection=object())
        with pytest.raises(Unsupported, match="transaction"):
            await queue.enqueue_many([1], connection=object())


class LosesReplies:
    """A store whose enqueue reaches the store, but whose first replies are lost."""

    def __init__(self, store: Any, losses: int) -> None:
        self._store = store
        self._losses = losses
        self.trips: list[list[NewJob]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def enqueue(self, items: Sequence[NewJob], **options: Any) -> list[EnqueueAnswer]:
        self.trips.append(list(items))
        answers = await self._store.enqueue(items, **options)
        if len(self.trips) <= self._losses:
            raise StoreUnavailable("the reply was lost")
        return answers


@asynchronous
async def test_an_enqueue_with_a_lost_reply_is_repeated_and_is_no_duplicate():
    store = LosesReplies(make_store("memory:lost-1"), 1)
    queue = Queue(store=store, tenant="acme")
    ticket = await queue.enqueue(1, id="x")
    assert ticket.status == "queued"
    first, second = store.trips
    assert first == second
    assert (await queue.stats()).counts[JobState.READY] == 1


@asynchronous
async def test_a_store_that_stays_down_raises_unavailable():
    store = LosesReplies(make_store("memory:lost-2"), 2)
    queue = Queue(store=store, tenant="acme")
    with pytest.raises(StoreUnavailable):
        await queue.enqueue(1)
    assert len(store.trips) == 2


class Counting(LosesReplies):
    def __init__(self, store: Any) -> None:
        super().__init__(store, 0)


@asynchronous
async def test_concurrent_enqueues_share_round_trips():
    store = Counting(make_store("memory:shared"))
    queue = Queue(store=store, tenant="acme")
    await asyncio.gather(*(queue.enqueue(n) for n in range(2500)))
    assert [len(trip) for trip in store.trips] == [1000, 1000, 500]


@asynchronous
async def test_consecutive_enqueues_let_the_event_loop_run_its_timers():
    """This holds even on a store that answers without waiting."""
    fired = asyncio.Event()
    async with memory_queue() as queue:
        asyncio.get_running_loop().call_later(0, fired.set)
        for number in range(100):
            await queue.enqueue(number)
        assert fired.is_set()


# Many ----------------------------------------------------------------------------------------------------------


@asynchronous
async def test_many_are_sent_a_thousand_at_a_time_and_answered_in_order():
    store = Counting(make_store("memory:many"))
    queue = Queue(store=store, tenant="acme")
    tickets = await queue.enqueue_many(send_email.message(f"u{i}") for i in range(2001))
    assert [len(trip) for trip in store.trips] == [1000, 1000, 1]
    assert {ticket.status for ticket in tickets} == {"queued"}
    records = [await tickets[place].refresh() for place in (0, 1500, 2000)]
    assert [record.payload["to"] for record in records] == ["u0", "u1500", "u2000"]


@asynchronous
async def test_many_takes_an_async_iterable_too():
    async def source() -> AsyncIterator[Message[str]]:
        for number in range(1500):
            yield send_email.message(str(number))

    async with memory_queue() as queue:
        assert len(await queue.enqueue_many(source())) == 1500
        assert await queue.enqueue_many([]) == []
        assert (await queue.stats("emails")).counts[JobState.READY] == 1500


@pytest.mark.parametrize("count", [249, 250, 251, 500, 999, 1000, 1001, 1250, 2000])
@asynchronous
async def test_enqueue_many_takes_any_number(count: int):
    async with memory_queue() as queue:
        tickets = await queue.enqueue_many(send_email.message(f"u{i}") for i in range(count))
        records = await asyncio.gather(*(ticket.refresh() for ticket in tickets))
        assert [record.payload["to"] for record in records] == [f"u{i}" for i in range(count)]


@asynchronous
async def test_enqueue_many_lets_the_event_loop_run_other_tasks():
    """Other tasks do not wait until a thousand jobs are encoded."""
    turns_of_another = 0

    async def another() -> None:
        nonlocal turns_of_another
        while True:
            turns_of_another += 1
            await asyncio.sleep(0)

    async with memory_queue() as queue:
        task = asyncio.create_task(another())
        await queue.enqueue_many(range(2000))
        task.cancel()
        assert turns_of_another >= 8


@asynchronous
async def test_an_invalid_item_does_not_affect_the_others():
    async with memory_queue() as queue:
        items = [1, float("nan"), send_email.message("a"), "x" * 300_000, 2]
        tickets = await queue.enqueue_many(items, on_refused="return")
        assert [ticket.status for ticket in tickets] == ["queued", "refused", "queued", "refused", "queued"]
        assert isinstance(tickets[1].error, InvalidPayload)
        assert isinstance(tickets[3].error, PayloadTooLarge)
        with pytest.raises(InvalidPayload):
            await tickets[1].wait()
        with pytest.raises(PayloadTooLarge):
            await tickets[3].cancel()
        assert (await tickets[4].refresh()).payload == 2


@asynchronous
async def test_items_over_the_quota_are_refused_one_by_one():
    async with memory_queue() as queue:
        await queue.set_tenant(max_waiting=2)
        tickets = await queue.enqueue_many([1, 2, 3], on_refused="return")
        assert [ticket.status for ticket in tickets] == ["queued", "queued", "refused"]
        assert isinstance(tickets[2].error, QuotaExceeded)


@asynchronous
async def test_refused_items_are_raised_with_all_tickets_when_all_have_been_tried():
    """[ENQ-4] Even from an iterable that is never in memory as a whole, with invalid items in several parts of it."""
    bad = {17, 999, 1000, 2400}

    def messages():
        for n in range(2500):
            yield {"n": float("nan") if n in bad else n}

    async with memory_queue() as queue:
        with pytest.raises(PartlyRefused) as caught:
            await queue.enqueue_many(messages())
        error = caught.value
        assert [at for at, ticket in enumerate(error.tickets) if ticket.status == "refused"] == sorted(bad)
        assert [type(ticket.error) for ticket in error.refused] == [InvalidPayload] * 4
        assert (await queue.stats()).counts[JobState.READY] == len(error.tickets) - 4 == 2496
        assert (await error.tickets[-1].refresh()).payload == {"n": 2499}
        assert str(error).startswith(
            "4 of 2500 messages were refused (4 InvalidPayload), the others were taken. The first one is message 18: "
        )
        again = pickle.loads(pickle.dumps(error))
        assert [(ticket.id, ticket.status) for ticket in again.tickets] == [
            (ticket.id, ticket.status) for ticket in error.tickets
        ]
        with pytest.raises(InvalidOption, match="another process"):
            await again.tickets[0].cancel()


@asynchronous
async def test_duplicates_are_not_refusals():
    """[ENQ-2]"""
    async with memory_queue() as queue:
        messages = [Message.raw(n).options(id=f"{n % 2}") for n in range(4)]
        tickets = await queue.enqueue_many(messages, on_refused="raise")
        assert [ticket.status for ticket in tickets] == ["queued", "queued", "duplicate", "duplicate"]


@asynchronous
async def test_an_unknown_mode_for_refusals_is_refused_before_any_job_is_sent():
    async with memory_queue() as queue:
        with pytest.raises(InvalidOption, match="'raise' or 'return'"):
            await queue.enqueue_many([1], on_refused="ignore")  # type: ignore[call-overload]
        assert (await queue.stats()).counts[JobState.READY] == 0


@asynchronous
async def test_a_called_job_in_a_batch_does_not_affect_the_others():
    async with memory_queue() as queue:
        with pytest.raises(PartlyRefused, match=r"write send_email.message\(...\)") as caught:
            await queue.enqueue_many([1, send_email("a"), 2])
        assert [ticket.status for ticket in caught.value.tickets] == ["queued", "refused", "queued"]


@asynchronous
async def test_items_have_options_of_their_own():
    async with memory_queue() as queue:
        messages = [
            send_email.message("a").options(id="one", delay=60),
            send_email.message("b").options(queue="special"),
            Message.raw({"x": 1}, "import").options(id="three"),
            send_email.message("d"),
        ]
        tickets = await queue.enqueue_many(messages, priority=3)
        assert [(ticket.queue, ticket.state) for ticket in tickets] == [
            ("emails", JobState.SCHEDULED),
            ("special", JobState.READY),
            ("default", JobState.READY),
            ("emails", JobState.READY),
        ]
        assert (tickets[0].id, tickets[2].id) == ("one", "three")
        assert [(await ticket.refresh()).priority for ticket in tickets] == [3, 3, 3, 3]
        own = await queue.enqueue(send_email.message("e").options(priority=8), priority=1, max_attempts=2)
        record = await own.refresh()
        assert (record.priority, record.max_attempts) == (8, 2)


@asynchronous
async def test_an_id_for_a_whole_batch_is_refused():
    async with memory_queue() as queue:
        with pytest.raises(InvalidOption, match=r"message.options\(id=...\)"):
            await queue.enqueue_many([1, 2], id="x")
        with pytest.raises(InvalidOption):
            await queue.enqueue_many([1, 2], delay=-1)


@asynchronous
async def test_a_batch_finds_completed_jobs():
    async with memory_queue() as queue:
        await queue.enqueue(1, id="x")
        await run_one(queue, result=b"5")
        tickets = await queue.enqueue_many([Message.raw(1).options(id="x"), 2])
        assert [(ticket.status, ticket.result) for ticket in tickets] == [("completed", 5), ("queued", None)]


@asynchronous
async def test_a_job_that_ended_without_a_result_gives_none():
    async with memory_queue() as queue:
        ticket = await queue.enqueue(1)
        (leased,) = await claim(queue)
        await queue.store.finish([Finish(leased.key, leased.token, "complete")])
        assert await ticket.wait() is None


@asynchronous
async def test_a_batch_can_name_one_id_twice():
    async with memory_queue() as queue:
        tickets = await queue.enqueue_many([Message.raw(n).options(id="x") for n in range(2)])
        assert [ticket.status for ticket in tickets] == ["queued", "duplicate"]


# Lookup and cancel ---------------------------------------------------------------------------------------------


@asynchronous
async def test_a_foreign_job_answers_exactly_like_none():
    async with memory_queue("acme", url="memory:tenants") as mine, memory_queue("evil", url="memory:tenants") as theirs:
        await mine.enqueue(1, id="x")
        assert await theirs.get("x") is None
        assert await theirs.get("nothing") is None
        assert (await theirs.cancel("x")).status == (await theirs.cancel("nothing")).status == "not_found"
        for id_ in ("x", "nothing"):
            with pytest.raises(JobNotFound, match=f"no job '{id_}' in queue 'default'"):
                await theirs.result(id_)
            with pytest.raises(JobNotFound):
                await theirs.replay(id_)
        assert [event async for event in theirs.events()] == []


@asynchronous
async def test_cancel_answers_with_what_it_did():
    async with memory_queue() as queue:
        for id_ in ("waiting", "running", "done", "dead"):
            await queue.enqueue(1, id=id_, priority=9 if id_ != "waiting" else 0)
        running, done, dead = await claim(queue, limit=3)
        await finish(queue, done)
        await finish(queue, dead, "fail")
        assert (await queue.cancel("running", only_waiting=True)).status == "processing"
        statuses = [(await queue.cancel(id_)).status for id_ in ("waiting", "running", "done", "dead", "none")]
        assert statuses == ["canceled", "canceled", "completed", "failed", "not_found"]
        assert (await queue.cancel(running.id)).status == "canceled"


# Waiting -------------------------------------------------------------------------------------------------------


@asynchronous
async def test_a_result_is_waited_for_and_typed_by_the_definition():
    async with memory_queue() as queue:
        ticket = await queue.enqueue(total.message([1, 2]))
        waiting = [asyncio.create_task(ticket.wait()), asyncio.create_task(queue.result(ticket.id))]
        await turns()
        await run_one(queue, result=b'{"sum": 3}')
        assert await asyncio.gather(*waiting) == [{"sum": 3}, {"sum": 3}]


@asynchronous
async def test_a_result_of_the_wrong_type_is_an_error_of_the_waiter():
    async with memory_queue() as queue:
        ticket = await queue.enqueue(total.message([1, 2]))
        await run_one(queue, result=b'"not a dict"')
        with pytest.raises(InvalidPayload):
            await ticket.wait()
        assert await queue.result(ticket.id) == "not a dict"


@asynchronous
async def test_enqueue_and_wait_returns_the_result():
    async with memory_queue() as queue:
        waiting = asyncio.create_task(queue.enqueue_and_wait(send_email.message("a"), timeout=30))
        await turns()
        await run_one(queue, "emails", result=b'"sent"')
        assert await waiting == "sent"
        assert queue._connection.waits._watches == {}


@asynchronous
async def test_enqueue_and_wait_subscribes_before_it_enqueues():
    order: list[str] = []

    class Ordered(LosesReplies):
        def listen(self, *args: Any) -> Any:
            order.append("listen")
            return self._store.listen(*args)

        async def enqueue(self, items: Sequence[NewJob], **options: Any) -> list[EnqueueAnswer]:
            order.append("enqueue")
            return await self._store.enqueue(items, **options)

    queue = Queue(store=Ordered(make_store("memory:ordered"), 0), tenant="acme")
    waiting = asyncio.create_task(queue.enqueue_and_wait(1))
    await turns()
    await run_one(queue)
    await waiting
    assert order == ["listen", "enqueue"]


@asynchronous
async def test_enqueue_and_wait_waits_for_an_existing_job():
    async with memory_queue() as queue:
        await queue.enqueue(1, id="x", idempotency_key="k")
        by_id = asyncio.create_task(queue.enqueue_and_wait(1, id="x"))
        by_key = asyncio.create_task(queue.enqueue_and_wait(1, id="y", idempotency_key="k"))
        await turns()
        await run_one(queue, result=b"42")
        assert await asyncio.gather(by_id, by_key) == [42, 42]
        assert await queue.enqueue_and_wait(1, id="x") == 42


@asynchronous
async def test_enqueue_and_wait_of_a_job_that_failed_before_says_so_at_once():
    async with memory_queue() as queue:
        await queue.enqueue(1, id="x")
        await run_one(queue, outcome="fail")
        with pytest.raises(JobFailed):
            await queue.enqueue_and_wait(1, id="x")


@asynchronous
async def test_a_failed_job_raises_with_its_reason_and_error():
    async with memory_queue() as queue:
        ticket = await queue.enqueue(1)
        waiting = asyncio.create_task(ticket.wait())
        await turns()
        await run_one(queue, outcome="fail")
        with pytest.raises(JobFailed) as caught:
            await waiting
        failed = caught.value
        assert (failed.reason, failed.error_type, failed.message) == ("permanent", "ValueError", "it broke")


@asynchronous
async def test_a_canceled_job_raises_for_its_waiter():
    async with memory_queue() as queue:
        ticket = await queue.enqueue(1)
        waiting = asyncio.create_task(queue.result(ticket.id))
        await turns()
        assert (await ticket.cancel()).status == "canceled"
        with pytest.raises(JobCanceled):
            await waiting


@asynchronous
async def test_a_timeout_ends_the_wait_and_the_job_continues():
    async with memory_queue() as queue:
        ticket = await queue.enqueue(1)
        with pytest.raises(WaitTimeout):
            await ticket.wait(timeout=0.001)
        with pytest.raises(WaitTimeout):
            await queue.enqueue_and_wait(1, timeout=timedelta(milliseconds=1))
        with pytest.raises(InvalidOption):
            await ticket.wait(timeout=-1)
        assert (await ticket.refresh()).state is JobState.READY
        assert queue._connection.waits._watches == {}


@asynchronous
async def test_a_wait_says_that_a_result_expired_only_if_it_knew_the_job():
    async with memory_queue() as queue:
        ticket = await queue.enqueue(1, result_ttl=10)
        await run_one(queue)
        await queue.store.shift_clock(10_001)
        with pytest.raises(ResultExpired):
            await ticket.wait()
        with pytest.raises(ResultExpired):
            await ticket.refresh()
        with pytest.raises(JobNotFound):
            await queue.result(ticket.id)
        assert await queue.get(ticket.id) is None


@asynchronous
async def test_a_result_that_is_not_kept_at_all_has_expired_for_the_waiter():
    async with memory_queue() as queue:
        waiting = asyncio.create_task(queue.enqueue_and_wait(1, result_ttl=0))
        await turns()
        await run_one(queue)
        with pytest.raises(ResultExpired):
            await waiting


@asynchronous
async def test_closing_the_queue_ends_its_waits():
    queue = await memory_queue().open()
    ticket = await queue.enqueue(1)
    waiting = asyncio.create_task(ticket.wait())
    await turns()
    await queue.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await waiting


@asynchronous
async def test_a_waiter_that_is_canceled_leaves_nothing_behind():
    async with memory_queue() as queue:
        ticket = await queue.enqueue(1)
        waiting = asyncio.create_task(ticket.wait())
        await turns()
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        assert queue._connection.waits._watches == {}
        assert queue._connection.waits._unsubscribe is None


# Blobs ---------------------------------------------------------------------------------------------------------


async def complete_in_blob(queue: Queue, blobs: Blobs, data: bytes) -> str:
    (leased,) = await claim(queue)
    name = result_name(leased.key, leased.token)
    await blobs.put(name, data)
    await queue.store.finish([Finish(leased.key, leased.token, "complete", Result(b"", "json", name))])
    return name


@asynchronous
async def test_a_result_in_a_blob_is_fetched_for_the_reader():
    blobs = Blobs.open("memory://queue-results")
    async with memory_queue(blobs=blobs) as queue:
        ticket = await queue.enqueue(1, id="x")
        name = await complete_in_blob(queue, blobs, b'"large"')
        record = await queue.get("x")
        assert record is not None
        assert record.result == "large"
        assert await ticket.wait() == "large"
        assert await queue.result("x") == "large"
        again = await queue.enqueue(1, id="x")
        assert (again.status, again.result, await again.wait()) == ("completed", "large", "large")
        (listed,) = await queue.list(state="completed")
        with pytest.raises(InvalidOption, match="blobs=URL"):
            _ = listed.result
        await blobs.delete([name])
        with pytest.raises(ResultExpired):
            await ticket.wait()
        gone = await queue.enqueue(1, id="x")
        with pytest.raises(ResultExpired):
            await gone.wait()


@asynchronous
async def test_without_a_blob_store_a_result_in_one_says_what_is_missing():
    blobs = Blobs.open("memory://queue-results-2")
    async with memory_queue() as queue:
        ticket = await queue.enqueue(1)
        await complete_in_blob(queue, blobs, b"1")
        with pytest.raises(InvalidOption, match="blobs=URL"):
            await ticket.wait()


@asynchronous
async def test_a_large_payload_is_sent_by_reference():
    async with memory_queue(blobs="memory://payloads") as queue:
        ref = await queue.put_blob(b"x" * 1_000_000)
        assert await queue.read_blob(ref) == b"x" * 1_000_000
        await queue.enqueue({"document": ref})
    async with memory_queue("other", blobs="memory://payloads") as theirs:
        with pytest.raises(InvalidPayload):
            await theirs.read_blob(ref)
    async with memory_queue() as without:
        with pytest.raises(InvalidOption, match="blobs=URL"):
            await without.put_blob(b"")
        with pytest.raises(InvalidOption, match="blobs=URL"):
            await without.read_blob(ref)


@asynchronous
async def test_an_iterable_that_raises_keeps_the_jobs_sent_before_and_leaves_none_in_flight():
    def messages():
        for n in range(1500):
            yield {"n": n or float("nan")}
        raise RuntimeError("no more")

    async with Queue("memory:half-sent", tenant="acme") as queue:
        with pytest.raises(RuntimeError, match="no more") as caught:
            await queue.enqueue_many(messages())
        assert (await queue.stats("default")).counts["ready"] == 999
        (note,) = caught.value.__notes__
        assert note == "enqueue_many: the first 1000 messages were answered before this, 1 refused."


@asynchronous
async def test_a_message_in_place_of_a_list_is_refused_by_name() -> None:
    async with memory_queue() as queue:
        with pytest.raises(InvalidOption, match="use enqueue, or give a list"):
            await queue.enqueue_many(Message.raw(1))
