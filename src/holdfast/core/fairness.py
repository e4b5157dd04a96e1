"""Weighted turns between the tenants that have visible work in a queue name. [TENANT-4]

A *lane* is one tenant's jobs in one queue name. Each lane that has visible work has a virtual time. The lane with
the smallest time is next, and a turn adds `cost(weight)` to its time. The tenant name breaks ties.
A lane that gets work after having none enters at `entry(its own time, the current minimum)`: it does not
catch up for the time it was away, and it does not gain a second turn by leaving and coming back.
All numbers are whole, so Python, Lua and SQL compute the same turns.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heapreplace

from holdfast.core.errors import InvalidOption

STRIDE = 10_000
WEIGHT_MIN, WEIGHT_MAX = 0.01, 100.0

Lane = tuple[int, str]  # (virtual time, tenant)


def cost(weight: float) -> int:
    """What one turn costs a tenant of this weight."""
    return max(1, round(STRIDE / weight))


def entry(own: int, floor: int) -> int:
    """The virtual time at which a lane (re-)enters, `floor` being the current minimum."""
    return max(own, floor)


def turns(lanes: list[Lane], limit: int, take: Callable[[str], bool], cost_of: Callable[[str], int]) -> int:
    """Give out up to `limit` turns over the heap `lanes`, and put the new times into it. Returns how many.

    `take(tenant)` takes one job of that tenant and returns whether there was one. A lane without a job leaves the heap.
    """
    given = 0
    while lanes and given < limit:
        time, tenant = lanes[0]
        if take(tenant):
            heapreplace(lanes, (time + cost_of(tenant), tenant))
            given += 1
        else:
            heappop(lanes)
    return given


def check_weight(weight: float) -> float:
    """Return `weight` if it is in range. Raises InvalidOption."""
    if not isinstance(weight, (int, float)) or not WEIGHT_MIN <= weight <= WEIGHT_MAX:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption("weight", f"{weight!r} is not from {WEIGHT_MIN} to {WEIGHT_MAX:g}")
    return float(weight)
