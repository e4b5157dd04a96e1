"""A mover killed by SIGKILL at each of its steps, and one that comes after it; a worker beside it.

Invariants verified:
- every job is in the target once, and runs there once; none is left in the source
- the queues are paused or not as they were
"""

import asyncio
import os
import signal

import pytest

from holdfast import Queue
from holdfast.core.errors import StoreBusy
from holdfast.core.job import Cancel, JobKey, JobState
from holdfast.migrate import MovePlan, move
from holdfast.migrate.move_log import LEASE_MS
from holdfast.testing import failpoints
from tests.chaos.workers import notes, work
from tests.eventually import eventually
from tests.migrate.filling import HOUR, TENANT, both, fill, names, new, run_all

ALL = ("mail", "video", "odd")
WORKER_HOLDS = 4 + 8
"""How many jobs a worker of these has at most: those that run, and those that it has claimed ahead."""
STEPS = [
    "move.logged_in_source", "move.logged", "move.source_paused", "move.target_paused", "move.copy:kill:2",
    "move.copied", "move.verified", "move.take", "move.taken", "move.before_resume", "move.target_resumed",
    "move.resumed",
]  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
async def test_the_next_mover_ends_a_move_after_a_kill_at_any_step(zygote, file_url, other_url, step):
    async with both(file_url, other_url) as (here, there):
        await fill(here)
        await here.pause(TENANT, "odd", paused=True)
        before = await names(here, *ALL)
        pid = await zygote.start(file_url, role="move", target=other_url, failpoint=step)
        assert await zygote.end(pid) == -signal.SIGKILL
        # Wherever it died: what both stores have is handed out by neither.
        both_have = set((await names(here, "mail"))["mail"]) & set((await names(there, "mail"))["mail"])
        if both_have:
            assert await run_all(here, *ALL) == await run_all(there, *ALL) == []
        await here.shift_clock(LEASE_MS)
        await there.shift_clock(LEASE_MS)
        done = await move(MovePlan(file_url, other_url, TENANT))
        assert done.resumed
        assert await names(there, *ALL) == before
        assert await names(here, *ALL) == {"mail": [], "video": [], "odd": []}
        for store in (here, there):
            assert {one.queue for one in await store.stats(TENANT) if one.paused} == {"odd"}
        await there.pause(TENANT, "odd", paused=False)
        await there.shift_clock(4 * HOUR)
        assert sorted(await run_all(there, *ALL)) == sorted(id for ids in before.values() for id in ids)


async def test_a_cancel_after_a_mover_was_killed_counts_even_after_another_mover(zygote, file_url, other_url):
    """[CANCEL-1]"""
    async with both(file_url, other_url) as (here, there):
        ids = [f"j{n}" for n in range(12)]
        await here.enqueue([new(id) for id in ids])
        pid = await zygote.start(file_url, role="move", target=other_url, failpoint="move.take")
        assert await zygote.end(pid) == -signal.SIGKILL
        for store in (here, there):
            await store.shift_clock(LEASE_MS + 5000)
        with pytest.raises(StoreBusy, match="has not ended"):
            await move(MovePlan(other_url, file_url, TENANT))
        late = (await names(here, "mail"))["mail"][-1]
        assert await here.cancel([Cancel(JobKey(TENANT, "mail", late))]) == ["canceled"]
        await move(MovePlan(file_url, other_url, TENANT))
        assert sorted(await run_all(there, "mail")) == sorted({*ids} - {late})


async def test_with_workers_at_both_stores_each_job_runs_once(zygote, file_url, other_url, log, tmp_path):
    """The worker runs some jobs before the move, some while the source is being paused; the last are left to move."""
    waits_for = [""] * 100 + [str(tmp_path / "pausing")] * 100 + [str(tmp_path / "paused")] * 50
    failpoints.arm("move.logged", (tmp_path / "pausing").touch)
    failpoints.arm("move.source_paused", (tmp_path / "paused").touch)
    async with Queue(file_url, tenant=TENANT) as here, Queue(other_url, tenant=TENANT) as there:
        ids = [f"job-{n}" for n in range(300)]
        await here.enqueue_many(
            [work.message(log, file=file).options(id=id) for id, file in zip(ids, waits_for, strict=False)]
        )
        pids = [await zygote.start(url, log=log, prefetch=8) for url in (file_url, other_url)]
        await eventually(lambda: notes(log, "effect"))
        moving = asyncio.create_task(move(MovePlan(file_url, other_url, TENANT)))
        await here.enqueue_many([work.message(log).options(id=id) for id in ids[250:]])
        done = await moving
        # What came after the last pass is done where it came.
        await eventually(lambda: len(notes(log, "effect")) == len(ids))
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
            assert await zygote.end(pid) == 0
        assert done.jobs >= 50 - WORKER_HOLDS
        assert sorted(id for id, *_ in notes(log, "effect")) == sorted(ids)
        completed = [(await queue.stats()).counts[JobState.COMPLETED] for queue in (here, there)]
        assert sum(completed) == len(ids)
        assert completed[1] == done.jobs
