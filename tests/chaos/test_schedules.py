"""Processes killed by SIGKILL in the middle of a tick.

Invariants verified:
- each tick has one job, and that job ran once
- the next process continues the schedule
"""

import os
import signal

import pytest

from holdfast.core.job import JobState
from holdfast.core.names import SCHEDULES
from tests.chaos.workers import TENANT, notes, work
from tests.eventually import eventually

HOUR = 3_600_000


@pytest.mark.parametrize("kind", ["file"], indirect=True)
@pytest.mark.parametrize("step", ["coordinator.after_claim", "scheduler.after_enqueue"])
async def test_a_process_killed_during_a_tick_repeats_and_loses_nothing(zygote, queue, url, log, step):
    made = await queue.schedule("it", work.message(log), every=3600)
    await queue.store.shift_clock(HOUR)
    # The process that is killed must not run the job: the kill could come between its effect and its acknowledgement.
    await queue.store.pause(TENANT, "default", paused=True)
    pid = await zygote.start(url, log=log, failpoint=f"{step}:kill")
    assert await zygote.end(pid) == -signal.SIGKILL
    assert (await queue.get("it", queue=SCHEDULES)).state is JobState.LEASED
    await queue.store.pause(TENANT, "default", paused=False)
    # Let the lease of the dead process expire, and the delay after it pass.
    await queue.store.shift_clock(31_000)
    await queue.store.reap(10, 0.0)
    await queue.store.shift_clock(1_000)
    pid = await zygote.start(url, log=log)
    # Wait for its end, not only its start: the next shift of the clock would expire its lease.
    await eventually(queue.stats, lambda stats: stats.counts[JobState.COMPLETED] == 1)
    await queue.store.shift_clock(HOUR)
    await eventually(queue.stats, lambda stats: stats.counts[JobState.COMPLETED] == 2)
    os.kill(pid, signal.SIGTERM)
    assert await zygote.end(pid) == 0
    enqueued = [event.job_id async for event in queue.events() if event.kind == "enqueued" and event.queue == "default"]
    assert len(enqueued) == len(set(enqueued)) == 2
    assert sorted(id for id, *_ in notes(log, "effect")) == sorted(enqueued)
    assert (await queue.get_schedule("it")).next_at > made.next_at
