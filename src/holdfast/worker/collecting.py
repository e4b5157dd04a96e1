"""The garbage collector in a process that does nothing but work."""

from __future__ import annotations

import gc

YOUNG = 20_000
"""How many new objects there may be before it looks for cycles among them; Python's own number is 700."""


def collect_seldom() -> None:
    """Leave alone what is loaded by now, and look at the rest more seldom: jobs leave no cycles behind.

    With Python's own numbers it takes up to a fifth of the time of short jobs. For programs, not for libraries: this is
    of the whole process.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 50, 100)
