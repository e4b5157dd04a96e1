"""A job that this worker holds, and until when it may believe so."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

if TYPE_CHECKING:
    import asyncio

    from holdfast.core.job import Finish, Job, JobKey
    from holdfast.jobs.context import JobContext

Verdict = Literal["", "canceled", "stalled", "timeout", "released"]
"""Why the outcome of a handler no longer counts: what becomes of the job was decided without it."""


class ActiveJob(Struct, eq=False, gc=False):
    """One lease. Made by the worker's event loop; the heartbeat moves `until` and `renew_at` from its thread.

    Compared and hashed by identity: after a lease was lost, the same job can be held a second time. The garbage
    collector does not look at it: its cycles, by `context` and `task`, are ended by the runner.
    """

    job: Job
    key: JobKey
    token: int
    until: float
    """By the own clock (clock.py), counted from before the request was sent: never later than the store's deadline,
    whatever other clocks say. [LEASE-4]"""
    renew_at: float
    give_up_at: float = math.inf
    """A handler that blocks the event loop past its timeout is not kept alive: another may have a try."""
    verdict: Verdict = ""
    finish: Finish | None = None
    started_at: float = 0.0
    run_s: float = 0.0
    context: JobContext | None = None
    task: asyncio.Task[Any] | None = None
    timer: asyncio.TimerHandle | None = None
    timeout_s: float | None = None
    error: BaseException | None = None
    """What its handler raised, until the slot is free: `on_ack` can look at it."""
    joined: bool = False
    """Its handler asked for it to be completed with a transaction of its own; see `joining`."""
