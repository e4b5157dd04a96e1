"""Counts what is in use: by the process, by each tenant, by each address.

There is an account for bytes in flight, one for connections, one for waiting requests and one for event streams. Over
the limit of the process, requests are refused with 503; over the share of a tenant or an address, with 429. Both have
Retry-After.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from types import TracebackType
from typing import Literal, Self

from holdfast.service.errors import Refusal
from holdfast.service.limits import MAX_KEYS, host

Part = tuple[Literal["tenant", "address"], str]
"""Whose use is counted beside that of the process."""


class Shares:
    """One account. A limit of 0 means no limit."""

    def __init__(
        self,
        thing: str,
        *,
        process: int = 0,
        tenant: int | Callable[[str], int] = 0,
        address: int = 0,
        full: str = "overloaded",
        budget: str = "",
    ) -> None:
        self.used = self.peak = 0
        self._thing = thing
        self._process = process
        self._tenant = tenant
        self._address = address
        self._full = full
        self._budget = budget
        """The name of the tenant's budget, if an operator can set it."""
        self._used: dict[Part, int] = {}

    def hold(self, tenant: str = "", address: str = "") -> Hold:
        """The part of one request or connection. "" means no tenant, or no address."""
        return Hold(self, tenant, host(address))

    def check(self, amount: int, parts: Iterable[Part]) -> None:
        """Raise a refusal if `amount` more would exceed a limit."""
        for part in parts:
            limit = self._limit(part)
            if limit and self._used.get(part, 0) + amount > limit:
                budget = self._budget if part[0] == "tenant" else ""
                named = f"{budget}: " if budget else ""
                detail = f"{named}{self._thing} of this {part[0]}: the limit is {limit}; try again later"
                raise Refusal("share_exceeded", detail, budget=budget)
        if self._process and self.used + amount > self._process:
            raise Refusal(self._full, f"{self._thing} of this service: the limit is {self._process}; try again later")

    def room(self, parts: Iterable[Part]) -> int:
        """How much more fits; a very large number if there is no limit."""
        room = self._process - self.used if self._process else 2**62
        for part in parts:
            limit = self._limit(part)
            if limit:
                room = min(room, limit - self._used.get(part, 0))
        return max(0, room)

    def used_by(self, tenant: str) -> int:
        """How much a tenant uses."""
        return self._used.get(("tenant", tenant), 0)

    def limit_of(self, tenant: str) -> int:
        """The limit of a tenant; 0: no limit."""
        return self._limit(("tenant", tenant))

    def _limit(self, part: Part) -> int:
        if part[0] == "address":
            return self._address
        return self._tenant if isinstance(self._tenant, int) else self._tenant(part[1])

    def count(self, amount: int, parts: Iterable[Part]) -> None:
        """Add `amount`, which may be negative."""
        self.used += amount
        self.peak = max(self.peak, self.used)
        for part in parts:
            now = self._used.get(part, 0) + amount
            if now:
                self._used[part] = now
            else:
                del self._used[part]


class Hold:
    """The use of one request or connection. The end of `with` returns it."""

    __slots__ = ("_address", "_amount", "_parts", "_shares", "_tenant")

    def __init__(self, shares: Shares, tenant: str, address: str) -> None:
        self._shares = shares
        self._tenant = tenant
        self._address = address
        self._parts = _parts(tenant, address)
        self._amount = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.resize(0)

    def check(self) -> None:
        """Raise a refusal if there is no room at all."""
        self._shares.check(1, self._parts)

    def room(self) -> int:
        """How much more fits."""
        return self._shares.room(self._parts)

    def take(self, amount: int) -> None:
        """Use `amount` more. Raises a refusal, and then changes nothing."""
        self._shares.check(amount, self._parts)
        self.resize(self._amount + amount)

    def resize(self, amount: int) -> None:
        """Set the use to `amount`, without a check of the limits."""
        if amount != self._amount:
            self._shares.count(amount - self._amount, self._parts)
            self._amount = amount

    def move(self, tenant: str) -> None:
        """Move the use to a tenant; "": to none. Raises a refusal, and then no tenant has it."""
        if tenant == self._tenant:
            return
        amount = self._amount
        self.resize(0)
        self._belong("")
        try:
            self._shares.check(amount, _parts(tenant, ""))
            self._belong(tenant)
        finally:
            self.resize(amount)

    def _belong(self, tenant: str) -> None:
        self._tenant = tenant
        self._parts = _parts(tenant, self._address)


@lru_cache(MAX_KEYS)
def _parts(tenant: str, address: str) -> tuple[Part, ...]:
    parts: tuple[Part, Part] = ("tenant", tenant), ("address", address)
    return tuple(part for part in parts if part[1])
