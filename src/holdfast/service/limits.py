"""How many requests a token or a tenant may make, and how many bad tokens may come from one address."""

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
"""What was not used is kept for so long."""
REMEMBERED = 10_000
_V6_NETWORK = 64
"""The part of an address in IPv6 that is given out as a whole: one host may have all the rest."""


class _Buckets(Generic[K]):
    """A bucket for each key, which fills at a rate and holds what comes together in `BURST_S`. A rate of 0 is none."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._levels: dict[K, tuple[float, float]] = {}

    def wait_s(self, key: K, rate: float) -> int:
        """How long to wait until there is enough for one; 0: there is."""
        if rate <= 0:
            return 0
        level = self._level(key, rate)
        return math.ceil((1.0 - level) / rate) if level < 1.0 else 0

    def take(self, key: K, rate: float, amount: int = 1) -> None:
        """Take so many out: more than there are is a debt, which is paid by waiting."""
        if rate <= 0:
            return
        level = self._level(key, rate) - amount
        self._levels.pop(key, None)
        if len(self._levels) >= REMEMBERED:
            # The one that has not been here for longest has a full bucket, or nearly.
            del self._levels[next(iter(self._levels))]
        self._levels[key] = (level, self._clock())

    def _level(self, key: K, rate: float) -> float:
        most = max(1.0, rate * BURST_S)
        now = self._clock()
        level, at = self._levels.get(key, (most, now))
        return min(most, level + (now - at) * rate)


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

    def take(self, digest: bytes) -> None:
        """Count one request."""
        self._buckets.take(digest, self._rate)


class TenantRates:
    """Requests, or changes, of a tenant, whatever token or address they come with. [TENANT-5]"""

    def __init__(
        self, budget: str, thing: str, rate_of: Callable[[str], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._budget = budget
        self._thing = thing
        self.rate_of = rate_of
        """What a tenant may make in a second; 0: any number."""
        self._buckets: _Buckets[str] = _Buckets(clock)

    def is_exhausted(self, tenant: str) -> bool:
        """Whether there is no room for one."""
        return self._buckets.wait_s(tenant, self.rate_of(tenant)) > 0

    def check(self, tenant: str) -> None:
        """Raise a refusal that says when to retry, unless there is room for one."""
        rate = self.rate_of(tenant)
        wait_s = self._buckets.wait_s(tenant, rate)
        if wait_s:
            detail = f"{self._budget}: this tenant may make {rate} {self._thing} per second in each process"
            raise _limited(detail, wait_s, self._budget)

    def take(self, tenant: str, amount: int = 1) -> None:
        """Count so many."""
        self._buckets.take(tenant, self.rate_of(tenant), amount)


class BadTokens:
    """Tokens that were refused, by the address they came from. Who has sent too many waits before one is checked."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._buckets: _Buckets[str] = _Buckets(clock)

    def check(self, address: str) -> None:
        """Raise a refusal that says when to come again, if too many came from there."""
        wait_s = self._buckets.wait_s(host(address), self._rate)
        if wait_s:
            raise _limited("too many tokens from this address were not accepted", wait_s)

    def count(self, address: str) -> None:
        """One more, unless they wait already."""
        if not self._buckets.wait_s(host(address), self._rate):
            self._buckets.take(host(address), self._rate)


@lru_cache(REMEMBERED)
def host(address: str) -> str:
    """Who it is: in IPv6 a network. What is no address is ""."""
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
