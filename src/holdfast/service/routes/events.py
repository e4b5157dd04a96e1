"""Server-sent events: a tenant's log as it grows, resumable. [EVENT-2, EVENT-3]

`id` is the offset, `event` the kind, `data` the event as JSON. A client that comes again with `Last-Event-ID` misses
nothing and sees nothing twice. Between events there is a comment now and then, so that a line that is dead is noticed.
A stream lives no longer than its token. Those who follow one tenant share their looks at the store: see `tails`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection

import msgspec

from holdfast.core.events import Event
from holdfast.protocol import requests
from holdfast.service import views
from holdfast.service.call import Call, Route, Stream
from holdfast.service.event_cache import PAGE
from holdfast.service.parsing import chosen
from holdfast.service.tokens import READ

BEAT = b": \n\n"
BEAT_S = 15.0


async def follow_events(call: Call[None, requests.StreamQuery]) -> Stream:
    """It goes on until the client leaves, or to the end of the log with `follow=false`."""
    after = call.header(b"last-event-id") or call.query.after or None
    kinds = requests.KINDS if not call.query.kinds else chosen("kinds", call.query.kinds, requests.KINDS)
    call.wait(stream=True)
    # The first look decides about the status: an offset that is wrong or trimmed is told as such.
    await call.hub.store.events(call.tenant, after, 1)
    return Stream(_follow(call, after, frozenset(kinds)))


async def _follow(
    call: Call[None, requests.StreamQuery], after: str | None, kinds: Collection[str]
) -> AsyncGenerator[bytes]:
    clock = asyncio.get_running_loop().time
    with call.leaving() as gone, call.hub.tails.follow(call.tenant) as (tail, grown):
        gone.add_done_callback(lambda _: grown.set())
        yield BEAT
        said, beat_at = after, clock() + BEAT_S
        while not gone.done():
            grown.clear()
            await call.hub.revoked.check(call.caller)
            page = await (tail.after(after) if call.query.follow else call.hub.store.events(call.tenant, after, PAGE))
            after = page.next
            shown = [event for event in page.events if _is_shown(call, event, kinds)]
            text = b"".join(map(_line, shown))
            said = shown[-1].offset if shown else said
            is_last = not page.more and not call.query.follow
            if is_last or clock() >= beat_at:
                # Who comes again begins here, also where what came last was not for him. Not at each step of the log:
                # that would tell when others do something.
                text += BEAT if said == after else b"id: %s\n\n" % after.encode()
                said = after
            if text:
                yield text
                beat_at = clock() + BEAT_S
            if page.more:
                continue
            left_s = call.hub.tokens.left_s(call.caller)
            if is_last or left_s <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(beat_at - clock(), left_s)):
                    await grown.wait()


def _is_shown(call: Call[None, requests.StreamQuery], event: Event, kinds: Collection[str]) -> bool:
    return event.kind in kinds and (call.caller.queues is None or event.queue in call.caller.queues)


def _line(event: Event) -> bytes:
    data = msgspec.json.encode(views.event(event))
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (event.offset.encode(), event.kind.encode(), data)


ROUTES = (
    Route(
        method="GET", path="/v1/events", handler=follow_events, scope=READ, query=requests.StreamQuery,
        summary="The tenant's events as server-sent events, from an offset on", answers={200: None},
        refuses=("invalid_option", "events_trimmed"),
    ),
)  # fmt: skip
