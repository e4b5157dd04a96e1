"""Direct hand-off, the worker's side: a worker with too few jobs registers, and enqueues send it new ones. [CLAIM-3]

That saves the delay between hint and claim, and the claim's own commit. migrations/0001/7_handoff.sql has the rules.
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
from holdfast.stores.postgres.connection import PostgresClient
from holdfast.stores.postgres.enqueue import add_lane, add_queue
from holdfast.stores.postgres.lanes import LaneCache, TenantLane
from holdfast.stores.postgres.listener import Listener

SLOW_SCAN_S = 10.0
"""How long a worker does not register after the check for other waiting jobs took long."""

Queues = tuple[list[int], list[int]]
"""Queue ids, and for each the lane, or 0 for all."""

_Message = tuple[int, int, int, int, int, int, str, str, str, str, str, str, str]
_decode = msgspec.json.Decoder(_Message).decode


class _Releasing(Protocol):
    async def claim(self, request: ClaimRequest) -> Claimed: ...
    async def finish(self, items: Sequence[Finish]) -> list[FinishAnswer]: ...


class PostgresInbox:
    """One worker's claims and registrations. Belongs to one event loop."""

    def __init__(
        self,
        client: PostgresClient,
        cache: LaneCache,
        listener: Listener,
        store: _Releasing,
        deliver: Deliver,
    ) -> None:
        self._client = client
        self._cache = cache
        self._claim, self._finish = store.claim, store.finish
        self._deliver = deliver
        self._registrations = Registrations()
        self._registered: Queues | None = None
        """The queues of the last registration."""
        self._worker = ""
        self._paused_until = 0.0
        self._arrived: set[str] = set()
        """Jobs that arrived under the last registration, as seq:token."""
        self._awaited: dict[str, float] = {}
        """Jobs that were sent and have not arrived, and when each counts as lost."""
        self._lost: set[str] = set()
        """Jobs that were released because they did not arrive. If one arrives later, it is ignored."""
        self._came = asyncio.Event()
        self._registering = asyncio.Lock()
        """`close` waits for a registration in progress."""
        self._closing = False
        self._channel = listener.open_inbox(self._take)

    @property
    def needs_claim(self) -> bool:
        return self._registrations.needs_claim

    async def claim(self, request: ClaimRequest, free: int | None = None) -> Claimed:
        inbox = self._channel.number
        can_register = request.lease_ms >= MIN_LEASE_MS and inbox != 0 and boot_time() >= self._paused_until
        coming, now = await self._withdraw(leave=not can_register)
        limit = request.limit - coming
        if limit <= 0:
            await self._register(request, 0, inbox)
            return Claimed([], now, now + RECHECK_MS)
        # After the withdrawal: jobs that count as lost are not counted as coming.
        await self._release_lost([sent for sent, at in self._awaited.items() if at <= boot_time()])
        claimed = await self._claim(replace(request, limit=limit) if coming else request)
        count = len(claimed.jobs)
        room = 0
        if can_register and boot_time() >= self._paused_until:
            slots = request.limit if free is None else free
            room = max(0, min(limit - count, slots - coming - count, MAX_ROOM))
        again = [] if claimed.next_at is None else [claimed.next_at]
        if coming and not room:
            again.append(claimed.now + RECHECK_MS)
        again += [claimed.now + math.ceil(max(0, at - boot_time()) * 1000) for at in self._awaited.values()]
        try:
            # Claimed jobs must neither wait long nor be lost. If registering fails, the next claim shows why.
            async with asyncio.timeout(request.lease_ms / 3000 if count else None):
                if await self._register(request, room, inbox):
                    again.append(renew_at(claimed.now, request.lease_ms))
        except (StoreError, TimeoutError):
            if not count:
                raise
            again.append(claimed.now + RECHECK_MS)
        return Claimed(claimed.jobs, claimed.now, min(again, default=None))

    async def close(self) -> None:
        """Withdraw the registration, and wait a moment for jobs in flight. Calling it twice is harmless."""
        self._closing = True
        try:
            with contextlib.suppress(StoreError, TimeoutError):
                async with self._registering:
                    await self._withdraw(leave=True)
                async with asyncio.timeout(IN_FLIGHT_S):
                    while self._registrations.in_flight(boot_time(), self._channel.number):
                        self._came.clear()
                        await self._came.wait()
            with contextlib.suppress(StoreError):
                await self._release_lost(list(self._awaited))
                await self._drop()
        finally:
            self._channel.stop()

    async def _withdraw(self, *, leave: bool) -> tuple[int, int]:
        """Withdraw the last registration. Returns how many jobs are in flight and, if any are, the store's time."""
        registrations, last = self._registrations, self._registrations.last
        # Jobs that arrive during this call are not included in the room that the caller has stated.
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
                self._paused_until = boot_time() + SLOW_SCAN_S
            registrations.ended(last.room if row["sent"] is None else row["sent"], boot_time())
            for sent in row["handed_off"] or ():
                if sent not in self._arrived and sent not in self._lost:
                    self._awaited.setdefault(sent, last.expected_until)
            now = row["now"]
            if last.inbox != self._channel.number:
                with contextlib.suppress(StoreError):  # If it fails, the pruner drops the registration.
                    await self._drop()
        # Jobs that were sent to an earlier connection are not in flight.
        coming = registrations.in_flight(boot_time(), self._channel.number, got)
        if coming and not now:
            now = await self._client.value("now", repeat=True)
        return coming, now

    async def _drop(self) -> None:
        """Delete the last registration, once the jobs that were handed off under it are known."""
        last = self._registrations.last
        if last.inbox:
            await self._client.rows("drop_waiter", last.inbox, last.number, repeat=True)

    async def _release_lost(self, lost: Sequence[str]) -> None:
        """Release jobs that were sent here and did not arrive: no other process knows that."""
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

    async def _register(self, request: ClaimRequest, room: int, inbox: int) -> bool:
        """Register for `room` jobs, if there is room and `inbox` is still listening. Returns whether it is registered.

        Otherwise withdraw the last registration.
        """
        async with self._registering:
            if room and await self._add_waiter(request, room, inbox):
                return True
            if self._registered is not None:
                await self._withdraw(leave=True)
            return False

    async def _add_waiter(self, request: ClaimRequest, room: int, inbox: int) -> bool:
        data_id = self._cache.data_id
        queues, fingerprint = await self._queues(request)
        if self._registered is not None and self._registered != queues:
            await self._withdraw(leave=True)
        if self._closing or self._channel.number != inbox or self._cache.data_id != data_id:
            return False
        self._registered = queues
        mine = self._registrations.begin(boot_time(), request.lease_ms)
        self._arrived.clear()
        mine.inbox = inbox
        self._worker = request.worker_id
        registered: bool = await self._client.value(
            "register_waiter", inbox, self._channel.channel, mine.number, *queues, room, request.lease_ms,
            registered_ms(request.lease_ms), request.worker_id, fingerprint,
        )  # fmt: skip
        self._registrations.confirm(room if registered else 0)
        return registered

    async def _queues(self, request: ClaimRequest) -> tuple[Queues, str]:
        """The queues to register for, and the fingerprint of their lanes, which the statement compares."""
        queue_ids: list[int] = []
        numbers: list[int] = []
        lanes: list[TenantLane] = []
        for queue in dict.fromkeys(sorted(request.queues)):
            if request.tenant is None:
                queue_id = self._cache.queue(queue).number
                queue_ids.append(await add_queue(self._client, self._cache, queue) if queue_id is None else queue_id)
                numbers.append(0)
            else:
                lane = self._cache.find(request.tenant, queue)
                if lane is None:
                    lane = await add_lane(self._client, self._cache, request.tenant, queue)
                queue_ids.append(lane.queue_id)
                numbers.append(lane.number)
                lanes.append(lane)
        return (queue_ids, numbers), self._cache.fingerprint(lanes)

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
        job = rows.to_handed_off(
            tenant, queue, id_, seq, token, now, deadline, ttl, type_, request_id, bytes.fromhex(head),
            base64.b64decode(payload), self._worker,
        )  # fmt: skip
        cache = self._cache
        with cache.lock:
            cache.granted(deadline)
            cache.lease([(token, seq)])
        self._deliver(Claimed([job], now, None), registration.sent_at)
