"""The newest events of each tenant on a screen. Nothing is read while no page shows them.

Logs are read forward only. So a short log is read from its beginning, and a long one from the first look on. If more
comes between two looks than a look reads, the page starts over with what follows, and says so.
"""

from __future__ import annotations

import asyncio
from collections import deque

from msgspec import Struct

from holdfast.core.errors import EventsTrimmed
from holdfast.core.events import Event
from holdfast.store import Store

READ = 1000
FIRST_READS, READS = 4, 2
"""The most reads of the first look, and of each later one."""
KEPT = 1000
"""The events that are kept of one tenant."""
MAX_TENANTS = 50


class Recent(Struct):
    """What is known of one tenant's log: `events`, the oldest first."""

    events: deque[Event]
    offset: str | None = None
    complete_from: int | None = None
    """Events before this time are left out: the log is too long. None: it was read from its beginning."""
    began: bool = False


class RecentEvents:
    """Reads the logs of the tenants on a screen."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tenants: dict[str, Recent] = {}
        self._lock = asyncio.Lock()

    async def of(self, tenant: str) -> Recent:
        """The newest events of a tenant, as of now. Concurrent calls read one after another."""
        async with self._lock:
            recent = self._tenants.pop(tenant, None) or Recent(deque(maxlen=KEPT))
            if len(self._tenants) >= MAX_TENANTS:
                del self._tenants[next(iter(self._tenants))]
            self._tenants[tenant] = recent
            await self._read_on(tenant, recent)
            return recent

    async def _read_on(self, tenant: str, recent: Recent) -> None:
        for _ in range(READS if recent.began else FIRST_READS):
            recent.began = True
            try:
                page = await self._store.events(tenant, recent.offset, READ)
            except EventsTrimmed:
                break
            recent.offset = page.next
            recent.events.extend(page.events)
            if not page.more:
                return
        recent.offset, recent.complete_from = await self._store.last_offset(), await self._store.now()
        recent.events.clear()
