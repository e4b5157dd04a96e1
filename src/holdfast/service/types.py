"""What the workers of each tenant run, read every few seconds for all requests of a process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from holdfast.core.policy import KnownTypes
from holdfast.store import Store, WorkerInfo

FRESH_S = 3.0
"""So old may be what an enqueue goes by."""


class Types:
    """The living workers, and what they say of the types that they run."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._workers: Sequence[WorkerInfo] = ()
        self._known: dict[str, KnownTypes] = {}
        self._read_at = time.monotonic() - FRESH_S
        self._reading = asyncio.Lock()

    async def of(self, tenant: str) -> KnownTypes:
        """What the workers run that serve this tenant; of others it learns nothing. [TENANT-2]"""
        if self._is_old():
            async with self._reading:
                if self._is_old():
                    self._workers = await self._store.workers(None)
                    self._known.clear()
                    self._read_at = time.monotonic()
        known = self._known.get(tenant)
        if known is None:
            serving = [worker for worker in self._workers if worker.tenant in (None, tenant)]
            known = self._known[tenant] = KnownTypes.of(serving)
        return known

    def _is_old(self) -> bool:
        return time.monotonic() - self._read_at >= FRESH_S
