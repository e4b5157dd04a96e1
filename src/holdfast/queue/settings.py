"""Settings of a tenant and of its queues."""

from __future__ import annotations

from holdfast.core.budgets import Budgets
from holdfast.core.errors import InvalidOption
from holdfast.core.fairness import check_weight
from holdfast.jobs.options import check_queue
from holdfast.queue.connection import Connection
from holdfast.store import TenantSettings

MAX_WAITING = 2**53
"""The largest quota."""


async def pause(connection: Connection, queue: str | None, *, paused: bool) -> None:
    """Pause or resume a queue. [CLAIM-5]"""
    paused_queue = connection.queue(queue)
    await connection.counted("pause", connection.live.pause(connection.tenant, paused_queue, paused=paused))


async def set_tenant(
    connection: Connection, weight: float | None, max_waiting: int | None, queue: str | None, budgets: Budgets | None
) -> None:
    """Set what is not None. Raises InvalidOption. [TENANT-4, TENANT-5]"""
    if budgets is not None and queue is not None:
        raise InvalidOption("budgets", "are for the whole tenant, not for one queue")
    if weight is not None:
        check_weight(weight)
    if max_waiting is not None and (not isinstance(max_waiting, int) or not 0 <= max_waiting <= MAX_WAITING):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption("max_waiting", f"{max_waiting!r} is not a whole number from 0 to 2^53")
    checked = None if budgets is None else budgets.check()
    settings = TenantSettings(None if queue is None else check_queue(queue), weight, max_waiting, checked)
    await connection.counted("set_tenant", connection.live.set_tenant(connection.tenant, settings))
