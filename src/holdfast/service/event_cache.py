"""A tenant's event log, read once for all event streams that follow it in this process. [EVENT-2, EVENT-3]

`EventCache` keeps the newest events of one tenant. A stream whose offset is in the cache is answered from it. Streams
that reach its end share the next read of the store. A stream that starts further back reads the store itself until it
reaches an offset in the cache. If neither finds a further event, both are at the same place in the log. Offsets are
opaque, so they are only compared for equality.

`EventHistory` bounds those reads of the past. A client that opens streams again and again makes each of them read the
log from its beginning. So a tenant has one of them at a time in each process, in small pages. [TENANT-4]
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from holdfast.core.events import Event
from holdfast.queue.coalesce import Coalescer
from holdfast.service.turns import PieceTurns
from holdfast.store import ALL_HINTS, EventPage, Signal, Store

PAGE = 500
"""Events per read at the end of the log."""
HISTORY_PAGE = 100
"""Events per read of the past. Encoding them takes about 0.3 ms of the event loop."""
MAX_CACHED = 2 * PAGE
WOKEN_AT_ONCE = 10
EAGER_S = 0.25
IDLE_S = 1.0
FRESH_S = 10.0
"""How long a read counts as up to date while no hint arrives."""


class EventHistory:
    """Reads of the past, one of each tenant at a time. Waiting for new events needs no turn here."""

    def __init__(self, store: Store, pieces: PieceTurns) -> None:
        self._store = store
        self._pieces = pieces

    async def read(self, tenant: str, after: str | None, limit: int | None = None) -> EventPage:
        """Read one page, as `Store.events` does, when it is this read's turn."""
        return await self._pieces.run(tenant, self._store.events, tenant, after, limit or HISTORY_PAGE)


class EventCaches:
    """The caches of all tenants that have event streams."""

    def __init__(self, store: Store, pieces: PieceTurns) -> None:
        self.history = EventHistory(store, pieces)
        self._store = store
        self._caches: dict[str, EventCache] = {}

    @contextmanager
    def follow(self, tenant: str) -> Generator[tuple[EventCache, asyncio.Event]]:
        """A tenant's cache, and an event that is set when the log may have grown."""
        cache = self._caches.get(tenant)
        if cache is None:
            cache = self._caches[tenant] = EventCache(self._store, tenant, self.history)
        grown = asyncio.Event()
        cache.enter(grown)
        try:
            yield cache, grown
        finally:
            if cache.leave(grown):
                del self._caches[tenant]


class EventCache:
    """The newest events of one tenant."""

    def __init__(self, store: Store, tenant: str, history: EventHistory) -> None:
        self._store = store
        self._tenant = tenant
        self._history = history
        self._wakeups: set[asyncio.Event] = set()
        self._reads = Coalescer(self._read_next)
        self._count = self._hints = 0
        self._clear()
        self._unlisten = _on_growth(store, tenant, self._notify)

    def enter(self, wakeup: asyncio.Event) -> None:
        """Add a follower. It sees the events that exist already even if no hint arrives."""
        self._wakeups.add(wakeup)
        self._hints += 1

    def leave(self, wakeup: asyncio.Event) -> bool:
        """Remove a follower. Returns whether it was the last."""
        self._wakeups.discard(wakeup)
        if not self._wakeups:
            self._unlisten()
        return not self._wakeups

    async def after(self, offset: str | None) -> EventPage:
        """As `Store.events`. An event without a hint so far may be missing; a follower gets it later."""
        if self._place(offset) == self._count and not self._is_fresh():
            await self._reads(None)
        place = self._place(offset)
        return await self._read_past(offset) if place is None else self._page(place)

    def _place(self, offset: str | None) -> int | None:
        """The number of cached events up to an offset. None: the offset is not in the cache."""
        place = None if offset is None else self._places.get(offset)
        return None if place is None or place < self._first else place

    @property
    def _first(self) -> int:
        return self._count - len(self._events)

    def _page(self, place: int) -> EventPage:
        begin = place - self._first
        events = self._events[begin : begin + PAGE]
        if place + len(events) == self._count:
            # The hint that woke this follower may be about a later event: unless the cache is fresh, read again.
            return EventPage(events, self._end or "", more=self._more or (bool(events) and not self._is_fresh()))
        return EventPage(events, events[-1].offset, more=True)

    async def _read_past(self, offset: str | None) -> EventPage:
        end, count = self._end, self._count
        page = await self._history.read(self._tenant, offset)
        if page.more:
            return page
        if self._end is None:
            self._add(page)
            return page
        if page.events:
            # The cache has the last of these events, or soon will. It hardly has the offset at which this read ended.
            return EventPage(page.events, page.events[-1].offset, more=False)
        # This read found no event after the offset. If the cache finds none after its end either, no event is between
        # the two, and the stream can continue from the cache's end.
        await self._reads(None)
        if end is not None and self._count == count and not self._more:
            return EventPage([], self._end, more=False)
        return page

    def _is_fresh(self) -> bool:
        now = asyncio.get_running_loop().time()
        return not self._more and self._read_hints == self._hints and now < self._read_at + FRESH_S

    async def _read_next(self, callers: Sequence[None]) -> Sequence[None]:
        """Read from the end of the cache, once for all callers that wait."""
        if self._end is None:
            return callers  # Each reads for itself, and the first fills the cache.
        hints = self._hints
        try:
            page = await self._store.events(self._tenant, self._end, PAGE)
        except BaseException:
            self._clear()
            raise
        self._read_hints, self._read_at = hints, asyncio.get_running_loop().time()
        self._add(page)
        return callers

    def _add(self, page: EventPage) -> None:
        for event in page.events:
            self._count += 1
            self._places[event.offset] = self._count
        self._places[page.next] = self._count
        self._end, self._more = page.next, page.more
        self._events = [*self._events, *page.events][-MAX_CACHED:]
        while len(self._places) > 2 * MAX_CACHED:
            del self._places[next(iter(self._places))]

    def _clear(self) -> None:
        self._events: list[Event] = []
        self._places: dict[str, int] = {}
        self._end: str | None = None
        self._more = False
        self._read_hints, self._read_at = -1, 0.0
        # The new count shows a read in progress that the cache was cleared.
        self._count += 1

    def _notify(self) -> None:
        self._hints += 1
        self._wake(list(self._wakeups))

    def _wake(self, followers: list[asyncio.Event]) -> None:
        """Wake a few in each turn of the event loop. [TENANT-4]"""
        for wakeup in followers[:WOKEN_AT_ONCE]:
            wakeup.set()
        if len(followers) > WOKEN_AT_ONCE:
            asyncio.get_running_loop().call_soon(self._wake, followers[WOKEN_AT_ONCE:])


def _on_growth(store: Store, tenant: str, notify: Callable[[], None]) -> Callable[[], None]:
    """Call `notify` when a tenant's log may have grown. Returns a function that ends it.

    A hint that names the tenant notifies at once. Hints without a tenant do so too for `EAGER_S` afterwards. At other
    times they are mostly about other tenants and notify at most once in `IDLE_S`, so that followers of a quiet tenant
    cause few reads.
    """
    loop = asyncio.get_running_loop()
    eager_until = idle_until = 0.0
    later: asyncio.TimerHandle | None = None

    def notify_idle() -> None:
        nonlocal idle_until, later
        # Spread, so that the followers of many tenants do not read in step.
        idle_until = loop.time() + IDLE_S * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        later = None
        notify()

    def on_hint(signal: Signal) -> None:
        nonlocal eager_until, later
        now = loop.time()
        if signal.tenant == tenant:
            eager_until = now + EAGER_S
            notify()
        elif not signal.tenant and now < eager_until:
            notify()
        elif not signal.tenant and now >= idle_until:
            notify_idle()
        elif not signal.tenant and later is None:
            later = loop.call_at(idle_until, notify_idle)

    unlisten = store.listen(on_hint, ALL_HINTS)

    def stop() -> None:
        unlisten()
        if later is not None:
            later.cancel()

    return stop
