"""Direct hand-off: an enqueue leases its job to a waiting worker in the same step and sends it to the worker's inbox.

That saves the round trip from the notification to the claim. `lua/waiters.lua` and `lua/single_enqueue.lua` are the
server's side; this is the worker's. [CLAIM-3]

A claim ends the worker's last registration as a waiter and makes a new one, in one step. Jobs that were handed off
before and have not arrived yet count against the worker's room. The server lists the jobs it handed off: if one does
not arrive because a connection broke, the worker releases it. A job that is sent to a worker that has just died costs
a lease, as a lost reply does. [ENQ-8, RETRY-2]
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from holdfast.clock import boot_time
from holdfast.core.errors import StoreError
from holdfast.core.job import Claimed, ClaimRequest, Finish, JobKey
from holdfast.core.waiters import IN_FLIGHT_S, MAX_ROOM, MIN_LEASE_MS, Registrations, registered_ms, renew_at
from holdfast.extensions import Deliver
from holdfast.store import REPAIR_LIMIT, Store
from holdfast.stores.redis.claims import leased_jobs
from holdfast.stores.redis.keys import key_of
from holdfast.stores.redis.layout import NONE
from holdfast.stores.redis.messages import handed_off
from holdfast.stores.redis.notifications import RedisListener
from holdfast.stores.redis.payloads import filled_claim
from holdfast.stores.redis.records import encode
from holdfast.stores.redis.shards import MAX_BATCH, Shards


class RedisInbox:
    """One worker's claims and registrations, on a store with one shard. Belongs to one event loop."""

    def __init__(self, shards: Shards, listener: RedisListener, store: Store, deliver: Deliver) -> None:
        self._shards = shards
        self._listener = listener
        self._store = store
        self._deliver = deliver
        self._channel = f"{shards.prefix}:inbox:{uuid4().hex}".encode()
        self._registrations = Registrations()
        self._request: ClaimRequest | None = None
        self._listed_token = 0
        """The last token in the server's list of jobs that it handed off."""
        self._arrived: set[int] = set()
        """The tokens of jobs that arrived before the server listed them."""
        self._awaited: dict[int, tuple[JobKey, float]] = {}
        """Listed jobs that have not arrived, by token, and when each counts as lost."""
        self._released: set[int] = set()
        """The tokens of lost jobs that were released. If their messages still arrive, they are ignored."""
        self._received = asyncio.Event()
        self._stop = listener.open_inbox(self._channel, self._receive)

    @property
    def needs_claim(self) -> bool:
        return self._registrations.needs_claim

    async def claim(self, request: ClaimRequest, free: int | None = None) -> Claimed:
        subscribed = request.lease_ms >= MIN_LEASE_MS and self._listener.is_subscribed(self._channel)
        if not subscribed and self._request is None:
            return await self._store.claim(request)
        await self._release([token for token, (_, lost_at) in self._awaited.items() if lost_at <= boot_time()])
        # Also without a subscription: the last registration counts until a claim ends it.
        limit = min(request.limit, MAX_BATCH)
        self._request = request
        free = limit if free is None else free
        now, next_at, room, found = await self._claim(request, limit, free if subscribed else 0)
        self._registrations.confirm(max(0, room))
        jobs = leased_jobs(found)
        times = [next_at] if next_at != NONE else []
        if room > 0:
            times.append(renew_at(now, request.lease_ms))
        if len(jobs) == limit < request.limit:
            times.append(now)
        times += [now + math.ceil(max(0, lost_at - boot_time()) * 1000) for _, lost_at in self._awaited.values()]
        return await filled_claim(self._shards, Claimed(jobs, now, min(times, default=None)))

    async def close(self) -> None:
        """End the registration, wait a moment for jobs in flight, and release the others. Closing twice is harmless."""
        request, self._request = self._request, None
        try:
            # Also if the last claim got no answer: it may have reached the server.
            if request is not None:
                with contextlib.suppress(StoreError, TimeoutError):
                    await self._claim(request, 0, 0)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(IN_FLIGHT_S):
                        while self._awaited:
                            self._received.clear()
                            await self._received.wait()
                with contextlib.suppress(StoreError):
                    await self._release(list(self._awaited))
        finally:
            self._stop()

    async def _claim(self, request: ClaimRequest, limit: int, free: int) -> tuple[int, int, int, list[Any]]:
        last = self._registrations.last
        may_have_jobs = last.number in self._registrations.open
        new = self._registrations.begin(boot_time(), request.lease_ms)
        registration = (
            self._channel.decode(), new.number, last.number, last.room, last.received, free, MAX_ROOM,
            registered_ms(request.lease_ms), may_have_jobs, self._listed_token,
        )  # fmt: skip
        packed = encode((
            request.tenant or False, request.queues, limit, request.lease_ms, request.worker_id, request.random,
            REPAIR_LIMIT, registration,
        ))  # fmt: skip
        # A worker that leaves claims no jobs: this may be repeated after a lost reply.
        repeat = limit == 0
        now, next_at, room, listed, *found = await self._shards.run("claim", 0, packed, repeat=repeat)
        self._expect(listed)
        return now, next_at, room, found

    def _expect(self, listed: Sequence[Any]) -> None:
        """Note the listed jobs that have not arrived. Their messages may arrive within a moment."""
        lost_at = boot_time() + IN_FLIGHT_S
        for name, score in zip(*[iter(listed)] * 2, strict=True):
            token = int(float(score))
            if token not in self._arrived:
                self._awaited.setdefault(token, (key_of(name.decode()), lost_at))
            self._listed_token = max(self._listed_token, token)
        self._arrived = {token for token in self._arrived if token > self._listed_token}

    async def _release(self, lost: Sequence[int]) -> None:
        """Release jobs that did not arrive, with their attempts: no other worker has them. [RETRY-2, RETRY-5]"""
        if lost:
            self._released.update(lost)
            await self._store.finish([Finish(self._awaited[token][0], token, "release") for token in lost])
            for token in lost:
                self._awaited.pop(token, None)

    def _receive(self, data: bytes) -> None:
        number, now, jobs = handed_off(data)
        jobs = [job for job in jobs if job.token not in self._released]
        for job in jobs:
            self._arrived.add(job.token)
            self._awaited.pop(job.token, None)
        registration = self._registrations.arrived(number, len(jobs))
        self._received.set()
        if registration is not None and jobs:
            self._deliver(Claimed(jobs, now, None), registration.sent_at)
