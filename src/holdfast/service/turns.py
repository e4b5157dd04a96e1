"""Turns of the event loop: how much work on bodies is done in one, and whose is next."""

from __future__ import annotations

import asyncio
from collections import deque

from holdfast.service.scan import SLICE, Slices

TURN = 2 * SLICE
"""Work in one turn of the loop, of all requests together. About 4 ms."""
SMALL = TURN // 16
"""Less than this does not wait: the large bodies of others are not before it."""
SIMPLE_BYTES = 256 * 1024
FEW_BYTES = 512
"""Taken for the worst that they can be, uncounted: that is still small."""
_PART, _BYTES = 5, 16


def work_of(data: bytes) -> int:
    """About how much work it is to decode a JSON text as a whole: of a large one, more than a turn has."""
    if len(data) > SIMPLE_BYTES:
        return TURN + 1
    if len(data) <= FEW_BYTES:
        return 1 + _PART * len(data)
    parts = data.count(b",") + data.count(b"[") + data.count(b"{")
    return 1 + _PART * parts + len(data) // _BYTES


def is_simple(data: bytes) -> bool:
    """Whether a JSON text can be decoded as a whole, in one turn."""
    return work_of(data) <= TURN


class Turns:
    """Hands out turns of the event loop, in rotation between tenants. [TENANT-4]"""

    def __init__(self) -> None:
        self.most = 0
        """The most work that was done in one turn."""
        self._spent = 0
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._ticks = False

    def try_take(self, work: int) -> bool:
        """Do this work in the current turn, if it has room for it; any turn has room for what is small."""
        if work > SMALL and (self._waiting or (self._spent and self._spent + work > TURN)):
            return False
        self._count(work)
        return True

    async def take(self, work: int, tenant: str) -> None:
        """Wait for a turn that has room for this work; any turn has room for one of it."""
        if not self.try_take(work):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(tenant, deque()).append(turn)
            await turn
            self._count(work)

    async def run(self, slices: Slices, tenant: str) -> None:
        """Make a check, a slice in a turn. Raises what it raises."""
        await self.take(SLICE, tenant)
        for _ in slices:
            await self.take(SLICE, tenant)

    def _count(self, work: int) -> None:
        self._spent += work
        self.most = max(self.most, self._spent)
        if not self._ticks:
            self._tick_soon()

    def _tick_soon(self) -> None:
        if not self._ticks:
            self._ticks = True
            asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        """A turn is over."""
        self._spent = 0
        self._ticks = False
        while self._waiting:
            tenant, line = next(iter(self._waiting.items()))
            del self._waiting[tenant]
            turn = line.popleft()
            if line:
                self._waiting[tenant] = line
            if not turn.done():
                turn.set_result(None)
                self._tick_soon()
                return
