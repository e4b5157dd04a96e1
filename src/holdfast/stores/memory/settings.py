"""Weights, quotas and budgets that operators set for tenants and their queues."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core import fairness
from holdfast.store import TenantSettings


class SettingsTable:
    """The settings by tenant and queue; queue None is the tenant as a whole."""

    def __init__(self) -> None:
        self._settings: dict[tuple[str, str | None], TenantSettings] = {}

    def set(self, tenant: str, new: TenantSettings) -> None:
        """Set what is not None in `new`."""
        old = self._settings.get((tenant, new.queue), TenantSettings(new.queue))
        self._settings[tenant, new.queue] = old.updated(new)

    def of(self, tenant: str) -> list[TenantSettings]:
        """The tenant's own settings first, then those of its queues by name."""
        mine = [settings for (name, _), settings in self._settings.items() if name == tenant]
        return sorted(mine, key=lambda settings: settings.queue or "")

    def tenants(self) -> Iterable[str]:
        """The tenants that have settings, some more than once."""
        return (tenant for tenant, _ in self._settings)

    def max_waiting(self, tenant: str, queue: str | None) -> int | None:
        """The quota of a queue, or with None that of the whole tenant."""
        settings = self._settings.get((tenant, queue))
        return None if settings is None else settings.max_waiting

    def turn_cost(self, tenant: str, queue: str) -> int:
        """What one turn costs a tenant in a queue, by its weight there. [TENANT-4]"""
        for scope in (queue, None):
            settings = self._settings.get((tenant, scope))
            if settings is not None and settings.weight is not None:
                return fairness.cost(settings.weight)
        return fairness.STRIDE
