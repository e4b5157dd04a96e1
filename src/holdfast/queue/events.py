"""Following the tenant's event log, and registered readers. [EVENT-2, EVENT-3]"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

from holdfast.core.names import check_id
from holdfast.queue.connection import Connection
from holdfast.queue.inspect import PAGE_LIMIT, check_text
from holdfast.queue.records import Event, event_of
from holdfast.queue.waiting import FALLBACK_S
from holdfast.store import Hint, Reader

_EVENTS = frozenset({Hint.EVENTS})


async def follow(connection: Connection, after: str | None, *, forever: bool) -> AsyncGenerator[Event]:
    """Events in order. `forever` waits for new ones at the end of the log."""
    check_text("after", after)
    grown = asyncio.Event()
    stop: Callable[[], None] | None = None
    try:
        while True:
            if forever and stop is None:
                stop = connection.live.listen(lambda _: grown.set(), _EVENTS)
            grown.clear()
            page = await connection.counted("events", connection.live.events(connection.tenant, after, PAGE_LIMIT))
            after = page.next
            for event in page.events:
                yield event_of(event)
            if page.more:
                continue
            if not forever:
                return
            # A hint can be lost with the process that should have sent it.
            with suppress(TimeoutError):
                await asyncio.wait_for(grown.wait(), FALLBACK_S)
    finally:
        if stop is not None:
            stop()


async def set_reader(connection: Connection, name: str, offset: str) -> None:
    """Register a reader, or move it forward."""
    check_text("offset", offset)
    reader = Reader(connection.tenant, check_id(name, "reader"), offset or "")
    await connection.counted("set_reader", connection.live.set_reader(reader))
