"""Numbers that grow: the sequence numbers of jobs, and tokens. [LEASE-5]

They follow read versions: later transactions get larger numbers, and there is no key that every transaction writes.
A process gives no number twice. Numbers of different processes mostly differ in their last digit. If not, the id and
the last token of a job make them unique for the job.
"""

from __future__ import annotations

import threading
from random import randrange

STEP = 8
_DIGIT = randrange(STEP)  # noqa: S311 - no secret
"""The last digit of this process."""

_lock = threading.Lock()
_last: dict[str, int] = {}


def take(place: str, version: int, count: int) -> range:
    """`count` numbers for a transaction with this read version, of a store that is known by `place`."""
    with _lock:
        first = max(version, _last.get(place, 0) + 1)
        _last[place] = first + count - 1
    return range(first * STEP + _DIGIT, (first + count) * STEP + _DIGIT, STEP)
