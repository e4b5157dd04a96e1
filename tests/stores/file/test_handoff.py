"""Direct hand-off between processes: a process that dies in between costs no attempt."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import warnings

import pytest
from msgspec import msgpack

from holdfast.core import failpoint, lifecycle
from holdfast.core.job import Finished, JobState
from holdfast.core.waiters import RECHECK_MS
from holdfast.store import Hint
from holdfast.stores.file import rows
from holdfast.stores.file.waiters import LENGTH
from tests.eventually import eventually
from tests.log import all_events
from tests.stores.file.support import Child, complete, key, names_in, new, open_at, opened, threads, wish

CLOCK = "?test_clock=1"
LEASE = 600_000


@contextlib.asynccontextmanager
async def waiting(store, limit=1):
    """A worker that waits; what it was handed."""
    jobs = []
    inbox = store.open_inbox(lambda claimed, _: jobs.extend(claimed.jobs))
    await inbox.claim(wish(limit))
    try:
        yield inbox, jobs
    finally:
        await inbox.close()


async def states(store, *ids):
    return [job.state for job in await store.get([key(id_) for id_ in ids])]


async def comes_back(store, id_):
    """The lease of a job runs out, and it runs again."""
    await store.shift_clock(LEASE)
    await store.reap(10, 0.0)
    await store.shift_clock(60_000)
    again = {job.id: job for job in (await store.claim(wish(10))).jobs}
    assert again[id_].attempts == 2


async def complete_all(store, jobs):
    answers = await store.finish([complete(job) for job in jobs])
    assert all(isinstance(answer, Finished) for answer in answers)


# Who dies ------------------------------------------------------------------------------------------------------------


async def test_a_job_whose_producer_is_killed_before_the_handoff_is_released_with_its_attempt(directory):
    async with opened(directory, CLOCK) as store, waiting(store) as (inbox, jobs):
        with Child("enqueue_and_die", directory=directory, options=CLOCK, point="file.after_commit") as child:
            child.dies()
        assert await states(store, "1") == [JobState.LEASED]
        missed = await inbox.claim(wish(1))
        assert (missed.jobs, missed.next_at) == ([], missed.now + RECHECK_MS)
        (again,) = (await inbox.claim(wish(1))).jobs
        assert (again.id, again.attempts) == ("1", 1)
        assert [event.kind for event in await all_events(store)] == ["enqueued", "claimed", "released", "claimed"]
        await inbox.claim(wish(1))  # The worker goes on.
        async with opened(directory, CLOCK) as other:
            await other.enqueue([new("2")])
        await eventually(lambda: [job.id for job in jobs] == ["2"])


async def test_a_worker_that_leaves_releases_jobs_that_did_not_arrive_in_its_fifo(directory):
    async with opened(directory, CLOCK) as store:
        async with waiting(store):
            with Child("enqueue_and_die", directory=directory, options=CLOCK, point="file.after_commit") as child:
                child.dies()
            assert await states(store, "1") == [JobState.LEASED]
        (job,) = await store.get([key("1")])
        assert (job.state, job.attempts) == (JobState.READY, 0)


async def test_a_job_that_arrived_is_not_released_even_if_its_producer_dies(directory):
    async with opened(directory, CLOCK) as store, waiting(store, limit=3) as (inbox, jobs):
        with Child("enqueue_and_die", directory=directory, options=CLOCK, point="file.after_sending") as child:
            child.dies()
        assert (await inbox.claim(wish(3), 2)).jobs == []
        assert [job.id for job in jobs] == ["1"]
        assert (await inbox.claim(wish(3), 2)).jobs == []
        assert await states(store, "1") == [JobState.LEASED]
        await complete_all(store, jobs)
        assert await states(store, "1") == [JobState.COMPLETED]


async def test_a_producer_killed_before_its_commit_leases_nothing(directory):
    async with opened(directory) as store, waiting(store) as (_, jobs):
        with Child("enqueue_and_die", directory=directory, options="", point="file.before_commit") as child:
            child.dies()
        assert await store.get([key("1")]) == [None]
        async with opened(directory) as other:
            await other.enqueue([new("2")])  # The room of that one is still there.
        await eventually(lambda: [job.id for job in jobs] == ["2"])


async def test_a_worker_killed_after_a_handoff_gets_no_further_jobs(directory):
    async with opened(directory, CLOCK) as store:
        with Child("wait_for_jobs", directory=directory, options=CLOCK, limit=5) as child:
            assert await child.heard() == "waiting"
            await store.enqueue([new("1")])
            assert await child.heard() == "1"
            child.kill()
        await store.enqueue([new("2")])
        assert await states(store, "1", "2") == [JobState.LEASED, JobState.READY]
        assert names_in(directory / "inboxes") == []
        await comes_back(store, "1")


async def test_a_frozen_worker_gets_no_more_jobs_than_it_registered_for(directory):
    async with opened(directory, CLOCK) as store:
        with Child("wait_for_jobs", directory=directory, options=CLOCK, limit=3) as child:
            assert await child.heard() == "waiting"
            os.kill(child.pid, signal.SIGSTOP)
            for n in range(3):
                await store.enqueue([new(f"{n}", b"x" * rows.SMALL)])
            await store.enqueue([new("3")])
            assert await states(store, *"0123") == [JobState.LEASED] * 3 + [JobState.READY]
            os.kill(child.pid, signal.SIGCONT)
            assert [await child.heard() for _ in range(3)] == ["0", "1", "2"]


async def test_the_registration_of_a_frozen_worker_expires(directory):
    async with opened(directory, CLOCK) as store:
        with Child("wait_for_jobs", directory=directory, options=CLOCK, limit=3) as child:
            assert await child.heard() == "waiting"
            os.kill(child.pid, signal.SIGSTOP)
            await store.shift_clock(LEASE // 3)
            await store.enqueue([new("1")])
            assert await states(store, "1") == [JobState.READY]


async def test_a_fork_of_a_killed_worker_does_not_receive_its_jobs(directory):
    async with opened(directory) as store:
        with Child("wait_with_a_fork", directory=directory) as child:
            heir = await child.heard()
            child.kill()
            try:
                await store.enqueue([new("1")])
                assert await states(store, "1") == [JobState.READY]
            finally:
                os.kill(heir, signal.SIGKILL)


# What goes wrong -----------------------------------------------------------------------------------------------------


async def test_an_uncommitted_job_is_not_handed_off(directory):
    def fail(name):
        if name == "file.before_commit":
            failpoint.install(None)
            raise OSError(5, "Input/output error")

    async with opened(directory) as store, waiting(store) as (_, jobs):
        failpoint.install(fail)
        with pytest.raises(Exception, match="Input/output"):
            await store.enqueue([new("1")])
        await store.enqueue([new("2")])
        await eventually(lambda: jobs)
        assert [job.id for job in jobs] == ["2"]
        assert await store.get([key("1")]) == [None]


async def test_a_failed_call_in_a_group_hands_off_no_job(directory):
    def broken(t):
        t.hand_off(*_made(t, new("broken")), t.lane("acme", "mail"))
        raise ZeroDivisionError

    async with opened(directory) as store, waiting(store, 2) as (_, jobs):
        calls = [store.enqueue([new("1")]), store._engine.change(broken), store.enqueue([new("2")])]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(answers[1], ZeroDivisionError)
        await eventually(lambda: len(jobs) == 2)
        assert [job.id for job in jobs] == ["1", "2"]


def _made(t, item):
    return lifecycle.enqueue(item, t.seq + 1, t.now)


@pytest.mark.parametrize("damage", [b"", b"\0" * 8, b"\0\0\0\5\0\0\0\0ab", b"\xff" * 5000, b"\x7f" + b"\0" * 5000])
async def test_a_damaged_table_of_waiters_counts_as_empty(directory, damage):
    async with opened(directory) as store, waiting(store) as (inbox, jobs):
        (directory / "waiters").write_bytes(damage)
        async with opened(directory) as other:
            await other.enqueue([new("1")])
            assert await states(store, "1") == [JobState.READY]
            assert [job.id for job in (await inbox.claim(wish(2))).jobs] == ["1"]
            await other.enqueue([new("2")])
        await eventually(lambda: [job.id for job in jobs] == ["2"])


async def test_a_large_job_is_claimed_and_not_handed_off(directory):
    async with opened(directory) as store, opened(directory) as other, waiting(store, 3) as (inbox, jobs):
        heard = asyncio.Event()
        store.listen(lambda _: heard.set(), {Hint.READY})
        large = {"large": b"x" * (rows.SMALL + 1)}
        await other.enqueue([new("large", large["large"])])
        await asyncio.wait_for(heard.wait(), 60)
        assert [job.envelope.payload for job in (await inbox.claim(wish(3))).jobs] == [large["large"]]
        await other.enqueue([new("head", headers={"h": "x" * 5000})])
        assert await states(store, "head") == [JobState.READY]
        assert jobs == []


# Nothing left behind -------------------------------------------------------------------------------------------------


async def test_the_next_worker_removes_the_entries_of_dead_ones(directory):
    async with opened(directory) as store, waiting(store):
        (mine,) = names_in(directory / "inboxes")
        for name in ("old", "new", mine):
            with contextlib.suppress(FileExistsError):
                os.mkfifo(directory / "inboxes" / name)
            if name != "new":
                os.utime(directory / "inboxes" / name, (1, 1))
        async with waiting(store):
            assert {"new", mine} < set(names_in(directory / "inboxes"))
            assert "old" not in names_in(directory / "inboxes")


async def test_a_handle_that_closes_removes_its_waiters(directory):
    async with opened(directory) as store:
        twin = await store.sibling()
        inbox = twin.open_inbox(lambda *_: None)
        await inbox.claim(wish(5))
        await twin.close()
        await store.enqueue([new("1")])
        assert await states(store, "1") == [JobState.READY]
        assert names_in(directory / "inboxes") == []
        await inbox.close()
    assert threads() == []


async def test_a_job_that_was_handed_off_is_completed_as_one_that_was_claimed(directory):
    async with opened(directory) as store, opened(directory) as other, waiting(store) as (_, jobs):
        await other.enqueue([new("1")])
        await eventually(lambda: jobs)
        assert (await store.finish([complete(jobs[0])]))[0].state is JobState.COMPLETED
        (stats,) = await store.stats("acme", ["mail"])
        assert {state: count for state, count in stats.counts.items() if count} == {JobState.COMPLETED: 1}


async def test_an_unreadable_message_is_skipped(directory):
    """Of another version, say: its lease runs out."""
    async with opened(directory) as store, waiting(store, 3) as (_, jobs):
        (name,) = names_in(directory / "inboxes")
        strange = msgpack.encode(["of", "another", "version"])
        with (directory / "inboxes" / name).open("wb", buffering=0) as fifo:
            fifo.write(LENGTH.pack(len(strange)) + strange)
        async with opened(directory) as other:
            await other.enqueue([new("1")])
        await eventually(lambda: [job.id for job in jobs] == ["1"])


async def test_an_expired_lease_is_claimed_before_a_new_job(directory):
    """It is not handed off past it: a claim ends that lease first. [LEASE-3]"""
    async with opened(directory, CLOCK) as store:
        await store.enqueue([new("old")])
        await store.claim(wish(1))
        async with waiting(store) as (_, jobs), opened(directory, CLOCK) as other:
            await store.shift_clock(LEASE)
            await other.enqueue([new("new")])
            assert await states(store, "new") == [JobState.READY]
            assert jobs == []


def test_a_worker_with_a_closed_event_loop_gets_no_jobs(directory):
    """By other processes, which only see that its FIFO has a reader: its next action withdraws it."""
    store = None

    async def wait_and_go():
        sibling = await store.sibling()
        await sibling.open_inbox(lambda *_: None).claim(wish(5))

    async def main():
        nonlocal store
        store = await open_at(directory)
        await asyncio.to_thread(asyncio.run, wait_and_go())
        await store.enqueue([new("1")])
        assert names_in(directory / "inboxes") == []
        assert await states(store, "1") == [JobState.READY]
        store._engine.leave()
        await store.close()

    asyncio.run(main())
    assert threads() == []


async def test_a_fork_that_closes_inherited_files_does_not_affect_its_parent(directory):
    async with opened(directory) as store, waiting(store):
        before = names_in(directory / "inboxes")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # That threads are running: that is what is tried.
            child = os.fork()
        if child == 0:
            for inbox in store._inboxes:
                inbox.end()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0  # noqa: ASYNC222 - it ends at once
        assert names_in(directory / "inboxes") == before
