"""Lists by time across queues, and changes by filter in bounded steps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast import InvalidName, InvalidOption, JobState, Queue
from holdfast.core.names import RESERVED
from holdfast.store import PAGE_LIMIT, ListQuery
from tests.unit.running import asynchronous, claim, finish, memory_queue, run_one


async def dead(queue: Queue, *ids: str, name: str = "default") -> None:
    for id_ in ids:
        await queue.enqueue(1, id=id_, queue=name)
        await run_one(queue, name, outcome="fail")
        await queue.store.shift_clock(1000)


async def all_pages(client: Queue, limit: int = 3, **options) -> list[str]:
    found, cursor = [], None
    while True:
        page = await client.list(newest=True, cursor=cursor, limit=limit, **options)
        found += [f"{job.queue}/{job.id}" for job in page]
        cursor = page.cursor
        if cursor is None:
            return found


@asynchronous
async def test_a_list_by_time_covers_all_queues_the_latest_first():
    async with memory_queue() as queue:
        for number, name in enumerate(("b", "a", "b", "c")):
            await queue.enqueue(number, id=str(number), queue=name)
            await queue.store.shift_clock(1000)
        await queue.schedule("nightly", 1, cron="30 2 * * *")
        assert await all_pages(queue) == ["c/3", "b/2", "a/1", "b/0"]
        assert await all_pages(queue, queue="b") == ["b/2", "b/0"]
        await queue.cancel("0", queue="b")
        assert await all_pages(queue) == ["b/0", "c/3", "b/2", "a/1"]
        assert await all_pages(queue, state="canceled") == ["b/0"]
        assert await all_pages(queue, id="3") == ["c/3"]
        assert await all_pages(queue, since=timedelta(seconds=2.5)) == ["b/0", "c/3", "b/2"]
        assert await all_pages(queue, until=timedelta(seconds=2.5)) == ["a/1"]
        assert await all_pages(queue, since=datetime.now(UTC) + timedelta(days=1)) == []


@asynchronous
async def test_other_filters_than_state_and_type_need_newest():
    async with memory_queue() as queue:
        for options in ({"error": "x"}, {"id": "x"}, {"since": timedelta(1)}, {"until": datetime.now(UTC)}):
            with pytest.raises(InvalidOption, match="newest=True"):
                await queue.list(**options)
        with pytest.raises(InvalidOption, match="no time zone"):
            await queue.list(newest=True, since=datetime(2026, 1, 1))  # noqa: DTZ001
        with pytest.raises(TypeError, match="colour"):
            await queue.list(colour="red")
        with pytest.raises(InvalidOption):
            await queue.list(newest=True, cursor="5")
        with pytest.raises(InvalidOption):
            await queue.store.list(ListQuery(queue.tenant, ""))


# Changes by filter ----------------------------------------------------------------------------------------------------


@asynchronous
async def test_a_cancel_by_filter_counts_first_and_goes_step_by_step():
    async with memory_queue() as queue:
        for name in ("a", "b"):
            await queue.enqueue_many(range(5), queue=name)
        await queue.enqueue(1, id="keep", queue="c", delay=100)
        (running,) = await claim(queue, "a")
        dry = await queue.cancel_where(queue="a", dry_run=True)
        assert (dry.count, dry.more, dry.dry_run, len(dry.sample)) == (4, False, True, 4)
        assert running.key not in dry.sample
        assert (await queue.stats("a")).counts["ready"] == 4
        first = await queue.cancel_where(state="ready", limit=3)
        assert (first.count, first.more) == (3, True)
        total, step = first.count, first
        while step.more:
            step = await queue.cancel_where(state="ready", limit=3, cursor=step.cursor)
            total += step.count
        assert total == 9
        counts = {stats.queue: stats.counts for stats in await queue.queues()}
        assert (counts["a"]["leased"], counts["a"]["canceled"], counts["b"]["canceled"]) == (1, 4, 5)
        assert counts["c"]["scheduled"] == 1
        assert (await queue.cancel_where(running=True)).count == 2
        await finish(queue, running)
        assert (await queue.get(running.id, queue="a")).state is JobState.CANCELED


@asynchronous
async def test_a_change_by_filter_says_what_it_cannot_change():
    async with memory_queue() as queue:
        with pytest.raises(InvalidOption, match="running"):
            await queue.cancel_where(state="leased")
        with pytest.raises(InvalidOption, match="failed"):
            await queue.replay_where(state="ready")
        with pytest.raises(InvalidName):
            await queue.cancel_where(queue=f"{RESERVED}schedules")
        with pytest.raises(InvalidOption):
            await queue.cancel_where(limit=0)
        await queue.set_tenant(max_waiting=1)
        await dead(queue, "a")
        await dead(queue, "b")
        step = await queue.replay_where()
        assert (step.count, step.refused, step.more) == (1, {"quota_exceeded": 1}, False)


@asynchronous
async def test_dead_letters_of_all_queues_are_replayed_and_purged_by_filter():
    async with memory_queue() as queue:
        await dead(queue, "a", "b", name="x")
        await dead(queue, "c", name="y")
        dry = await queue.replay_where(dry_run=True)
        assert (dry.count, [key.id for key in dry.sample]) == (3, ["c", "b", "a"])
        assert (await queue.purge_where(id="a")).count == 1
        assert await queue.get("a", queue="x") is None
        step = await queue.replay_where(limit=1)
        assert (step.count, [key.id for key in step.sample]) == (1, ["c"])
        # It fails again: no later step meets it.
        await run_one(queue, "y", outcome="fail")
        step = await queue.replay_where(cursor=step.cursor)
        assert [key.id for key in step.sample] == ["b"]
        assert (await queue.get("c", queue="y")).state is JobState.FAILED


@asynchronous
async def test_the_pages_over_hundreds_of_queues_cover_all_of_them(tmp_path):
    async with memory_queue(url=f"file:{tmp_path}") as queue:
        names = [f"q{number:03}" for number in range(2 * PAGE_LIMIT + 5)]
        for name in reversed(names):
            await queue.enqueue(1, id="job", queue=name)
        found = await all_pages(queue, limit=40)
        assert sorted(found) == [f"{name}/job" for name in names]


@asynchronous
async def test_a_purge_by_filter_leaves_a_newer_job_of_the_same_id_and_instant(monkeypatch):
    async with memory_queue() as queue:
        now = await queue.store.now()
        monkeypatch.setattr(queue.store.clock, "now", lambda: now)
        await queue.enqueue(1, id="a")
        await run_one(queue, outcome="fail")
        purge = queue.store.purge

        async def late(items):
            await queue.enqueue(2, id="a", replace_failed=True)
            await run_one(queue, outcome="fail")
            return await purge(items)

        monkeypatch.setattr(queue.store, "purge", late)
        step = await queue.purge_where()
        assert (step.count, step.refused) == (0, {"not_found": 1})
        assert (await queue.get("a")).state is JobState.FAILED
