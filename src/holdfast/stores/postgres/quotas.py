"""Quotas of waiting jobs. [TENANT-5]

A tenant that has one takes its enqueues and replays one at a time, so that the count is exact; enqueues that join a
caller's transaction do not wait for anybody, and may overshoot by those in flight.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.errors import QuotaExceeded
from holdfast.stores.postgres.link import Session

MARGIN = 10_000
"""A queue that has more than its quota is counted that much further, for the refusal to say how many there are."""


class Quotas:
    """The quotas of some tenants, and what waits under them, within one transaction."""

    def __init__(self, limits: dict[tuple[str, str], int], waiting: dict[tuple[str, str], int]) -> None:
        self._limits = limits
        self._waiting = waiting

    @classmethod
    async def read(cls, session: Session, tenants: Iterable[str], place: str, *, wait: bool) -> Quotas:
        """Read them, after waiting for others of the same tenants if so asked."""
        rows = await session.rows("quotas", sorted(set(tenants)))
        limits: dict[tuple[str, str], int] = {(row["tenant"], row["queue"]): row["max_waiting"] for row in rows}
        if wait:
            for tenant in sorted({tenant for tenant, _ in limits}):
                await session.value("hold_tenant", f"{place}:{tenant}")
        waiting: dict[tuple[str, str], int] = {}
        for (tenant, queue), limit in limits.items():
            if queue:
                waiting[tenant, queue] = await session.value("lane_waiting", tenant, queue, limit + MARGIN)
            else:
                waiting[tenant, queue] = await session.value("tenant_waiting", tenant, limit + MARGIN)
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
