"""Offers: a worker that found too little leaves word of what it would take, and is sent it as it comes. [CLAIM-3]

The round trip from the hint to the claim falls away: the enqueue leases a job to whoever offered to take it, and sends
it along. `lua/offers.lua` has the rules; here is the worker's side of them.

A claim takes the worker's last offer back and leaves a new one, in one step. Jobs that were handed over before that
and have not come yet are counted in, so that no worker gets more than it has room for. What is sent to a worker that is
gone by then costs a lease, as a lost reply does. [ENQ-8]
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

from msgspec import Struct

from holdfast.core.errors import StoreError
from holdfast.core.job import Claimed, ClaimRequest
from holdfast.store import REPAIR_LIMIT, Deliver
from holdfast.stores.redis.claims import leased
from holdfast.stores.redis.ears import Ears
from holdfast.stores.redis.messages import handed_over
from holdfast.stores.redis.records import encode
from holdfast.stores.redis.shards import BATCH, Shards

MOST = 16
"""How many jobs are offered to be taken: so many can a worker that froze just now keep from the others."""
LEAST_LEASE_MS = 3_000
"""With shorter leases nothing is offered: too much of one would be over when the job comes."""
LAST_WORD_S = 1.0
"""How long a worker that leaves waits for what was already on its way."""


class _Offer(Struct, eq=False):
    """What was offered at `sent`, by this process's clock; `given` is 0 while the store has not confirmed it."""

    number: int = 0
    sent: float = 0.0
    until: float = 0.0
    given: int = 0
    got: int = 0


class RedisPost:
    """One worker's claims and offers, on a store with one shard. Belongs to one event loop."""

    def __init__(
        self,
        shards: Shards,
        ears: Ears,
        claim: Callable[[ClaimRequest], Awaitable[Claimed]],
        fill: Callable[[Claimed], Awaitable[Claimed]],
        deliver: Deliver,
    ) -> None:
        self._shards = shards
        self._ears = ears
        self._claim = claim
        self._fill = fill
        self._deliver = deliver
        self._channel = f"{shards.prefix}:post:{uuid4().hex}".encode()
        self._last = _Offer()
        self._living: dict[int, _Offer] = {}
        """Offers under which something may still come."""
        self._request: ClaimRequest | None = None
        self._came = asyncio.Event()
        self._stop = ears.post(self._channel, self._take)

    @property
    def low(self) -> bool:
        return self._last.given - self._last.got <= self._last.given // 2

    async def claim(self, request: ClaimRequest, free: int | None = None) -> Claimed:
        heard = request.lease_ms >= LEAST_LEASE_MS and self._ears.hears(self._channel)
        if not heard and self._request is None:
            return await self._claim(request)
        # Whoever is not heard now may be again, and what was offered before counts until it is taken back.
        limit = min(request.limit, BATCH)
        self._request = request
        free = limit if free is None else free
        now, next_at, offered, *found = await self._ask(request, limit, free if heard else 0)
        self._last.given = max(0, offered)
        if offered <= 0:
            self._living.pop(self._last.number, None)  # Nothing can come under it.
        jobs = leased(found)
        times = [next_at] if next_at >= 0 else []
        if offered > 0:
            times.append(now + request.lease_ms * 4 // 15)  # Before the offer is over.
        if len(jobs) == limit < request.limit:
            times.append(now)
        return await self._fill(Claimed(jobs, now, min(times, default=None)))

    async def close(self) -> None:
        """Take back what is offered, and wait a moment for what is on its way. Twice is harmless."""
        request, self._request = self._request, None
        try:
            # Also if the last claim was not answered: the server may have got it.
            if request is not None and self._ears.hears(self._channel):
                last, got = self._last, self._last.got
                with contextlib.suppress(StoreError, TimeoutError):
                    _, _, coming, *_ = await self._ask(request, 0, 0)
                    async with asyncio.timeout(LAST_WORD_S):
                        while last.got < got - coming:
                            self._came.clear()
                            await self._came.wait()
        finally:
            self._stop()

    async def _ask(self, request: ClaimRequest, limit: int, free: int) -> list[Any]:
        last, lease_s = self._last, request.lease_ms / 1000
        sent = time.monotonic()
        self._living = {number: offer for number, offer in self._living.items() if offer.until > sent}
        mine = self._last = self._living[last.number + 1] = _Offer(last.number + 1, sent, sent + lease_s)
        lasts_ms = request.lease_ms // 3
        offer = (self._channel.decode(), mine.number, last.number, last.given, last.got, free, MOST, lasts_ms)
        packed = encode((
            request.tenant or False, request.queues, limit, request.lease_ms, request.worker_id, request.random,
            REPAIR_LIMIT, offer,
        ))  # fmt: skip
        return await self._shards.run("claim", 0, packed, repeat=False)

    def _take(self, data: bytes) -> None:
        number, now, jobs = handed_over(data)
        offer = self._living.get(number)
        if offer is None:
            return  # So old that the lease is over by our own clock. [LEASE-4]
        offer.got += len(jobs)
        self._came.set()
        self._deliver(Claimed(jobs, now, None), offer.sent)
