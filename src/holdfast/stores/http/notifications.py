"""Hints: one stream of the tenant's events for all who listen here, of the kinds that they care for.

Whoever begins to listen is told once, without an address, when the stream stands: what happened before that is his to
look at. From then on nothing is missed, also over a lost connection. A token that may not read gets no hints: who has
one looks for himself, and a worker learns of a cancel from the answer to its next renewal. [CANCEL-2]
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Collection
from functools import partial

import msgspec

from holdfast.core.errors import AccessRefused, EventsTrimmed
from holdfast.protocol import answers, requests
from holdfast.store import Hint, Listener, Signal
from holdfast.stores.http.client import Link

LINGER_S = 10.0
"""A stream goes on for so long with nobody listening: the next one may be just about to."""
FIRST_S, LAST_S = 0.1, 5.0
REFUSED_S = 30.0

KINDS: dict[Hint, frozenset[str]] = {
    Hint.READY: frozenset({"enqueued", "retried", "released", "expired", "replayed"}),
    Hint.DONE: frozenset({"completed", "failed", "canceled"}),
    Hint.CANCELED: frozenset({"canceled"}),
    Hint.EVENTS: frozenset(requests.KINDS),
}

_log = logging.getLogger("holdfast")
_event = msgspec.json.Decoder(answers.Event)


class Ears:
    """Everybody who listens to one handle of a service."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._listeners: dict[int, tuple[Listener, frozenset[Hint]]] = {}
        self._count = 0
        self._hearing: asyncio.Task[None] | None = None
        self._kinds: frozenset[str] = frozenset()
        self._stands = False
        self._offset: str | None = None
        self._left: asyncio.TimerHandle | None = None

    def listen(self, listener: Listener, hints: Collection[Hint]) -> Callable[[], None]:
        """Call `listener` at every hint of these; the answer ends it."""
        wanted = frozenset(hints)
        if not wanted:
            return lambda: None
        self._count += 1
        number = self._count
        self._listeners[number] = (listener, wanted)
        kinds = frozenset[str]().union(*(KINDS[hint] for hint in wanted))
        if self._left is not None:
            self._left.cancel()
            self._left = None
        if self._hearing is None or not kinds <= self._kinds:
            self._kinds |= kinds
            self._start()
        return partial(self._leave, number)

    @property
    def any(self) -> bool:
        """Whether somebody listens."""
        return bool(self._listeners)

    async def close(self) -> None:
        """Hear nothing more. Twice is harmless."""
        self._listeners.clear()
        if self._left is not None:
            self._left.cancel()
            self._left = None
        hearing = self._end()
        if hearing is not None:
            await asyncio.wait([hearing])

    def tell(self, signal: Signal) -> None:
        """Tell everybody whom it concerns."""
        for listener, hints in list(self._listeners.values()):
            if signal.hint in hints:
                listener(signal)

    def _leave(self, number: int) -> None:
        if self._listeners.pop(number, None) is not None and not self._listeners and self._hearing is not None:
            self._left = asyncio.get_running_loop().call_later(LINGER_S, self._end)

    def _start(self) -> None:
        self._end()
        self._hearing = asyncio.get_running_loop().create_task(self._hear())

    def _end(self) -> asyncio.Task[None] | None:
        hearing, self._hearing = self._hearing, None
        if hearing is not None:
            hearing.cancel()
        if not self._listeners:
            self._kinds, self._offset = frozenset(), None
        return hearing

    async def _hear(self) -> None:
        pause_s, refused = FIRST_S, False
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                await self._follow()
            except EventsTrimmed:
                self._offset = None
            except AccessRefused as error:
                _log.log(logging.DEBUG if refused else logging.INFO, "no hints from the service: %s", error)
                refused = True
                await asyncio.sleep(REFUSED_S)
            except Exception as error:  # noqa: BLE001 - also what a function that gives the token raises
                _log.debug("hints may be late: %s", error)
            # Also after an end that was none of an error: who ends every stream at once is not asked in a loop.
            pause_s = FIRST_S if clock() - began > LAST_S else pause_s
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            pause_s = min(2 * pause_s, LAST_S)

    async def _follow(self) -> None:
        if self._offset is None:
            self._offset = (await self._link.call("GET", "/v1/session", answers.Session)).offset
        query = {"kinds": ",".join(sorted(self._kinds))}
        if self._offset is not None:
            query["after"] = self._offset
        async with self._link.stream("/v1/events", query) as messages:
            for hint in Hint:
                self.tell(Signal(hint))
            async for offset, data in messages:
                if data:
                    with contextlib.suppress(msgspec.MsgspecError):
                        self._told(_event.decode(data))
                self._offset = offset or self._offset

    def _told(self, event: answers.Event) -> None:
        for hint, kinds in KINDS.items():
            if event.kind in kinds:
                self.tell(Signal(hint, event.tenant, event.queue, event.job_id))
