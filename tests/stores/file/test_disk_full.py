"""A disk without room: nothing is acknowledged that is not there, and the store goes on when there is room again."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.errors import StoreUnavailable
from tests.log import all_events
from tests.stores.file.support import Child, complete, key, look, new, number_of, opened, quick_check, wish


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A process has filled its disk (files of at most 1 MiB) and gone on with more room: the directory, its story."""
    directory = tmp_path_factory.mktemp("full") / "store"
    with Child("fill", directory=directory, limit=1024 * 1024) as child:
        story = child.says()
        child.ends()
    return directory, story


def test_a_full_disk_is_unavailable(filled):
    _, story = filled
    assert len(story["queued"]) > 100
    assert set(story["codes"]) == {"store_unavailable"}


async def test_acknowledged_jobs_are_kept(filled):
    directory, story = filled
    async with opened(directory) as store:
        queued = await store.get([key(id_) for id_ in story["queued"]])
        completed = await store.get([key(id_) for id_ in story["completed"]])
    assert all(queued)
    assert len(completed) > 5
    assert {job.state for job in completed} == {"completed"}


def test_refused_jobs_are_not_stored(filled):
    directory, story = filled
    there = {id_ for (id_,) in look(directory, "SELECT id FROM jobs")}
    assert story["failed"]
    assert not there & {id_ for batch, _ in story["failed"] for id_ in batch}
    assert there == set(story["queued"])
    assert quick_check(directory) == "ok"


async def test_the_log_and_the_counts_agree_with_the_acknowledged_jobs(filled):
    directory, story = filled
    async with opened(directory) as store:
        events = await all_events(store)
        (stats,) = await store.stats("acme")
    assert sorted(event.job_id for event in events if event.kind == "enqueued") == sorted(story["queued"])
    assert [number_of(event) for event in events] == list(range(1, len(events) + 1))
    assert sum(stats.counts.values()) == len(story["queued"])


def test_a_store_that_finds_no_room_is_unavailable_and_can_be_created_later(directory):
    with Child("open_on_a_full_disk", directory=directory) as child:
        assert child.says()[0] == "store_unavailable"
        assert child.says() == "done"
        child.ends()
    assert look(directory, "SELECT id FROM jobs") == [("a",)]


async def test_a_database_at_its_maximum_size_is_unavailable_until_it_may_grow(store):
    await store.enqueue([new("before")])
    db = store._engine._db
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    db.execute(f"PRAGMA max_page_count = {pages}")
    calls = [store.enqueue([new(f"{n}-{i}", b"x" * 5000) for i in range(3)]) for n in range(5)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(answer) for answer in answers} == {StoreUnavailable}
    assert "full" in str(answers[0])
    held = (await store.claim(wish())).jobs
    assert [job.id for job in held] == ["before"]
    db.execute("PRAGMA max_page_count = 1000000")
    await store.finish([complete(job) for job in held])
    await store.enqueue([new("after", b"x" * 5000)])
    assert [event.job_id for event in await all_events(store)] == ["before", "before", "before", "after"]
