"""Hints between processes: each process that waits owns a FIFO in `DIR/wake`.

After a commit the writer sends the hints, as the bits of one byte, to every FIFO whose name asks for one of them; where
a job or a few have ended, with their records, so that whoever waits for one need not look. It never blocks: a FIFO
that is full has a reader who is far behind, and who will take it that everything may have changed; one without a
reader (ENXIO) is left over from a process that is gone, and is unlinked.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import secrets
import select
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from msgspec import MsgspecError, msgpack

from holdfast.store import Hint, Signal
from holdfast.stores.file import modes, rows
from holdfast.stores.file.database import NAME

BITS = {hint: 1 << n for n, hint in enumerate((Hint.READY, Hint.DONE, Hint.CANCELED, Hint.EVENTS))}
ALL = sum(BITS.values())
RECORDS = 0x80
"""The bit that says: two bytes with a length follow, and records of so many bytes."""

LOOKS = 3
"""How often a caller looks at the names in the directory at most."""
MOST_RECORDS = 4
"""Of more jobs that ended together no records are sent."""
OLD_S = 60.0
"""A FIFO without a reader that is younger may be getting one."""
MOST_LINES = 64
"""So many FIFOs of others are kept open."""
CAPACITY = 65536
"""Of a FIFO, where the system does not tell."""

_encode = msgpack.Encoder().encode
_decode = msgpack.Decoder(list[tuple[str, str, rows.Row]]).decode


def mask_of(hints: Collection[Hint]) -> int:
    """The hints as bits."""
    mask = 0
    for hint in hints:
        mask |= BITS[hint]
    return mask


def signals_of(mask: int) -> list[Signal]:
    """Bits as signals without an address."""
    return [Signal(hint) for hint, bit in BITS.items() if bit & mask]


class Fifo:
    """A FIFO that is read in one event loop. What is written at once is read whole."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop, read: Callable[[bytes], None]) -> None:
        self.path = path
        self._loop = loop
        self._read = read
        shared = modes.is_shared(path.parent.parent / NAME)
        modes.make_directory(path.parent, group=shared)
        modes.make_fifo(path, group=shared)
        # Opened for both ways: so it has a reader from the start, and never reads an end of file.
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.capacity = capacity_of(self._descriptor)
        loop.add_reader(self._descriptor, self.read)

    @property
    def is_dead(self) -> bool:
        """Whether nobody will read it any more."""
        return self._loop.is_closed()

    @property
    def is_here(self) -> bool:
        """Whether this is the event loop that runs."""
        return running() is self._loop

    def read(self) -> None:
        """Read what is there."""
        with contextlib.suppress(BlockingIOError):
            self._read(os.read(self._descriptor, self.capacity))

    def close(self) -> None:
        """Stop listening. From any thread."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        if self._loop.is_closed():
            os.close(self._descriptor)
        elif self.is_here:
            self._drop()
        else:
            self._loop.call_soon_threadsafe(self._drop)

    def forked(self) -> None:
        """In the child of a fork, which is not the one to be woken. The loop's own books are the parent's."""
        os.close(self._descriptor)

    def _drop(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)


class Ear(Fifo):
    """The FIFO of one event loop for hints. Its name says which it wants: `HEXMASK-UNIQUE`."""

    def __init__(
        self, folder: Path, loop: asyncio.AbstractEventLoop, heard: Callable[[Sequence[Signal]], None]
    ) -> None:
        self._folder = folder
        self._unique = unique()
        self._heard = heard
        self.mask: int = 0
        super().__init__(self._named(0), loop, self._hear)

    def want(self, mask: int) -> None:
        """Ask for these hints from now on."""
        if mask != self.mask:
            path = self._named(mask)
            self.path.rename(path)
            self.path = path
            self.mask = mask

    def is_mine(self, name: str) -> bool:
        return name == self.path.name

    def _hear(self, data: bytes) -> None:
        mask, told = _unpack(data)
        # Who writes to a full FIFO leaves no word. Full is one of which no two neighboring pages would go into one.
        self._heard([*told, *signals_of(ALL if len(data) > self.capacity // 4 else mask)])

    def _named(self, mask: int) -> Path:
        return self._folder / f"{mask:x}-{self._unique}"


def unique() -> str:
    """A name that nothing else has."""
    return f"{os.getpid()}-{secrets.token_hex(6)}"


def capacity_of(descriptor: int) -> int:
    """How many bytes fit in a pipe at most."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ)
    except (AttributeError, OSError):
        return CAPACITY


class Lines:
    """The FIFOs of others that were written to, by their names; they stay open for the next time. Of one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._open: dict[str, int] = {}

    def get(self, name: str, path: str) -> int | None:
        """The descriptor of a FIFO that has a reader. One that has none is left over, and unlinked.

        Raises FileNotFoundError if there is none at this path.
        """
        descriptor = self._open.pop(name, None)
        if descriptor is None:
            try:
                descriptor = self._opened(path)
            except FileNotFoundError:
                raise
            except OSError as error:
                if error.errno == errno.ENXIO:
                    self._unlink(path)
                return None
        self._open[name] = descriptor  # At the end: what was not used for longest stands first.
        if len(self._open) > MOST_LINES:
            self.drop(next(iter(self._open)))
        if not has_reader(descriptor):
            self.drop(name)
            self._unlink(path)
            return None
        return descriptor

    def _opened(self, path: str) -> int:
        for few in (False, True):
            try:
                return os.open(f"{self._folder}/{path}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                if few or error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                self.close()  # This process may open no more: then without those that are kept.
        raise AssertionError

    def drop(self, name: str) -> None:
        """Close one."""
        descriptor = self._open.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)

    def keep(self, names: Collection[str]) -> None:
        """Close all but these."""
        for name in self._open.keys() - set(names):
            self.drop(name)

    def close(self) -> None:
        self.keep(())

    def _unlink(self, path: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(f"{self._folder}/{path}")  # noqa: PTH108 - beside `os.open`


def has_reader(descriptor: int) -> bool:
    """Whether somebody can read what is written to this FIFO."""
    asked = select.poll()
    asked.register(descriptor, select.POLLOUT)
    return not any(events & (select.POLLERR | select.POLLHUP) for _, events in asked.poll(0))


class Voice:
    """Tells others. Of one thread."""

    def __init__(self, folder: Path, mine: Callable[[str], bool]) -> None:
        self._folder = folder
        self._mine = mine
        self._lines = Lines(folder)

    def close(self) -> None:
        self._lines.close()

    def call(self, signals: Collection[Signal]) -> None:
        """Tell every FIFO that wants one of these hints, but for those of this process."""
        mask = mask_of({signal.hint for signal in signals})
        done = BITS[Hint.DONE]
        with_records = b""
        told: set[str] = set()
        # A FIFO that was renamed after it was listed has to hear of it too: look again.
        for _ in range(LOOKS):
            missed = False
            for name, wanted, unique in self._wanting(mask):
                if unique not in told and not self._mine(name):
                    message = bytes((mask,))
                    if wanted & mask & done:
                        with_records = message = with_records or _with_records(mask, signals)
                    if self._send(name, unique, message, mask):
                        told.add(unique)
                    else:
                        missed = True
            if not missed:
                return

    def _wanting(self, mask: int) -> list[tuple[str, int, str]]:
        found = list(_named(self._folder))
        self._lines.keep([unique for _, _, unique in found])
        return [one for one in found if one[1] & mask]

    def _send(self, name: str, unique: str, message: bytes, mask: int) -> bool:
        """Whether the FIFO still had this name."""
        try:
            descriptor = self._lines.get(unique, name)
        except FileNotFoundError:
            return False
        if descriptor is not None:
            # Full: what is in it will be read. There may be room for the hints alone.
            with contextlib.suppress(OSError):
                try:
                    os.write(descriptor, message)
                except BlockingIOError:
                    os.write(descriptor, bytes((mask,)))
        return True


def _with_records(mask: int, signals: Collection[Signal]) -> bytes:
    """What to send to who waits for jobs to end: the records of all that did, or no more than the hints."""
    jobs = [signal.job for signal in signals if signal.hint is Hint.DONE]
    small = [job for job in jobs[: MOST_RECORDS + 1] if job is not None and rows.is_small(job)]
    if len(small) == len(jobs) <= MOST_RECORDS:
        data = _encode([(job.tenant, job.queue, rows.full_row(job, 0)) for job in small])
        if len(data) + 3 <= select.PIPE_BUF:
            return bytes((RECORDS | mask & ~BITS[Hint.DONE],)) + len(data).to_bytes(2, "big") + data
    return bytes((mask,))


def _unpack(data: bytes) -> tuple[int, list[Signal]]:
    """All hints as bits, and those that came with a record."""
    mask, told, at = 0, list[Signal](), 0
    try:
        while at < len(data):
            mask |= data[at]
            at += 1
            if data[at - 1] & RECORDS:
                end = at + 2 + int.from_bytes(data[at : at + 2], "big")
                for tenant, queue, row in _decode(data[at + 2 : end]):
                    job = rows.to_job(row, tenant, queue)
                    told.append(Signal(Hint.DONE, tenant, queue, job.id, job))
                at = end
    except (MsgspecError, ValueError, IndexError):
        return ALL, told  # Written by another version: anything may have changed.
    return mask, told


def _named(folder: Path) -> Iterator[tuple[str, int, str]]:
    """The FIFOs: their names, the hints that they want, and what is unique in their names."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names alone, after every commit
    except FileNotFoundError:
        return
    for name in names:
        wanted, _, unique = name.partition("-")
        with contextlib.suppress(ValueError):
            if unique:
                yield name, int(wanted, 16), unique


def sweep(folder: Path) -> None:
    """Remove the FIFOs that dead processes left; not those that are just being made."""
    lines = Lines(folder)
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208 - as above
            with contextlib.suppress(OSError):
                if time.time() - (folder / name).stat().st_mtime > OLD_S:
                    lines.get(name, name)
    lines.close()


def running() -> asyncio.AbstractEventLoop | None:
    """The event loop of this thread, if one runs."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
