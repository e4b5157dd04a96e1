"""Offers: a worker that found too little leaves word of what it would take, and is sent it as it comes. [CLAIM-3]

The enqueue of one job writes it as leased to such a worker, in the commit that it has anyway, and sends it along: the
way from the hint to the claim, and the claim's own commit, fall away. Here is the worker's side; see book.py.
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
from holdfast.stores.file.waiters import LENGTH, Handed, Offer

if TYPE_CHECKING:
    from holdfast.stores.file.engine import Engine

_decode_message = msgpack.Decoder(tuple[int, int, str, str, rows.Row]).decode


class FileInbox:
    """One worker's claims and offers. Belongs to one event loop."""

    def __init__(self, engine: Engine, folder: Path, deliver: Deliver) -> None:
        self.name = unique()
        self._engine = engine
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._registrations = Registrations()
        self._leaving = False
        self._ended = False
        self._arrived: dict[int, int] = {}
        """The tokens of what came, each with the number of its offer."""
        self._lost: list[tuple[int, int]] = []
        """What was handed over and never came, to be released: its sender died before it could send."""
        self._fifo = Fifo(folder / self.name, self._loop, self._read)
        self._pid = os.getpid()

    @property
    def is_dead(self) -> bool:
        """Whether its event loop was closed before it was."""
        return self._fifo.is_dead

    @property
    def needs_claim(self) -> bool:
        return self._registrations.needs_claim

    @property
    def hears(self) -> bool:
        """Whether what is sent here arrives."""
        return not self._ended and not self._fifo.is_dead

    async def claim(self, request: ClaimRequest, free: int | None = None) -> Claimed:
        # What comes while we ask is not known to whoever told us his room.
        got = {number: offer.received for number, offer in self._registrations.open.items()}
        offers = request.lease_ms >= MIN_LEASE_MS and self.hears and not self._leaving
        mine = self._registrations.begin(boot_time(), request.lease_ms)
        room = (request.limit if free is None else free) if offers else 0
        lost = list(self._lost)
        claimed, given, handed = await self._engine.change(
            lambda t: _claim(t, request, room, self.name, mine.number, got, lost)
        )
        del self._lost[: len(lost)]
        if self._registrations.last is mine:
            self._registrations.confirm(given)
        if self._miss(handed, mine.number):
            return replace(claimed, next_at=claimed.now + RECHECK_MS)
        return claimed

    async def close(self) -> None:
        """Take back what is offered; what was handed over before is here by then. Twice is harmless."""
        self._leaving = True
        if self._ended:
            return
        try:
            if self._registrations.last.number:
                with contextlib.suppress(StoreError, TimeoutError):
                    async with asyncio.timeout(IN_FLIGHT_S):
                        _, handed = await self._engine.change(lambda t: t.offers.take_back(self.name))
                        if self._miss(handed, self._registrations.last.number) or self._lost:
                            await self._engine.change(lambda t: _release(t, self._lost))
        finally:
            self.end()

    def _miss(self, handed: Sequence[tuple[int, int]], number: int) -> bool:
        """Whether anything of what was handed over before this offer never came; it is released with the next claim."""
        if any(token not in self._arrived for _, token in handed) and self._fifo.is_here:
            self._fifo.read()  # What was sent is here by now: it is written under the lock that we have had since.
        lost = [(seq, token) for seq, token in handed if token not in self._arrived]
        self._arrived = {token: under for token, under in self._arrived.items() if under >= number}
        self._lost += lost
        return bool(lost)

    def end(self) -> None:
        """Hear nothing more but what was sent. From any thread."""
        if not self._ended:
            self._ended = True
            if self._pid != os.getpid():
                return  # The FIFO belongs to the process that we were forked from.
            if self._fifo.is_here:
                self._fifo.read()
            self._fifo.close()
            self._engine.posts.pop(self.name, None)

    def forked(self) -> None:
        """In the child of a fork."""
        self._fifo.forked()

    def take_soon(self, handed: Handed) -> None:
        """Take a job that was handed over in this process. From any thread."""
        with contextlib.suppress(RuntimeError):  # The loop was closed meanwhile.
            self._loop.call_soon_threadsafe(self._take, handed.offer.number, handed.now, handed.job, handed.lane)

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
                continue  # Of another version: its lease runs out.
            self._take(number, now, job, row[1])

    def _take(self, number: int, now: int, job: Job, lane: int) -> None:
        self._arrived[job.token] = number
        offer = self._registrations.arrived(number, 1)
        if offer is not None:
            self._engine.remember(job, lane)
            self._deliver(Claimed([job], now, None), offer.sent_at)


def _claim(
    t: Transaction,
    request: ClaimRequest,
    room: int,
    post: str,
    number: int,
    got: Mapping[int, int],
    lost: Sequence[tuple[int, int]],
) -> tuple[Claimed, int, list[tuple[int, int]]]:
    """Claim, and offer to take the rest; the jobs, how many are offered to be taken, and what was sent before."""
    _release(t, lost)
    before, handed = t.offers.take_back(post)
    # What was handed over and was not here when we were asked takes up room.
    coming = max(0, len(handed) - got.get(before, len(handed)))
    limit = request.limit - coming
    if limit <= 0:
        return Claimed([], t.now, t.now + RECHECK_MS), 0, handed
    claimed = claims.claim(t, replace(request, limit=limit) if coming else request)
    count = len(claimed.jobs)
    given = max(0, min(limit - count, room - coming - count, MAX_ROOM))
    again = [] if claimed.next_at is None else [claimed.next_at]
    if given:
        until = t.now + registered_ms(request.lease_ms)
        queues = list(dict.fromkeys(request.queues))
        t.offers.add(Offer(post, number, request.worker_id, request.tenant, queues, request.lease_ms, given, until))
        again.append(renew_at(t.now, request.lease_ms))
    elif coming:
        again.append(t.now + RECHECK_MS)
    return Claimed(claimed.jobs, claimed.now, min(again, default=None)), given, handed


def _release(t: Transaction, lost: Sequence[tuple[int, int]]) -> None:
    """Give back what was leased to us and never came, with its attempt. [RETRY-5]"""
    for seq, token in lost:
        key = t.key_of(seq)
        if key is not None:
            changes.finish(t, [Finish(key, token, "release")])
            t.flush()
