"""Rates: requests of a token, requests and changes of a tenant, invalid tokens from one address."""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Generic, TypeVar

from holdfast.service.errors import Refusal

K = TypeVar("K", bound=Hashable)

BURST_S = 2.0
"""A bucket holds as much as its rate gives in this time."""
DEBT_S = 10.0
"""Requests that are never refused make a key wait for at most this time."""
MAX_KEYS = 10_000
_V6_NETWORK = 64
"""The prefix of an IPv6 network that one customer gets: one host may use all addresses in it."""


class _Buckets(Generic[K]):
    """A token bucket for each key. A rate of 0 means no limit."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._levels: dict[K, tuple[float, float]] = {}

    def wait_s(self, key: K, rate: float) -> int:
        """The time until there is room for one; 0: now."""
        return 0 if rate <= 0 else _wait_s(self._level(key, rate, self._clock()), rate)

    def admit(self, key: K, rate: float, amount: int) -> int:
        """Take `amount` if there is room for one. Else return the time until there is."""
        if rate <= 0:
            return 0
        now = self._clock()
        level = self._level(key, rate, now)
        if level >= 1.0:
            self._set(key, level - amount, now)
        return _wait_s(level, rate)

    def take(self, key: K, rate: float, amount: int = 1, *, max_debt_s: float = math.inf) -> None:
        """Take `amount`. The level may become negative: the key then waits until it is positive again.

        `max_debt_s` bounds that wait, for requests that are never refused: they must not lock a key out.
        """
        if rate <= 0:
            return
        now = self._clock()
        self._set(key, max(self._level(key, rate, now) - amount, min(0.0, 1.0 - rate * max_debt_s)), now)

    def _set(self, key: K, level: float, now: float) -> None:
        self._levels.pop(key, None)
        if len(self._levels) >= MAX_KEYS:
            # The least recently used one has a full bucket, or nearly.
            del self._levels[next(iter(self._levels))]
        self._levels[key] = (level, now)

    def _level(self, key: K, rate: float, now: float) -> float:
        full = max(1.0, rate * BURST_S)
        level, at = self._levels.get(key, (full, now))
        return min(full, level + (now - at) * rate)


class TokenRates:
    """Requests by token."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._buckets: _Buckets[bytes] = _Buckets(clock)

    def check(self, digest: bytes) -> None:
        """Raise a refusal that says when to retry, unless there is room for one request."""
        wait_s = self._buckets.wait_s(digest, self._rate)
        if wait_s:
            raise _limited(f"this token may make {self._rate:g} requests per second", wait_s)

    def is_exhausted(self, digest: bytes) -> bool:
        """Whether there is no room for one request."""
        return self._buckets.wait_s(digest, self._rate) > 0

    def take(self, digest: bytes) -> None:
        """Count one request."""
        self._buckets.take(digest, self._rate, max_debt_s=DEBT_S)


class TenantRates:
    """Requests or changes of a tenant, with any of its tokens and from any address. [TENANT-5]"""

    def __init__(
        self, budget: str, thing: str, rate_of: Callable[[str], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._budget = budget
        self._thing = thing
        self.rate_of = rate_of
        """The limit of a tenant per second; 0: no limit."""
        self._buckets: _Buckets[str] = _Buckets(clock)

    def is_exhausted(self, tenant: str) -> bool:
        """Whether there is no room for one."""
        return self._buckets.wait_s(tenant, self.rate_of(tenant)) > 0

    def admit(self, tenant: str, amount: int = 1) -> None:
        """Count `amount` if there is room for one. Else raise a refusal that says when to retry."""
        rate = self.rate_of(tenant)
        wait_s = self._buckets.admit(tenant, rate, amount)
        if wait_s:
            detail = f"{self._budget}: this tenant may make {rate} {self._thing} per second in each process"
            raise _limited(detail, wait_s, self._budget)

    def take(self, tenant: str, amount: int = 1, *, max_debt_s: float = math.inf) -> None:
        """Count `amount`, without a refusal."""
        self._buckets.take(tenant, self.rate_of(tenant), amount, max_debt_s=max_debt_s)


class BadTokens:
    """Invalid tokens by address. An address that sends too many must wait before the next one is checked."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._buckets: _Buckets[str] = _Buckets(clock)

    def check(self, address: str) -> None:
        """Raise a refusal that says when to retry, if the address sent too many."""
        wait_s = self._buckets.wait_s(host(address), self._rate)
        if wait_s:
            raise _limited("too many invalid tokens from this address", wait_s)

    def count(self, address: str) -> None:
        """Count one, unless the address must wait already."""
        if not self._buckets.wait_s(host(address), self._rate):
            self._buckets.take(host(address), self._rate)


def _wait_s(level: float, rate: float) -> int:
    return math.ceil((1.0 - level) / rate) if level < 1.0 else 0


@lru_cache(MAX_KEYS)
def host(address: str) -> str:
    """The client behind an address: in IPv6 its network. "" if the text is not an address."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return ""
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((int(ip), _V6_NETWORK), strict=False))


def _limited(detail: str, wait_s: int, budget: str = "") -> Refusal:
    return Refusal("rate_limited", detail, {"retry-after": str(wait_s)}, budget)
