"""Bounds the work on bodies in each turn of the event loop, in rotation between tenants."""

from __future__ import annotations

import asyncio
from collections import deque

from holdfast.service.scan import SLICE, Slices

TURN = 2 * SLICE
"""The work of all requests in one turn of the event loop, about 4 ms."""
SMALL = TURN // 16
"""Work up to this amount never waits behind the large bodies of other requests."""
SIMPLE_BYTES = 256 * 1024
MIN_COUNTED_BYTES = 512
"""Shorter texts are not counted but rated as the worst of their length, which is still small."""
_PART, _BYTES = 5, 16


def work_of(data: bytes) -> int:
    """An estimate of the work to decode a JSON text at once. For a large text it is more than a turn."""
    if len(data) > SIMPLE_BYTES:
        return TURN + 1
    if len(data) <= MIN_COUNTED_BYTES:
        return 1 + _PART * len(data)
    parts = data.count(b",") + data.count(b"[") + data.count(b"{")
    return 1 + _PART * parts + len(data) // _BYTES


def is_simple(data: bytes) -> bool:
    """Whether a JSON text can be decoded at once, in one turn."""
    return work_of(data) <= TURN


class CheckTurns:
    """Assigns turns of the event loop, in rotation between tenants. [TENANT-4]"""

    def __init__(self) -> None:
        self.peak = 0
        """The most work in one turn so far."""
        self._spent = 0
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._ticks = False

    def try_take(self, work: int) -> bool:
        """Take work in the current turn, if it fits. Small work always fits."""
        if work > SMALL and (self._waiting or (self._spent and self._spent + work > TURN)):
            return False
        self._count(work)
        return True

    async def take(self, work: int, tenant: str) -> None:
        """Wait for a turn in which this work fits. An empty turn takes work of any size."""
        if not self.try_take(work):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(tenant, deque()).append(turn)
            await turn
            self._count(work)

    async def run(self, slices: Slices, tenant: str) -> None:
        """Run a check, one slice in each turn. Raises its errors."""
        await self.take(SLICE, tenant)
        for _ in slices:
            await self.take(SLICE, tenant)

    def _count(self, work: int) -> None:
        self._spent += work
        self.peak = max(self.peak, self._spent)
        if not self._ticks:
            self._tick_soon()

    def _tick_soon(self) -> None:
        if not self._ticks:
            self._ticks = True
            asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        """Begin a new turn, and give it to the next tenant."""
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
