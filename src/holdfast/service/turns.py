"""Large work runs in pieces, in rotation between tenants, so that every tenant gets time. [TENANT-4]

`CheckTurns` bounds the work on bodies in each turn of the event loop. `PieceTurns` runs large reads, one piece of each
tenant at a time. While other tenants make requests, a tenant's large work rests after each piece for `REST` times as
long as the piece took, so that it takes at most a quarter of the time of the event loop and of the store.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from holdfast.service.scan import SLICE, Slices

A = TypeVar("A")

TURN = 64 * 1024
"""The work of all requests in one turn of the event loop, about 4 ms."""
REST, MAX_REST_S = 3, 0.05
RECENT_S = 1.0
"""A tenant is active for this time after each request."""
SMALL = TURN // 16
"""Work up to this amount never waits behind the large bodies of other requests."""
SIMPLE_BYTES = 256 * 1024
MIN_COUNTED_BYTES = 512
"""Shorter texts are not scanned: their estimate is the most for their length, which is small."""
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


class Activity:
    """Which tenants have made requests recently: the last one, and the last one before it."""

    def __init__(self) -> None:
        self._last, self._last_at = "", 0.0
        self._other, self._other_at = "", 0.0

    def note(self, tenant: str) -> None:
        """A tenant makes a request."""
        if tenant != self._last:
            self._other, self._other_at = self._last, self._last_at
            self._last = tenant
        self._last_at = time.monotonic()

    def has_others(self, tenant: str) -> bool:
        """Whether another tenant is active."""
        name, at = (self._other, self._other_at) if tenant == self._last else (self._last, self._last_at)
        return bool(name) and time.monotonic() < at + RECENT_S

    def rest_s(self, tenant: str, took_s: float) -> float:
        """How long a tenant's large work rests after a piece."""
        return min(MAX_REST_S, REST * took_s) if self.has_others(tenant) else 0.0


class PieceTurns:
    """Runs the pieces of large reads, one of each tenant at a time."""

    def __init__(self, activity: Activity) -> None:
        self._activity = activity
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """The waiting pieces of each tenant that runs one, or rests."""

    async def run(self, tenant: str, read: Callable[..., Awaitable[A]], /, *args: Any) -> A:
        """Run a piece when it is its turn. The next one waits until the tenant has rested."""
        loop = asyncio.get_running_loop()
        if tenant in self._waiting:
            turn: asyncio.Future[None] = loop.create_future()
            self._waiting[tenant].append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._next(tenant)  # The turn was given as the wait ended.
                raise
        else:
            self._waiting[tenant] = deque()
        began = time.monotonic()
        try:
            return await read(*args)
        finally:
            rest_s = self._activity.rest_s(tenant, time.monotonic() - began)
            if rest_s:
                loop.call_later(rest_s, self._next, tenant)
            else:
                self._next(tenant)

    def _next(self, tenant: str) -> None:
        waiting = self._waiting[tenant]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[tenant]


class CheckTurns:
    """Assigns turns of the event loop, in rotation between tenants."""

    def __init__(self, activity: Activity) -> None:
        self.peak = 0
        """The most work in one turn so far."""
        self._activity = activity
        self._spent = 0
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._ticks = False
        self._given = ("", 0.0)
        """The tenant that was given the last turn, and the processor time of this thread then."""
        self._rests: dict[str, float] = {}
        """Until when the large work of a tenant rests."""
        self._later: asyncio.TimerHandle | None = None

    def try_take(self, work: int) -> bool:
        """Take work in the current turn, if it fits. Small work always fits."""
        if work > SMALL and (self._waiting or (self._spent and self._spent + work > TURN)):
            return False
        self._count(work)
        return True

    async def take(self, work: int, tenant: str) -> None:
        """Wait for a turn in which this work fits. An empty turn takes work of any size."""
        if (work > SMALL and tenant in self._rests) or not self.try_take(work):
            await self._wait(work, tenant)

    async def run(self, slices: Slices, tenant: str) -> None:
        """Run a check, one slice in each turn. Raises its errors."""
        await self._wait(SLICE, tenant)
        for _ in slices:
            await self._wait(SLICE, tenant)

    async def _wait(self, work: int, tenant: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._tick_soon()
        await turn
        self._count(work)

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
        """Begin a new turn, and give it to the next tenant that does not rest."""
        self._spent = 0
        self._ticks = False
        if not (self._waiting or self._rests or self._given[0]):
            return
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        name, spent_s = self._given
        if name:
            rest_s = self._activity.rest_s(name, time.thread_time() - spent_s)
            if rest_s:
                self._rests[name] = now + rest_s
            self._given = ("", 0.0)
        self._rests = {tenant: end for tenant, end in self._rests.items() if end > now}
        while self._waiting:
            tenant = next((one for one in self._waiting if one not in self._rests), None)
            if tenant is None:
                if self._later is not None:
                    self._later.cancel()
                self._later = loop.call_later(min(self._rests.values()) - now, self._tick_soon)
                return
            waiting = self._waiting.pop(tenant)
            turn = waiting.popleft()
            if waiting:
                self._waiting[tenant] = waiting
            if not turn.done():
                turn.set_result(None)
                self._given = (tenant, time.thread_time())
                self._tick_soon()
                return
