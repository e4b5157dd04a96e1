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
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from holdfast.store import Hint

BITS = {hint: 1 << n for n, hint in enumerate((Hint.READY, Hint.DONE, Hint.CANCELED, Hint.EVENTS))}

LOOKS = 3
"""How often a caller looks at the names in the directory at most."""


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

    def forked(self) -> None:
        """In the child of a fork, which is not the one to be woken. The loop's own books are the parent's."""
        os.close(self._descriptor)

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
    told: set[str] = set()
    # A FIFO that was renamed after it was listed has to hear of it too: look again.
    for _ in range(LOOKS):
        missed = False
        for name, unique in _wanting(folder, mask):
            if unique not in told and not mine(name):
                if _send(folder / name, mask):
                    told.add(unique)
                else:
                    missed = True
        if not missed:
            return


def _wanting(folder: Path, mask: int) -> Iterator[tuple[str, str]]:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names alone, after every commit
    except FileNotFoundError:
        return
    for name in names:
        wanted, _, unique = name.partition("-")
        with contextlib.suppress(ValueError):
            if unique and int(wanted, 16) & mask:
                yield name, unique


def _send(path: Path, mask: int) -> bool:
    """Whether the FIFO still had this name."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno == errno.ENXIO:
            with contextlib.suppress(OSError):
                path.unlink()
        return True
    try:
        os.write(descriptor, bytes((mask,)))
    except OSError:
        pass  # Full: there is a byte in it that will be read.
    finally:
        os.close(descriptor)
    return True


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
