"""Which tenant to move, from which store to which; and how these stores are opened."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from msgspec import Struct
from msgspec.structs import force_setattr

from holdfast.core.errors import HoldfastError, InvalidOption
from holdfast.core.names import check_tenant
from holdfast.extensions import SingleTenant
from holdfast.migrate.move_log import LEASE_MS
from holdfast.opening import absolute, make_store, parse_url, shown_url
from holdfast.store import Store

WAIT_S = 60.0


class MovePlan(Struct, frozen=True):
    """Which tenant to move, from which store to which."""

    source: str
    target: str
    tenant: str
    wait_s: float = WAIT_S
    """How long to wait for jobs that run in the source."""
    lease_ms: int = LEASE_MS

    def __post_init__(self) -> None:
        check_tenant(self.tenant)
        force_setattr(self, "source", absolute(self.source))
        force_setattr(self, "target", absolute(self.target))
        here, there = parse_url(self.source), parse_url(self.target)
        if (here.scheme, here.rest, here.options) == (there.scheme, there.rest, there.options):
            raise InvalidOption("DST", f"{shown_url(self.source)} is SRC itself; give another store")


@contextlib.asynccontextmanager
async def opened(url: str, name: str) -> AsyncGenerator[Store]:
    """Open one of the two stores. Raises InvalidOption for a service; a note on other errors names the store."""
    store = make_store(url)
    if isinstance(store, SingleTenant):
        raise InvalidOption(name, "a service does not show all of a job; give the address of the store behind it")
    try:
        try:
            await store.open()
        except HoldfastError as error:
            error.add_note(f"The store is {name}, {shown_url(url)}.")
            raise
        yield store
    finally:
        await store.close()
