"""Quotas of waiting jobs. [TENANT-5]

A tenant that has one takes its enqueues and replays one at a time, so that the count is exact. It is locked after all
else: whoever has it waits for nobody. Enqueues that join a caller's transaction do not wait, and may overshoot by those
in flight.

Far from its quota a backlog is not counted. Every job that comes to wait or to run draws a number of the one sequence
first: so no more can wait than waited and ran when they were last counted, and numbers were drawn since. Only when that
would be too many is it counted again, which takes as long as the quota is large: 88 ms for 200,000. What is in flight
in a caller's transaction drew its numbers before and is not seen: while there is any, no count is remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from holdfast.core.errors import QuotaExceeded
from holdfast.stores.postgres.connection import PATIENT_LOCK_MS, Session
from holdfast.stores.postgres.lanes import LaneCache

MARGIN = 10_000
"""A queue that has more than its quota is counted that much further, for the refusal to say how many there are."""
MIN_REMEMBERED = 1000
"""From how many waiting jobs on a count is remembered."""

_counted: WeakKeyDictionary[LaneCache, dict[tuple[str, str, str], tuple[int, int]]] = WeakKeyDictionary()
"""By schema, tenant and queue: how many waited or ran, and the last number that was drawn before they were counted."""


class Quotas:
    """The quotas of some tenants, and what waits under them at most, within one transaction."""

    def __init__(self, limits: dict[tuple[str, str], int], waiting: dict[tuple[str, str], int]) -> None:
        self._limits = limits
        self._waiting = waiting

    @classmethod
    async def read(
        cls, session: Session, cache: LaneCache, tenants: Sequence[str], schema: str, *, wait: bool
    ) -> Quotas:
        """Read them for a job of each of these tenants, after waiting for others of the same if so asked.

        Called when all else is locked, and before the jobs draw their numbers.
        """
        rows = await session.rows("quotas", sorted(set(tenants)))
        limits: dict[tuple[str, str], int] = {(row["tenant"], row["queue"]): row["max_waiting"] for row in rows}
        if not limits:
            return cls(limits, {})
        for tenant in sorted({tenant for tenant, _ in limits}):
            if wait:
                await session.rows("lock_tenant", f"{schema}:{tenant}", PATIENT_LOCK_MS)
            else:
                await session.rows("join_tenant", f"{schema}:{tenant}")
        drawn = await session.value("drawn")
        counted = _counted.setdefault(cache, {})
        waiting: dict[tuple[str, str], int] = {}
        for (tenant, queue), limit in limits.items():
            hot, since = counted.get((cache.data_id, tenant, queue), (limit, drawn))
            most = hot + drawn - since
            if drawn >= since and most + tenants.count(tenant) <= limit:
                waiting[tenant, queue] = most
                continue
            # In this order: whoever joins after the look draws numbers that count as drawn since.
            alone = wait and await session.value("tenant_unjoined", f"{schema}:{tenant}")
            names = (tenant, queue) if queue else (tenant,)
            (row,) = await session.rows(
                "lane_waiting" if queue else "tenant_waiting", *names, limit + MARGIN, MIN_REMEMBERED
            )
            waiting[tenant, queue] = row["waiting"]
            # What a caller's transaction sees may be older than the number; and this may not be all of them.
            if alone and row["leased"] is not None and row["waiting"] < limit + MARGIN:
                counted[cache.data_id, tenant, queue] = (row["waiting"] + row["leased"], drawn)
        return cls(limits, waiting)

    def over(self, tenant: str, queue: str) -> QuotaExceeded | None:
        """The refusal, if the lane or the tenant has all the waiting jobs that it may."""
        for scope in (queue, ""):
            limit = self._limits.get((tenant, scope))
            if limit is not None and self._waiting[tenant, scope] >= limit:
                return QuotaExceeded(scope or None, self._waiting[tenant, scope], limit)
        return None

    def took(self, tenant: str, queue: str) -> None:
        """One more waits."""
        for scope in (queue, ""):
            if (tenant, scope) in self._waiting:
                self._waiting[tenant, scope] += 1
