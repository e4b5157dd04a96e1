"""The store that the pages show, and a Queue for each tenant."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from holdfast.blobs import Blobs
from holdfast.dashboard.histories import Histories
from holdfast.dashboard.tail import LogTails
from holdfast.extensions import SingleTenant
from holdfast.opening import shown_url
from holdfast.queue.queue import Queue
from holdfast.store import PAGE_LIMIT, QueuePage, Store

MAX_QUEUES = 1000
"""The most tenants whose Queue is kept."""
MAX_PAGES = 200
"""The most pages of queues that are kept."""


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
        self.histories = Histories(store)
        self.tails = LogTails(store)
        self._blobs = blobs
        self._tenant = tenant
        self._queues: dict[str, Queue] = {}
        self._pages: dict[tuple[str, str | None], tuple[float, QueuePage]] = {}
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

    async def queue_page(self, tenant: str, cursor: str | None, asked_at: float) -> QueuePage:
        """A page of a tenant's queues, as of `asked_at` or later: fragments of one round share a read."""
        read_at, page = self._pages.get((tenant, cursor), (0.0, QueuePage([], None)))
        if read_at < asked_at:
            read_at = time.monotonic()
            page = await self.store.queue_page(tenant, cursor, PAGE_LIMIT)
            if len(self._pages) >= MAX_PAGES:
                self._pages.clear()
            self._pages[tenant, cursor] = read_at, page
        return page

    async def only_tenant(self) -> str:
        """The tenant to show if none is named: the given one, or the only one of the store; "" if there are several."""
        if isinstance(self.store, SingleTenant):
            return self.store.bind(None)
        if self._tenant:
            return self._tenant
        page = await self.store.tenant_page(None, 2)
        return page.tenants[0] if len(page.tenants) == 1 and page.cursor is None else ""
