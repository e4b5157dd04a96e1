"""How many requests a token may make, and how many bad tokens may come from one address."""

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
    """A bucket for each key, which fills at the rate and holds what comes together in `BURST_S`."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._most = max(1.0, rate * BURST_S)
        self._clock = clock
        self._levels: dict[K, tuple[float, float]] = {}

    def check(self, key: K, detail: str) -> None:
        """Raise a refusal that says when to come again, if there is not enough for one."""
        level = self._level(key)
        if self._rate > 0 and level < 1.0:
            wait_s = math.ceil((1.0 - level) / self._rate)
            raise Refusal("rate_limited", detail, {"retry-after": str(wait_s)})

    def take(self, key: K) -> None:
        """Take one out, if there is one."""
        if self._rate <= 0:
            return
        level = max(0.0, self._level(key) - 1.0)
        self._levels.pop(key, None)
        if len(self._levels) >= REMEMBERED:
            # Who has not been here for longest has a full bucket, or nearly.
            del self._levels[next(iter(self._levels))]
        self._levels[key] = (level, self._clock())

    def _level(self, key: K) -> float:
        now = self._clock()
        level, at = self._levels.get(key, (self._most, now))
        return min(self._most, level + (now - at) * self._rate)


class Rates:
    """Requests by token."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._buckets: _Buckets[bytes] = _Buckets(rate, clock)
        self._detail = f"this token may make {rate:g} requests per second"

    def take(self, digest: bytes) -> None:
        """Count one request. Raises a refusal that says when to come again."""
        self._buckets.check(digest, self._detail)
        self._buckets.take(digest)


class BadTokens:
    """Tokens that were refused, by the address they came from. Who has sent too many waits before one is checked."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._buckets: _Buckets[str] = _Buckets(rate, clock)

    def check(self, address: str) -> None:
        """Raise a refusal that says when to come again, if too many came from there."""
        self._buckets.check(host(address), "too many tokens from this address were not accepted")

    def count(self, address: str) -> None:
        """One more."""
        self._buckets.take(host(address))


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
