"""How many requests a token may make."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from holdfast.service.errors import Refusal

BURST_S = 2.0
"""What was not used is kept for so long."""
REMEMBERED = 10_000


class Rates:
    """A bucket for each token, which fills at the rate and holds what comes together in `BURST_S`."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._most = max(1.0, rate * BURST_S)
        self._clock = clock
        self._buckets: dict[bytes, tuple[float, float]] = {}

    def take(self, digest: bytes) -> None:
        """Count one request. Raises a refusal that says when to come again."""
        if self._rate <= 0:
            return
        now = self._clock()
        level, at = self._buckets.pop(digest, (self._most, now))
        level = min(self._most, level + (now - at) * self._rate)
        if len(self._buckets) >= REMEMBERED:
            # Who has not been here for longest has a full bucket, or nearly.
            del self._buckets[next(iter(self._buckets))]
        if level < 1.0:
            self._buckets[digest] = (level, now)
            wait_s = math.ceil((1.0 - level) / self._rate)
            detail = f"this token may make {self._rate:g} requests per second"
            raise Refusal("rate_limited", detail, {"retry-after": str(wait_s)})
        self._buckets[digest] = (level - 1.0, now)
