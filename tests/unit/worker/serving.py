"""Short words for tests of workers."""

import asyncio
import threading
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from holdfast.core.job import JobKey, JobState
from holdfast.store import Hint
from holdfast.worker import Worker
from tests.eventually import eventually

TERMINAL = {JobState.COMPLETED, JobState.FAILED, JobState.CANCELED}


@asynccontextmanager
async def serving(queue, *jobs, **options):
    """A worker that runs inside the block."""
    worker = Worker(queue, jobs=jobs, **options)
    async with run(worker):
        yield worker


@asynccontextmanager
async def run(worker):
    """The worker runs inside the block and has fully ended after it."""
    listening = worker._source.store.listening
    known = set(listening)
    before = (threads(), children())
    task = asyncio.create_task(worker.run(signals=False))
    await asyncio.sleep(0)
    try:
        yield task
    finally:
        await worker.stop()
        await task
    ours = {task for task in asyncio.all_tasks() if "holdfast/worker" in str(task.get_coro())}
    assert not ours, f"tasks were left behind: {ours}"
    assert not listening - known, "a listener was left behind"
    # asyncio's own thread that waited for a child ends a moment after it has said so. What an earlier test left behind
    # may end meanwhile.
    await eventually(lambda: threads() <= before[0] and children() <= before[1])


def threads():
    return {thread.name for thread in threading.enumerate()}


def children():
    """The live processes that this one has started."""
    found = set()
    for one in Path("/proc/self/task").glob("*/children"):
        # The thread may have ended since.
        with suppress(FileNotFoundError, ProcessLookupError):
            found |= set(one.read_text().split())
    return found


async def until(queue, ticket, wanted=TERMINAL, *, patience=60.0):
    """The job once it is in one of the `wanted` states."""
    wanted = {wanted} if isinstance(wanted, JobState) else wanted
    changed = asyncio.Event()
    unlisten = queue.store.listen(lambda _signal: changed.set(), frozenset(Hint))
    try:
        async with asyncio.timeout(patience):
            while True:
                changed.clear()
                [job] = await queue.store.get([JobKey(queue.tenant, ticket.queue, ticket.id)])
                if job is not None and job.state in wanted:
                    return job
                await changed.wait()
    finally:
        unlisten()


def heard(worker):
    """The worker's callbacks in order: (name, job id)."""
    reported = []
    for name in ("completed", "failed", "retrying", "canceled", "stalled"):
        worker.on(name, lambda event: reported.append((event.name, event.job.id)))
    worker.on("error", lambda event: reported.append(("error", type(event.error).__name__)))
    return reported
