"""The directory of a demo, emptied before each run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Generator
from pathlib import Path
from urllib.parse import quote

MARK = "demo.lock"


class NotOurs(Exception):
    """The directory is in use, or holds something other than a demo."""


@contextlib.contextmanager
def fresh(directory: Path) -> Generator[None]:
    """Empty a directory of an earlier demo, and lock it during the block. Raises NotOurs, and then changes nothing."""
    if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
        raise NotOurs(f"{directory} is not a directory; choose another with --dir")
    mark = directory / MARK
    if directory.exists() and any(directory.iterdir()) and not mark.is_file():
        raise NotOurs(f"{directory} holds something other than a demo and was not changed; choose another with --dir")
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotOurs(
                f"another demo is running in {directory}; wait for it, or choose another with --dir"
            ) from None
        for path in directory.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path != mark:
                path.unlink()
        yield
    finally:
        os.close(descriptor)


def store_url(directory: Path) -> str:
    """The URL of the file store in `directory`, in its shortest form."""
    text = str(directory) if directory.is_absolute() else f"./{directory}"
    return f"file:{quote(text)}"
