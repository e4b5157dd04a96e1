"""The end of a run: let handlers finish or release their jobs, then send the last acknowledgements. [RETRY-5]"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from holdfast.telemetry.logging import get_logger

if TYPE_CHECKING:
    from holdfast.worker.acks import Acknowledger
    from holdfast.worker.active_job import ActiveJob
    from holdfast.worker.runner import Runner
    from holdfast.worker.state import RunState

END_S = 2.0
"""How long a handler may take to stop when asked."""
DRAIN_S = 5.0
"""How long the last claim and the last acknowledgements may take."""
STOP_NOW_S = 1.0
"""The same, after a second signal."""
LOG_EVERY_S = 10.0
"""How often to log which jobs the shutdown waits for."""
MAX_LOGGED_JOBS = 10

_log = get_logger(__name__)


async def end_running(state: RunState, runner: Runner, grace_s: float) -> None:
    """Release prefetched jobs; let running handlers finish within the grace, then ask them to stop."""
    runner.release_prefetched()
    if not state.running:
        return
    _log.info("stopping: running jobs may finish", running=len(state.running), grace_s=grace_s)
    await _wait_for(state, lambda: state.running, "waiting for running jobs", grace_s)
    runner.interrupt_all()
    await state.wait_until(lambda: not state.running or state.stopping_now, END_S)
    # A handler that cannot be stopped still has effects. If its job were released, two workers would run it.
    await _wait_for(state, runner.unstoppable, "waiting for handlers that do not stop when asked")
    if state.stopping_now and state.running:
        # The second request kills child processes and cancels tasks once more. Handlers must see the first one before
        # that: the event loop merges two cancels in one turn.
        await state.wait_until(lambda: not state.running, STOP_NOW_S / 20)
        runner.interrupt_all()
        await state.wait_until(lambda: not state.running, STOP_NOW_S / 4)
    runner.abandon_timed_out()
    if left := runner.unstoppable():
        _log.error("ending while handlers run; their leases will expire", running=len(left), jobs=_ids(left))


async def end_calls(
    state: RunState, acks: Acknowledger, leaving: asyncio.Task[None], acknowledging: asyncio.Task[None]
) -> None:
    """Wait for the last claim, then until every outcome is answered. Then try once to send those that are left."""
    await _wait_for_task(state, leaving)
    if not leaving.done():
        # Do it even after a second signal: a job handed off from now on would be stuck until its lease expires.
        await asyncio.wait([leaving], timeout=STOP_NOW_S)
    await acks.finish_checks(DRAIN_S)
    acks.close()
    await _wait_for_task(state, acknowledging)
    if not acknowledging.done():
        acknowledging.cancel()
        await asyncio.wait([acknowledging])
        with contextlib.suppress(Exception):
            async with asyncio.timeout(STOP_NOW_S):
                await acks.send_once()


async def _wait_for(
    state: RunState, remaining: Callable[[], Collection[ActiveJob]], message: str, timeout_s: float = math.inf
) -> None:
    """Wait until no job remains, at most `timeout_s`, and not after a second signal. Log what remains every 10 s."""
    end = time.monotonic() + timeout_s
    log_now = timeout_s == math.inf
    while (jobs := remaining()) and not state.stopping_now and (left_s := end - time.monotonic()) > 0:
        if log_now:
            _log.warning(message, running=len(jobs), jobs=_ids(jobs))
        log_now = True
        await state.wait_until(lambda: not remaining() or state.stopping_now, min(LOG_EVERY_S, left_s))


async def _wait_for_task(state: RunState, task: asyncio.Task[None]) -> None:
    task.add_done_callback(lambda _: state.changed.set())
    await state.wait_until(lambda: task.done() or state.stopping_now, DRAIN_S)


def _ids(jobs: Collection[ActiveJob]) -> str:
    """The ids of the first few jobs, for the log."""
    names = sorted(f"{active.job.envelope.type}/{active.key.id}" for active in jobs)
    return ",".join(names[:MAX_LOGGED_JOBS]) + (",..." if len(names) > MAX_LOGGED_JOBS else "")
