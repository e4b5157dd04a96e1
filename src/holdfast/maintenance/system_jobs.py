"""System jobs: schedules and flows, which Holdfast keeps as ordinary jobs in reserved queues.

A `SystemHandler` serves the jobs of one reserved queue. The coordinator claims them and calls it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from msgspec import Struct

from holdfast.core.job import Finish, Job, JobKey, JobState
from holdfast.store import Store


class SystemContext:
    """What a system handler works with: the store, and a way to wait until other jobs end."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def watch(self, keys: Iterable[JobKey]) -> None:
        """Watch for the end of these jobs, and of no others. Watch first, then read their states. [RESULT-2]"""

    async def changed(self, timeout_s: float) -> frozenset[JobKey] | None:
        """Wait until a watched job may have ended, at most `timeout_s`. Returns those jobs; empty means any of them.

        Returns None if the handler should not wait here, but release its job.
        """
        del timeout_s
        return None


class SystemHandler(Struct, frozen=True):
    """How the jobs of one reserved queue are served."""

    run: Callable[[Job, SystemContext], Awaitable[Finish]]
    """Serves a job, which may take days. Returns its outcome, or when to claim the job again.

    It can be canceled at any await and started again in another process. If it raises, the error is logged and the job
    is claimed again later. A refusal of its own lease ends it; JobCanceled ends it as canceled.
    """
    clean_up: Callable[[Job, SystemContext, JobState], Awaitable[None]] | None = None
    """Cleans up after a job that ended under this process's lease. It is not called if the process crashes first."""
