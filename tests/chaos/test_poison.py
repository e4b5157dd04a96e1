"""A job that kills every worker that runs it.

Invariants verified:
- it ends in the dead letters after as many runs as it may have, with the reason lease_expired [RETRY-2]
- other jobs keep flowing and all complete
- attempts are exact for those that died beside it
"""

import asyncio
import os
import signal

from holdfast.core.job import JobState
from tests.chaos import ledger
from tests.chaos.workers import TENANT, notes, poison, work

GOOD = 40


async def test_a_poison_job_becomes_a_dead_letter_and_others_run(zygote, queue, url, log):
    await queue.enqueue(poison.message(log), id="poison")
    good = [f"good-{n}" for n in range(GOOD)]
    await queue.enqueue_many([work.message(log).options(id=id_) for id_ in good])
    deaths = 0
    async with asyncio.timeout(60):
        pid = await zygote.start(url, log=log, concurrency=3)
        while not await all_ended(queue):
            await asyncio.sleep(0.02)
            if zygote.has_ended(pid):
                assert await zygote.end(pid) == -signal.SIGKILL
                deaths += 1
                await queue.store.shift_clock(31_000)
                pid = await zygote.start(url, log=log, concurrency=3)
        os.kill(pid, signal.SIGTERM)
        assert await zygote.end(pid) == 0
    jobs = await ledger.check(queue.store, TENANT, ["poison", *good])
    dead = jobs.pop("poison")
    assert (dead.state, dead.reason, dead.attempts) == (JobState.FAILED, "lease_expired", 3)
    assert [error.type for error in dead.errors] == ["LeaseExpired"] * 3
    assert deaths == 3 == len(notes(log, "started")) - len([n for n in notes(log, "started") if n[0] != "poison"])
    assert {job.state for job in jobs.values()} == {JobState.COMPLETED}


async def all_ended(queue):
    counts = (await queue.stats()).counts
    return counts[JobState.COMPLETED] + counts[JobState.FAILED] == GOOD + 1
