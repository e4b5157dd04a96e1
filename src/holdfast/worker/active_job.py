"""A job that this worker has leased."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

if TYPE_CHECKING:
    import asyncio

    from holdfast.core.job import Finish, Job, JobKey
    from holdfast.jobs.context import JobContext

Interruption = Literal["", "canceled", "stalled", "timeout", "released"]
"""Why a handler was asked to stop. Its return value or exception then rarely counts: see `outcome.counts`."""


class ActiveJob(Struct, eq=False, gc=False):
    """One lease, and the state of its job in this worker.

    The worker's event loop makes it. The heartbeat changes `until` and `renew_at` from its own thread. It is compared
    and hashed by identity: after a lease is lost, the worker can lease the same job again. The garbage collector skips
    it: the runner breaks its reference cycles, through `context` and `task`.
    """

    job: Job
    key: JobKey
    token: int
    until: float
    """When the lease ends by this process's clock (clock.py). Counted from before the claim was sent, so it is never
    later than the store's deadline. [LEASE-4]"""
    renew_at: float
    give_up_at: float = math.inf
    """When to stop renewing the lease: the handler then blocks the event loop past its timeout."""
    interruption: Interruption = ""
    finish: Finish | None = None
    """The outcome, once it is known."""
    started_at: float = 0.0
    run_s: float = 0.0
    context: JobContext | None = None
    task: asyncio.Task[Any] | None = None
    timer: asyncio.TimerHandle | None = None
    timeout_s: float | None = None
    error: BaseException | None = None
    """The handler's exception, until its slot is free. The inline queue reads it."""
    joined: bool = False
    """The handler completes the job in its own transaction; see `joining`."""

    def interrupt(self, reason: Interruption) -> None:
        """Ask the running handler to stop. [CANCEL-2]"""
        self.interruption = reason
        if self.context is not None:
            self.context.canceled.set()
        # A task that is canceled before its first step never runs, and so never frees its slot.
        if self.started_at and self.task is not None:
            self.task.cancel()
