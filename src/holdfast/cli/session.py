"""How a command gets at a store: open, do one thing, close."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from holdfast.cli.options import blobs_url, store_url, tenant_name
from holdfast.store import existing, shown_url

if TYPE_CHECKING:
    from holdfast.queue import Queue
    from holdfast.store import Store

__all__ = ["existing", "shown_url", "with_queue", "with_store"]

T = TypeVar("T")


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

    from holdfast.queue import Queue

    async def ask() -> T:
        url = store_url(store) if create else existing(store_url(store))
        async with Queue(url, tenant=tenant_name(tenant), blobs=blobs_url(blobs)) as queue:
            return await act(queue)

    return asyncio.run(ask())


def with_store(store: str | None, act: Callable[[Store], Awaitable[T]]) -> T:
    """What `act` makes of a store, bound to no tenant. For operators."""
    import asyncio

    from holdfast.store import open_store

    async def ask() -> T:
        opened = await open_store(existing(store_url(store)))
        try:
            return await act(opened)
        finally:
            await opened.close()

    return asyncio.run(ask())
