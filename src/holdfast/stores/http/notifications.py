"""Hints: one event stream of the tenant for all listeners of a store, with the kinds of events that they need.

A new listener gets one hint without an address when the stream is open: it reads the earlier state itself.
After that no event is missed, even if the connection breaks. A token without `jobs:read` gets no hints: callers then
poll, and a worker learns of a cancellation from the answer to its next renewal. [CANCEL-2]
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
from holdfast.stores.http.client import HttpClient

LINGER_S = 10.0
"""How long a stream without listeners stays open, in case the next one comes soon."""
FIRST_S, LAST_S = 0.1, 5.0
"""The pause before the stream is opened again: the first and the longest."""
REFUSED_S = 30.0
"""The pause if the token may not read."""

KINDS: dict[Hint, frozenset[str]] = {
    Hint.READY: frozenset({"enqueued", "retried", "released", "expired", "replayed"}),
    Hint.DONE: frozenset({"completed", "failed", "canceled"}),
    Hint.CANCELED: frozenset({"canceled"}),
    Hint.EVENTS: frozenset(requests.KINDS),
}

_log = logging.getLogger("holdfast")
_event = msgspec.json.Decoder(answers.Event)


class HttpListener:
    """All listeners of one store."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._listeners: dict[int, tuple[Listener, frozenset[Hint]]] = {}
        self._count = 0
        self._reading: asyncio.Task[None] | None = None
        self._kinds: frozenset[str] = frozenset()
        self._offset: str | None = None
        self._left: asyncio.TimerHandle | None = None

    def listen(self, listener: Listener, hints: Collection[Hint]) -> Callable[[], None]:
        """Call `listener` at each of these hints. Returns a function that ends it."""
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
        if self._reading is None or not kinds <= self._kinds:
            self._kinds |= kinds
            self._start()
        return partial(self._leave, number)

    @property
    def any(self) -> bool:
        """Whether there are listeners."""
        return bool(self._listeners)

    async def close(self) -> None:
        """Stop listening. Calling it twice is harmless."""
        self._listeners.clear()
        if self._left is not None:
            self._left.cancel()
            self._left = None
        reading = self._end()
        if reading is not None:
            await asyncio.wait([reading])

    def notify(self, signal: Signal) -> None:
        """Call the listeners that want this hint."""
        for listener, hints in list(self._listeners.values()):
            if signal.hint in hints:
                listener(signal)

    def _leave(self, number: int) -> None:
        if self._listeners.pop(number, None) is not None and not self._listeners and self._reading is not None:
            self._left = asyncio.get_running_loop().call_later(LINGER_S, self._end)

    def _start(self) -> None:
        self._end()
        self._reading = asyncio.get_running_loop().create_task(self._read())

    def _end(self) -> asyncio.Task[None] | None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
        if not self._listeners:
            self._kinds, self._offset = frozenset(), None
        return reading

    async def _read(self) -> None:
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
            except Exception as error:  # noqa: BLE001 - the function that returns the token may raise anything
                _log.debug("hints may be late: %s", error)
            # Back off after a clean close too, if the stream was short.
            pause_s = FIRST_S if clock() - began > LAST_S else pause_s
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            pause_s = min(2 * pause_s, LAST_S)

    async def _follow(self) -> None:
        if self._offset is None:
            self._offset = (await self._client.call("GET", "/v1/session", answers.Session)).offset
        query = {"kinds": ",".join(sorted(self._kinds))}
        if self._offset is not None:
            query["after"] = self._offset
        async with self._client.stream("/v1/events", query) as messages:
            for hint in Hint:
                self.notify(Signal(hint))
            async for offset, data in messages:
                if data:
                    with contextlib.suppress(msgspec.MsgspecError):
                        self._notify_of(_event.decode(data))
                self._offset = offset or self._offset

    def _notify_of(self, event: answers.Event) -> None:
        for hint, kinds in KINDS.items():
            if event.kind in kinds:
                self.notify(Signal(hint, event.tenant, event.queue, event.job_id))
