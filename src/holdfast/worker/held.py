"""A job that this worker holds, and until when it may believe so."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import asyncio

    from holdfast.context import JobContext
    from holdfast.core.job import Finish, Job, JobKey

Verdict = Literal["", "canceled", "stalled", "timeout", "released"]
"""Why the outcome of a handler no longer counts: what becomes of the job was decided without it."""


class Held:
    """One lease. Made by the worker's event loop; the heartbeat moves `until` and `renew_at` from its thread.

    Compared and hashed by identity: after a lease was lost, the same job can be held a second time.
    """

    __slots__ = (
        "context", "finish", "give_up_at", "job", "key", "renew_at", "started_at", "task", "timeout_s", "timer", "token",
        "until", "verdict",
    )  # fmt: skip

    def __init__(self, job: Job, until: float, renew_at: float) -> None:
        self.job = job
        self.key: JobKey = job.key
        self.token = job.token
        # By the own monotonic clock, counted from before the request was sent: never later than the store's
        # deadline, whatever the clocks say. [LEASE-4]
        self.until = until
        self.renew_at = renew_at
        # A handler that blocks the event loop past its timeout is not kept alive: another may have a try.
        self.give_up_at = math.inf
        self.context: JobContext | None = None
        self.task: asyncio.Task[Any] | None = None
        self.started_at = 0.0
        self.timeout_s: float | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.finish: Finish | None = None
        self.verdict: Verdict = ""
