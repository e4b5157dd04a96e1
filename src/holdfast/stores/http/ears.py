"""Hints from the tenant's stream of events: one line for all who listen. [CLAIM-3, RESULT-2]

An event that makes work visible is a hint to claim, one that ends a job a hint to look. While the line is down nothing
is heard; when it is up again everybody gets one hint of each kind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import msgspec

from holdfast.core import answers
from holdfast.core.errors import HoldfastError
from holdfast.store import Hint, Listener, Signal
from holdfast.stores.http.link import Link

FIRST_PAUSE_S, LAST_PAUSE_S = 0.2, 5.0
_HINTS = {
    "enqueued": Hint.READY,
    "released": Hint.READY,
    "replayed": Hint.READY,
    "retried": Hint.READY,
    "expired": Hint.READY,
    "completed": Hint.DONE,
    "failed": Hint.DONE,
    "canceled": Hint.DONE,
}


class Ears:
    """Follows the stream as long as somebody listens."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._listeners: dict[object, tuple[Listener, frozenset[Hint]]] = {}
        self._following: asyncio.Task[None] | None = None

    def listen(self, listener: Listener, hints: Collection[Hint]) -> Callable[[], None]:
        """Call `listener` for these hints until the answer is called."""
        token = object()
        self._listeners[token] = (listener, frozenset(hints))
        if self._following is None:
            self._following = asyncio.get_running_loop().create_task(self._follow())

        def stop() -> None:
            self._listeners.pop(token, None)
            if not self._listeners and self._following is not None:
                self._following.cancel()
                self._following = None

        return stop

    async def close(self) -> None:
        """Hear no more."""
        self._listeners.clear()
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.wait([following])

    async def _follow(self) -> None:
        pause_s = FIRST_PAUSE_S
        after = ""
        while True:
            try:
                if not after:
                    after = (await self._link.ask(answers.Session, "GET", "/v1/session")).offset
                async with self._link.stream("/v1/events", {"after": after}) as answer:
                    # From here on nothing is missed; what was before is looked for.
                    self._tell_all()
                    pause_s = FIRST_PAUSE_S
                    async for line in answer.aiter_lines():
                        if line.startswith("data: "):
                            after = self._hear(line[6:])
            except HoldfastError:
                after = ""
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)

    def _hear(self, text: str) -> str:
        event = msgspec.json.decode(text, type=answers.Event)
        address = (event.tenant, event.queue, event.job_id)
        hint = _HINTS.get(event.kind)
        if hint is not None:
            self._tell(Signal(hint, *address))
        if event.kind == "canceled":
            self._tell(Signal(Hint.CANCELED, *address))
        self._tell(Signal(Hint.EVENTS, *address))
        return event.offset

    def _tell_all(self) -> None:
        for hint in Hint:
            self._tell(Signal(hint))

    def _tell(self, signal: Signal) -> None:
        for listener, hints in list(self._listeners.values()):
            if signal.hint in hints:
                listener(signal)
