"""Workers killed by SIGKILL, again and again at each step of a job's way through them.

Invariants verified:
- no job is lost: each is completed in the end, with the result of the last lease
- no job completes twice, and what was acknowledged before a kill stays so
- attempts are exact: the number of leases granted, less those released [RETRY-1, RETRY-2]
- at most one live lease per job, tokens grow and are never used twice [CLAIM-1, LEASE-5]
- the effect happened at least once for every completed job, under the fence of its result
"""

import asyncio
import os
import random
import signal

import pytest

from holdfast.core.job import JobState
from tests.chaos import ledger
from tests.chaos.killing import drain, kill_at_any_moment
from tests.chaos.workers import TENANT, notes, work

KILLS = {"file": 18, "valkey": 9, "postgres": 9}

# Each step, and how often one worker may pass it before it is killed there.
STEPS = {
    "worker.after_claim": 2,
    "worker.before_run": 6,
    "chaos.mid_run": 6,
    "worker.after_effect": 6,
    "worker.mid_batch": 3,
    "worker.before_ack": 2,
    "worker.after_ack": 2,
    "worker.mid_renewal": 2,
}
# How many die side by side.
CREW = 3
# Steps of one kind of store alone.
STORE_STEPS = {
    "file": {"file.before_commit": 6, "file.after_commit": 6},
    "valkey": {"redis.after_script": 12},
    "postgres": {"postgres.before_commit": 40, "postgres.after_commit": 40},
}


@pytest.mark.parametrize("kind, step", [(kind, step) for kind, own in STORE_STEPS.items() for step in [*STEPS, *own]])
async def test_no_job_is_lost_and_none_takes_effect_twice(zygote, queue, url, log, kind, step):
    seed = int(os.environ.get("HOLDFAST_SEED", random.randrange(2**32)))
    print(f"HOLDFAST_SEED={seed}")  # noqa: T201 - shown with a failure, to replay it
    chance = random.Random(seed)
    # A renewal comes a third of a lease after the claim: the jobs must still run then. Five die at a time.
    seconds, lease_s, crew = (0.6, 1, 5) if step == "worker.mid_renewal" else (0, 30, CREW)
    most = (STEPS | STORE_STEPS[kind])[step]
    ids = []

    async def enqueue(count):
        new = [f"job-{len(ids) + n}" for n in range(count)]
        ids.extend(new)
        await queue.enqueue_many([work.message(log, seconds).options(id=id_) for id_ in new])

    for _ in range(KILLS[kind] // crew):
        await enqueue(6 * crew)
        pids = []
        for _ in range(crew):
            failpoint, concurrency = f"{step}:kill:{chance.randint(1, most)}", chance.randint(3, 6)
            pids.append(await zygote.start(url, log=log, failpoint=failpoint, concurrency=concurrency, lease_s=lease_s))
        while not all(map(zygote.has_ended, pids)):
            await asyncio.sleep(0.05)
            await enqueue(1)
        assert {await zygote.end(pid) for pid in pids} == {-signal.SIGKILL}
        # The leases of the dead run out.
        await queue.store.shift_clock(31_000)
    # Something is surely left to do: workers end when it is done, and not while they still start.
    ids.append("last")
    await queue.enqueue(work.message(log), id="last")
    await drain(zygote, queue, url)
    jobs = await ledger.check(queue.store, TENANT, ids)
    effects = {(id_, fence) for id_, _, fence, _ in notes(log, "effect")}
    for job in jobs.values():
        assert job.state is JobState.COMPLETED
        assert int(job.result.data) == job.token
        assert (job.id, job.token) in effects


async def test_workers_may_be_killed_at_any_moment(zygote, queue, url, log):
    """The kill comes from outside, at any moment, even while a statement is being sent to a server."""
    seed = int(os.environ.get("HOLDFAST_SEED", random.randrange(2**32)))
    print(f"HOLDFAST_SEED={seed}")  # noqa: T201 - shown with a failure, to replay it
    ids = await kill_at_any_moment(zygote, queue, url, log, random.Random(seed))
    jobs = await ledger.check(queue.store, TENANT, ids)
    effects = {(id_, fence) for id_, _, fence, _ in notes(log, "effect")}
    for job in jobs.values():
        assert job.state is JobState.COMPLETED
        assert (job.id, job.token) in effects
