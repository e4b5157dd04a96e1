"""Offers: a worker that found too little leaves word of what it would take, and is sent it as it comes. [CLAIM-3]

The round trip from the hint to the claim falls away: the enqueue leases a job to whoever offered to take it, and sends
it along. `lua/offers.lua` has the rules; here is the worker's side of them.

A claim takes the worker's last offer back and leaves a new one, in one step. Jobs that were handed over before that
and have not come yet are counted in, so that no worker gets more than it has room for. The server names what it handed
over: what does not come, because a line broke, the worker releases. What is sent to a worker that is gone by then costs
a lease, as a lost reply does. [ENQ-8, RETRY-2]
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Sequence
from typing import Any, Protocol
from uuid import uuid4

from holdfast.clock import boot_time
from holdfast.core.errors import StoreError
from holdfast.core.job import Claimed, ClaimRequest, Finish, JobKey
from holdfast.core.waiters import IN_FLIGHT_S, MAX_ROOM, MIN_LEASE_MS, Registrations, registered_ms, renew_at
from holdfast.extensions import Deliver
from holdfast.store import REPAIR_LIMIT, FinishAnswer
from holdfast.stores.redis.claims import leased
from holdfast.stores.redis.keys import key_of
from holdfast.stores.redis.messages import handed_over
from holdfast.stores.redis.notifications import RedisListener
from holdfast.stores.redis.records import encode
from holdfast.stores.redis.shards import BATCH, Shards


class _Store(Protocol):
    async def claim(self, request: ClaimRequest) -> Claimed: ...
    async def filled(self, claimed: Claimed) -> Claimed: ...
    async def finish(self, items: Sequence[Finish]) -> list[FinishAnswer]: ...


class RedisInbox:
    """One worker's claims and offers, on a store with one shard. Belongs to one event loop."""

    def __init__(self, shards: Shards, listener: RedisListener, store: _Store, deliver: Deliver) -> None:
        self._shards = shards
        self._listener = listener
        self._store = store
        self._deliver = deliver
        self._channel = f"{shards.prefix}:inbox:{uuid4().hex}".encode()
        self._registrations = Registrations()
        self._request: ClaimRequest | None = None
        self._learned = 0
        """The last token of which the server has said that it was handed over."""
        self._arrived: set[int] = set()
        """The tokens that came before the server said so."""
        self._awaited: dict[int, tuple[JobKey, float]] = {}
        """What was handed over and has not come: from when on it counts as lost."""
        self._lost: set[int] = set()
        """The tokens that were released. Their messages, should they come after all, are ignored."""
        self._came = asyncio.Event()
        self._stop = listener.open_inbox(self._channel, self._take)

    @property
    def needs_claim(self) -> bool:
        return self._registrations.needs_claim

    async def claim(self, request: ClaimRequest, free: int | None = None) -> Claimed:
        heard = request.lease_ms >= MIN_LEASE_MS and self._listener.is_subscribed(self._channel)
        if not heard and self._request is None:
            return await self._store.claim(request)
        await self._release([token for token, (_, lost_at) in self._awaited.items() if lost_at <= boot_time()])
        # Whoever is not heard now may be again, and what was offered before counts until it is taken back.
        limit = min(request.limit, BATCH)
        self._request = request
        free = limit if free is None else free
        now, next_at, offered, found = await self._ask(request, limit, free if heard else 0)
        self._registrations.confirm(max(0, offered))
        jobs = leased(found)
        times = [next_at] if next_at >= 0 else []
        if offered > 0:
            times.append(renew_at(now, request.lease_ms))
        if len(jobs) == limit < request.limit:
            times.append(now)
        times += [now + math.ceil(max(0, lost_at - boot_time()) * 1000) for _, lost_at in self._awaited.values()]
        return await self._store.filled(Claimed(jobs, now, min(times, default=None)))

    async def close(self) -> None:
        """Take back what is offered, wait a moment for what is on its way, release the rest. Twice is harmless."""
        request, self._request = self._request, None
        try:
            # Also if the last claim was not answered: the server may have got it.
            if request is not None:
                with contextlib.suppress(StoreError, TimeoutError):
                    await self._ask(request, 0, 0)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(IN_FLIGHT_S):
                        while self._awaited:
                            self._came.clear()
                            await self._came.wait()
                with contextlib.suppress(StoreError):
                    await self._release(list(self._awaited))
        finally:
            self._stop()

    async def _ask(self, request: ClaimRequest, limit: int, free: int) -> tuple[int, int, int, list[Any]]:
        last = self._registrations.last
        handed = last.number in self._registrations.open
        mine = self._registrations.begin(boot_time(), request.lease_ms)
        lasts = registered_ms(request.lease_ms)
        offer = (
            self._channel.decode(), mine.number, last.number, last.room, last.received, free, MAX_ROOM, lasts,
            handed, self._learned,
        )  # fmt: skip
        packed = encode((
            request.tenant or False, request.queues, limit, request.lease_ms, request.worker_id, request.random,
            REPAIR_LIMIT, offer,
        ))  # fmt: skip
        # A worker that leaves claims nothing: it may ask again after a lost reply, and does not ask later.
        repeat = limit == 0
        now, next_at, offered, handed_over, *found = await self._shards.run("claim", 0, packed, repeat=repeat)
        self._learn(handed_over)
        return now, next_at, offered, found

    def _learn(self, handed_over: Sequence[Any]) -> None:
        """Compare what the server handed over with what came; a message may still be on its way for a moment."""
        lost_at = boot_time() + IN_FLIGHT_S
        for name, score in zip(*[iter(handed_over)] * 2, strict=True):
            token = int(float(score))
            if token not in self._arrived:
                self._awaited.setdefault(token, (key_of(name.decode()), lost_at))
            self._learned = max(self._learned, token)
        self._arrived = {token for token in self._arrived if token > self._learned}

    async def _release(self, lost: Sequence[int]) -> None:
        """Give back what never came, with its attempt: nobody else knows of it. [RETRY-2, RETRY-5]"""
        if lost:
            self._lost.update(lost)
            await self._store.finish([Finish(self._awaited[token][0], token, "release") for token in lost])
            for token in lost:
                self._awaited.pop(token, None)

    def _take(self, data: bytes) -> None:
        number, now, jobs = handed_over(data)
        jobs = [job for job in jobs if job.token not in self._lost]
        for job in jobs:
            self._arrived.add(job.token)
            self._awaited.pop(job.token, None)
        offer = self._registrations.arrived(number, len(jobs))
        self._came.set()
        if offer is not None and jobs:
            self._deliver(Claimed(jobs, now, None), offer.sent_at)
