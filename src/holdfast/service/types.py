"""What the workers of each tenant run, read every few seconds for all requests of a process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from holdfast.core.policy import KnownTypes
from holdfast.service.errors import Refusal
from holdfast.store import Store, WorkerInfo

FRESH_S = 3.0
"""So old may be what an enqueue goes by."""


WORKERS, NAMES = 1_000, 10_000
"""The most living workers of a tenant that say so over HTTP, in a process, and queues and types that they name."""


class Beats:
    """The workers of each tenant that live by what they said here.

    Without a bound one tenant could make any number: every enqueue of all tenants goes by what workers say.
    """

    def __init__(self) -> None:
        self._workers: dict[str, dict[str, tuple[float, int]]] = {}

    def note(self, tenant: str, worker: WorkerInfo, ttl_s: float) -> None:
        """Count a worker as living. Raises a refusal where it would be one too many, or names too much."""
        workers = self._workers.setdefault(tenant, {})
        before = workers.pop(worker.worker_id, None)
        if ttl_s > 0:
            names = len(worker.queues) + len(worker.types)
            if not _have_room(workers, names):
                now = time.monotonic()
                workers = self._workers[tenant] = {id: one for id, one in workers.items() if one[0] > now}
            if not _have_room(workers, names):
                if before is not None:
                    workers[worker.worker_id] = before
                limits = f"the limits are {WORKERS}, and {NAMES} names of queues and types"
                raise Refusal("share_exceeded", f"living workers of this tenant: {limits}; try again later")
            workers[worker.worker_id] = (time.monotonic() + ttl_s, names)
        if not workers:
            del self._workers[tenant]


def _have_room(workers: dict[str, tuple[float, int]], names: int) -> bool:
    return len(workers) < WORKERS and sum(one[1] for one in workers.values()) + names <= NAMES


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
