"""Direct hand-off: a worker that finds too few jobs registers as a waiter, and enqueues send it new ones. [CLAIM-3]

The enqueue of a single job leases it to such a worker in its own commit, and sends the job along. That saves the
notification, the claim, and the claim's commit. This module is the worker's side; waiters.py is the writer's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import MsgspecError, msgpack
from msgspec.structs import replace

from holdfast.clock import boot_time
from holdfast.core.errors import StoreError
from holdfast.core.job import Claimed, ClaimRequest, Finish, Job
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
from holdfast.stores.file import changes, claims, rows
from holdfast.stores.file.notifications import Fifo, unique
from holdfast.stores.file.transaction import Transaction
from holdfast.stores.file.waiters import LENGTH, HandOff, Waiter

if TYPE_CHECKING:
    from holdfast.stores.file.engine import Engine

_decode_message = msgpack.Decoder(tuple[int, int, str, str, rows.Row]).decode


class FileInbox:
    """One worker's claims, and the FIFO in which it receives jobs. Belongs to one event loop."""

    def __init__(self, engine: Engine, folder: Path, deliver: Deliver) -> None:
        self.name = unique()
        self._engine = engine
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._registrations = Registrations()
        self._leaving = False
        self._ended = False
        self._arrived: dict[int, int] = {}
        """The tokens of the jobs that arrived, and the number of the registration of each."""
        self._lost: list[tuple[int, int]] = []
        """Jobs to release: they were handed off but never arrived, because the sender died before it could send."""
        self._fifo = Fifo(folder / self.name, self._loop, self._read)
        self._pid = os.getpid()

    @property
    def is_dead(self) -> bool:
        """Whether its event loop was closed before it."""
        return self._fifo.is_dead

    @property
    def needs_claim(self) -> bool:
        return self._registrations.needs_claim

    @property
    def can_receive(self) -> bool:
        """Whether a job sent to it arrives."""
        return not self._ended and not self._fifo.is_dead

    async def claim(self, request: ClaimRequest, free: int | None = None) -> Claimed:
        # Jobs that arrive during the claim are not in the caller's count of free room.
        received = {number: one.received for number, one in self._registrations.open.items()}
        registers = request.lease_ms >= MIN_LEASE_MS and self.can_receive and not self._leaving
        registration = self._registrations.begin(boot_time(), request.lease_ms)
        room = (request.limit if free is None else free) if registers else 0
        lost = list(self._lost)
        claimed, limit, handed_off = await self._engine.change(
            lambda t: _claim(t, request, room, self.name, registration.number, received, lost)
        )
        del self._lost[: len(lost)]
        if self._registrations.last is registration:
            self._registrations.confirm(limit)
        if self._find_lost(handed_off, registration.number):
            return replace(claimed, next_at=claimed.now + RECHECK_MS)
        return claimed

    async def close(self) -> None:
        """Withdraw the registration. All jobs handed off before that have arrived by then. Idempotent."""
        self._leaving = True
        if self._ended:
            return
        try:
            if self._registrations.last.number:
                with contextlib.suppress(StoreError, TimeoutError):
                    async with asyncio.timeout(IN_FLIGHT_S):
                        _, handed_off = await self._engine.change(lambda t: t.waiters.withdraw(self.name))
                        if self._find_lost(handed_off, self._registrations.last.number) or self._lost:
                            await self._engine.change(lambda t: _release(t, self._lost))
        finally:
            self.end()

    def _find_lost(self, handed_off: Sequence[tuple[int, int]], number: int) -> bool:
        """Note the jobs that were handed off before this registration and never arrived. Returns whether there are any.

        The next claim releases them.
        """
        if any(token not in self._arrived for _, token in handed_off) and self._fifo.is_here:
            self._fifo.read()  # Senders write under the lock that we have held since: their messages are here by now.
        lost = [(seq, token) for seq, token in handed_off if token not in self._arrived]
        self._arrived = {token: under for token, under in self._arrived.items() if under >= number}
        self._lost += lost
        return bool(lost)

    def end(self) -> None:
        """Read the messages already sent, and receive nothing more. From any thread."""
        if not self._ended:
            self._ended = True
            if self._pid != os.getpid():
                return  # The FIFO belongs to the process that we were forked from.
            if self._fifo.is_here:
                self._fifo.read()
            self._fifo.close()
            self._engine.inboxes.pop(self.name, None)

    def forked(self) -> None:
        """In the child of a fork: close the descriptor of the FIFO."""
        self._fifo.forked()

    def receive_soon(self, handoff: HandOff) -> None:
        """Receive a job that was handed off in this process. From any thread."""
        with contextlib.suppress(RuntimeError):  # The event loop has been closed.
            self._loop.call_soon_threadsafe(
                self._receive, handoff.waiter.number, handoff.now, handoff.job, handoff.lane
            )

    def _read(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            (size,) = LENGTH.unpack_from(data, at)
            at += LENGTH.size
            message = data[at : at + size]
            at += size
            try:
                number, now, tenant, queue, row = _decode_message(message)
                job = rows.to_job(row, tenant, queue)
            except (MsgspecError, ValueError, IndexError):
                continue  # Written by another version: the job's lease expires.
            self._receive(number, now, job, row[1])

    def _receive(self, number: int, now: int, job: Job, lane: int) -> None:
        self._arrived[job.token] = number
        registration = self._registrations.arrived(number, 1)
        if registration is not None:
            self._engine.remember(job, lane)
            self._deliver(Claimed([job], now, None), registration.sent_at)


def _claim(
    t: Transaction,
    request: ClaimRequest,
    room: int,
    inbox: str,
    number: int,
    received: Mapping[int, int],
    lost: Sequence[tuple[int, int]],
) -> tuple[Claimed, int, list[tuple[int, int]]]:
    """Claim, and register as a waiter for the rest of the room.

    Returns the jobs, how many more the worker is registered for, and the jobs handed off under the last registration.
    """
    _release(t, lost)
    before, handed_off = t.waiters.withdraw(inbox)
    # Jobs that were handed off and had not arrived at the time of the claim use up room.
    in_flight = max(0, len(handed_off) - received.get(before, len(handed_off)))
    limit = request.limit - in_flight
    if limit <= 0:
        return Claimed([], t.now, t.now + RECHECK_MS), 0, handed_off
    claimed = claims.claim(t, replace(request, limit=limit) if in_flight else request)
    count = len(claimed.jobs)
    registered = max(0, min(limit - count, room - in_flight - count, MAX_ROOM))
    again = [] if claimed.next_at is None else [claimed.next_at]
    if registered:
        until = t.now + registered_ms(request.lease_ms)
        queues = list(dict.fromkeys(request.queues))
        worker, tenant, lease_ms = request.worker_id, request.tenant, request.lease_ms
        t.waiters.add(Waiter(inbox, number, worker, tenant, queues, lease_ms, registered, until))
        again.append(renew_at(t.now, request.lease_ms))
    elif in_flight:
        again.append(t.now + RECHECK_MS)
    return Claimed(claimed.jobs, claimed.now, min(again, default=None)), registered, handed_off


def _release(t: Transaction, lost: Sequence[tuple[int, int]]) -> None:
    """Release the jobs that were leased to this worker and never arrived, with their attempts. [RETRY-5]"""
    for seq, token in lost:
        key = t.key_of(seq)
        if key is not None:
            changes.finish(t, [Finish(key, token, "release")])
            t.flush()
