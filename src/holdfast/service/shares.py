"""Counts what is in use: by the process, by each tenant, by each address.

There is an account for bytes in flight, one for connections, one for waiting requests and one for event streams. Over
the limit of the process, requests are refused with 503; over the share of a tenant or an address, with 429. Both have
Retry-After.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from holdfast.service.errors import Refusal
from holdfast.service.limits import host


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
        self._parts: dict[tuple[str, str], int] = {}

    def hold(self, tenant: str = "", address: str = "") -> Hold:
        """The part of one request or connection. "" means no tenant, or no address."""
        return Hold(self, tenant, host(address))

    def check(self, amount: int, tenant: str, address: str) -> None:
        """Raise a refusal if `amount` more would exceed a limit."""
        for kind, name in (("tenant", tenant), ("address", address)):
            limit = self._limit(kind, name)
            if limit and self._parts.get((kind, name), 0) + amount > limit:
                budget = self._budget if kind == "tenant" else ""
                named = f"{budget}: " if budget else ""
                detail = f"{named}{self._thing} of this {kind}: the limit is {limit}; try again later"
                raise Refusal("share_exceeded", detail, budget=budget)
        if self._process and self.used + amount > self._process:
            raise Refusal(self._full, f"{self._thing} of this service: the limit is {self._process}; try again later")

    def room(self, tenant: str, address: str) -> int:
        """How much more fits; a very large number if there is no limit."""
        left = [self._process - self.used] if self._process else []
        for kind, name in (("tenant", tenant), ("address", address)):
            limit = self._limit(kind, name)
            if limit:
                left.append(limit - self._parts.get((kind, name), 0))
        return max(0, min(left, default=2**62))

    def used_by(self, tenant: str) -> int:
        """How much a tenant uses."""
        return self._parts.get(("tenant", tenant), 0)

    def limit_of(self, tenant: str) -> int:
        """The limit of a tenant; 0: no limit."""
        return self._limit("tenant", tenant)

    def _limit(self, kind: str, name: str) -> int:
        if not name or kind == "address":
            return self._address if name else 0
        return self._tenant if isinstance(self._tenant, int) else self._tenant(name)

    def count(self, amount: int, tenant: str, address: str) -> None:
        """Add `amount`, which may be negative."""
        self.used += amount
        self.peak = max(self.peak, self.used)
        for part in (("tenant", tenant), ("address", address)):
            if part[1]:
                now = self._parts.get(part, 0) + amount
                if now:
                    self._parts[part] = now
                else:
                    del self._parts[part]


class Hold:
    """The use of one request or connection. The end of `with` returns it."""

    def __init__(self, shares: Shares, tenant: str, address: str) -> None:
        self._shares = shares
        self._tenant = tenant
        self._address = address
        self._amount = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.resize(0)

    def check(self) -> None:
        """Raise a refusal if there is no room at all."""
        self._shares.check(1, self._tenant, self._address)

    def room(self) -> int:
        """How much more fits."""
        return self._shares.room(self._tenant, self._address)

    def take(self, amount: int) -> None:
        """Use `amount` more. Raises a refusal, and then changes nothing."""
        self._shares.check(amount, self._tenant, self._address)
        self.resize(self._amount + amount)

    def resize(self, amount: int) -> None:
        """Set the use to `amount`, without a check of the limits."""
        if amount != self._amount:
            self._shares.count(amount - self._amount, self._tenant, self._address)
            self._amount = amount

    def move(self, tenant: str) -> None:
        """Move the use to a tenant; "": to none. Raises a refusal, and then no tenant has it."""
        if tenant == self._tenant:
            return
        amount = self._amount
        self.resize(0)
        self._tenant = ""
        try:
            self._shares.check(amount, tenant, "")
            self._tenant = tenant
        finally:
            self.resize(amount)
