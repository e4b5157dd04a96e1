"""Weights, quotas and budgets that operators set for tenants and their queues."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core import fairness
from holdfast.core.budgets import merged
from holdfast.core.errors import QuotaExceeded
from holdfast.store import TenantSettings


class SettingsTable:
    """The settings by tenant and queue. Queue None: the whole tenant."""

    def __init__(self) -> None:
        self._settings: dict[tuple[str, str | None], TenantSettings] = {}

    def set(self, tenant: str, new: TenantSettings) -> None:
        """Set what is not None in `new`."""
        old = self._settings.get((tenant, new.queue), TenantSettings(new.queue))
        self._settings[tenant, new.queue] = TenantSettings(
            new.queue,
            old.weight if new.weight is None else new.weight,
            old.max_waiting if new.max_waiting is None else new.max_waiting,
            merged(old.budgets, new.budgets),
        )

    def of(self, tenant: str) -> list[TenantSettings]:
        """The tenant's own settings first, then those of its queues by name."""
        mine = [settings for (name, _), settings in self._settings.items() if name == tenant]
        return sorted(mine, key=lambda settings: settings.queue or "")

    def tenants(self) -> Iterable[str]:
        """The tenants that have settings, some more than once."""
        return (tenant for tenant, _ in self._settings)

    def over_quota(self, tenant: str, queue: str, in_queue: int, in_tenant: int) -> QuotaExceeded | None:
        """The refusal if a queue, or its tenant as a whole, has all the waiting jobs that it may. [TENANT-5]"""
        if not self._settings:
            return None
        for scope, waiting in ((queue, in_queue), (None, in_tenant)):
            settings = self._settings.get((tenant, scope))
            if settings is not None and settings.max_waiting is not None and waiting >= settings.max_waiting:
                return QuotaExceeded(scope, waiting, settings.max_waiting)
        return None

    def turn_cost(self, tenant: str, queue: str) -> int:
        """What one turn costs a tenant in a queue, by its weight there. [TENANT-4]"""
        for scope in (queue, None):
            settings = self._settings.get((tenant, scope))
            if settings is not None and settings.weight is not None:
                return fairness.cost(settings.weight)
        return fairness.STRIDE
