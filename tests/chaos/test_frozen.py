"""Workers that stand still past the end of their leases, and then go on as if nothing had been.

Invariants verified:
- a worker that was frozen past its lease changes nothing: no late acknowledgement is accepted [LEASE-1, LEASE-4]
- the job belongs to the worker that has claimed it since; it completes once, with that result
- the frozen worker notices, says "stalled", and works on
"""

import os
import signal

import pytest

from holdfast.core.job import ClaimRequest, Finish, JobKey, JobState, Result
from tests.chaos import ledger
from tests.chaos.workers import TENANT, notes, wait_for_file, work
from tests.eventually import eventually
from tests.log import all_events


async def noted(log, word, id_):
    return await eventually(lambda: [line for line in notes(log, word) if line[0] == id_])


async def is_over(store, id_):
    """Whether the lease has expired by the store's clock."""
    [job] = await store.get([JobKey(TENANT, "default", id_)])
    return await store.now() > job.deadline


async def take_over(queue, id_, outcome):
    """Claim the job whose lease has expired, and complete it as another worker."""
    await queue.store.shift_clock(60_000)
    [job] = (await queue.store.claim(ClaimRequest(TENANT, ("default",), 1, 30_000, "another"))).jobs
    assert job.id == id_
    if outcome == "complete":
        await queue.store.finish([Finish(job.key, job.token, "complete", Result(b'"another"'))])
    return job


@pytest.mark.parametrize("outcome", ["complete", "still running"])
async def test_a_worker_frozen_during_a_job_changes_nothing(zygote, queue, url, log, tmp_path, outcome):
    go_on = tmp_path / "go on"
    await queue.enqueue(wait_for_file.message(log, str(go_on)), id="x")
    pid = await zygote.start(url, log=log, lease_s=30)
    await noted(log, "started", "x")
    await eventually(lambda: queue.store.workers(TENANT))
    os.kill(pid, signal.SIGSTOP)
    await zygote.stopped(pid)
    job = await take_over(queue, "x", outcome)
    before = len(await all_events(queue.store, TENANT))
    go_on.touch()
    os.kill(pid, signal.SIGCONT)
    [stalled] = await noted(log, "stalled", "x")
    assert stalled[1] == 1
    after = await all_events(queue.store, TENANT)
    assert len(after) == before, "the frozen worker has changed something"
    [now] = await queue.store.get([job.key])
    assert (now.token, now.attempts) == (job.token, 2)
    assert now.state is (JobState.COMPLETED if outcome == "complete" else JobState.LEASED)
    # It goes on working.
    ticket = await queue.enqueue(work.message(log), id="next")
    await ticket.wait(timeout=10)
    os.kill(pid, signal.SIGTERM)
    assert await zygote.end(pid) == 0
    await ledger.check(queue.store, TENANT, ["x", "next"])


@pytest.mark.parametrize(
    "step", ["worker.before_ack", "worker.after_effect", "worker.before_run", "worker.after_claim"]
)
async def test_a_worker_frozen_at_a_step_changes_nothing(zygote, queue, url, log, step):
    await queue.enqueue(work.message(log), id="x")
    pid = await zygote.start(url, log=log, lease_s=30, freeze=step)
    await zygote.stopped(pid)
    await take_over(queue, "x", "complete")
    os.kill(pid, signal.SIGCONT)
    await noted(log, "stalled", "x")
    os.kill(pid, signal.SIGTERM)
    assert await zygote.end(pid) == 0
    jobs = await ledger.check(queue.store, TENANT, ["x"])
    assert (jobs["x"].state, jobs["x"].result.data) == (JobState.COMPLETED, b'"another"')


async def test_a_worker_frozen_past_its_lease_sends_nothing(zygote, queue, url, log, tmp_path):
    """By its own clock the lease is over, although the store's clock was never moved: it sends nothing."""
    go_on = tmp_path / "go on"
    await queue.enqueue(wait_for_file.message(log, str(go_on)), id="x")
    pid = await zygote.start(url, log=log, lease_s=1)
    await noted(log, "started", "x")
    os.kill(pid, signal.SIGSTOP)
    await zygote.stopped(pid)
    # Both clocks run alike, and the worker has counted its lease from before the store did.
    await eventually(lambda: is_over(queue.store, "x"))
    go_on.touch()
    os.kill(pid, signal.SIGCONT)
    await noted(log, "stalled", "x")
    await eventually(lambda: queue.get("x"), lambda record: record.state is JobState.COMPLETED)
    os.kill(pid, signal.SIGTERM)
    assert await zygote.end(pid) == 0
    jobs = await ledger.check(queue.store, TENANT, ["x"])
    assert jobs["x"].attempts == 2
