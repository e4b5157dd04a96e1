"""A worker's place at the service: while there is nothing, a claim waits there and brings what comes. [CLAIM-3]

So a worker needs no hints, and a token that may work but not read is enough for it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from holdfast.clock import boot_time
from holdfast.core.job import Claimed, ClaimRequest
from holdfast.extensions import Deliver
from holdfast.stores.http.client import Link

WAIT_S = 20.0
FIRST_S, LAST_S = 0.1, 5.0
"""How long to stay away after a wait that ended early with nothing: at first, and at most."""
LEAVE_S = 2.0
"""How long the service may take to notice that nobody waits any more."""

Claim = Callable[[ClaimRequest, float, Link], Awaitable[tuple[Claimed, float]]]
"""Claims by a link, and waits for so many seconds while there is nothing. The answer says how long it waited."""


class WaitingPost:
    """One worker's place: at most one claim waits."""

    def __init__(self, claim: Claim, link: Link, deliver: Deliver, on_close: Callable[[], None]) -> None:
        self._claim = claim
        self._link = link
        self._deliver = deliver
        self._on_close = on_close
        self._closed = False
        self._waiting: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._now = 0

    @property
    def needs_claim(self) -> bool:
        """Whether no claim waits any more."""
        return self._waiting is None

    async def claim(self, request: ClaimRequest, free: int | None = None) -> Claimed:
        """As `Post.claim`. As long as a claim waits there is nothing else to be had: what comes is delivered."""
        if self._waiting is not None:
            return Claimed([], self._now)
        error, self._error = self._error, None
        if error is not None:
            raise error
        self._link.open()
        claimed, _ = await self._claim(request, 0.0, self._link)
        self._now = claimed.now
        left = request.limit - len(claimed.jobs)
        room = left if free is None else min(left, free - len(claimed.jobs))
        if room > 0 and not self._closed:
            self._waiting = asyncio.create_task(self._wait(replace(request, limit=room)))
        return claimed

    async def close(self) -> None:
        """End the wait. What is on its way still comes; the service gives back what nobody took. [RETRY-5]"""
        if self._closed:
            return
        self._closed = True
        waiting = self._waiting
        if waiting is not None:
            self._link.leave()
            await asyncio.wait([waiting], timeout=LEAVE_S)
            waiting.cancel()
            await asyncio.wait([waiting])
            self._waiting = None
        await self._link.close()
        self._on_close()

    async def _wait(self, request: ClaimRequest) -> None:
        claimed = Claimed([], self._now)
        sent = boot_time()
        pause_s = FIRST_S
        try:
            while not claimed.jobs and not self._closed:
                sent = boot_time()
                claimed, waited_s = await self._claim(request, WAIT_S, self._link)
                early = boot_time() - sent < LAST_S
                # The service did not even look for them before that. [LEASE-4]
                sent += waited_s
                request = replace(request, queues=request.queues[1:] + request.queues[:1])
                pause_s = pause_s if early else FIRST_S
                if early and not claimed.jobs and not self._closed:
                    await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
                    pause_s = min(2 * pause_s, LAST_S)
        except Exception as error:  # noqa: BLE001 - also what a function that gives the token raises: the worker is told
            self._error = error
        self._now = claimed.now
        self._waiting = None
        # Also with nothing: then the worker claims, and hears of the error.
        self._deliver(claimed, sent)
