"""The store that the pages show, and a Queue for each tenant."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.blobs import Blobs
from holdfast.dashboard.histories import Histories
from holdfast.dashboard.rates import AllRates
from holdfast.dashboard.recent import RecentEvents
from holdfast.extensions import SingleTenant
from holdfast.opening import shown_url
from holdfast.queue.queue import Queue
from holdfast.store import Store

MAX_QUEUES = 1000
"""The most tenants whose Queue is kept."""


class Source:
    """The store, opened when it is first needed. `tenant`: the one to begin with, if several may be seen."""

    def __init__(
        self, store: Store, *, blobs: Blobs | None = None, tenant: str = "", url: str = "", proof: Path | None = None
    ) -> None:
        self.store = store
        self.shown = shown_url(url) if url else store.capabilities.name
        """What the pages call the store."""
        self.proof = proof
        """The directory with the results of checks, if the operator named one."""
        self.recent = RecentEvents(store)
        self.histories = Histories(store)
        self.rates = AllRates(store)
        self._blobs = blobs
        self._tenant = tenant
        self._queues: dict[str, Queue] = {}
        self._lock = asyncio.Lock()
        self._is_open = False

    async def open(self) -> None:
        """Open the store. Calling it twice is harmless."""
        if self._is_open:
            return
        async with self._lock:
            if not self._is_open:
                await self.store.open()
                self._is_open = True

    async def close(self) -> None:
        """Forget the Queues. The owner of the store closes it."""
        queues, self._queues = list(self._queues.values()), {}
        for queue in queues:
            await queue.close()

    def queue(self, tenant: str) -> Queue:
        """The Queue of a tenant."""
        queue = self._queues.pop(tenant, None)
        if queue is None:
            if len(self._queues) >= MAX_QUEUES:
                del self._queues[next(iter(self._queues))]
            queue = Queue(store=self.store, tenant=tenant, blobs=self._blobs)
        self._queues[tenant] = queue
        return queue

    async def only_tenant(self) -> str:
        """The tenant to show if none is named: the given one, or the only one of the store; "" if there are several."""
        if isinstance(self.store, SingleTenant):
            return self.store.bind(None)
        if self._tenant:
            return self._tenant
        page = await self.store.tenant_page(None, 2)
        return page.tenants[0] if len(page.tenants) == 1 and page.cursor is None else ""
