"""Quotas of waiting jobs. [TENANT-5]

Enqueues and replays of a tenant with a quota run one at a time, so that the count is exact. The tenant is locked after
everything else, so a transaction with this lock waits for no other one. Enqueues that join a caller's transaction do
not wait for it. They may exceed the quota by the jobs in flight.

A backlog far below its quota is not counted. Each job draws a number from one sequence before it starts to wait or run.
So no more jobs wait than waited or ran at the last count, plus the numbers drawn since. If this bound exceeds the
quota, the jobs are counted again. A count takes longer with a larger quota: 88 ms for 200,000. Jobs in a caller's open
transaction have drawn their numbers and are not visible yet: while there are any, no count is cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from holdfast.core.errors import QuotaExceeded
from holdfast.stores.postgres.connection import PATIENT_LOCK_MS, PostgresSession
from holdfast.stores.postgres.lanes import LaneCache

MARGIN = 10_000
"""How far a count goes beyond the quota, so that the refusal can state the number of jobs."""
MIN_REMEMBERED = 1000
"""The least number of waiting jobs for which a count is cached."""

_counted: WeakKeyDictionary[LaneCache, dict[tuple[str, str, str], tuple[int, int]]] = WeakKeyDictionary()
"""By schema, tenant and queue: waiting and leased jobs, and the last number drawn before they were counted."""


class Quotas:
    """The quotas of some tenants, and upper bounds of their waiting jobs, within one transaction."""

    def __init__(self, limits: dict[tuple[str, str], int], waiting: dict[tuple[str, str], int]) -> None:
        self._limits = limits
        self._waiting = waiting

    @classmethod
    async def read(
        cls, session: PostgresSession, cache: LaneCache, tenants: Sequence[str], schema: str, *, wait: bool
    ) -> Quotas:
        """Read them for a job of each of these tenants. `wait`: first wait for other transactions of the same tenants.

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
            # After reading `drawn`: a transaction that joins after this check draws later numbers, which are added.
            alone = wait and await session.value("tenant_unjoined", f"{schema}:{tenant}")
            names = (tenant, queue) if queue else (tenant,)
            (row,) = await session.rows(
                "lane_waiting" if queue else "tenant_waiting", *names, limit + MARGIN, MIN_REMEMBERED
            )
            waiting[tenant, queue] = row["waiting"]
            # The snapshot of a caller's transaction may be older than the number, so this count is not cached.
            if alone and row["leased"] is not None and row["waiting"] < limit + MARGIN:
                counted[cache.data_id, tenant, queue] = (row["waiting"] + row["leased"], drawn)
        return cls(limits, waiting)

    def over(self, tenant: str, queue: str) -> QuotaExceeded | None:
        """The refusal, if the queue or the tenant has reached its quota."""
        for scope in (queue, ""):
            limit = self._limits.get((tenant, scope))
            if limit is not None and self._waiting[tenant, scope] >= limit:
                return QuotaExceeded(scope or None, self._waiting[tenant, scope], limit)
        return None

    def took(self, tenant: str, queue: str) -> None:
        """Count one more waiting job."""
        for scope in (queue, ""):
            if (tenant, scope) in self._waiting:
                self._waiting[tenant, scope] += 1
