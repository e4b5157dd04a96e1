"""Cursors and pages, the same for every store."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from holdfast.core.errors import (
    InvalidName,
    InvalidOption,
)
from holdfast.core.names import OPERATOR, check_queue, check_tenant, join_key
from holdfast.store import TenantPage


class _Page(Protocol):
    @property
    def cursor(self) -> str | None: ...


P = TypeVar("P", bound=_Page)


async def pages(read: Callable[[str | None], Awaitable[P]]) -> AsyncIterator[P]:
    """One page after another, to the last."""
    cursor: str | None = None
    while True:
        page = await read(cursor)
        yield page
        cursor = page.cursor
        if cursor is None:
            return


QUEUES_LOOKED_AT = 1000
"""How many queues a page of tenants looks at, for one that has jobs."""


def name_cursor(cursor: str | None, check: Callable[[str], str] = check_queue) -> str:
    """The name that a list goes on behind; "" from the beginning. Raises InvalidOption."""
    try:
        return "" if cursor is None else check(cursor)
    except InvalidName:
        raise InvalidOption("cursor", f"{cursor!r} is not a cursor of this list") from None


def tenant_cursor(cursor: str | None) -> tuple[str, str]:
    """Where a list of tenants goes on: behind a tenant, or in it and behind one of its queues. Raises InvalidOption.

    It is `join_key(tenant, queue)`, the queue "" once the tenant is done.
    """
    if cursor is None:
        return "", ""
    found = _TENANT_CURSOR.fullmatch(cursor)
    tenant = found[2][: int(found[1])] if found else ""
    queue = found[2][len(tenant) :].partition(":")[2] if found else ""
    if join_key(tenant, queue) != cursor:
        raise InvalidOption("cursor", f"{cursor!r} is not a cursor of this list")
    return name_cursor(tenant, check_tenant), queue and name_cursor(queue)


def tenant_page_of(
    with_jobs: Sequence[str], with_settings: Sequence[str], stop: tuple[str, str] | None, limit: int
) -> TenantPage:
    """A page of the next tenants with jobs and of the next with settings, given where the look for jobs ended.

    That is behind a tenant, or in the middle of one: of that one it is not known yet whether it has jobs.
    """
    names = sorted({*with_jobs, *with_settings} - {OPERATOR})
    if stop is not None:
        names = [name for name in names if name < stop[0] or (name == stop[0] and not stop[1])]
    if len(names) > limit:
        names, stop = names[:limit], (names[limit - 1], "")
    return TenantPage(names, None if stop is None else join_key(*stop))


BEHIND_ALL = "\x7f"
"""A text behind the names of all queues."""

_TENANT_CURSOR = re.compile(r"([0-9]{1,3}):(.*)", re.ASCII)
