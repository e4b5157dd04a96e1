"""Workers that are killed from outside, and one that does what they left."""

import asyncio
import os
import signal

from holdfast.core.job import JobState
from tests.chaos.workers import work
from tests.eventually import eventually

ROUNDS, JOBS, CREW = 5, 100, 2


async def kill_at_any_moment(zygote, queue, url, log, chance):
    """Kill workers at random moments, round after round, until all jobs are done. Returns the ids of the jobs."""
    ids = []
    for _ in range(ROUNDS):
        new = [f"job-{len(ids) + n}" for n in range(JOBS)]
        ids.extend(new)
        await queue.enqueue_many([work.message(log).options(id=id_) for id_ in new])
        pids = [await zygote.start(url, log=log, concurrency=4) for _ in range(CREW)]
        for pid in pids:
            await asyncio.sleep(0.3 * chance.random())
            os.kill(pid, signal.SIGKILL)
        assert {await zygote.end(pid) for pid in pids} == {-signal.SIGKILL}
        # The leases of the dead run out.
        await queue.store.shift_clock(31_000)
    # Something is surely left to do: workers end when it is done, and not while they still start.
    ids.append("last")
    await queue.enqueue(work.message(log), id="last")
    await drain(zygote, queue, url)
    return ids


async def drain(zygote, queue, url):
    """Let a healthy worker run the remaining jobs."""
    pid = await zygote.start(url, concurrency=50)
    await eventually(
        queue.stats,
        lambda stats: stats.counts[JobState.COMPLETED] == sum(stats.counts.values()),
        patience_s=60,
    )
    os.kill(pid, signal.SIGTERM)
    code = await zygote.end(pid)
    assert code == 0, code
