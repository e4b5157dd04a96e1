"""Numbers that grow: the sequence numbers of jobs, and tokens. [LEASE-5]

They follow read versions, so that no key is written by every transaction, and a later transaction has larger ones.
Within a process none is given twice. Those of different processes differ in their last digit, mostly: for a job, its id
and its last token make them unique.
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
