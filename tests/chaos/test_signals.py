"""Real worker processes and SIGTERM, SIGINT.

Invariants verified:
- a signal lets running jobs finish, gives back what was not started, and the process exits with 0 [RETRY-5]
- after the grace running jobs are stopped and released, and their attempt does not count
- a second signal ends the process at once, and still gives back
"""

import os
import signal

import pytest

from holdfast.core.job import JobState
from tests.chaos import ledger
from tests.chaos.workers import TENANT, notes, wait_politely
from tests.eventually import eventually

GRACE_S = 60
"""A process that ends within half of it has not waited for it."""


async def started(log, count):
    await eventually(lambda: len(notes(log, "started")) >= count)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_sigterm_finishes_running_jobs_and_releases_the_others(zygote, queue, url, log, tmp_path, number):
    go_on = tmp_path / "go on"
    ids = [f"job-{n}" for n in range(6)]
    await queue.enqueue_many([wait_politely.message(log, str(go_on)).options(id=id_) for id_ in ids])
    pid = await zygote.start(url, log=log, concurrency=2, prefetch=3)
    await started(log, 2)
    os.kill(pid, number)
    await eventually(queue.stats, lambda stats: stats.counts[JobState.LEASED] == 2)
    assert not zygote.has_ended(pid)
    go_on.touch()
    assert await zygote.end(pid) == 0
    jobs = await ledger.check(queue.store, TENANT, ids)
    states = [job.state for job in jobs.values()]
    assert (states.count(JobState.COMPLETED), states.count(JobState.READY)) == (2, 4)
    assert await queue.store.workers(TENANT) == []


async def test_after_the_grace_period_running_jobs_are_released(zygote, queue, url, log, tmp_path):
    await queue.enqueue(wait_politely.message(log, str(tmp_path / "never")), id="x")
    pid = await zygote.start(url, log=log, grace_s=0.2)
    await started(log, 1)
    os.kill(pid, signal.SIGTERM)
    assert await zygote.end(pid) == 0
    jobs = await ledger.check(queue.store, TENANT, ["x"])
    assert (jobs["x"].state, jobs["x"].attempts) == (JobState.READY, 0)
    assert notes(log, "canceled")


async def test_the_second_signal_stops_the_worker_at_once(zygote, queue, url, log, tmp_path):
    ids = ["x", "y"]
    await queue.enqueue_many([wait_politely.message(log, str(tmp_path / "never")).options(id=id_) for id_ in ids])
    pid = await zygote.start(url, log=log, concurrency=1, prefetch=1, grace_s=GRACE_S)
    await started(log, 1)
    await eventually(queue.stats, lambda stats: stats.counts[JobState.LEASED] == 2)
    os.kill(pid, signal.SIGTERM)
    # It has heard: what it had not started is given back.
    await eventually(queue.stats, lambda stats: stats.counts[JobState.LEASED] == 1)
    assert not zygote.has_ended(pid)
    os.kill(pid, signal.SIGTERM)
    assert await zygote.end(pid, timeout_s=GRACE_S / 2) == 0
    jobs = await ledger.check(queue.store, TENANT, ids)
    assert {(job.state, job.attempts) for job in jobs.values()} == {(JobState.READY, 0)}


async def test_a_signal_ends_an_idle_worker_at_once(zygote, url, queue, log):
    pid = await zygote.start(url, log=log, grace_s=GRACE_S)
    await eventually(lambda: queue.store.workers(TENANT))
    os.kill(pid, signal.SIGTERM)
    assert await zygote.end(pid, timeout_s=GRACE_S / 2) == 0
