"""Settings of the garbage collector for a process that only runs jobs."""

from __future__ import annotations

import gc

YOUNG = 20_000
"""The number of new objects before a collection. Python's default is 700."""


def collect_seldom() -> None:
    """Freeze the objects that exist now, and collect less often: the worker leaves no cycles behind.

    With Python's defaults, collection takes up to a fifth of the time of short jobs. Only programs should call this,
    as it changes the whole process.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 50, 100)
