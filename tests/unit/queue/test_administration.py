from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import (
    EventsTrimmed,
    InvalidName,
    InvalidOption,
    JobNotFound,
    JobState,
    NotReplayable,
    Queue,
    QuotaExceeded,
)
from holdfast.blobs import Blobs
from holdfast.core.job import Finish, Result
from holdfast.store import TenantSettings, WorkerInfo
from tests.unit.running import asynchronous, claim, finish, memory_queue, run_one, turns


async def dead(queue: Queue, *ids: str, name: str = "default") -> None:
    for id_ in ids:
        await queue.enqueue(1, id=id_, queue=name)
        await run_one(queue, name, outcome="fail")
        await queue.store.shift_clock(1000)


# Lists and counts ----------------------------------------------------------------------------------------------


@asynchronous
async def test_stats_count_every_state_and_the_age_of_the_oldest_ready_job():
    async with memory_queue() as queue:
        empty = await queue.stats("unheard-of")
        assert (set(empty.counts), sum(empty.counts.values()), empty.oldest_ready_age) == (set(JobState), 0, None)
        await queue.enqueue_many([1, 2])
        await queue.enqueue(3, delay=100)
        await queue.store.shift_clock(5000)
        stats = await queue.stats()
        assert (stats.counts[JobState.READY], stats.counts[JobState.SCHEDULED]) == (2, 1)
        assert stats.oldest_ready_age == timedelta(seconds=5)


@asynchronous
async def test_queues_are_all_the_tenants_queues_by_name():
    async with memory_queue("acme", url="memory:names") as queue, memory_queue("other", url="memory:names") as other:
        await queue.enqueue(1, queue="b")
        await queue.enqueue(1, queue="a")
        await other.enqueue(1, queue="c")
        assert [(stats.queue, stats.counts["ready"]) for stats in await queue.queues()] == [("a", 1), ("b", 1)]


@asynchronous
async def test_a_list_comes_in_pages():
    async with memory_queue() as queue:
        await queue.enqueue_many(range(5))
        seen: list[int] = []
        cursor = None
        while True:
            page = await queue.list(limit=2, cursor=cursor)
            assert len(page) <= 2
            seen += [record.payload for record in page]
            if (cursor := page.cursor) is None:
                break
        assert seen == [0, 1, 2, 3, 4]


@asynchronous
async def test_a_list_can_be_of_some_states_or_of_one_type():
    async with memory_queue() as queue:
        await queue.enqueue_many(range(3))
        await run_one(queue)
        await claim(queue)
        assert [len(await queue.list(state=state)) for state in ("ready", JobState.LEASED, ["ready", "completed"])] == [
            1,
            1,
            2,
        ]
        assert len(await queue.list(type="other")) == 0
        with pytest.raises(InvalidOption, match="there are blocked"):
            await queue.list(state="gone")


@pytest.mark.parametrize("limit", [0, 1001, "5"])
@asynchronous
async def test_a_page_has_a_sensible_size(limit):
    async with memory_queue() as queue:
        with pytest.raises(InvalidOption):
            await queue.list(limit=limit)
        with pytest.raises(InvalidOption):
            await queue.dead_letters(limit=limit)


# Dead letters --------------------------------------------------------------------------------------------------


@asynchronous
async def test_dead_letters_are_listed_oldest_first_with_their_errors():
    async with memory_queue() as queue:
        await dead(queue, "a", "b", "c")
        first = await queue.dead_letters(limit=2)
        assert [record.id for record in first] == ["a", "b"]
        rest = await queue.dead_letters(limit=2, cursor=first.cursor)
        assert ([record.id for record in rest], rest.cursor) == (["c"], None)
        record = first[0]
        assert (record.reason, record.errors[0].type, record.errors[0].attempt) == ("permanent", "ValueError", 1)
        assert len(await queue.dead_letters(error="ValueError")) == 3
        assert len(await queue.dead_letters(error="broke")) == 3
        assert len(await queue.dead_letters(error="KeyError")) == 0
        assert len(await queue.dead_letters(queue="elsewhere")) == 0


@asynchronous
async def test_a_replayed_job_runs_again_under_its_id():
    async with memory_queue() as queue:
        await dead(queue, "a")
        ticket = await queue.replay("a")
        assert (ticket.status, ticket.id, ticket.state) == ("replayed", "a", JobState.READY)
        record = await ticket.refresh()
        assert (record.attempts, record.replays, record.reason) == (0, 1, None)
        waiting = asyncio.create_task(ticket.wait())
        await turns()
        await run_one(queue, result=b"7")
        assert await waiting == 7


@asynchronous
async def test_a_refused_replay_says_why():
    async with memory_queue() as queue:
        await queue.enqueue(1, id="waiting")
        with pytest.raises(NotReplayable, match="it is ready"):
            await queue.replay("waiting")
        with pytest.raises(JobNotFound):
            await queue.replay("nothing")
        await dead(queue, "a", name="q")
        await queue.set_tenant(max_waiting=1)
        with pytest.raises(QuotaExceeded):
            await queue.replay("a", queue="q")


@asynchronous
async def test_of_concurrent_replays_one_wins():
    async with memory_queue() as queue:
        await dead(queue, "a")
        answers = await asyncio.gather(*(queue.replay("a") for _ in range(5)), return_exceptions=True)
        assert sum(isinstance(answer, NotReplayable) for answer in answers) == 4


@asynchronous
async def test_named_dead_letters_are_replayed_and_answered_one_by_one():
    async with memory_queue() as queue:
        await dead(queue, "a", "b")
        tickets = await queue.replay_many(["a", "none", "b", "a"])
        assert [ticket.status for ticket in tickets] == ["replayed", "refused", "replayed", "refused"]
        assert [type(ticket.error) for ticket in tickets] == [type(None), JobNotFound, type(None), NotReplayable]
        with pytest.raises(InvalidOption):
            await queue.replay_many(["a"], error="x")


@asynchronous
async def test_dead_letters_that_match_are_replayed_as_a_set():
    async with memory_queue() as queue:
        await dead(queue, "a", "b", "c")
        assert await queue.replay_many(error="KeyError") == []
        assert [ticket.id for ticket in await queue.replay_many(error="ValueError")] == ["a", "b", "c"]
        assert len(await queue.dead_letters()) == 0


@asynchronous
async def test_more_dead_letters_than_a_page_are_all_replayed():
    async with memory_queue() as queue:
        await queue.enqueue_many(range(2100))
        for leased in await claim(queue, limit=2100):
            await finish(queue, leased, "fail")
        assert len(await queue.replay_many()) == 2100


@asynchronous
async def test_purging_a_job_forgets_it_and_its_blob():
    blobs = Blobs.open("memory://purge")
    async with memory_queue(blobs=blobs) as queue:
        await queue.enqueue(1, id="a")
        assert await queue.purge("a") == "not_terminal"
        (leased,) = await claim(queue)
        await blobs.put("acme/results/x", b"1")
        await queue.store.finish([Finish(leased.key, leased.token, "complete", Result(b"", "json", "acme/results/x"))])
        assert await queue.purge("a") == "purged"
        assert await queue.purge("a") == "not_found"
        assert await blobs.get("acme/results/x") is None
        assert [event.kind async for event in queue.events()][-1] == "purged"


@asynchronous
async def test_dead_letters_are_purged_by_age():
    async with memory_queue() as queue:
        await dead(queue, "a", "b", "c")
        records = await queue.dead_letters()
        ended = records[1].finished_at
        assert ended is not None
        assert await queue.purge_dead_letters(before=timedelta(hours=1)) == 0
        assert await queue.purge_dead_letters(before=ended) == 2
        assert await queue.purge_dead_letters(error="KeyError") == 0
        assert await queue.purge_dead_letters() == 1
        assert await queue.dead_letters() == []
        with pytest.raises(InvalidOption):
            await queue.purge_dead_letters(before=datetime(2020, 1, 1))  # noqa: DTZ001 - that is the mistake


@asynchronous
async def test_a_job_that_failed_again_since_it_was_listed_is_not_purged():
    async with memory_queue() as queue:
        await dead(queue, "a")
        real = queue.store.list

        async def stale(query):
            page = await real(query)
            await queue.replay("a")
            await run_one(queue, outcome="fail")
            return page

        queue.store.list = stale
        assert await queue.purge_dead_letters() == 0
        queue.store.list = real
        assert await queue.get("a") is not None


@asynchronous
async def test_the_events_of_an_operators_calls_name_the_operator():
    async with memory_queue() as queue:
        await dead(queue, "a", "b", "c", "d", "e")
        await queue.replay("a", by="ann")
        await queue.replay("b")
        await queue.cancel("a", by="ann")
        await queue.cancel("b")
        await queue.purge("a", by="ann")
        await queue.purge("b")
        await queue.replay_many(["c"], by="bob")
        await queue.replay_where(id="d", by="bob")
        await queue.cancel_where(id="c", by="bob")
        await queue.purge_where(id="e", by="bob")
        await dead(queue, "f", name="other")
        await queue.purge_dead_letters(queue="other", by="\u00e9")
        kinds = ("replayed", "canceled", "purged")
        found = [e async for e in queue.events() if e.kind in kinds]
        assert [(e.kind, e.job_id, e.data.get("by")) for e in found] == [
            ("replayed", "a", "ann"), ("replayed", "b", None), ("canceled", "a", "ann"), ("canceled", "b", None),
            ("purged", "a", "ann"), ("purged", "b", None), ("replayed", "c", "bob"), ("replayed", "d", "bob"),
            ("canceled", "c", "bob"), ("purged", "e", "bob"), ("purged", "f", "\u00e9"),
        ]  # fmt: skip


@pytest.mark.parametrize("by", ["a\nb", "\x7f", "x" * 201, "\ud800"])
async def test_a_bad_name_of_an_operator_is_refused_and_changes_nothing(by):
    async with memory_queue() as queue:
        await dead(queue, "a")
        await queue.enqueue(1, id="w")
        for call in (
            queue.cancel("w", by=by), queue.replay("a", by=by), queue.replay_many(["a"], by=by),
            queue.purge("a", by=by), queue.purge_dead_letters(by=by), queue.cancel_where(by=by),
        ):  # fmt: skip
            with pytest.raises(InvalidName, match="operator"):
                await call
        assert [(await queue.get(id)).state for id in ("a", "w")] == ["failed", "ready"]


async def test_a_result_can_be_kept_longer():
    async with memory_queue() as queue:
        await queue.enqueue(1, id="a", result_ttl=10)
        assert await queue.set_result_ttl("a", timedelta(days=1)) == "not_terminal"
        await run_one(queue)
        assert await queue.set_result_ttl("a", timedelta(days=1)) == "updated"
        assert await queue.set_result_ttl("none", 5) == "not_found"
        await queue.store.shift_clock(3_600_000)
        assert await queue.get("a") is not None
        with pytest.raises(InvalidOption):
            await queue.set_result_ttl("a", -1)


# Events --------------------------------------------------------------------------------------------------------


@asynchronous
async def test_the_events_of_a_job_come_in_order():
    async with memory_queue() as queue:
        await queue.enqueue(1, id="a")
        await run_one(queue)
        events = [event async for event in queue.events()]
        assert [event.kind for event in events] == ["enqueued", "claimed", "completed"]
        claimed = events[1]
        assert (claimed.job_id, claimed.queue, claimed.tenant, claimed.type) == ("a", "default", "acme", "")
        assert (claimed.attempt, claimed.worker_id, claimed.at.tzinfo) == (1, "w1", UTC)
        assert claimed.token > 0
        resumed = [event async for event in queue.events(after=events[0].offset)]
        assert resumed == events[1:]
        assert [event async for event in queue.events(after=await queue.last_offset())] == []


@asynchronous
async def test_following_yields_new_events_and_removes_its_listener_at_the_end():
    async with memory_queue() as queue:
        await queue.enqueue(1, id="a")
        stream = queue.events(follow=True)
        assert (await anext(stream)).job_id == "a"
        pending = asyncio.ensure_future(anext(stream))
        await turns()
        assert not pending.done()
        await queue.enqueue(1, id="b")
        assert (await pending).job_id == "b"
        await stream.aclose()
        assert queue.store.side.notifier._listeners == {}


@asynchronous
async def test_following_reads_the_store_only_after_a_hint():
    async with memory_queue() as queue:
        asked: list[object] = []
        ask = queue.store.events

        async def counted(*args):
            asked.append(args)
            return await ask(*args)

        queue.store.events = counted
        stream = queue.events(follow=True)
        pending = asyncio.ensure_future(anext(stream))
        await turns(300)
        assert len(asked) == 1
        await queue.enqueue(1)
        await pending
        assert len(asked) == 2
        pending = asyncio.ensure_future(anext(stream))
        await turns(300)
        assert len(asked) == 2
        pending.cancel()
        await turns()
        await stream.aclose()


@asynchronous
async def test_many_events_are_read_page_by_page():
    async with memory_queue() as queue:
        await queue.enqueue_many(range(2500))
        assert len([event async for event in queue.events()]) == 2500


@asynchronous
async def test_a_reader_that_fell_behind_gets_the_gap():
    async with memory_queue(url="memory:trimmed?test_clock=frozen&keep_events=1") as queue:
        start = await queue.last_offset()
        await queue.enqueue_many(range(5))
        await queue.store.prune(10)
        with pytest.raises(EventsTrimmed):
            _ = [event async for event in queue.events(after=start)]


@asynchronous
async def test_readers_are_registered_moved_and_dropped():
    async with memory_queue() as queue:
        await queue.enqueue(1)
        start = await queue.register_reader("audit")
        assert start == await queue.last_offset()
        await queue.enqueue(2)
        await queue.advance_reader("audit", await queue.last_offset())
        await queue.advance_reader("audit", start)
        (reader,) = await queue.readers()
        assert (reader.name, reader.offset) == ("audit", await queue.last_offset())
        assert await queue.register_reader("late", after=start) == start
        assert await queue.drop_reader("audit") is True
        assert await queue.drop_reader("audit") is False
        with pytest.raises(InvalidName):
            await queue.register_reader("")


# Settings ------------------------------------------------------------------------------------------------------


@asynchronous
async def test_a_paused_queue_takes_jobs_and_hands_out_none():
    async with memory_queue() as queue:
        await queue.pause()
        await queue.enqueue(1)
        assert (await queue.stats()).paused
        assert await claim(queue) == []
        await queue.resume()
        assert not (await queue.stats()).paused
        assert len(await claim(queue)) == 1


@asynchronous
async def test_settings_are_set_field_by_field():
    async with memory_queue() as queue:
        await queue.set_tenant(weight=2)
        await queue.set_tenant(max_waiting=10)
        await queue.set_tenant(max_waiting=0, queue="emails")
        assert await queue.tenant_settings() == [TenantSettings(None, 2, 10), TenantSettings("emails", None, 0)]
        for wrong in ({"weight": 0}, {"weight": 1000}, {"max_waiting": -1}, {"max_waiting": 1.5}):
            with pytest.raises(InvalidOption):
                await queue.set_tenant(**wrong)
        with pytest.raises(InvalidName):
            await queue.set_tenant(weight=1, queue="")


@asynchronous
async def test_workers_are_those_that_serve_the_tenant():
    async with memory_queue() as queue:
        for name, tenant in (("mine", "acme"), ("all", None), ("theirs", "other")):
            await queue.store.beat(WorkerInfo(name, tenant, "host", 5, ("emails",), 10, 2), 10_000)
        workers = await queue.workers()
        assert [worker.id for worker in workers] == ["all", "mine"]
        worker = workers[1]
        assert (worker.host, worker.pid, worker.queues, worker.concurrency, worker.held) == (
            "host",
            5,
            ("emails",),
            10,
            2,
        )
        assert worker.seen_at.tzinfo is UTC
