"""The end of a tenant's log, read once for all who follow it in this process. [EVENT-2, EVENT-3]

A tail keeps what was read last. Who stands at a place in it is answered from there, and whoever reaches its end shares
the next look with all others. Who comes from further back reads for himself until he is at a place that the tail
knows, or until neither he nor the tail finds anything: then both stand before the same event. Offsets are opaque, so
places are only ever compared for being the same.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from holdfast.core.events import Event
from holdfast.queue.coalesce import Coalescer
from holdfast.store import ALL_HINTS, EventPage, Signal, Store

PAGE = 500
KEPT = 2 * PAGE
EAGER_S = 0.25
IDLE_S = 1.0
LOOK_S = 10.0
"""How long a look holds where no hint came."""


class Tails:
    """The tails that somebody follows, by tenant."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tails: dict[str, Tail] = {}

    @contextmanager
    def follow(self, tenant: str) -> Generator[tuple[Tail, asyncio.Event]]:
        """A tenant's tail, and an event that is set when it may have grown."""
        tail = self._tails.get(tenant)
        if tail is None:
            tail = self._tails[tenant] = Tail(self._store, tenant)
        grown = asyncio.Event()
        tail.enter(grown)
        try:
            yield tail, grown
        finally:
            if tail.leave(grown):
                del self._tails[tenant]


class Tail:
    """The end of one tenant's log."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._bells: set[asyncio.Event] = set()
        self._looks = Coalescer(self._look)
        self._count = self._hints = 0
        self._forget()
        self._stop = _on_growth(store, tenant, self._notify)

    def enter(self, wakeup: asyncio.Event) -> None:
        """Begin to follow. What is there already is seen by the next look, hint or no hint."""
        self._bells.add(wakeup)
        self._hints += 1

    def leave(self, wakeup: asyncio.Event) -> bool:
        """Whether that was the last."""
        self._bells.discard(wakeup)
        if not self._bells:
            self._stop()
        return not self._bells

    async def after(self, offset: str | None) -> EventPage:
        """As `Store.events`, for one who follows: an event that no hint has told of yet may come later."""
        if self._place(offset) == self._count and not self._is_fresh():
            await self._looks(None)
        place = self._place(offset)
        return await self._read(offset) if place is None else self._page(place)

    def _place(self, offset: str | None) -> int | None:
        """How many events of the tail come before it; None: it is not known here."""
        place = None if offset is None else self._places.get(offset)
        return None if place is None or place < self._first else place

    @property
    def _first(self) -> int:
        return self._count - len(self._events)

    def _page(self, place: int) -> EventPage:
        begin = place - self._first
        events = self._events[begin : begin + PAGE]
        if place + len(events) == self._count:
            # Who is given what others have found goes on to look himself: the hint that woke him may be of more.
            return EventPage(events, self._end or "", more=self._more or (bool(events) and not self._is_fresh()))
        return EventPage(events, events[-1].offset, more=True)

    async def _read(self, offset: str | None) -> EventPage:
        end, count = self._end, self._count
        page = await self._store.events(self._tenant, offset, PAGE)
        if page.more:
            return page
        if self._end is None:
            self._add(page)
            return page
        if page.events:
            # The tail knows the event, or soon will, but hardly the place where this look ended.
            return EventPage(page.events, page.events[-1].offset, more=False)
        # Nothing came after the offset, up to where the tail was before. If the tail, looking now, finds nothing
        # either, then nothing lies between the two, whichever is first.
        await self._looks(None)
        if end is not None and self._count == count and not self._more:
            return EventPage([], self._end, more=False)
        return page

    def _is_fresh(self) -> bool:
        now = asyncio.get_running_loop().time()
        return not self._more and self._looked == self._hints and now < self._looked_at + LOOK_S

    async def _look(self, askers: Sequence[None]) -> Sequence[None]:
        if self._end is None:
            return askers  # Each reads for himself, and the first begins anew.
        hints = self._hints
        try:
            page = await self._store.events(self._tenant, self._end, PAGE)
        except BaseException:
            self._forget()
            raise
        self._looked, self._looked_at = hints, asyncio.get_running_loop().time()
        self._add(page)
        return askers

    def _add(self, page: EventPage) -> None:
        for event in page.events:
            self._count += 1
            self._places[event.offset] = self._count
        self._places[page.next] = self._count
        self._end, self._more = page.next, page.more
        self._events = [*self._events, *page.events][-KEPT:]
        while len(self._places) > 2 * KEPT:
            del self._places[next(iter(self._places))]

    def _forget(self) -> None:
        self._events: list[Event] = []
        self._places: dict[str, int] = {}
        self._end: str | None = None
        self._more = False
        self._looked, self._looked_at = -1, 0.0
        # Who has seen the count before must not take what comes for what was.
        self._count += 1

    def _notify(self) -> None:
        self._hints += 1
        for wakeup in self._bells:
            wakeup.set()


def _on_growth(store: Store, tenant: str, tell: Callable[[], None]) -> Callable[[], None]:
    """Call `tell` when the log may have grown by something of a tenant; the answer ends it.

    A hint that names the tenant tells it at once, and for a moment after that so does one that names nobody. Else
    those are mostly others' doing, and tell it once in `IDLE_S`: who follows a quiet tenant costs a busy one little.
    """
    loop = asyncio.get_running_loop()
    eager_until = idle_until = 0.0
    later: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal idle_until, later
        # Spread, so that the followers of many tenants do not look in step.
        idle_until = loop.time() + IDLE_S * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        later = None
        tell()

    def hear(signal: Signal) -> None:
        nonlocal eager_until, later
        now = loop.time()
        if signal.tenant == tenant:
            eager_until = now + EAGER_S
            tell()
        elif not signal.tenant and now < eager_until:
            tell()
        elif not signal.tenant and now >= idle_until:
            look()
        elif not signal.tenant and later is None:
            later = loop.call_at(idle_until, look)

    unlisten = store.listen(hear, ALL_HINTS)

    def stop() -> None:
        unlisten()
        if later is not None:
            later.cancel()

    return stop
