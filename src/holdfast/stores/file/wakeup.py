"""Hints between processes: each process that waits owns a FIFO in `DIR/wake`.

After a commit the writer sends one byte, the hints as bits, to every FIFO whose name asks for one of them. It never
blocks: a full FIFO already holds a byte that will be read, and one without a reader (ENXIO) is left over from a
process that is gone, and is unlinked.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Collection
from pathlib import Path

from holdfast.store import Hint

BITS = {hint: 1 << n for n, hint in enumerate((Hint.READY, Hint.DONE, Hint.CANCELED, Hint.EVENTS))}


def mask_of(hints: Collection[Hint]) -> int:
    """The hints as bits."""
    mask = 0
    for hint in hints:
        mask |= BITS[hint]
    return mask


class Ear:
    """The FIFO of one event loop. Its name says which hints it wants: `HEXMASK-UNIQUE`."""

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop, heard: Callable[[int], None]) -> None:
        self._folder = folder
        self._loop = loop
        self._heard = heard
        self._unique = f"{os.getpid()}-{secrets.token_hex(6)}"
        self.mask: int = 0
        folder.mkdir(exist_ok=True)
        self._path = self._named(0)
        os.mkfifo(self._path)
        # Opened for both ways: so it has a reader from the start, and never reads an end of file.
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        loop.add_reader(self._descriptor, self._read)

    def want(self, mask: int) -> None:
        """Ask for these hints from now on."""
        if mask != self.mask:
            path = self._named(mask)
            self._path.rename(path)
            self._path = path
            self.mask = mask

    def is_mine(self, name: str) -> bool:
        return name == self._path.name

    def close(self) -> None:
        """Stop listening. From any thread."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        if self._loop.is_closed():
            os.close(self._descriptor)
        elif _running() is self._loop:
            self._drop()
        else:
            self._loop.call_soon_threadsafe(self._drop)

    def _drop(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            mask = 0
            for byte in os.read(self._descriptor, 65536):
                mask |= byte
            self._heard(mask)

    def _named(self, mask: int) -> Path:
        return self._folder / f"{mask:x}-{self._unique}"


def call(folder: Path, mask: int, mine: Callable[[str], bool]) -> None:
    """Send `mask` to every FIFO that wants one of its hints, but for those of this process."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names alone, after every commit
    except FileNotFoundError:
        return
    for name in names:
        wanted, _, unique = name.partition("-")
        try:
            if not unique or not int(wanted, 16) & mask or mine(name):
                continue
        except ValueError:
            continue
        _send(folder / name, mask)


def _send(path: Path, mask: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            path.unlink(missing_ok=True)
        return
    try:
        os.write(descriptor, bytes((mask,)))
    except OSError:
        pass  # Full: there is a byte in it that will be read.
    finally:
        os.close(descriptor)


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
