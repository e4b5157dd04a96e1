"""Server-sent events: a tenant's log as it grows, resumable. [EVENT-2, EVENT-3]

`id` is the offset, `event` the kind, `data` the event as JSON. A client that comes again with `Last-Event-ID` misses
nothing and sees nothing twice. Between events there is a comment now and then, so that a line that is dead is noticed.
A stream lives no longer than its token.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection

import msgspec

from holdfast.core import wire
from holdfast.core.events import Event
from holdfast.service import views
from holdfast.service.call import Call, Route, Stream
from holdfast.service.intake import chosen
from holdfast.service.tokens import READ
from holdfast.store import Hint

BEAT_S = 15.0
PAGE = 500
_EVENTS = frozenset({Hint.EVENTS})


async def follow_events(call: Call[None, wire.StreamQuery]) -> Stream:
    """It goes on until the client leaves, or to the end of the log with `follow=false`."""
    after = call.header(b"last-event-id") or call.query.after or None
    kinds = wire.KINDS if not call.query.kinds else chosen("kinds", call.query.kinds, wire.KINDS)
    # The first look decides about the status: an offset that is wrong or trimmed is told as such.
    await call.hub.store.events(call.tenant, after, 1)
    return Stream(_follow(call, after, frozenset(kinds)))


async def _follow(
    call: Call[None, wire.StreamQuery], after: str | None, kinds: Collection[str]
) -> AsyncGenerator[bytes]:
    store = call.hub.store
    grown = asyncio.Event()
    stop = store.listen(lambda _: grown.set(), _EVENTS)
    beat = b": \n\n"
    said = after
    try:
        with call.leaving() as gone:
            gone.add_done_callback(lambda _: grown.set())
            yield beat
            while not gone.done():
                grown.clear()
                page = await store.events(call.tenant, after, PAGE)
                after = page.next
                shown = [event for event in page.events if _is_shown(call, event, kinds)]
                text = b"".join(map(_line, shown))
                said = shown[-1].offset if shown else said
                if not page.more and said != after:
                    # Who comes again begins here, also where what came last was not for him.
                    said, text = after, text + b"id: %s\n\n" % after.encode()
                if text:
                    yield text
                if page.more:
                    continue
                if not call.query.follow:
                    return
                left_s = call.hub.tokens.left_s(call.caller)
                if left_s <= 0:
                    return
                try:
                    async with asyncio.timeout(min(BEAT_S, left_s)):
                        await grown.wait()
                except TimeoutError:
                    yield beat
    finally:
        stop()


def _is_shown(call: Call[None, wire.StreamQuery], event: Event, kinds: Collection[str]) -> bool:
    return event.kind in kinds and (call.caller.queues is None or event.queue in call.caller.queues)


def _line(event: Event) -> bytes:
    data = msgspec.json.encode(views.event(event))
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (event.offset.encode(), event.kind.encode(), data)


ROUTES = (
    Route(
        method="GET", path="/v1/events", handler=follow_events, scope=READ, query=wire.StreamQuery,
        summary="The tenant's events as server-sent events, from an offset on", answers={200: None},
        refuses=("invalid_option", "events_trimmed"),
    ),
)  # fmt: skip
