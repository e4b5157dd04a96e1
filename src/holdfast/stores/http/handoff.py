"""A worker's inbox: a claim that waits at the service and returns the next jobs. [CLAIM-3]

So a worker needs no hints, and the scope `jobs:work` is enough for it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from holdfast.clock import boot_time
from holdfast.core.job import Claimed, ClaimRequest
from holdfast.extensions import Deliver
from holdfast.stores.http.client import HttpClient

WAIT_S = 20.0
FIRST_S, LAST_S = 0.1, 5.0
"""The pause after a wait that ends early without a job: the first and the longest."""
LEAVE_S = 2.0
"""How long to wait until the service notices that the claim has ended."""

Claim = Callable[[ClaimRequest, float, HttpClient], Awaitable[tuple[Claimed, float]]]
"""Claims, and waits for up to this many seconds for a job. The answer says how long it waited."""


class HttpInbox:
    """One worker's inbox: at most one claim waits."""

    def __init__(self, claim: Claim, client: HttpClient, deliver: Deliver, on_close: Callable[[], None]) -> None:
        self._claim = claim
        self._client = client
        self._deliver = deliver
        self._on_close = on_close
        self._closed = False
        self._waiting: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._now = 0

    @property
    def needs_claim(self) -> bool:
        """Whether no claim waits now."""
        return self._waiting is None

    async def claim(self, request: ClaimRequest, free: int | None = None) -> Claimed:
        """As `WorkerInbox.claim`. While a claim waits there is nothing to claim: its jobs are delivered."""
        if self._waiting is not None:
            return Claimed([], self._now)
        error, self._error = self._error, None
        if error is not None:
            raise error
        self._client.open()
        claimed, _ = await self._claim(request, 0.0, self._client)
        self._now = claimed.now
        left = request.limit - len(claimed.jobs)
        room = left if free is None else min(left, free - len(claimed.jobs))
        if room > 0 and not self._closed:
            self._waiting = asyncio.create_task(self._wait(replace(request, limit=room)))
        return claimed

    async def close(self) -> None:
        """End the wait. Jobs in flight still arrive; the service releases those that it cannot deliver. [RETRY-5]"""
        if self._closed:
            return
        self._closed = True
        waiting = self._waiting
        if waiting is not None:
            self._client.leave()
            await asyncio.wait([waiting], timeout=LEAVE_S)
            waiting.cancel()
            await asyncio.wait([waiting])
            self._waiting = None
        await self._client.close()
        self._on_close()

    async def _wait(self, request: ClaimRequest) -> None:
        claimed = Claimed([], self._now)
        sent = boot_time()
        pause_s = FIRST_S
        try:
            while not claimed.jobs and not self._closed:
                sent = boot_time()
                claimed, waited_s = await self._claim(request, WAIT_S, self._client)
                early = boot_time() - sent < LAST_S
                # The leases began after the wait. [LEASE-4]
                sent += waited_s
                request = replace(request, queues=request.queues[1:] + request.queues[:1])
                pause_s = pause_s if early else FIRST_S
                if early and not claimed.jobs and not self._closed:
                    await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
                    pause_s = min(2 * pause_s, LAST_S)
        except Exception as error:  # noqa: BLE001 - the function that returns the token may raise anything; `claim` raises it
            self._error = error
        self._now = claimed.now
        self._waiting = None
        # Deliver an empty answer too: the worker then claims, and gets the error.
        self._deliver(claimed, sent)
