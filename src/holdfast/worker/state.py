"""State that the parts of one run share: the jobs that the worker has, and whether it is stopping."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.worker.active_job import ActiveJob


class RunState:
    """The jobs and the flags of one run. Belongs to the worker's event loop; the heartbeat reads `leased`."""

    def __init__(self) -> None:
        self.leased: set[ActiveJob] = set()
        """Every job whose lease this worker holds, until the store has answered its outcome."""
        self.prefetched: deque[ActiveJob] = deque()
        """Leased jobs that wait for a slot."""
        self.running: set[ActiveJob] = set()
        """Jobs that occupy a slot. A handler that ignores its timeout keeps its slot after the job was acknowledged."""
        self.ended = 0
        """Jobs that ended since the last claim measured their rate."""
        self.stopping = False
        self.stopping_now = False
        """A second signal arrived: wait for nothing."""
        self.fatal: BaseException | None = None
        """The error that makes work impossible. It is raised when the run has ended."""
        self.changed = asyncio.Event()
        """Set after each change that a task may wait for; a waiter clears it before it waits."""

    def stop(self) -> None:
        """Claim no more. It can be called more than once."""
        self.stopping = True
        self.changed.set()

    def stop_now(self) -> None:
        """Claim no more, and do not wait for running handlers."""
        self.stopping_now = True
        self.stop()

    def fail(self, error: BaseException) -> None:
        """Stop with an error that makes work impossible."""
        self.fatal = error
        self.stop()

    async def wait_until(self, condition: Callable[[], object], timeout_s: float | None = None) -> None:
        """Wait until `condition` is true, at most `timeout_s`. Every change that matters to it sets `changed`."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            pass
