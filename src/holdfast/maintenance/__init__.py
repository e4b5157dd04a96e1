"""The maintenance of a store. Workers run it beside their jobs; `holdfast maintain` runs nothing else."""

from __future__ import annotations

from holdfast.maintenance.runner import Maintenance, maintain

__all__ = ["Maintenance", "maintain"]
