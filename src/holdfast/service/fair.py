"""Calls to the store in fair turns between tenants. [TENANT-4]

A store that is a server has a small pool of connections. A tenant's calls take at most half of those that tenants
have; its other calls wait here. When a call ends, the next one is of the tenant with the fewest calls under way. A
renewal may be one over the bounds: a tenant whose other calls are all held does not lose its leases. [LEASE-4]

A call for which there is room costs two counts, no task and no turn of the event loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from holdfast.budgets import TenantUsage, usage_of
from holdfast.core.errors import StoreBusy
from holdfast.extensions import Pooled
from holdfast.store import Store

A = TypeVar("A")

WAIT_S = 5.0
"""A call that waits longer than this is refused."""

_CALLS = (
    "enqueue", "claim", "finish", "report", "cancel", "replay", "purge", "set_result_ttl", "get", "list", "stats",
    "queue_page", "events", "set_reader", "drop_reader", "readers", "pause", "set_tenant", "tenant_settings", "usage",
    "workers", "worker_page",
)  # fmt: skip
_RENEWALS = ("extend", "beat")


class CallsExhausted(StoreBusy):
    """A tenant's calls were under way for too long to begin another. The store was not asked."""


class Calls:
    """Counts the calls under way at a store: `limit` of all tenants, half of it of one, and one more for renewals."""

    def __init__(self, limit: int, wait_s: float = WAIT_S) -> None:
        self.under_way: dict[str, int] = {}
        """By tenant; without those that have none."""
        self.total = 0
        self._limit = limit
        self._share = max(1, limit // 2)
        self._wait_s = wait_s
        self._waiting: dict[tuple[str, int], dict[asyncio.Future[None], None]] = {}

    @property
    def waiting(self) -> int:
        """How many calls wait."""
        return sum(map(len, self._waiting.values()))

    async def run(self, tenant: str, extra: int, call: Callable[..., Awaitable[A]], /, *args: Any, **named: Any) -> A:
        """Make a call of a tenant, `extra` over the bounds. Raises CallsExhausted if it was not its turn in time."""
        if self._has_room(tenant, extra):
            self._count(tenant)
        else:
            await self._turn(tenant, extra)
        try:
            return await call(*args, **named)
        finally:
            self._end(tenant)

    def _has_room(self, tenant: str, extra: int) -> bool:
        return self.total < self._limit + extra and self.under_way.get(tenant, 0) < self._share + extra

    def _count(self, tenant: str) -> None:
        self.total += 1
        self.under_way[tenant] = self.under_way.get(tenant, 0) + 1

    async def _turn(self, tenant: str, extra: int) -> None:
        """Wait for a turn, which is counted when it is given."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line = self._waiting.setdefault((tenant, extra), {})
        line[turn] = None
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._end(tenant)  # The turn came in the same moment as the end of the wait.
            line.pop(turn, None)
            if not line and self._waiting.get((tenant, extra)) is line:
                del self._waiting[tenant, extra]
            if isinstance(error, TimeoutError):
                reason = f"{self._share} calls of this tenant, or {self._limit} of all, were under way"
                raise CallsExhausted(f"{reason} for {self._wait_s:g} s; raise `connections` in its URL") from None
            raise

    def _end(self, tenant: str) -> None:
        self.total -= 1
        left = self.under_way[tenant] - 1
        if left:
            self.under_way[tenant] = left
        else:
            del self.under_way[tenant]
        while self._waiting and self._give_turn():
            pass

    def _give_turn(self) -> bool:
        """Give a turn to a renewal, or to the tenant with the fewest calls under way; in rotation where they are equal.

        A look at each tenant that waits: they are no more than the service has connections.
        """
        ready = (one for one in self._waiting if self._has_room(*one))
        chosen = min(ready, key=lambda one: (-one[1], self.under_way.get(one[0], 0)), default=None)
        if chosen is None:
            return False
        line = self._waiting.pop(chosen)
        turn = next(iter(line))
        del line[turn]
        if line:
            self._waiting[chosen] = line
        if not turn.done():  # Else its wait has just ended, in this turn of the event loop.
            self._count(chosen[0])
            turn.set_result(None)
        return True


def fair(store: Store) -> Store:
    """The same store, whose calls go in turns between tenants; itself where calls need no connection."""
    if not isinstance(store, Pooled):
        return store
    # One connection is left for what the service itself reads and keeps up.
    return cast("Store", _Fair(store, Calls(max(1, store.calls_at_once - 1))))


class _Fair:
    def __init__(self, store: Store, calls: Calls) -> None:
        self.calls = calls
        self._store = store
        for name in (*_CALLS, *_RENEWALS):
            setattr(self, name, _in_turn(calls, getattr(store, name), int(name in _RENEWALS)))

    async def tenant_usage(self, tenant: str) -> TenantUsage:
        """As one call, though it reads several times."""
        return await self.calls.run(tenant, 0, usage_of, self._store, tenant)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _in_turn(calls: Calls, call: Callable[..., Awaitable[Any]], extra: int) -> Callable[..., Awaitable[Any]]:
    first = next(iter(inspect.signature(call).parameters))

    def run(*args: Any, **named: Any) -> Awaitable[Any]:
        tenant = _tenant_of(args[0] if args else named[first])
        return call(*args, **named) if tenant is None else calls.run(tenant, extra, call, *args, **named)

    return run


def _tenant_of(subject: Any) -> str | None:
    """The tenant that a call's first argument is, or is of, or whose the first of its items is; None: no tenant's."""
    if subject is None or isinstance(subject, str):
        return subject
    if isinstance(subject, list | tuple):
        if not subject:
            return None
        subject = cast("Any", subject[0])
    return getattr(subject, "key", subject).tenant
