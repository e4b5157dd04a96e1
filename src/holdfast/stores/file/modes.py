"""The access to the files of a store: for their owner, or for the group as well (`?group=1`), whatever the umask.

Another user with access could read payloads, and could hold the lock and so stop every writer.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

FOR_OWNER, FOR_GROUP = 0o600, 0o660
_GROUPS_PART = FOR_GROUP & ~FOR_OWNER


def make_directory(path: Path, *, group: bool) -> None:
    """Create a directory. One that exists is left as it is."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    if group:
        path.chmod(0o770)


def open_file(path: Path, *, group: bool) -> int:
    """A descriptor of a file, which is created if it is missing."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FOR_OWNER)
    if group:
        # A file that another member of the group created already has the right mode.
        with contextlib.suppress(PermissionError):
            os.fchmod(descriptor, FOR_GROUP)
    return descriptor


def make_fifo(path: Path, *, group: bool) -> None:
    """Create a FIFO."""
    os.mkfifo(path, FOR_OWNER)
    if group:
        path.chmod(FOR_GROUP)


def is_shared(database: Path) -> bool:
    """Whether a group shares this database. Later files get the same access."""
    with contextlib.suppress(FileNotFoundError):
        return database.stat().st_mode & _GROUPS_PART == _GROUPS_PART
    return False


def too_wide(directory: Path, *, group: bool) -> list[Path]:
    """The files that other users have access to."""
    wide = 0o007 if group else 0o077
    places = [directory, *directory.rglob("*")]
    return [place for place in places if (mode := _mode(place)) is not None and mode & wide]


def _mode(place: Path) -> int | None:
    """The mode, or None if the file is gone: FIFOs come and go."""
    try:
        return stat.S_IMODE(place.lstat().st_mode)
    except FileNotFoundError:
        return None
