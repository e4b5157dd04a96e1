"""Ends expired leases soon after they expire. [LEASE-3, RETRY-2]"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.maintenance.storeclock import StoreClock
    from holdfast.store import Store

BATCH = 1_000
MAX_WAIT_S = 5.0
MIN_WAIT_S = 0.02


async def reap(store: Store, clock: StoreClock | None = None) -> float:
    """End every lease that has expired. Returns in how many seconds to do it again.

    It passes the store's time to `clock`.
    """
    while True:
        reaped = await store.reap(BATCH, random.random())  # noqa: S311 - jitter, no secret
        if len(reaped.jobs) < BATCH:
            break
        await asyncio.sleep(0)
    if clock is not None:
        clock.observe(reaped.now)
    if reaped.next_at is None:
        return MAX_WAIT_S
    return min(MAX_WAIT_S, max(MIN_WAIT_S, (reaped.next_at - reaped.now) / 1000))
