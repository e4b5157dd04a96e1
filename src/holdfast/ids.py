"""Generated ids: UUIDs of version 7, which sort by time; in one process each is greater than the last. [ENQ-2]"""

from __future__ import annotations

import os
import secrets
import threading
import time

_LOW = 1 << 14
_HIGH = 1 << 12


class Ids:
    """Milliseconds, then 26 bits that count within one, then 48 bits that are this process's own."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Start again, as another process."""
        self._lock = threading.Lock()
        self._ms = 0
        self._high = 0
        self._low = 0
        self._prefix = ""
        self._suffix = f"-{secrets.token_hex(6)}"

    def next(self) -> str:
        """A fresh id. Safe from any thread."""
        ms = time.time_ns() // 1_000_000
        with self._lock:
            low = self._low = self._low + 1
            # If the clock was set back, keep counting in the old millisecond.
            if ms > self._ms or low == _LOW:
                self._turn(ms)
                low = 0
            return f"{self._prefix}{0x8000 | low:04x}{self._suffix}"

    def _turn(self, ms: int) -> None:
        self._low = 0
        self._high = 0 if ms > self._ms else self._high + 1
        self._ms = max(ms, self._ms)
        if self._high == _HIGH:
            self._ms, self._high = self._ms + 1, 0
        text = f"{self._ms:012x}"
        self._prefix = f"{text[:8]}-{text[8:]}-7{self._high:03x}-"


_ids = Ids()
new_id = _ids.next
# A child process must not repeat its parent's ids.
os.register_at_fork(after_in_child=_ids.renew)
