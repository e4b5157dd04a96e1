"""Extends the write-ahead log in advance, so that single commits overwrite existing blocks.

To flush a file that has grown, the file system writes its size and its new blocks, and waits for its own journal. That
takes several times as long as flushing existing blocks. SQLite does not read zeros as a frame, because no page has the
number 0: it stops reading there, as it does at old frames after it restarts the log.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

STEP = 1 << 20
"""The log is extended to a multiple of this. A log of another length was extended by SQLite."""
MIN_SIZE = 128 << 10
"""A shorter log is not extended: most programs that write so little end soon."""
MAX_SIZE = 64 << 20
"""A longer log is not extended: a reader prevents SQLite from restarting it."""
SINGLE = 64 << 10
"""A commit that adds more than this is a batch: its flush costs little per job."""


_flush: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)  # macOS has only the latter.


class WalExtender:
    """The log of one open database. Belongs to the writer thread."""

    def __init__(self, path: Path) -> None:
        self._path = f"{path}-wal"
        self._size = 0
        self._inode = (0, 0)

    def is_short(self) -> bool:
        """Whether the last commit was small and extended the log. Call it after each successful commit."""
        try:
            found = os.stat(self._path)  # noqa: PTH116 - after every commit
        except OSError:
            return False
        grew, self._size = found.st_size - self._size, found.st_size
        self._inode = (found.st_dev, found.st_ino)
        return grew <= SINGLE and _has_grown(self._size)

    def extend(self) -> None:
        """Add zeros, and flush them. The caller must hold SQLite's own write lock."""
        # Only SQLite's own lock guarantees that no frame is being written where the zeros go.
        # The log carries no lock, so it can be opened and closed, unlike the database (see database.py).
        with contextlib.suppress(OSError):  # A full disk or a limit: SQLite extends the log itself, or fails.
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                found = os.fstat(descriptor)
                size = found.st_size
                # If the directory was replaced, this is the log of another store: do not write to it.
                if _has_grown(size) and (found.st_dev, found.st_ino) == self._inode:
                    os.pwrite(descriptor, bytes(STEP - size % STEP), size)
                    _flush(descriptor)
                    self._size = os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)


def _has_grown(size: int) -> bool:
    return MIN_SIZE <= size < MAX_SIZE and size % STEP != 0
