"""Several processes on one directory, and processes that die by SIGKILL in the middle of a commit."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import defaultdict

import pytest

from holdfast.core.job import JobState
from tests.log import all_events
from tests.stores.file.support import Child, complete, key, look, names_in, new, number_of, opened, quick_check, wish

# Side by side --------------------------------------------------------------------------------------------------------

WORKERS = "abcd"
JOBS = 200


@pytest.fixture(scope="module")
def worked(tmp_path_factory):
    """Four processes have enqueued and run jobs in one directory concurrently. Returns the directory and the runs."""
    directory = tmp_path_factory.mktemp("shared") / "store"
    children = {
        name: Child("work", directory=directory, name=name, jobs=JOBS, total=JOBS * len(WORKERS)) for name in WORKERS
    }
    for child in children.values():
        assert child.says() == "ready"
    for child in children.values():
        child.go_on()
    runs = {name: child.says() for name, child in children.items()}
    for child in children.values():
        with child:
            child.ends()
    return directory, runs


def test_every_job_is_done_once_by_one_process(worked):
    _, runs = worked
    done = sorted(id_ for ran in runs.values() for id_, _, _ in ran)
    assert done == sorted(f"{name}-{n}" for name in WORKERS for n in range(JOBS))
    assert {answer for ran in runs.values() for *_, answer in ran} == {"Finished"}


def test_the_processes_shared_the_work(worked):
    _, runs = worked
    assert sum(1 for ran in runs.values() if ran) > 1


def test_tokens_are_never_given_twice_and_grow(worked):
    _, runs = worked
    for ran in runs.values():
        tokens = [token for _, token, _ in ran]
        assert tokens == sorted(tokens)
    assert len({token for ran in runs.values() for _, token, _ in ran}) == JOBS * len(WORKERS)


async def test_the_log_has_every_transition_once_and_in_order(worked):
    directory, runs = worked
    async with opened(directory) as store:
        events = await all_events(store)
    assert [number_of(event) for event in events] == list(range(1, len(events) + 1))
    assert [event.at for event in events] == sorted(event.at for event in events)
    moves = defaultdict(list)
    for event in events:
        moves[event.job_id].append((event.kind, event.token, event.worker_id))
    who = {id_: (token, name) for name, ran in runs.items() for id_, token, _ in ran}
    assert moves == {
        id_: [("enqueued", 0, ""), ("claimed", token, name), ("completed", token, name)]
        for id_, (token, name) in who.items()
    }
    tokens = [event.token for event in events if event.kind == "claimed"]
    assert tokens == sorted(tokens)


async def test_a_job_that_another_process_renewed_completes_with_the_next_number(directory):
    """The process that leased it remembers it, and must not believe in a number that another one has used."""
    async with opened(directory, "?events=all") as store:
        await store.enqueue([new(f"{n}") for n in range(3)])
        jobs = (await store.claim(wish())).jobs
        with Child("renew", directory=directory, leases=[(job.id, job.token) for job in jobs]) as child:
            assert await child.heard() == ["Extended"] * 3
            child.ends()
        await store.finish([complete(jobs[0])])
        await store.finish([complete(job) for job in jobs[1:]])
        numbers = defaultdict(list)
        for event in await all_events(store):
            numbers[event.job_id].append((event.kind, event.number))
        life = [("enqueued", 1), ("claimed", 2), ("extended", 3), ("completed", 4)]
        assert numbers == {f"{n}": life for n in range(3)}
        assert [job.events for job in await store.get([key(f"{n}") for n in range(3)])] == [4] * 3


async def test_the_counts_are_those_of_the_jobs(worked):
    directory, _ = worked
    async with opened(directory) as store:
        (stats,) = await store.stats("acme")
    assert stats.counts == {state: JOBS * 4 if state == "completed" else 0 for state in JobState}
    counted = "SELECT waiting, leased, completed, failed, canceled FROM lanes"
    assert look(directory, counted) == [(0, 0, JOBS * 4, 0, 0)]
    assert look(directory, "SELECT state, count(*) FROM jobs GROUP BY state") == [(5, JOBS * 4)]
    assert quick_check(directory) == "ok"


def test_a_second_handle_in_one_process_does_not_expose_the_first(directory):
    # POSIX locks belong to the process: opening or closing a second handle must not drop those of the first, or
    # another process takes itself for the last user and deletes the log that the first still writes to.
    with Child("open_a_second_time", directory=directory) as child:
        assert child.says() == "open"
        _come_and_go(directory, "x")
        child.go_on()
        assert child.says() == "closed"
        _come_and_go(directory, "y")
        child.go_on()
        assert child.says() == "acknowledged"
        child.dies()
    _come_and_go(directory, "z")
    ids = {id_ for (id_,) in look(directory, "SELECT id FROM jobs")}
    assert ids == {"first", "second", "third", "fourth", "x", "y", "z"}
    assert quick_check(directory) == "ok"


def _come_and_go(directory, id_):
    with Child("enqueue", directory=directory, ids=[id_]) as child:
        assert child.says() == "open"
        child.go_on()
        assert child.says() == [id_]
        child.ends()


# Death in the middle -------------------------------------------------------------------------------------------------

BEFORE = {"before-0": "leased", "before-1": "leased", "before-2": "ready", "before-3": "ready"}
AFTER = {
    "enqueue": BEFORE | {f"{name}-{n}": "ready" for name in "ab" for n in range(3)},
    "claim": BEFORE | {"before-2": "leased", "before-3": "leased"},
    "complete": BEFORE | {"before-0": "completed", "before-1": "completed"},
    "cancel": BEFORE | {"before-2": "canceled", "before-3": "canceled"},
}


@pytest.mark.parametrize("step", AFTER)
async def test_a_kill_before_the_commit_leaves_nothing_of_the_group(directory, step):
    held = _die_at(directory, "file.before_commit", step)
    async with opened(directory) as store:
        assert await _states(store) == BEFORE
        assert [event.kind for event in await all_events(store)] == ["enqueued"] * 4 + ["claimed"] * 2
        await _goes_on(store, held)


@pytest.mark.parametrize("step", AFTER)
async def test_a_kill_after_the_commit_leaves_all_of_the_group(directory, step):
    held = _die_at(directory, "file.after_commit", step)
    async with opened(directory) as store:
        states = await _states(store)
        # Two calls were made at once: the first may have been in a group of its own.
        assert states != BEFORE
        assert states.items() <= (AFTER[step] | BEFORE).items() or states == AFTER[step]
        events = await all_events(store)
        assert [number_of(event) for event in events] == list(range(1, len(events) + 1))
        await _goes_on(store, held)


def _die_at(directory, point, step):
    with Child("die_at", directory=directory, point=point, step=step) as child:
        held = child.says()
        child.dies()
    return held


async def _states(store):
    ids = [*BEFORE, *(f"{name}-{n}" for name in "ab" for n in range(3))]
    return {job.id: job.state for job in await store.get([key(id_) for id_ in ids]) if job is not None}


async def _goes_on(store, held):
    """The lock is free, tokens are fresh, and the leases of the dead are still theirs to finish."""
    assert (await store.enqueue([new("next")]))[0].id == "next"
    claimed = (await store.claim(wish(50))).jobs
    assert all(job.token > max(held.values()) for job in claimed)
    assert len({job.token for job in claimed}) == len(claimed)
    await store.finish([complete(job) for job in claimed])
    (finding,) = [finding for finding in await store.doctor() if finding.subject == "integrity"]
    assert finding.level == "ok"


@contextlib.contextmanager
def _waiting_and_stuck(directory):
    """A process that has the store open, and another that is stopped in a commit."""
    with Child("enqueue", directory=directory, ids=["waited"]) as waiting:
        assert waiting.says() == "open"
        with Child("stop_at", directory=directory, point="file.before_commit") as stuck:
            assert stuck.says() == "stopped"
            yield waiting, stuck


def test_a_waiting_writer_continues_when_the_other_is_killed(directory):
    with _waiting_and_stuck(directory) as (waiting, stuck):
        waiting.go_on()
        stuck.kill()
        assert waiting.says() == ["waited"]
        waiting.ends()
    assert look(directory, "SELECT id FROM jobs") == [("waited",)]


def test_a_waiting_writer_continues_when_the_other_does(directory):
    with _waiting_and_stuck(directory) as (waiting, stuck):
        waiting.go_on()
        stuck.go_on()
        assert stuck.says() == "done"
        assert waiting.says() == ["waited"]
        waiting.ends()
    assert look(directory, "SELECT id FROM jobs ORDER BY seq") == [("stopped",), ("waited",)]


def test_a_fork_of_a_killed_process_keeps_neither_its_lock_nor_its_fifo(directory):
    with Child("leave_a_fork_behind", directory=directory) as child:
        fork = child.says()
        child.dies()
        try:
            with Child("enqueue", directory=directory, ids=["next"]) as other:
                assert other.says() == "open"
                other.go_on()
                assert other.says() == ["next"]
                other.ends()
        finally:
            os.kill(fork, signal.SIGKILL)
    assert look(directory, "SELECT id FROM jobs") == [("next",)]
    assert names_in(directory / "notifications") == []
