"""The clock that leases are measured with. [LEASE-4]"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from functools import partial

LOOK_S = 1.0
"""The longest sleep of a process with a lease: timers stop while the machine is suspended, leases do not."""


def _counting_suspend() -> Callable[[], float]:
    """A monotonic clock that counts time in suspend, if the platform has one."""
    clock: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    if clock is None and sys.platform == "darwin":
        # On macOS CLOCK_MONOTONIC counts sleep; time.monotonic() is mach_absolute_time(), which does not.
        clock = getattr(time, "CLOCK_MONOTONIC", None)
    if clock is not None:
        with contextlib.suppress(OSError):  # A kernel without it.
            time.clock_gettime(clock)
            return partial(time.clock_gettime, clock)
    return time.monotonic


boot_time = _counting_suspend()
"""Seconds since some moment in the past. A lease that expired during a suspend is over at the resume."""
