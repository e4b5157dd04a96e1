"""When to try again after a failed attempt. [RETRY-3]"""

from __future__ import annotations

from holdfast.core.errors import InvalidOption
from holdfast.core.job import DAY, Backoff

# Spreads one random number over a batch: multiples of this constant, modulo 1, are far apart.
_GOLDEN = 0.6180339887498949
_MAX_FACTOR = 100


def delay_ms(backoff: Backoff, attempt: int, random: float) -> int:
    """The wait after failed attempt number `attempt`: min(cap, base * factor^(n-1)), with jitter.

    `random` in [0, 1) comes from the caller, so equal inputs give equal delays on every store.
    """
    full = min(float(backoff.cap_ms), backoff.base_ms * backoff.factor ** (attempt - 1))
    if backoff.jitter == "none":
        return int(full)
    if backoff.jitter == "equal":
        return int(full / 2 + full / 2 * random)
    return int(full * random)


def spread(random: float, place: int) -> float:
    """The random number for job `place` (from 0) of a batch that has one random number."""
    return (random + place * _GOLDEN) % 1.0


def check_backoff(backoff: Backoff) -> Backoff:
    """Return `backoff` if its numbers are in range for every store. Raises InvalidOption."""
    if not 0 <= backoff.base_ms <= 30 * DAY:
        raise InvalidOption("retry.base", "must be from 0 to 30 days")
    if not 1 <= backoff.factor <= _MAX_FACTOR:
        raise InvalidOption("retry.factor", "must be from 1 to 100")
    if not 0 <= backoff.cap_ms <= 365 * DAY:
        raise InvalidOption("retry.cap", "must be from 0 to 365 days")
    if backoff.jitter not in ("full", "equal", "none"):
        raise InvalidOption("retry.jitter", f"{backoff.jitter!r} is not 'full', 'equal' or 'none'")
    return backoff
