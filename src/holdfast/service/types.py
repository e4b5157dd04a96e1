"""The job types that workers run, read every few seconds for all requests of a process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from holdfast.core.budgets import Budgets
from holdfast.core.errors import QuotaExceeded
from holdfast.core.policy import KnownTypes
from holdfast.store import Store, WorkerInfo

FRESH_S = 3.0
"""The greatest age of the types that an enqueue uses."""


class TypeCache:
    """The live workers, and the options of the types that they run."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._workers: Sequence[WorkerInfo] = ()
        self._known: dict[str, KnownTypes] = {}
        self._mine: dict[str, dict[str, int]] = {}
        """By tenant: its own workers, with the number of queues and types that each of them names."""
        self._read_at = time.monotonic() - FRESH_S
        self._reading = asyncio.Lock()

    async def of(self, tenant: str) -> KnownTypes:
        """The types of the workers that serve this tenant, and of no others. [TENANT-2]"""
        await self._renew()
        known = self._known.get(tenant)
        if known is None:
            serving = [worker for worker in self._workers if worker.tenant in (None, tenant)]
            known = self._known[tenant] = KnownTypes.of(serving)
        return known

    async def admit(self, worker: WorkerInfo, budgets: Budgets, *, is_alive: bool) -> None:
        """Count a worker that reports, or remove it. Raises QuotaExceeded if its tenant has too many."""
        await self._renew()
        tenant = worker.tenant or ""
        mine = self._mine.get(tenant)
        if mine is None:
            mine = {one.worker_id: _names(one) for one in self._workers if one.tenant == tenant}
            self._mine[tenant] = mine
        if not is_alive:
            mine.pop(worker.worker_id, None)
            return
        others = {id: types for id, types in mine.items() if id != worker.worker_id}
        if budgets.max_workers and len(others) >= budgets.max_workers:
            raise QuotaExceeded(None, len(others), budgets.max_workers, "max_workers")
        used = sum(others.values())
        if budgets.max_types and used + _names(worker) > budgets.max_types:
            raise QuotaExceeded(None, used, budgets.max_types, "max_types")
        mine[worker.worker_id] = _names(worker)

    async def _renew(self) -> None:
        if self._is_old():
            async with self._reading:
                if self._is_old():
                    self._workers = await self._store.workers(None)
                    self._known.clear()
                    self._mine.clear()
                    self._read_at = time.monotonic()

    def _is_old(self) -> bool:
        return time.monotonic() - self._read_at >= FRESH_S


def _names(worker: WorkerInfo) -> int:
    return len(worker.queues) + len(worker.types)
