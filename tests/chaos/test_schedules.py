"""Processes killed by SIGKILL in the middle of a tick.

Invariants verified:
- each tick that somebody was there for has one job, and that job ran
- the schedule goes on, with the next process
"""

import os
import signal

import pytest

from holdfast.core.job import JobState
from holdfast.core.names import SCHEDULES
from tests.chaos.workers import notes, work
from tests.eventually import eventually

HOUR = 3_600_000


@pytest.mark.parametrize("kind", ["file"], indirect=True)
@pytest.mark.parametrize("step", ["coordinator.after_claim", "scheduler.after_enqueue"])
async def test_a_process_killed_during_a_tick_repeats_and_loses_nothing(zygote, queue, url, log, step):
    made = await queue.schedule("it", work.message(log), every=3600)
    await queue.store.shift_clock(HOUR)
    pid = await zygote.start(url, log=log, failpoint=f"{step}:kill")
    assert await zygote.end(pid) == -signal.SIGKILL
    assert (await queue.get("it", queue=SCHEDULES)).state is JobState.LEASED
    # The lease of the dead one runs out, and so does the pause after it.
    await queue.store.shift_clock(31_000)
    await queue.store.reap(10, 0.0)
    await queue.store.shift_clock(1_000)
    pid = await zygote.start(url, log=log)
    # Done, and not only begun: the clock would take its lease.
    await eventually(queue.stats, lambda stats: stats.counts[JobState.COMPLETED] == 1)
    await queue.store.shift_clock(HOUR)
    await eventually(queue.stats, lambda stats: stats.counts[JobState.COMPLETED] == 2)
    os.kill(pid, signal.SIGTERM)
    assert await zygote.end(pid) == 0
    enqueued = [event.job_id async for event in queue.events() if event.kind == "enqueued" and event.queue == "default"]
    assert len(enqueued) == len(set(enqueued)) == 2
    assert sorted(id for id, *_ in notes(log, "effect")) == sorted(enqueued)
    assert (await queue.get_schedule("it")).next_at > made.next_at
