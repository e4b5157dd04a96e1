"""Numbers that grow: the sequence numbers of jobs, and lease tokens.

Sequence numbers follow read versions: later transactions get larger numbers, and there is no key that every transaction
writes. A process gives no number twice. Numbers of different processes mostly differ in their last digit. If not, the
ids of the jobs make them unique.

Tokens come from blocks of a counter. A handle takes a block in a transaction of its own, and no other one gives
any of its numbers. [LEASE-5]
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from random import randrange

STEP = 8
_DIGIT = randrange(STEP)  # noqa: S311 - no secret
"""The last digit of this process."""
BLOCK = 10_000
MAX_BY_VERSION = 1 << 52
"""Versions come so far in 17 years. From then on blocks follow the counter alone, so that they stay below 2^53."""

_lock = threading.Lock()
_last: dict[str, int] = {}


def take(place: str, version: int, count: int) -> range:
    """`count` numbers for a transaction with this read version, of a store that is known by `place`."""
    with _lock:
        first = max(version, _last.get(place, 0) + 1)
        _last[place] = first + count - 1
    return range(first * STEP + _DIGIT, (first + count) * STEP + _DIGIT, STEP)


def block(counter: int, version: int, count: int, above: int) -> range:
    """The block of tokens to take next: `count` at least, all larger than `above`.

    It begins at the counter, or further on at the version: so a counter that went back, because a backup was restored,
    gives no token a second time.
    """
    first = max(counter, min(version * STEP, MAX_BY_VERSION), above + 1)
    return range(first, first + max(count, BLOCK))


class LeaseTokens:
    """The lease tokens of one handle."""

    def __init__(self, take_block: Callable[[int, int], Awaitable[range]]) -> None:
        self._take_block = take_block
        self._block = range(0)

    async def take(self, count: int, above: int) -> range:
        """`count` tokens that were not given before, all larger than `above`."""
        while len(self._block) < count or self._block.start <= above:
            self._block = await self._take_block(count, above)
        taken, self._block = self._block[:count], self._block[count:]
        return taken
