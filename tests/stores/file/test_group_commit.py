"""Calls that are made at once share a commit, and share nothing else: not a failure, not a cancellation."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import threading
import time

import pytest

from holdfast.core.errors import InvalidOption, StoreBusy, StoreError, StoreMismatch, StoreUnavailable
from holdfast.core.job import Cancel, Queued
from holdfast.store import Reader, TenantSettings
from holdfast.stores.file import changes, database, engine
from tests.log import all_events
from tests.stores.file.support import (
    Child,
    complete,
    key,
    look,
    new,
    number_of,
    open_at,
    open_files,
    opened,
    threads,
    wish,
)


class Gate:
    """Stops the writer in its next commit, so that what is asked meanwhile gathers for the one after."""

    def __init__(self, install):
        self.commits = 0
        self._install = install
        self._reached = threading.Event()
        self._open = threading.Event()

    def shut(self):
        self._install(self._pass)

    def _pass(self, name):
        if name == "file.before_commit":
            self.commits += 1
            if self.commits == 1:
                self._reached.set()
                assert self._open.wait(60)

    async def reached(self):
        assert await asyncio.to_thread(self._reached.wait, 60)

    async def hold(self, store):
        """Stop the writer inside a commit of its own."""
        self.shut()
        standing = asyncio.ensure_future(store.set_tenant("gate", TenantSettings(weight=2.0)))
        await self.reached()
        return standing

    def open(self):
        self._open.set()


@pytest.fixture
def gate(at_failpoints):
    gate = Gate(at_failpoints)
    yield gate
    gate.open()


async def _start(*calls):
    """The calls as tasks that have asked the writer and wait for it."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0)
    return tasks


# Sharing -------------------------------------------------------------------------------------------------------------


async def test_calls_made_at_once_share_commits(store, gate):
    standing = await gate.hold(store)
    calls = await _start(*(store.enqueue([new(f"{n}")]) for n in range(200)))
    gate.open()
    await standing
    assert [answer.id for (answer,) in await asyncio.gather(*calls)] == [f"{n}" for n in range(200)]
    assert gate.commits == 1 + math.ceil(200 / engine.GROUP)


async def test_calls_of_all_kinds_share_a_commit_and_see_each_other_in_order(store, gate):
    await store.enqueue([new("old")])
    (old,) = (await store.claim(wish(1))).jobs
    standing = await gate.hold(store)
    calls = await _start(
        store.enqueue([new("1"), new("2")]),
        store.claim(wish(1)),
        store.finish([complete(old)]),
        store.cancel([Cancel(key("2"))]),
        store.enqueue([new("1")]),
    )
    gate.open()
    await standing
    queued, claimed, finished, canceled, again = await asyncio.gather(*calls)
    assert gate.commits == 2
    assert [answer.id for answer in queued] == ["1", "2"]
    assert [job.id for job in claimed.jobs] == ["1"]
    assert finished[0].state == "completed"
    assert canceled == ["canceled"]
    assert again[0].state == "leased"


async def test_a_single_call_is_committed_at_once(store, at_failpoints):
    commits = []
    at_failpoints(lambda name: commits.append(name) if name == "file.before_commit" else None)
    for n in range(5):
        await store.enqueue([new(f"{n}")])
    assert len(commits) == 5


# Failing alone -------------------------------------------------------------------------------------------------------


async def test_a_failed_call_does_not_affect_its_group(store, gate):
    standing = await gate.hold(store)
    calls = await _start(
        store.enqueue([new("1")]),
        store.set_reader(Reader(None, "bad", "999999")),
        store.enqueue([new("2")]),
        store.set_reader(Reader(None, "worse", "not an offset")),
        store.set_reader(Reader(None, "good", "1")),
        store.claim(wish()),
    )
    gate.open()
    await standing
    one, bad, two, worse, good, claimed = await asyncio.gather(*calls, return_exceptions=True)
    assert gate.commits == 2
    assert (one[0].id, two[0].id, good) == ("1", "2", None)
    assert isinstance(bad, InvalidOption)
    assert isinstance(worse, InvalidOption)
    assert [job.id for job in claimed.jobs] == ["1", "2"]
    assert [reader.name for reader in await store.readers(None)] == ["good"]


async def test_all_changes_of_a_failed_call_are_undone(store, gate):
    def fails_late(t):
        changes.enqueue(t, [new("lost", queue="other"), new("1")])
        t.flush()
        changes.cancel(t, [Cancel(key("0"))])
        raise RuntimeError("late")

    await store.enqueue([new("0")])
    standing = await gate.hold(store)
    calls = await _start(
        store.enqueue([new("before", queue="third")]),
        store._engine.change(fails_late),
        store.enqueue([new("1"), new("2", queue="other")]),
    )
    gate.open()
    await standing
    before, failed, after = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(failed, RuntimeError)
    assert [type(answer) for answer in (*before, *after)] == [Queued] * 3
    events = await all_events(store)
    assert [event.job_id for event in events] == ["0", "before", "1", "2"]
    assert [number_of(event) for event in events] == [1, 2, 3, 4]
    stats = await store.stats("acme")
    assert {(lane.queue, lane.counts["ready"]) for lane in stats} == {("mail", 2), ("other", 1), ("third", 1)}


async def test_a_disk_error_fails_the_whole_group_and_no_other_call(store, gate, directory):
    def breaks(_):
        raise sqlite3.OperationalError("disk I/O error")

    standing = await gate.hold(store)
    calls = await _start(
        store.enqueue([new("1", queue="fresh")]), store._engine.change(breaks), store.enqueue([new("2")])
    )
    gate.open()
    await standing
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(answer, StoreError) for answer in answers)
    assert look(directory, "SELECT count(*) FROM jobs") == [(0,)]
    # The lane that was rolled back is created again, not cached.
    await store.enqueue([new("1", queue="fresh")])
    assert (await store.get([key("1", queue="fresh")]))[0].state == "ready"
    assert [number_of(event) for event in await all_events(store)] == [1]


async def test_a_failed_commit_forgets_the_leases_in_it(store, at_failpoints):
    await store.enqueue([new("1")])

    def fail(name):
        if name == "file.before_commit":
            at_failpoints(None)
            raise OSError(5, "Input/output error")

    at_failpoints(fail)
    with pytest.raises(StoreUnavailable, match="Input/output error"):
        await store.claim(wish())
    (job,) = (await store.claim(wish())).jobs
    assert job.attempts == 1
    assert (await store.finish([complete(job)]))[0].state == "completed"


async def test_a_read_that_fails_says_why_and_the_next_one_works(store):
    def fails(db):
        db.execute("ROLLBACK")  # As SQLite does by itself after an I/O error.
        raise OSError(5, "Input/output error")

    with pytest.raises(StoreUnavailable, match="Input/output error"):
        await store._engine.read(fails)
    assert await store.now() > 0


async def test_damage_found_by_one_call_does_not_affect_its_group(store, gate, directory):
    await store.enqueue([new("bad", queue="damaged")])
    db = sqlite3.connect(directory / "holdfast.db")
    db.execute("UPDATE jobs SET head = x'c1'")
    db.commit()
    db.close()
    standing = await gate.hold(store)
    calls = await _start(store.enqueue([new("1")]), store.claim(wish(queues=("damaged",))), store.enqueue([new("2")]))
    gate.open()
    await standing
    one, damaged, two = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(damaged, StoreMismatch)
    assert (one[0].id, two[0].id) == ("1", "2")


# Leaving early -------------------------------------------------------------------------------------------------------


async def test_a_canceled_caller_does_not_affect_the_others_and_its_call_does_not_run(store, gate):
    standing = await gate.hold(store)
    calls = await _start(*(store.enqueue([new(f"{n}")]) for n in range(5)))
    calls[2].cancel()
    await asyncio.sleep(0)
    gate.open()
    await standing
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(answers[2], asyncio.CancelledError)
    assert [job and job.id for job in await store.get([key(f"{n}") for n in range(5)])] == ["0", "1", None, "3", "4"]


async def test_a_caller_canceled_during_its_commit_does_not_affect_the_others(store, gate):
    gate.shut()
    call = asyncio.ensure_future(store.enqueue([new("1")]))
    await gate.reached()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    gate.open()
    await store.enqueue([new("2")])
    assert all(await store.get([key("1"), key("2")]))


def test_an_event_loop_that_ends_with_calls_in_flight_does_not_affect_the_store(directory, gate):
    async def ask_and_go(store):
        sibling = await store.sibling()
        gate.shut()
        asyncio.ensure_future(sibling.enqueue([new("1")]))  # noqa: RUF006 - it is to be abandoned
        await gate.reached()

    async def main():
        store = await open_at(directory)
        await asyncio.to_thread(asyncio.run, ask_and_go(store))
        gate.open()
        await store.enqueue([new("2")])
        store._engine.leave()
        await store.close()

    asyncio.run(main())
    assert look(directory, "SELECT id FROM jobs") == [("1",), ("2",)]
    assert threads() == []


async def test_closing_finishes_the_calls_in_flight(directory):
    store = await open_at(directory)
    calls = await _start(*(store.enqueue([new(f"{n}")]) for n in range(150)))
    await store.close()
    assert len(await asyncio.gather(*calls)) == 150
    assert look(directory, "SELECT count(*) FROM jobs") == [(150,)]


# Waiting for other processes -----------------------------------------------------------------------------------------


async def test_a_call_that_waits_too_long_for_another_process_is_busy_and_is_never_run(directory, monkeypatch):
    async with opened(directory) as store:
        with Child("hold_the_lock", directory=directory) as child:
            assert await child.heard() == "held"
            monkeypatch.setattr(database, "BUSY_S", 0.05)
            calls = [store.enqueue([new(f"{n}")]) for n in range(3)]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(answer) for answer in answers} == {StoreBusy}
            assert await store.get([key("0")]) == [None]  # Reading goes on meanwhile.
            monkeypatch.setattr(database, "BUSY_S", 30.0)
            waiting = asyncio.ensure_future(store.enqueue([new("later")]))
            child.go_on()
            assert (await waiting)[0].id == "later"
        assert [event.job_id for event in await all_events(store)] == ["later"]


async def test_opening_while_another_process_holds_the_lock_is_busy(directory, monkeypatch):
    async with opened(directory):
        pass
    with Child("hold_the_lock", directory=directory) as child:
        assert await child.heard() == "held"
        monkeypatch.setattr(database, "BUSY_S", 0.05)
        with pytest.raises(StoreBusy, match="another process"):
            await open_at(directory)
        monkeypatch.setattr(database, "BUSY_S", 30.0)
        child.go_on()
        child.ends()
    async with opened(directory) as store:
        await store.enqueue([new("1")])
    await _ended("holdfast-file-lock")
    assert open_files(directory) == []


async def test_an_opening_that_is_canceled_while_it_waits_leaves_nothing_behind(directory):
    async with opened(directory):
        pass
    with Child("hold_the_lock", directory=directory) as child:
        assert await child.heard() == "held"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await open_at(directory)
        child.go_on()
        child.ends()
    async with opened(directory) as store:  # After the opening that was given up.
        await store.enqueue([new("1")])
    await asyncio.to_thread(_until, lambda: not threads() and not open_files(directory))


def _until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline


async def test_closing_while_another_process_holds_the_lock_is_busy(directory, monkeypatch):
    store = await open_at(directory)
    with Child("hold_the_lock", directory=directory) as child:
        assert await child.heard() == "held"
        monkeypatch.setattr(database, "BUSY_S", 0.05)
        with pytest.raises(StoreBusy):
            await store.enqueue([new("1")])
        with pytest.raises(StoreBusy):
            await store.close()
        child.go_on()
        child.ends()
    await _ended("holdfast-file-writer")  # It has let go of everything by itself.
    assert open_files(directory) == []
    assert threads() == []
    assert look(directory, "SELECT count(*) FROM jobs") == [(0,)]


async def _ended(name):
    for thread in threading.enumerate():
        if thread.name == name:
            await asyncio.to_thread(thread.join, 60)


async def test_a_program_that_locks_the_database_makes_the_store_busy(directory, monkeypatch):
    monkeypatch.setattr(database, "BUSY_S", 0.05)
    async with opened(directory) as store:
        other = sqlite3.connect(directory / "holdfast.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy):
            await store.enqueue([new("1")])
        other.execute("ROLLBACK")
        other.close()
        await store.enqueue([new("2")])
        assert [event.job_id for event in await all_events(store)] == ["2"]
