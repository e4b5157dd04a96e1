"""Live pages: which fragment changed, as server-sent events. A page holds one stream, and fetches what changed.

A fragment on a screen has one `FragmentWatch`, shared by all viewers with equal rights. Hints of the store mark the
watch. The next round then reads and draws the fragment again, and notifies the viewers if it looks different. So the
store is read only for what is on a screen, and once for all its viewers.

The pace: a round renews all marked fragments of a tenant, one after another, and then rests so long that the rounds of
all tenants take at most `SHARE` of the time. A rest longer than `SLOWEST_S` is shortened, but only so far that they
take at most `MAX_SHARE`. The tenants that look share this time equally, so the costly pages of one do not slow down
another's. The first view of a page, and what its viewer does, wait for no round.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import NamedTuple

import msgspec

from holdfast.dashboard.page import RENEW_S, WebPage
from holdfast.dashboard.turns import PageTurns
from holdfast.dashboard.view import View, Viewer
from holdfast.service.shares import Hold
from holdfast.store import Hint, Signal, Store
from holdfast.telemetry.logging import get_logger

_log = get_logger(__name__)

PACE_S, SLOWEST_S = 1.0, 10.0
SHARE, MAX_SHARE = 0.02, 0.05
FETCH_S = 0.001
"""The approximate time that it takes to serve a changed fragment to one viewer."""
BEAT_S = 15.0
"""How often a stream sends a heartbeat, and checks that its viewer may still look."""

HINTS = frozenset({Hint.EVENTS, Hint.READY})
"""The hints that mark watches. These are enough, as the log has every change that a page shows."""

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
        """The watches that are not marked. A hint is compared only with these, and under load they are few."""
        self._store = store
        self._watches: dict[Key, FragmentWatch] = {}
        self._rounds: dict[str, Rounds] = {}
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
        if watch is not None and watch.rendered is not None and not watch.is_outdated:
            return watch.rendered
        async with self.turns.of(view.viewer):
            return await self.render(page, name, view)

    def changed(self, tenant: str) -> None:
        """Renew the fragments about this tenant or all tenants, after an action that may make no hint."""
        for watch in list(self._watches.values()):
            if watch.tenant in ("", tenant):
                watch.is_outdated = True
                watch.mark()

    async def stream(
        self, page: WebPage, view: View, hold: Hold, holds: Callable[[Viewer], Awaitable[bool]], life_s: float
    ) -> AsyncGenerator[bytes]:
        """Notices for one page: the names of changed fragments and their tags. It ends after `life_s`."""
        hold.resize(1)
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
            # The client reconnects after a second.
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
            hold.resize(0)

    def rest_s(self, cost_s: float) -> float:
        """How long a tenant's fragments rest after a round of this cost."""
        cost_s *= len(self._rounds)
        return max(PACE_S, min(SLOWEST_S, cost_s / SHARE), cost_s / MAX_SHARE)

    def watches_of(self, tenant: str) -> list[FragmentWatch]:
        """The fragments of a tenant that are on a screen."""
        return [watch for watch in self._watches.values() if watch.tenant == tenant]

    def wake(self, tenant: str) -> None:
        """A fragment of this tenant is marked: renew it in the next round."""
        self._rounds[tenant].wakeup.set()

    def forget(self, key: Key, watch: FragmentWatch) -> None:
        """Drop a watch without viewers."""
        del self._watches[key]
        self.clean.discard(watch)
        if not self.watches_of(watch.tenant):
            self._rounds.pop(watch.tenant).task.cancel()
        if not self._watches and self._unlisten is not None:
            self._unlisten()
            self._unlisten = None

    def _watch(self, page: WebPage, name: str, view: View) -> FragmentWatch:
        key = _key(page, name, view)
        if key not in self._watches:
            if self._unlisten is None:
                self._unlisten = self._store.listen(self._on_hint, HINTS)
            if view.tenant not in self._rounds:
                self._rounds[view.tenant] = Rounds(self, view.tenant)
            self._watches[key] = FragmentWatch(self, key, page, name, view)
        return self._watches[key]

    def _on_hint(self, signal: Signal) -> None:
        if self.clean:
            for watch in [watch for watch in self.clean if watch.is_about(signal)]:
                watch.mark()


class Rounds:
    """The rounds of one tenant, as long as a fragment of it is on a screen."""

    def __init__(self, live: LivePages, tenant: str) -> None:
        self.wakeup = asyncio.Event()
        self._live, self._tenant = live, tenant
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEW_S):
                    await self.wakeup.wait()
            self.wakeup.clear()
            began = time.monotonic()
            due = [watch for watch in self._live.watches_of(self._tenant) if watch.is_due(began)]
            # A hint from here on marks them for the next round, as reads of this one may be shared.
            self._live.clean.update(due)
            await asyncio.sleep(self._live.rest_s(sum([await watch.renew(began) for watch in due])))


class FragmentWatch:
    """One fragment that is on a screen."""

    def __init__(self, live: LivePages, key: Key, page: WebPage, name: str, view: View) -> None:
        self.rendered: Rendered | None = None
        self.is_outdated = False
        """Whether a viewer has acted since. The page that the viewer gets next must not show what was before."""
        self.tenant = view.tenant
        self._live, self._key = live, key
        self._page, self._name, self._view = page, name, view
        self._viewers: list[Callable[[str, str], None]] = []
        self._renewed_at = 0.0
        live.clean.add(self)
        self._first = asyncio.create_task(self._renew_first())

    def is_about(self, signal: Signal) -> bool:
        """Whether a hint is about this fragment."""
        return self._page.fragments[self._name].concerns(self._view, signal)

    def is_due(self, now: float) -> bool:
        """Whether a round that begins now renews it: it is marked, or old."""
        is_marked = self not in self._live.clean
        return self._first.done() and (is_marked or now - self._renewed_at >= RENEW_S)

    def mark(self) -> None:
        """Something may have changed."""
        self._live.clean.discard(self)
        self._live.wake(self.tenant)

    def enter(self, notify: Callable[[str, str], None]) -> None:
        """Add a viewer. It learns the tag as soon as it is known, so a change since its page was made is not lost."""
        self._viewers.append(notify)
        if self.rendered is not None:
            notify(self._name, self.rendered.tag)

    def leave(self, notify: Callable[[str, str], None]) -> None:
        """Remove a viewer. The watch ends with its last one."""
        self._viewers.remove(notify)
        if not self._viewers:
            self._first.cancel()
            self._live.forget(self._key, self)

    async def _renew_first(self) -> None:
        await self.renew(time.monotonic())
        if self not in self._live.clean:  # Marked meanwhile: no round renewed it beside this.
            self._live.wake(self.tenant)

    async def renew(self, asked_at: float) -> float:
        """Read and draw it, as of `asked_at` or later, and notify of a change. Returns the seconds it took."""
        if not self._viewers:
            return 0.0
        self._renewed_at = self._view.asked_at = asked_at
        before = self.rendered
        began = time.monotonic()
        try:
            async with self._live.turns.of(self._view.viewer, is_patient=True):
                began = time.monotonic()
                self.is_outdated = False
                self.rendered = await self._live.render(self._page, self._name, self._view)
        except Exception as error:  # noqa: BLE001 - the page keeps what it shows, and the others are renewed
            _log.warning("a page was not renewed", page=self._page.path, error=error)
            return time.monotonic() - began
        cost_s = time.monotonic() - began
        if before is None or before.tag != self.rendered.tag:
            for notify in self._viewers:
                notify(self._name, self.rendered.tag)
            cost_s += FETCH_S * len(self._viewers)
        return cost_s


def _key(page: WebPage, name: str, view: View) -> Key:
    return page.path, name, view.tenant, view.viewer.rights, tuple(sorted(view.query.items()))
