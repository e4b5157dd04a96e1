"""The store clock. [TIME-1]"""

from __future__ import annotations

import time


class Clock:
    """The wall clock at creation plus monotonic time: it never jumps. A frozen one changes only by `shift`."""

    def __init__(self, *, frozen: bool) -> None:
        self._frozen = frozen
        self._started_at = time.time_ns() // 1_000_000
        self._epoch = self._started_at - time.monotonic_ns() // 1_000_000
        self.shift = 0
        """Milliseconds that tests have added."""

    def now(self) -> int:
        """Milliseconds since 1970."""
        if self._frozen:
            return self._started_at + self.shift
        return self._epoch + time.monotonic_ns() // 1_000_000 + self.shift
