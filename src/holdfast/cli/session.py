"""How a command gets at a store: open, do one thing, close."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from holdfast.cli.options import blobs_url, store_url, tenant_name
from holdfast.core.errors import InvalidOption
from holdfast.opening import existing, shown_url

if TYPE_CHECKING:
    from holdfast.queue.queue import Queue
    from holdfast.queue.records import JobPage, JobRecord
    from holdfast.store import Store

__all__ = ["existing", "pages", "queues_of", "shown_url", "with_queue", "with_store"]

T = TypeVar("T")

PAGE = 1000


def with_queue(
    store: str | None,
    tenant: str | None,
    act: Callable[[Queue], Awaitable[T]],
    blobs: str | None = None,
    *,
    create: bool = False,
) -> T:
    """What `act` makes of one tenant's Queue. A directory without a store is an error unless `create`."""
    import asyncio

    from holdfast.queue.queue import Queue

    async def ask() -> T:
        url = store_url(store) if create else existing(store_url(store))
        async with Queue(url, tenant=tenant_name(tenant), blobs=blobs_url(blobs)) as queue:
            return await act(queue)

    return asyncio.run(ask())


async def queues_of(bound: Queue, queue: str | None) -> list[str]:
    """The queue that was named; else all of the tenant's, by name, but those that are Holdfast's own."""
    from holdfast.core.names import RESERVED

    if queue is not None:
        return [queue]
    found = [stats.queue for stats in await bound.queues() if not stats.queue.startswith(RESERVED)]
    return found or [bound.name]  # So that wrong options are noticed where there is nothing yet.


async def pages(
    bound: Queue,
    queue: str | None,
    cursor: str | None,
    limit: int | None,
    page: Callable[[str, str | None, int], Awaitable[JobPage]],
) -> tuple[list[JobRecord], str | None]:
    """Up to `limit` jobs of one queue or, queue by queue, of all; and the cursor that goes on, which then names one."""
    first, comma, rest = (cursor or "").partition(",") if queue is None else (queue, ",", cursor or "")
    if cursor and not comma:
        raise InvalidOption("cursor", f"{cursor!r} is none of a list over all queues; name the queue it is of")
    found: list[JobRecord] = []
    for name in await queues_of(bound, queue):
        if name < first:
            continue
        at = rest if name == first else ""
        while True:
            if limit is not None and len(found) >= limit:
                return found, at if queue is not None else f"{name},{at}"
            size = PAGE if limit is None else min(PAGE, limit - len(found))
            got = await page(name, at or None, size)
            found += got
            # A page may be short and yet not the last: `type` is looked at while paging.
            if not got.cursor:
                break
            at = got.cursor
    return found, None


def with_store(store: str | None, act: Callable[[Store], Awaitable[T]]) -> T:
    """What `act` makes of a store, bound to no tenant. For operators."""
    import asyncio

    from holdfast.opening import open_store

    async def ask() -> T:
        opened = await open_store(existing(store_url(store)))
        try:
            return await act(opened)
        finally:
            await opened.close()

    return asyncio.run(ask())
