"""Claims that can wait. [CLAIM-3]

A waiting claim sleeps until a hint from the store, the next due time, or a fallback poll. It arms its wake-up before
each read, so a job that becomes visible between the read and the sleep is not missed.

Many claims can wait at one `Claimer` (the HTTP service has one for all its callers). A hint notifies one of those that
wait in a lane (a queue of one tenant, or of all). A claim that found work there, or that leaves after it was notified,
notifies the next. So one new job costs one read, not one for each waiting claim, and no notification is lost.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.extensions import DirectHandoff
from holdfast.store import Hint, Signal, Store

if TYPE_CHECKING:
    from holdfast.core.job import Claimed, ClaimRequest
    from holdfast.extensions import Deliver, WorkerInbox

POLL_S = 30.0
_LEAST_WAIT_S = 0.005
_READY = frozenset({Hint.READY})


class Wakeup:
    """Wakes a waiting claim when a job may have become visible to it. Belongs to one event loop."""

    def __init__(self, lanes: tuple[tuple[str | None, str], ...]) -> None:
        self.lanes = lanes
        self.notified = False
        self._waiter: asyncio.Future[None] | None = None

    def arm(self) -> None:
        """Drop earlier notifications. Call it before the store is read, never after."""
        self.notified = False

    def notify(self) -> None:
        """Wake the waiting claim, or let its next wait end at once."""
        self.notified = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Wait for a notification since `arm`, at most `timeout_s`."""
        if self.notified:
            return
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(max(timeout_s, _LEAST_WAIT_S), _resolve, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None


class Claimer:
    """The waiting claims of one store in one event loop. Start it before the first wait."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lanes: dict[tuple[str | None, str], dict[Wakeup, None]] = {}
        self._unlisten: Callable[[], None] | None = None

    def start(self) -> None:
        """Listen to the store. It can be called more than once."""
        if self._unlisten is None:
            self._unlisten = self._store.listen(self._on_hint, _READY)

    def close(self) -> None:
        """Stop listening. Claims that still wait use due times and polls. It can be called more than once."""
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None

    def wakeup(self, tenant: str | None, queues: tuple[str, ...]) -> Wakeup:
        """Add a wake-up for these queues of a tenant, or of all tenants, until `leave`."""
        wakeup = Wakeup(tuple((tenant, queue) for queue in queues))
        for lane in wakeup.lanes:
            self._lanes.setdefault(lane, {})[wakeup] = None
        return wakeup

    def leave(self, wakeup: Wakeup, *, pass_on: bool) -> None:
        """Remove a wake-up. `pass_on` notifies the next one in each of its lanes, as there may be work for them."""
        for lane in wakeup.lanes:
            waiting = self._lanes.get(lane)
            if waiting is None:
                continue
            waiting.pop(wakeup, None)
            if not waiting:
                del self._lanes[lane]
            elif pass_on:
                _notify_one(waiting)

    async def claim(
        self,
        request: ClaimRequest,
        *,
        wait_s: float = 0.0,
        gone: asyncio.Future[None] | None = None,
        on_look: Callable[[], None] | None = None,
    ) -> Claimed:
        """Claim, and wait for up to `wait_s` while there are no jobs. It rotates the queues between the store's claims.

        When `gone` is done the wait ends, but never during a claim of the store, whose jobs are still returned.
        `on_look` is called before each of these claims.
        """
        if wait_s <= 0:
            return await self._store.claim(request)
        end = time.monotonic() + wait_s
        wakeup = self.wakeup(request.tenant, request.queues)
        leave = partial(_notify, wakeup)
        if gone is not None:
            gone.add_done_callback(leave)
        pass_on = True
        try:
            while True:
                wakeup.arm()
                if on_look is not None:
                    on_look()
                claimed = await self._store.claim(request)
                if claimed.jobs:
                    return claimed
                left = end - time.monotonic()
                if left <= 0 and not wakeup.notified:
                    pass_on = False
                if left <= 0 or (gone is not None and gone.done()):
                    return claimed
                request = replace(request, queues=request.queues[1:] + request.queues[:1])
                await wakeup.wait(min(left, pause_s(claimed)))
        finally:
            if gone is not None:
                gone.remove_done_callback(leave)
            self.leave(wakeup, pass_on=pass_on)

    def _on_hint(self, signal: Signal) -> None:
        if signal.tenant and signal.queue:
            for tenant in (signal.tenant, None):
                waiting = self._lanes.get((tenant, signal.queue))
                if waiting:
                    _notify_one(waiting)
            return
        for (tenant, queue), waiting in self._lanes.items():
            if (not signal.queue or queue == signal.queue) and (
                not signal.tenant or tenant is None or tenant == signal.tenant
            ):
                _notify_one(waiting)


class PollingInbox:
    """The inbox at a store without direct hand-off: nothing arrives in it."""

    needs_claim = False

    def __init__(self, store: Store) -> None:
        self._store = store

    async def claim(self, request: ClaimRequest, free: int | None = None) -> Claimed:  # noqa: ARG002 - of no use here
        return await self._store.claim(request)

    async def close(self) -> None:
        pass


def inbox_at(store: Store, deliver: Deliver) -> WorkerInbox:
    """A worker's inbox at a store."""
    return (store.open_inbox(deliver) if isinstance(store, DirectHandoff) else None) or PollingInbox(store)


def pause_s(claimed: Claimed) -> float:
    """How long to wait after a claim that got fewer jobs than asked for, if no hint arrives."""
    # Vary the pause, so that a fleet does not poll at the same time.
    poll_s = POLL_S * random.uniform(0.8, 1.2)  # noqa: S311 - no secret
    return poll_s if claimed.next_at is None else min(poll_s, (claimed.next_at - claimed.now) / 1000)


def _notify_one(waiting: dict[Wakeup, None]) -> None:
    """Notify the first one that is not notified yet, and move it to the end. Those notified earlier read anyway."""
    for wakeup in waiting:
        if not wakeup.notified:
            waiting[wakeup] = waiting.pop(wakeup)
            wakeup.notify()
            return


def _notify(wakeup: Wakeup, _: object) -> None:
    wakeup.notify()


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
