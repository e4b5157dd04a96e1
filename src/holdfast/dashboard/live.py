"""Live pages: which fragment changed, as server-sent events. A page holds one stream, and fetches what changed.

A fragment on a screen has one `FragmentWatch`, shared by all viewers with equal rights. Hints of the store mark it;
then it is read and drawn again, once for all, and its viewers are notified if it looks different. So the store is read
only for what is on a screen, and once for all its viewers.

The pace: a fragment is renewed at most once in `PACE_S`. It is renewed more slowly, down to once in `SLOWEST_S`, while
renewals would take more than `SHARE` of the time, and even more slowly while they would take more than `MAX_SHARE`.
The tenants that look share this time equally, so the costly pages of one do not slow down another's.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import NamedTuple

import msgspec

from holdfast.core.errors import HoldfastError
from holdfast.dashboard.page import RENEW_S, WebPage
from holdfast.dashboard.turns import PageTurns
from holdfast.dashboard.view import NotShown, View, Viewer
from holdfast.store import Hint, Signal, Store
from holdfast.telemetry.logging import get_logger

_log = get_logger(__name__)

PACE_S, SLOWEST_S = 1.0, 10.0
SHARE, MAX_SHARE = 0.02, 0.1
FETCH_S = 0.001
"""The approximate time that it takes to serve a changed fragment to one viewer."""
BEAT_S = 15.0
"""How often a stream sends a sign of life, and checks that its viewer may still look."""
MAX_STREAMS, MAX_STREAMS_PER_TENANT = 1000, 200

HINTS = frozenset({Hint.EVENTS, Hint.READY})
"""Every change that a page shows is in the log. A hint for each job that ended would add nothing but work."""

Key = tuple[object, ...]


class Rendered(NamedTuple):
    """A fragment as HTML. Fragments with the same tag look the same, except for ages."""

    html: str
    tag: str


Render = Callable[[WebPage, str, View], Awaitable[Rendered]]


class LivePages:
    """All the streams and watches of one dashboard."""

    def __init__(self, store: Store, render: Render, turns: PageTurns) -> None:
        self.render = render
        self.turns = turns
        self.clean: set[FragmentWatch] = set()
        """The watches that nothing has marked. A hint is compared with these only: under load there are few."""
        self._store = store
        self._watches: dict[Key, FragmentWatch] = {}
        self._streams: dict[str, int] = {}
        self._unlisten: Callable[[], None] | None = None
        self._wakeups: set[asyncio.Event] = set()
        self._is_stopping = False

    def stop(self) -> None:
        """End every stream."""
        self._is_stopping = True
        for wakeup in self._wakeups:
            wakeup.set()

    async def fragment(self, page: WebPage, name: str, view: View) -> Rendered:
        """A fragment as its watch drew it last, for a viewer that was notified; drawn anew if there is no watch."""
        watch = self._watches.get(_key(page, name, view))
        if watch is not None and watch.rendered is not None:
            return watch.rendered
        async with self.turns.of(view.viewer):
            return await self.render(page, name, view)

    def changed(self, tenant: str) -> None:
        """Renew the fragments about this tenant or all tenants, after an action that may make no hint."""
        for watch in list(self._watches.values()):
            if watch.tenant in ("", tenant):
                watch.mark()

    def check_room(self, tenant: str) -> None:
        """Raise NotShown if there are too many streams."""
        if self._streams.get(tenant, 0) >= MAX_STREAMS_PER_TENANT or sum(self._streams.values()) >= MAX_STREAMS:
            raise NotShown(503, "Too many pages are open. This one is not live.")

    async def stream(
        self, page: WebPage, view: View, holds: Callable[[Viewer], Awaitable[bool]], life_s: float
    ) -> AsyncGenerator[bytes]:
        """Notices for one page: the names of changed fragments and their tags. It ends after `life_s`."""
        self._streams[view.tenant] = self._streams.get(view.tenant, 0) + 1
        changed: dict[str, str] = {}
        wakeup = asyncio.Event()
        began = time.monotonic()
        ends_at, asks_at = began + life_s, began + BEAT_S

        def notify(name: str, tag: str) -> None:
            changed[name] = tag
            wakeup.set()

        watches = [self._watch(page, name, view) for name in page.fragments]
        self._wakeups.add(wakeup)
        for watch in watches:
            watch.enter(notify)
        try:
            # The client comes back after a second.
            yield b"retry: 1000\n\n"
            while not self._is_stopping and time.monotonic() < ends_at:
                wakeup.clear()
                if time.monotonic() >= asks_at:
                    if not await holds(view.viewer):
                        yield b"event: ended\ndata: {}\n\n"
                        return
                    asks_at = time.monotonic() + BEAT_S
                    yield b": \n\n"
                if changed:
                    data = msgspec.json.encode(changed)
                    changed.clear()
                    yield b"event: changed\ndata: %s\n\n" % data
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, min(asks_at, ends_at) - time.monotonic())):
                        await wakeup.wait()
        finally:
            self._wakeups.discard(wakeup)
            for watch in watches:
                watch.leave(notify)
            self._leave(view.tenant)

    def pace_s(self, tenant: str) -> float:
        """The least time between two renewals of one fragment of a tenant, by what all of the tenant's cost."""
        costs: dict[str, float] = {tenant: 0.0}
        for watch in self._watches.values():
            costs[watch.tenant] = costs.get(watch.tenant, 0.0) + watch.cost_s + FETCH_S * watch.viewers
        cost = costs[tenant] * len(costs)
        return max(PACE_S, min(SLOWEST_S, cost / SHARE), cost / MAX_SHARE)

    def forget(self, key: Key) -> None:
        """Drop a watch without viewers."""
        self.clean.discard(self._watches.pop(key))
        if not self._watches and self._unlisten is not None:
            self._unlisten()
            self._unlisten = None

    def _watch(self, page: WebPage, name: str, view: View) -> FragmentWatch:
        key = _key(page, name, view)
        if key not in self._watches:
            if self._unlisten is None:
                self._unlisten = self._store.listen(self._on_hint, HINTS)
            self._watches[key] = FragmentWatch(self, key, page, name, view)
        return self._watches[key]

    def _on_hint(self, signal: Signal) -> None:
        if self.clean:
            for watch in [watch for watch in self.clean if watch.is_about(signal)]:
                watch.mark()

    def _leave(self, tenant: str) -> None:
        self._streams[tenant] -= 1
        if not self._streams[tenant]:
            del self._streams[tenant]


class FragmentWatch:
    """One fragment that is on a screen."""

    def __init__(self, live: LivePages, key: Key, page: WebPage, name: str, view: View) -> None:
        self.rendered: Rendered | None = None
        self.cost_s = 0.0
        self._live, self._key = live, key
        self._page, self._name, self._view = page, name, view
        self._viewers: list[Callable[[str, str], None]] = []
        self._marked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def tenant(self) -> str:
        return self._view.tenant

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    def is_about(self, signal: Signal) -> bool:
        """Whether a hint is about this fragment."""
        return self._page.fragments[self._name].concerns(self._view, signal)

    def mark(self) -> None:
        """Something may have changed."""
        self._live.clean.discard(self)
        self._marked.set()

    def enter(self, notify: Callable[[str, str], None]) -> None:
        """Add a viewer. It learns the tag at once, so a change since its page was made is not lost."""
        self._viewers.append(notify)
        if self._task is None:
            self._marked.set()
            self._task = asyncio.create_task(self._run())
        elif self.rendered is not None:
            notify(self._name, self.rendered.tag)

    def leave(self, notify: Callable[[str, str], None]) -> None:
        """Remove a viewer. Without one there is no watch."""
        self._viewers.remove(notify)
        if not self._viewers and self._task is not None:
            self._task.cancel()
            self._live.forget(self._key)

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEW_S):
                    await self._marked.wait()
            self._marked.clear()
            self._live.clean.add(self)
            await self._renew()
            await asyncio.sleep(self._live.pace_s(self.tenant))

    async def _renew(self) -> None:
        before = self.rendered
        try:
            async with self._live.turns.of(self._view.viewer, is_patient=True):
                began = time.monotonic()
                self.rendered = await self._live.render(self._page, self._name, self._view)
                self.cost_s = time.monotonic() - began
        except (HoldfastError, OSError) as error:
            # The page keeps what it shows.
            _log.warning("a page was not renewed", page=self._page.path, error=error)
            return
        if before is None or before.tag != self.rendered.tag:
            for notify in self._viewers:
                notify(self._name, self.rendered.tag)


def _key(page: WebPage, name: str, view: View) -> Key:
    return page.path, name, view.tenant, view.viewer.rights, tuple(sorted(view.query.items()))
