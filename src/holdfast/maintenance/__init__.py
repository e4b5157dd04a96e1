"""The upkeep of a store: workers do it by the way, `holdfast maintain` does nothing else."""

from __future__ import annotations

from holdfast.maintenance.runner import Maintenance, maintain

__all__ = ["Maintenance", "maintain"]
