"""Server-sent events: a tenant's log as it grows, resumable. [EVENT-2, EVENT-3]

`id` is the offset, `event` the kind, `data` the event as JSON. A client that reconnects with `Last-Event-ID` misses no
event and sees none twice. A quiet stream carries a comment every 15 s, which reveals a dead connection. A stream ends
with its token. The streams of one tenant share their reads of the store: see `event_cache`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection

import msgspec

from holdfast.core.events import Event
from holdfast.protocol import requests
from holdfast.service import views
from holdfast.service.call import Route, ServiceCall, Stream
from holdfast.service.parsing import chosen
from holdfast.service.tokens import READ

BEAT = b": \n\n"
BEAT_S = 15.0
EVENT_WORK = 50
"""What encoding one event costs, in the units of `turns`: many streams may get the same new events at once."""


async def follow_events(call: ServiceCall[None, requests.StreamQuery]) -> Stream:
    """Stream events until the client leaves; with `follow=false`, to the end of the log."""
    after = call.header(b"last-event-id") or call.query.after or None
    kinds = requests.KINDS if not call.query.kinds else chosen("kinds", call.query.kinds, requests.KINDS)
    call.wait(stream=True)
    # The first read decides the status: an offset that is invalid or trimmed is refused.
    await call.context.event_caches.history.read(call.tenant, after, 1)
    return Stream(_follow(call, after, frozenset(kinds)))


async def _follow(
    call: ServiceCall[None, requests.StreamQuery], after: str | None, kinds: Collection[str]
) -> AsyncGenerator[bytes]:
    clock = asyncio.get_running_loop().time
    history = call.context.event_caches.history
    with call.leaving() as gone, call.context.event_caches.follow(call.tenant) as (cache, grown):
        gone.add_done_callback(lambda _: grown.set())
        yield BEAT
        sent_offset, beat_at = after, clock() + BEAT_S
        while not gone.done():
            grown.clear()
            await call.context.revoked.check(call.caller)
            page = await (cache.after(after) if call.query.follow else history.read(call.tenant, after))
            after = page.next
            await call.context.turns.take(EVENT_WORK * len(page.events), call.tenant)
            shown = [event for event in page.events if _is_shown(call, event, kinds)]
            text = b"".join(map(_line, shown))
            sent_offset = shown[-1].offset if shown else sent_offset
            is_last = not page.more and not call.query.follow
            if is_last or clock() >= beat_at:
                # A client that reconnects resumes here, even if the last events were not for it. The offset is not
                # sent with each of those events: that would reveal when other queues are active.
                text += BEAT if sent_offset == after else b"id: %s\n\n" % after.encode()
                sent_offset = after
            if text:
                yield text
                beat_at = clock() + BEAT_S
            if page.more:
                continue
            left_s = call.context.tokens.left_s(call.caller)
            if is_last or left_s <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(beat_at - clock(), left_s)):
                    await grown.wait()


def _is_shown(call: ServiceCall[None, requests.StreamQuery], event: Event, kinds: Collection[str]) -> bool:
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
