"""Generated ids: UUIDs of version 7, so they sort by time; within a process each is greater than the last. [ENQ-2]"""

from __future__ import annotations

import os
import secrets
import threading
import time

_COUNTER_LIMIT = 1 << 26
_lock = threading.Lock()


class _Clock:
    """Milliseconds, then 26 bits that count within one, then 48 bits that are this process's own."""

    def __init__(self) -> None:
        self.ms = 0
        self.counter = 0
        self.prefix = ""
        self.suffix = secrets.token_hex(6)

    def next(self) -> str:
        ms = time.time_ns() // 1_000_000
        with _lock:
            counter = self.counter = self.counter + 1
            # A clock that was set back changes nothing: the old millisecond goes on counting.
            if ms > self.ms or counter == _COUNTER_LIMIT:
                self.ms = max(ms, self.ms + 1)
                counter = self.counter = 0
                text = f"{self.ms:012x}"
                self.prefix = f"{text[:8]}-{text[8:]}-7"
            return f"{self.prefix}{counter >> 14:03x}-{0x8000 | counter & 0x3FFF:04x}-{self.suffix}"


_clock = _Clock()


def new_id() -> str:
    """A fresh id. Safe from any thread."""
    return _clock.next()


def _after_fork() -> None:
    global _clock, _lock  # noqa: PLW0603 - a child process must not repeat its parent's ids
    _lock = threading.Lock()
    _clock = _Clock()


os.register_at_fork(after_in_child=_after_fork)
