"""Notices that the store's clock was set back. [TIME-1]"""

from __future__ import annotations

import asyncio

from holdfast.clock import boot_time
from holdfast.schedules.schedules import SLACK_MS


class StoreClock:
    """Compares the store's clock with one that is never set back."""

    def __init__(self) -> None:
        self._ahead_ms: float | None = None
        self._set_back = asyncio.Event()

    def observe(self, now: int) -> None:
        """Record that the store's clock showed `now`."""
        ahead_ms = now - boot_time() * 1000
        if self._ahead_ms is None or ahead_ms > self._ahead_ms:
            self._ahead_ms = ahead_ms
        elif ahead_ms < self._ahead_ms - SLACK_MS:
            self._ahead_ms = ahead_ms
            self._set_back.set()

    async def set_back(self) -> None:
        """Wait until it was set back by more than `SLACK_MS`."""
        await self._set_back.wait()
        self._set_back.clear()
