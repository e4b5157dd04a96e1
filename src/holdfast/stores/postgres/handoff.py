"""Offers: a worker that found too little leaves word of what it would take, and is sent it as it comes. [CLAIM-3]

The way from the hint to the claim, and the claim's own commit, fall away. migrations/0005_offers.sql has the rules;
here is the worker's side of them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import math
from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from holdfast.clock import boot_time
from holdfast.core.errors import StoreError
from holdfast.core.job import Claimed, ClaimRequest, Finish, JobKey
from holdfast.core.waiters import (
    IN_FLIGHT_S,
    MAX_ROOM,
    MIN_LEASE_MS,
    RECHECK_MS,
    Registrations,
    registered_ms,
    renew_at,
)
from holdfast.extensions import Deliver
from holdfast.store import FinishAnswer
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.connection import Client
from holdfast.stores.postgres.enqueue import add_lane, add_queue
from holdfast.stores.postgres.lanes import Lane, LaneCache
from holdfast.stores.postgres.notifications import Notifications

PAUSE_S = 10.0
"""For how long nothing is room where looking for other jobs takes long."""

Places = tuple[list[int], list[int]]
"""Lines, and in each the lane, or 0 for all."""

_Message = tuple[int, int, int, int, int, int, str, str, str, str, str, str, str]
_decode = msgspec.json.Decoder(_Message).decode


class _Store(Protocol):
    async def claim(self, request: ClaimRequest) -> Claimed: ...
    async def finish(self, items: Sequence[Finish]) -> list[FinishAnswer]: ...


class PostgresInbox:
    """One worker's claims and registrations. Belongs to one event loop."""

    def __init__(
        self,
        client: Client,
        cache: LaneCache,
        notifications: Notifications,
        store: _Store,
        deliver: Deliver,
    ) -> None:
        self._client = client
        self._cache = cache
        self._claim, self._finish = store.claim, store.finish
        self._deliver = deliver
        self._registrations = Registrations()
        self._registered: Places | None = None
        """Where the last registration registered."""
        self._worker = ""
        self._paused_until = 0.0
        self._arrived: set[str] = set()
        """What came under the last registration: seq:token."""
        self._awaited: dict[str, float] = {}
        """What was sent and has not come, and from when on it counts as lost."""
        self._lost: set[str] = set()
        """What was given back: should it come after all, it is another's by then."""
        self._came = asyncio.Event()
        self._registering = asyncio.Lock()
        """Whoever leaves waits for an registration that is being made."""
        self._leaving = False
        self._channel = notifications.open_inbox(self._take)

    @property
    def needs_claim(self) -> bool:
        return self._registrations.needs_claim

    async def claim(self, request: ClaimRequest, free: int | None = None) -> Claimed:
        inbox = self._channel.number
        listening = request.lease_ms >= MIN_LEASE_MS and inbox != 0 and boot_time() >= self._paused_until
        coming, now = await self._withdraw(leave=not listening)
        limit = request.limit - coming
        if limit <= 0:
            await self._register(request, 0, inbox)
            return Claimed([], now, now + RECHECK_MS)
        # Not before: what counts as lost is not counted as coming.
        await self._give_back([sent for sent, at in self._awaited.items() if at <= boot_time()])
        claimed = await self._claim(replace(request, limit=limit) if coming else request)
        count = len(claimed.jobs)
        room = 0
        if listening and boot_time() >= self._paused_until:
            room = request.limit if free is None else free
            room = max(0, min(limit - count, room - coming - count, MAX_ROOM))
        again = [] if claimed.next_at is None else [claimed.next_at]
        if coming and not room:
            again.append(claimed.now + RECHECK_MS)
        again += [claimed.now + math.ceil(max(0, at - boot_time()) * 1000) for at in self._awaited.values()]
        try:
            # What was claimed must not wait for long, nor be lost: whatever is wrong shows when it is looked at again.
            async with asyncio.timeout(request.lease_ms / 3000 if count else None):
                if await self._register(request, room, inbox):
                    again.append(renew_at(claimed.now, request.lease_ms))
        except (StoreError, TimeoutError):
            if not count:
                raise
            again.append(claimed.now + RECHECK_MS)
        return Claimed(claimed.jobs, claimed.now, min(again, default=None))

    async def close(self) -> None:
        """Take back what is room, and wait a moment for what is on its way. Twice is harmless."""
        self._leaving = True
        try:
            with contextlib.suppress(StoreError, TimeoutError):
                async with self._registering:
                    await self._withdraw(leave=True)
                async with asyncio.timeout(IN_FLIGHT_S):
                    while self._registrations.in_flight(boot_time(), self._channel.number):
                        self._came.clear()
                        await self._came.wait()
            with contextlib.suppress(StoreError):
                await self._give_back(list(self._awaited))
                await self._drop()
        finally:
            self._channel.stop()

    async def _withdraw(self, *, leave: bool) -> tuple[int, int]:
        """Take the last registration back: how many jobs are on their way, and the store's time, if there are any."""
        registrations, last = self._registrations, self._registrations.last
        # What comes while we ask is not known to whoever told us his room.
        got = {number: registration.received for number, registration in registrations.open.items()}
        now = 0
        if self._registered is not None:
            leave = leave or last.inbox != self._channel.number
            (row,) = await self._client.rows(
                "withdraw_waiter", last.inbox, last.number, leave, *self._registered, repeat=True
            )
            if leave:
                self._registered = None
            if row["slow_scan"]:
                self._paused_until = boot_time() + PAUSE_S
            registrations.ended(last.room if row["sent"] is None else row["sent"], boot_time())
            for sent in row["handed"] or ():
                if sent not in self._arrived and sent not in self._lost:
                    self._awaited.setdefault(sent, last.expected_until)
            now = row["now"]
            if last.inbox != self._channel.number:
                with contextlib.suppress(StoreError):  # Else the pruner does it.
                    await self._drop()
        # What went to a connection that is no more is not on its way.
        coming = registrations.in_flight(boot_time(), self._channel.number, got)
        if coming and not now:
            now = await self._client.value("now", repeat=True)
        return coming, now

    async def _drop(self) -> None:
        """Remove the last registration, now that it is known what was handed over under it."""
        if self._registrations.last.inbox:
            await self._client.rows(
                "drop_waiter", self._registrations.last.inbox, self._registrations.last.number, repeat=True
            )

    async def _give_back(self, lost: Sequence[str]) -> None:
        """Release what was sent here and did not arrive: its message was lost, and nobody else knows."""
        pairs = [sent.split(":") for sent in lost]
        if not pairs:
            return
        self._lost.update(lost)
        columns = ([int(n) for n in column] for column in zip(*pairs, strict=True))
        found = await self._client.rows("find_leased", *columns, repeat=True)
        await self._finish(
            [Finish(JobKey(row["tenant"], row["queue"], row["id"]), row["token"], "release") for row in found]
        )
        for sent in lost:
            self._awaited.pop(sent, None)

    async def _register(self, request: ClaimRequest, count: int, inbox: int) -> bool:
        """Offer to take so many jobs, if we are still listening as `inbox`, or see that nothing registered: whether one does."""
        async with self._registering:
            if count and await self._leave_registration(request, count, inbox):
                return True
            if self._registered is not None:
                await self._withdraw(leave=True)
            return False

    async def _leave_registration(self, request: ClaimRequest, count: int, inbox: int) -> bool:
        data = self._cache.data_id
        places, fingerprint = await self._places(request)
        if self._registered is not None and self._registered != places:
            await self._withdraw(leave=True)
        if self._leaving or self._channel.number != inbox or self._cache.data_id != data:
            return False
        self._registered = places
        mine = self._registrations.begin(boot_time(), request.lease_ms)
        self._arrived.clear()
        mine.inbox = inbox
        self._worker = request.worker_id
        registered: bool = await self._client.value(
            "register_waiter", inbox, self._channel.channel, mine.number, *places, count, request.lease_ms,
            registered_ms(request.lease_ms), request.worker_id, fingerprint,
        )  # fmt: skip
        self._registrations.confirm(count if registered else 0)
        return registered

    async def _places(self, request: ClaimRequest) -> tuple[Places, str]:
        """Where to registration, and the lanes that this is made of, for the statement to compare."""
        queue_ids: list[int] = []
        lanes: list[int] = []
        named: list[Lane] = []
        for queue in dict.fromkeys(sorted(request.queues)):
            if request.tenant is None:
                queue_id = self._cache.queue(queue).number
                queue_ids.append(await add_queue(self._client, self._cache, queue) if queue_id is None else queue_id)
                lanes.append(0)
            else:
                lane = self._cache.find(request.tenant, queue)
                if lane is None:
                    lane = await add_lane(self._client, self._cache, request.tenant, queue)
                queue_ids.append(lane.queue_id)
                lanes.append(lane.number)
                named.append(lane)
        return (queue_ids, lanes), self._cache.fingerprint(named)

    def _take(self, data: str) -> None:
        (
            number, now, deadline, seq, token, ttl, tenant, queue, id_, type_, request_id, head, payload,
        ) = _decode(data)  # fmt: skip
        sent = f"{seq}:{token}"
        if sent in self._lost:
            return
        self._arrived.add(sent)
        self._awaited.pop(sent, None)
        registration = self._registrations.arrived(number, 1)
        if registration is None:
            return
        self._came.set()
        job = rows.to_handed(
            tenant, queue, id_, seq, token, now, deadline, ttl, type_, request_id, bytes.fromhex(head),
            base64.b64decode(payload), self._worker,
        )  # fmt: skip
        cache = self._cache
        with cache.lock:
            cache.granted(deadline)
            cache.lease([(token, seq)])
        self._deliver(Claimed([job], now, None), registration.sent_at)
