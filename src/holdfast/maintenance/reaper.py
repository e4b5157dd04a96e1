"""Ends leases that ran out, as soon as they do. [LEASE-3, RETRY-2]"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.maintenance.storeclock import StoreClock
    from holdfast.store import Store

BATCH = 1_000
LONGEST_S = 5.0
SHORTEST_S = 0.02


async def reap(store: Store, clock: StoreClock | None = None) -> float:
    """End every lease that has run out by now. Returns in how many seconds to do it again.

    `clock` gets what the store's clock said.
    """
    while True:
        reaped = await store.reap(BATCH, random.random())  # noqa: S311 - jitter, no secret
        if len(reaped.jobs) < BATCH:
            break
        await asyncio.sleep(0)
    if clock is not None:
        clock.saw(reaped.now)
    if reaped.next_at is None:
        return LONGEST_S
    return min(LONGEST_S, max(SHORTEST_S, (reaped.next_at - reaped.now) / 1000))
