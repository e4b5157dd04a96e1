"""Calls to the store, fair between tenants. [TENANT-4]

A store that is a server has a small pool of connections. The calls of one tenant use at most half of them; its other
calls wait here. When a call ends, the tenant with the fewest calls in flight is next. Renewals may exceed both limits
by one, so that a tenant whose other calls are all blocked keeps its leases. [LEASE-4]

A job that another program's open transaction blocks is refused alone: see `enqueue`.

While there is room, a call only changes two counts: it needs no task and no turn of the event loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

from holdfast.budgets import TenantUsage, usage_of
from holdfast.core.errors import HoldfastError, StoreBusy
from holdfast.core.job import JobKey, NewJob
from holdfast.extensions import Pooled
from holdfast.store import EnqueueAnswer, Store

A = TypeVar("A")

WAIT_S = 5.0
"""A call that waits longer is refused."""

_CALLS = (
    "claim", "finish", "report", "cancel", "replay", "purge", "set_result_ttl", "get", "list", "standing", "stats",
    "queue_page", "events", "set_reader", "drop_reader", "readers", "pause", "set_tenant", "tenant_settings", "usage",
    "workers", "worker_page",
)  # fmt: skip
_RENEWALS = ("extend", "beat")


class CallsExhausted(StoreBusy):
    """A call waited too long for others in flight. It did not reach the store."""


class Calls:
    """Counts the calls in flight: `limit` for all tenants, half of it for one, and one more for renewals."""

    def __init__(self, limit: int, wait_s: float = WAIT_S) -> None:
        self.in_flight: dict[str, int] = {}
        """Calls in flight by tenant."""
        self.total = 0
        self._limit = limit
        self._share = max(1, limit // 2)
        self._wait_s = wait_s
        self._waiting: dict[tuple[str, int], dict[asyncio.Future[None], None]] = {}

    @property
    def waiting(self) -> int:
        """The number of waiting calls."""
        return sum(map(len, self._waiting.values()))

    async def run(self, tenant: str, extra: int, call: Callable[..., Awaitable[A]], /, *args: Any, **named: Any) -> A:
        """Make a call for a tenant, up to `extra` over the limits. Raises CallsExhausted after too long a wait."""
        if self._has_room(tenant, extra):
            self._count(tenant)
        else:
            await self._turn(tenant, extra)
        try:
            return await call(*args, **named)
        finally:
            self._end(tenant)

    def _has_room(self, tenant: str, extra: int) -> bool:
        return self.total < self._limit + extra and self.in_flight.get(tenant, 0) < self._share + extra

    def _count(self, tenant: str) -> None:
        self.total += 1
        self.in_flight[tenant] = self.in_flight.get(tenant, 0) + 1

    async def _turn(self, tenant: str, extra: int) -> None:
        """Wait for a turn. It counts from the moment when it is given."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault((tenant, extra), {})
        waiting[turn] = None
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._end(tenant)  # The turn was given as the wait ended.
            waiting.pop(turn, None)
            if not waiting and self._waiting.get((tenant, extra)) is waiting:
                del self._waiting[tenant, extra]
            if isinstance(error, TimeoutError):
                reason = f"{self._share} calls of this tenant, or {self._limit} of all tenants, were in flight"
                raise CallsExhausted(f"{reason} for {self._wait_s:g} s; raise `connections` in its URL") from None
            raise

    def _end(self, tenant: str) -> None:
        self.total -= 1
        left = self.in_flight[tenant] - 1
        if left:
            self.in_flight[tenant] = left
        else:
            del self.in_flight[tenant]
        while self._waiting and self._give_turn():
            pass

    def _give_turn(self) -> bool:
        """Give a turn to a renewal, else to the tenant with the fewest calls in flight, in rotation among equals.

        This looks at every waiting tenant. There are at most as many of them as connections to the service.
        """
        ready = (one for one in self._waiting if self._has_room(*one))
        chosen = min(ready, key=lambda one: (-one[1], self.in_flight.get(one[0], 0)), default=None)
        if chosen is None:
            return False
        waiting = self._waiting.pop(chosen)
        turn = next(iter(waiting))
        del waiting[turn]
        if waiting:
            self._waiting[chosen] = waiting
        if not turn.done():  # Else its wait has just ended.
            self._count(chosen[0])
            turn.set_result(None)
        return True


def fair(store: Store) -> Store:
    """A store with fair calls. Returns the store itself if its calls need no connection."""
    if not isinstance(store, Pooled):
        return store
    # One connection stays free for the service's own reads and maintenance.
    return cast("Store", _Fair(store, Calls(max(1, store.calls_at_once - 1))))


class _Fair:
    def __init__(self, store: Store, calls: Calls) -> None:
        self.calls = calls
        self._store = store
        for name in (*_CALLS, *_RENEWALS):
            setattr(self, name, _in_turn(calls, getattr(store, name), int(name in _RENEWALS)))
        self._enqueue = _in_turn(calls, store.enqueue, 0)

    async def enqueue(self, items: Sequence[NewJob]) -> Sequence[EnqueueAnswer | HoldfastError]:
        """Of several jobs, those that an open transaction blocks are answered with StoreBusy. [ENQ-4, ENQ-7]"""
        try:
            return await self._enqueue(items)
        except CallsExhausted:
            raise
        except StoreBusy:
            if len(items) == 1:
                raise
            # Send each alone: those that were accepted are answered the same again. [ENQ-8]
            return await asyncio.gather(*map(self._enqueue_alone, items))

    async def _enqueue_alone(self, item: NewJob) -> EnqueueAnswer | HoldfastError:
        try:
            return (await self._enqueue([item]))[0]
        except HoldfastError as error:
            return error

    async def tenant_usage(self, tenant: str) -> TenantUsage:
        """Counts as one call, although it reads several times."""
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
    """The tenant of a call, by its first argument: a name, an item, or a list of items. None: no tenant's call."""
    if subject is None or isinstance(subject, str):
        return subject
    if isinstance(subject, list | tuple) and not isinstance(subject, JobKey):
        if not subject:
            return None
        subject = cast("Any", subject[0])
    return getattr(subject, "key", subject).tenant
