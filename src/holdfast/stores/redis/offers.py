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
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

from holdfast.clock import boot_time
from holdfast.core.errors import StoreError
from holdfast.core.job import Claimed, ClaimRequest
from holdfast.core.offers import LAST_WORD_S, LEAST_LEASE_MS, MOST, Offers, lasts_ms, renew_at
from holdfast.store import REPAIR_LIMIT, Deliver
from holdfast.stores.redis.claims import leased
from holdfast.stores.redis.ears import Ears
from holdfast.stores.redis.messages import handed_over
from holdfast.stores.redis.records import encode
from holdfast.stores.redis.shards import BATCH, Shards


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
        self._offers = Offers()
        self._request: ClaimRequest | None = None
        self._came = asyncio.Event()
        self._stop = ears.post(self._channel, self._take)

    @property
    def low(self) -> bool:
        return self._offers.low

    async def claim(self, request: ClaimRequest, free: int | None = None) -> Claimed:
        heard = request.lease_ms >= LEAST_LEASE_MS and self._ears.hears(self._channel)
        if not heard and self._request is None:
            return await self._claim(request)
        # Whoever is not heard now may be again, and what was offered before counts until it is taken back.
        limit = min(request.limit, BATCH)
        self._request = request
        free = limit if free is None else free
        now, next_at, offered, *found = await self._ask(request, limit, free if heard else 0)
        self._offers.confirm(max(0, offered))
        jobs = leased(found)
        times = [next_at] if next_at >= 0 else []
        if offered > 0:
            times.append(renew_at(now, request.lease_ms))
        if len(jobs) == limit < request.limit:
            times.append(now)
        return await self._fill(Claimed(jobs, now, min(times, default=None)))

    async def close(self) -> None:
        """Take back what is offered, and wait a moment for what is on its way. Twice is harmless."""
        request, self._request = self._request, None
        try:
            # Also if the last claim was not answered: the server may have got it.
            if request is not None and self._ears.hears(self._channel):
                last = self._offers.last
                got = last.got
                with contextlib.suppress(StoreError, TimeoutError):
                    _, _, coming, *_ = await self._ask(request, 0, 0)
                    async with asyncio.timeout(LAST_WORD_S):
                        while last.got < got - coming:
                            self._came.clear()
                            await self._came.wait()
        finally:
            self._stop()

    async def _ask(self, request: ClaimRequest, limit: int, free: int) -> list[Any]:
        last = self._offers.last
        mine = self._offers.begin(boot_time(), request.lease_ms)
        lasts = lasts_ms(request.lease_ms)
        offer = (self._channel.decode(), mine.number, last.number, last.given, last.got, free, MOST, lasts)
        packed = encode((
            request.tenant or False, request.queues, limit, request.lease_ms, request.worker_id, request.random,
            REPAIR_LIMIT, offer,
        ))  # fmt: skip
        return await self._shards.run("claim", 0, packed, repeat=False)

    def _take(self, data: bytes) -> None:
        number, now, jobs = handed_over(data)
        offer = self._offers.came(number, len(jobs))
        if offer is None:
            return
        self._came.set()
        self._deliver(Claimed(jobs, now, None), offer.sent)
