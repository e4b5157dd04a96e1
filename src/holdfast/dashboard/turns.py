"""How many pages are read at once. A page may hold a hundred jobs with their payloads, which can be 50 MB."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from msgspec import Struct, field

from holdfast.dashboard.view import NotShown, Viewer

AT_ONCE, AT_ONCE_OF_TENANT = 8, 2
WAIT_S = 5.0
"""A request that waits longer for its turn is refused."""


class _Own(Struct):
    """The turns of the viewers of one tenant, or of operators."""

    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE_OF_TENANT))
    users: int = 0


class PageTurns:
    """Turns to read a page, in order of arrival. The viewers of one tenant have few of them. [TENANT-4]"""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(AT_ONCE)
        self._own: dict[str, _Own] = {}

    @asynccontextmanager
    async def of(self, viewer: Viewer, *, is_patient: bool = False) -> AsyncGenerator[None]:
        """A turn, for the block. Raises NotShown after too long a wait, unless `is_patient`."""
        tenant = viewer.tenant or ""
        own = self._own.setdefault(tenant, _Own())
        own.users += 1
        try:
            async with AsyncExitStack() as held:
                try:
                    async with asyncio.timeout(None if is_patient else WAIT_S):
                        await held.enter_async_context(own.turns)
                        await held.enter_async_context(self._all)
                except TimeoutError:
                    raise NotShown(503, "Too many pages are being read. Try again in a moment.") from None
                yield
        finally:
            own.users -= 1
            if not own.users:
                del self._own[tenant]
