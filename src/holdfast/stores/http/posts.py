"""A worker's place at the service: while there is nothing, a claim waits there and brings what comes. [CLAIM-3]

So a worker needs no hints, and a token that may work but not read is enough for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from holdfast.core.errors import HoldfastError
from holdfast.core.job import Claimed, ClaimRequest
from holdfast.store import Deliver

WAIT_S = 20.0

Claim = Callable[[ClaimRequest, float], Awaitable[tuple[Claimed, float]]]
"""Claims, and waits for so many seconds while there is nothing. The answer says how long it waited."""


class WaitingPost:
    """One worker's place: at most one claim waits."""

    def __init__(self, claim: Claim, deliver: Deliver, on_close: Callable[[], None]) -> None:
        self._claim = claim
        self._deliver = deliver
        self._on_close = on_close
        self._waiting: asyncio.Task[None] | None = None
        self._error: HoldfastError | None = None
        self._now = 0

    @property
    def low(self) -> bool:
        """Whether no claim waits any more."""
        return self._waiting is None

    async def claim(self, request: ClaimRequest, free: int | None = None) -> Claimed:
        """As `Post.claim`. As long as a claim waits there is nothing else to be had: what comes is delivered."""
        if self._waiting is not None:
            return Claimed([], self._now)
        error, self._error = self._error, None
        if error is not None:
            raise error
        claimed, _ = await self._claim(request, 0.0)
        self._now = claimed.now
        left = request.limit - len(claimed.jobs)
        room = left if free is None else min(left, free - len(claimed.jobs))
        if room > 0:
            self._waiting = asyncio.create_task(self._wait(replace(request, limit=room)))
        return claimed

    async def close(self) -> None:
        """End the wait. The service gives back what it finds nobody to take. [RETRY-5]"""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.cancel()
            await asyncio.wait([waiting])
        self._on_close()

    async def _wait(self, request: ClaimRequest) -> None:
        claimed = Claimed([], self._now)
        sent = time.monotonic()
        try:
            while not claimed.jobs:
                sent = time.monotonic()
                claimed, waited_s = await self._claim(request, WAIT_S)
                # The service did not even look for them before that. [LEASE-4]
                sent += waited_s
                request = replace(request, queues=request.queues[1:] + request.queues[:1])
        except HoldfastError as error:
            self._error = error
        self._now = claimed.now
        self._waiting = None
        # Also with nothing: then the worker claims, and hears of the error.
        self._deliver(claimed, sent)
