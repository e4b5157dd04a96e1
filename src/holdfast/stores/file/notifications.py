"""Notifications between processes: each process that waits owns a FIFO in `DIR/notifications`.

After a commit the writer sends the hints, as the bits of one byte, to every FIFO whose name asks for one of them. If
only a few jobs have ended, it sends their records too, so that waiters skip a read. It never blocks. A full FIFO drops
hints: its reader is far behind, and assumes that anything may have changed. A FIFO without a reader (ENXIO) belongs to
a process that has died, and is unlinked.
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
"""This bit announces records: two bytes with their length follow, then the records."""

SCAN_LIMIT = 3
"""How often one call may list the directory."""
MAX_RECORDS = 4
"""If more jobs end together, their records are not sent."""
OLD_S = 60.0
"""A FIFO without a reader is removed at this age: a younger one may be about to be opened."""
MAX_OPEN = 64
"""The most FIFOs of other processes to keep open."""
CAPACITY = 65536
"""The size of a FIFO in bytes, on systems that cannot report it."""

_encode = msgpack.Encoder().encode
_decode = msgpack.Decoder(list[tuple[str, str, rows.Row]]).decode


def mask_of(hints: Collection[Hint]) -> int:
    """Hints as bits."""
    mask = 0
    for hint in hints:
        mask |= BITS[hint]
    return mask


def signals_of(mask: int) -> list[Signal]:
    """Bits as signals without an address."""
    return [Signal(hint) for hint, bit in BITS.items() if bit & mask]


class Fifo:
    """A FIFO that one event loop reads. Each write arrives whole."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop, read: Callable[[bytes], None]) -> None:
        self.path = path
        self._loop = loop
        self._read = read
        shared = modes.is_shared(path.parent.parent / NAME)
        modes.make_directory(path.parent, group=shared)
        modes.make_fifo(path, group=shared)
        # Opened for reading and writing: so it has a reader from the start, and never reaches an end of file.
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.capacity = capacity_of(self._descriptor)
        loop.add_reader(self._descriptor, self.read)

    @property
    def is_dead(self) -> bool:
        """Whether its event loop is closed, so that nothing reads it any more."""
        return self._loop.is_closed()

    @property
    def is_here(self) -> bool:
        """Whether the current event loop is the one that reads it."""
        return running() is self._loop

    def read(self) -> None:
        """Read all that has been written."""
        with contextlib.suppress(BlockingIOError):
            self._read(os.read(self._descriptor, self.capacity))

    def close(self) -> None:
        """Stop reading, and remove the FIFO. From any thread."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        if self._loop.is_closed():
            os.close(self._descriptor)
        elif self.is_here:
            self._drop()
        else:
            self._loop.call_soon_threadsafe(self._drop)

    def forked(self) -> None:
        """In the child of a fork: close the descriptor. The event loop still belongs to the parent."""
        os.close(self._descriptor)

    def _drop(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)


class FifoListener(Fifo):
    """The FIFO through which one event loop receives hints. Its name says which ones it wants: `HEXMASK-UNIQUE`."""

    def __init__(
        self, folder: Path, loop: asyncio.AbstractEventLoop, received: Callable[[Sequence[Signal]], None]
    ) -> None:
        self._folder = folder
        self._unique = unique()
        self._received = received
        self.mask: int = 0
        super().__init__(self._named(0), loop, self._unpack)

    def want(self, mask: int) -> None:
        """Ask for exactly these hints from now on."""
        if mask != self.mask:
            path = self._named(mask)
            self.path.rename(path)
            self.path = path
            self.mask = mask

    def _unpack(self, data: bytes) -> None:
        mask, records = _unpack(data)
        # A full FIFO drops hints: assume that anything may have changed. It can be full at a quarter of its capacity,
        # since short writes may leave pages half empty.
        self._received([*records, *signals_of(ALL if len(data) > self.capacity // 4 else mask)])

    def _named(self, mask: int) -> Path:
        return self._folder / f"{mask:x}-{self._unique}"


def unique() -> str:
    """A unique name."""
    return f"{os.getpid()}-{secrets.token_hex(6)}"


def capacity_of(descriptor: int) -> int:
    """The size of a pipe in bytes."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ)
    except (AttributeError, OSError):
        return CAPACITY


class FifoWriters:
    """The FIFOs of other processes, kept open for the next write. Belongs to one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._open: dict[str, int] = {}

    def get(self, name: str, path: str) -> int | None:
        """The descriptor of a FIFO. Unlinks a FIFO without a reader, whose process has died, and returns None.

        Raises FileNotFoundError if there is no FIFO at this path.
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
        self._open[name] = descriptor  # Move it to the end: the least recently used one comes first.
        if len(self._open) > MAX_OPEN:
            self.drop(next(iter(self._open)))
        if not has_reader(descriptor):
            self.drop(name)
            self._unlink(path)
            return None
        return descriptor

    def _opened(self, path: str) -> int:
        for retrying in (False, True):
            try:
                return os.open(f"{self._folder}/{path}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                if retrying or error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                self.close()  # This process has too many files open: close the cached ones.
        raise AssertionError

    def drop(self, name: str) -> None:
        """Close one FIFO."""
        descriptor = self._open.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)

    def keep(self, names: Collection[str]) -> None:
        """Close all FIFOs but these."""
        for name in self._open.keys() - set(names):
            self.drop(name)

    def close(self) -> None:
        self.keep(())

    def _unlink(self, path: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(f"{self._folder}/{path}")  # noqa: PTH108 - beside `os.open`


def has_reader(descriptor: int) -> bool:
    """Whether a process has this FIFO open for reading."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return not any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


class FifoNotifier:
    """Notifies the other processes. Belongs to one thread."""

    def __init__(self, folder: Path, is_own: Callable[[str], bool]) -> None:
        self._folder = folder
        self._is_own = is_own
        self._fifos = FifoWriters(folder)

    def close(self) -> None:
        self._fifos.close()

    def notify(self, signals: Collection[Signal]) -> None:
        """Write to every FIFO that wants one of these hints, except those of this process."""
        mask = mask_of({signal.hint for signal in signals})
        done = BITS[Hint.DONE]
        with_records = b""
        notified: set[str] = set()
        # A FIFO may have been renamed since it was listed: list again.
        for _ in range(SCAN_LIMIT):
            missed = False
            for name, wanted, unique in self._wanting(mask):
                if unique not in notified and not self._is_own(name):
                    message = bytes((mask,))
                    if wanted & mask & done:
                        with_records = message = with_records or _with_records(mask, signals)
                    if self._send(name, unique, message, mask):
                        notified.add(unique)
                    else:
                        missed = True
            if not missed:
                return

    def _wanting(self, mask: int) -> list[tuple[str, int, str]]:
        found = list(_named(self._folder))
        self._fifos.keep([unique for _, _, unique in found])
        return [one for one in found if one[1] & mask]

    def _send(self, name: str, unique: str, message: bytes, mask: int) -> bool:
        """Write to a FIFO. Returns whether it still has this name."""
        try:
            descriptor = self._fifos.get(unique, name)
        except FileNotFoundError:
            return False
        if descriptor is not None:
            # Full: the reader will notice that. There may still be room for the hints alone.
            with contextlib.suppress(OSError):
                try:
                    os.write(descriptor, message)
                except BlockingIOError:
                    os.write(descriptor, bytes((mask,)))
        return True


def _with_records(mask: int, signals: Collection[Signal]) -> bytes:
    """The message for processes that wait for jobs to end: all records, or only the hints if there are too many."""
    jobs = [signal.job for signal in signals if signal.hint is Hint.DONE]
    small = [job for job in jobs[: MAX_RECORDS + 1] if job is not None and rows.is_small(job)]
    if len(small) == len(jobs) <= MAX_RECORDS:
        data = _encode([(job.tenant, job.queue, rows.full_row(job, 0)) for job in small])
        if len(data) + 3 <= select.PIPE_BUF:
            return bytes((RECORDS | mask & ~BITS[Hint.DONE],)) + len(data).to_bytes(2, "big") + data
    return bytes((mask,))


def _unpack(data: bytes) -> tuple[int, list[Signal]]:
    """The hints as bits, and a signal for each record."""
    mask, records, at = 0, list[Signal](), 0
    try:
        while at < len(data):
            mask |= data[at]
            at += 1
            if data[at - 1] & RECORDS:
                end = at + 2 + int.from_bytes(data[at : at + 2], "big")
                for tenant, queue, row in _decode(data[at + 2 : end]):
                    job = rows.to_job(row, tenant, queue)
                    records.append(Signal(Hint.DONE, tenant, queue, job.id, job))
                at = end
    except (MsgspecError, ValueError, IndexError):
        return ALL, records  # Written by another version: anything may have changed.
    return mask, records


def _named(folder: Path) -> Iterator[tuple[str, int, str]]:
    """The FIFOs in a directory: name, wanted hints as bits, and the unique part of the name."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - runs after every commit
    except FileNotFoundError:
        return
    for name in names:
        wanted, _, unique = name.partition("-")
        with contextlib.suppress(ValueError):
            if unique:
                yield name, int(wanted, 16), unique


def sweep(folder: Path) -> None:
    """Remove the FIFOs of dead processes, except young ones: they may be about to be opened."""
    fifos = FifoWriters(folder)
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208 - as above
            with contextlib.suppress(OSError):
                if time.time() - (folder / name).stat().st_mtime > OLD_S:
                    fifos.get(name, name)
    fifos.close()


def running() -> asyncio.AbstractEventLoop | None:
    """The running event loop of this thread, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
