"""How a command gets at a store: open, do one thing, close."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from holdfast.cli.options import blobs_url, store_url, tenant_name

if TYPE_CHECKING:
    from holdfast.queue import Queue
    from holdfast.store import Store

T = TypeVar("T")

_PASSWORD = re.compile(r"(?<=://)([^:/?#@]*):[^/?#]*@")


def with_queue(
    store: str | None, tenant: str | None, act: Callable[[Queue], Awaitable[T]], blobs: str | None = None
) -> T:
    """What `act` makes of one tenant's Queue."""
    import asyncio

    from holdfast.queue import Queue

    async def ask() -> T:
        async with Queue(store_url(store), tenant=tenant_name(tenant), blobs=blobs_url(blobs)) as queue:
            return await act(queue)

    return asyncio.run(ask())


def with_store(store: str | None, act: Callable[[Store], Awaitable[T]]) -> T:
    """What `act` makes of a store, bound to no tenant. For operators."""
    import asyncio

    from holdfast.store import open_store

    async def ask() -> T:
        opened = await open_store(store_url(store))
        try:
            return await act(opened)
        finally:
            await opened.close()

    return asyncio.run(ask())


def shown_url(url: str) -> str:
    """A store's URL without its password, for logs and reports."""
    return _PASSWORD.sub(r"\1:***@", url)
