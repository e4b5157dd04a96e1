"""The write-ahead log is made longer ahead of need, so that single commits overwrite what is there.

To flush a file that grew, the file system has to write its size and where its new blocks are, and waits for its own
journal: several times what it takes to flush blocks that it has. Zeros are no frame to SQLite, as no page has the
number 0: it ends reading there, as it does at the frames that are left over when it begins the log anew.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

STEP = 1 << 20
"""The log is made longer up to a multiple of this: where it ends at another place, SQLite has made it longer."""
MIN_SIZE = 128 << 10
"""A shorter log is left alone: most programs that write so little end soon."""
MAX_SIZE = 64 << 20
"""So is a longer one, which some reader keeps from being begun anew."""
SINGLE = 64 << 10
"""A commit that adds more than this is a batch: its flush costs each job little."""


_flush: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)  # macOS has the latter alone.


class WalExtender:
    """The log of one open database. Belongs to the thread that writes."""

    def __init__(self, path: Path) -> None:
        self._path = f"{path}-wal"
        self._size = 0
        self._inode = (0, 0)

    def is_short(self) -> bool:
        """Whether the last commit was a small one and had to make the log longer. After each that went through."""
        try:
            found = os.stat(self._path)  # noqa: PTH116 - after every commit
        except OSError:
            return False
        grew, self._size = found.st_size - self._size, found.st_size
        self._inode = (found.st_dev, found.st_ino)
        return grew <= SINGLE and _has_grown(self._size)

    def extend(self) -> None:
        """Add zeros, and put them on the disk. Only for who holds SQLite's own lock for writing."""
        # It must be SQLite's: whoever has that alone can know that no frame is being written where the zeros go.
        # A log without a lock of its own can be opened and closed, unlike the database (see database.py).
        with contextlib.suppress(OSError):  # A full disk, or a limit: then the log grows by itself, or cannot.
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                found = os.fstat(descriptor)
                size = found.st_size
                # One of another store's, if the directory was made anew, is not ours to write to.
                if _has_grown(size) and (found.st_dev, found.st_ino) == self._inode:
                    os.pwrite(descriptor, bytes(STEP - size % STEP), size)
                    _flush(descriptor)
                    self._size = os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)


def _has_grown(size: int) -> bool:
    return MIN_SIZE <= size < MAX_SIZE and size % STEP != 0
