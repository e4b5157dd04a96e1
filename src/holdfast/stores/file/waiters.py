"""What workers have offered to take, between processes.

Offers stand in the file `DIR/offers`, which is read and written under the lock that all writers hold and never
flushed: after a power cut there is no worker to whom anything was offered. Each worker has a FIFO in `DIR/posts`. A
process that hands a job over has opened it before: it has a reader, and room for what is sent after the commit, still
under the lock. So what was handed over before an offer is taken back is in the FIFO by then.

The file names each job that is handed over, and is written just before the commit. A process that dies between its
commit and the message leaves the job's name there: the worker finds that the job never came, and releases it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import termios
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct, field, msgpack

from holdfast.core.job import Job
from holdfast.core.waiters import registered_ms
from holdfast.stores.file import modes, rows
from holdfast.stores.file.database import NAME
from holdfast.stores.file.notifications import Lines, capacity_of

HEAD = struct.Struct(">II")
"""The length of what follows and its checksum: a process can die while it writes, and a disk lose what was."""
LENGTH = struct.Struct(">H")
"""Of a message that follows."""
PAGE = 4096
"""What a pipe takes a place for, at least: one that is full has no two neighbors that would go into one."""


class Offer(Struct, array_like=True):
    """So many jobs a worker would take; `handed` are those that it was sent, each as its number and token."""

    post: str
    number: int
    worker: str
    tenant: str | None
    queues: list[str]
    lease_ms: int
    given: int
    until: int
    handed: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    @property
    def room(self) -> int:
        """How many more jobs can be sent under it."""
        return self.given - len(self.handed)


class Handed(Struct):
    """A job that is to be sent when it is on the disk."""

    offer: Offer
    job: Job
    lane: int
    now: int
    message: bytes


_encode = msgpack.Encoder().encode
_decode_offers = msgpack.Decoder(list[Offer]).decode


class Mine(Protocol):
    """A worker of this process."""

    @property
    def hears(self) -> bool:
        """Whether what is sent to it arrives."""
        ...

    def take_soon(self, handed: Handed) -> None:
        """Take a job. From any thread."""
        ...


class Book:
    """The offers of all workers, for one writer. Only under the lock between processes."""

    def __init__(self, directory: Path, posts: Mapping[str, Mine]) -> None:
        self._lines = Lines(directory / "posts")
        self._posts = posts
        """Those of this process."""
        self._file = modes.open_file(directory / "offers", group=modes.is_shared(directory / NAME))
        self._read: bytes = b""
        """What stands in the file, and in `_offers` but for what this group changed."""
        self._kept: bytes = b""
        """What the calls of this group made of it that went through."""
        self._offers: list[Offer] = []
        self._loaded = False
        self._handed: list[Handed] = []
        self._kept_handed = 0
        self._before: bytes | None = None
        """What stood in the file before this group wrote to it."""

    def close(self) -> None:
        os.close(self._file)
        self._lines.close()

    # In a transaction -----------------------------------------------------------------------------------------

    def find(self, tenant: str, queue: str, now: int, alone: Callable[[str | None], bool]) -> Offer | None:
        """The offer with most room for a job of this lane whose worker hears.

        `alone` says whether nothing else waits for a worker of this tenant, or of all. [CLAIM-2, TENANT-4]
        """
        fitting = [
            offer
            for offer in self._load()
            if offer.room > 0 and offer.until > now
            if offer.tenant in (tenant, None) and queue in offer.queues
        ]
        for offer in sorted(fitting, key=lambda offer: -offer.room):
            if alone(offer.tenant):
                if self._hears(offer.post):
                    return offer
                self._refuse(offer)
        return None

    def packed(self, offer: Offer, job: Job, lane: int, now: int) -> Handed | None:
        """A job as it is sent under this offer; None: it is too large for that."""
        message = b""
        if offer.post not in self._posts:
            message = _encode((offer.number, now, job.tenant, job.queue, rows.full_row(job, lane)))
            if len(message) + LENGTH.size > select.PIPE_BUF:
                return None
        return Handed(offer, job, lane, now, message)

    def hand_over(self, handed: Handed) -> None:
        """Send it once it is on the disk."""
        handed.offer.handed.append((handed.job.seq, handed.job.token))
        self._handed.append(handed)

    def take_back(self, post: str) -> tuple[int, list[tuple[int, int]]]:
        """Remove what a worker has offered: under which number that was, and which jobs it was sent."""
        for offer in self._load():
            if offer.post == post:
                self._remove(post)
                return offer.number, offer.handed
        return 0, []

    def add(self, offer: Offer) -> None:
        """A worker's new offer; those that are over go, with what they name once its leases are over too."""
        now = offer.until - registered_ms(offer.lease_ms)
        self._offers = [other for other in self._load() if other.until + (other.lease_ms if other.handed else 0) > now]
        self._offers.append(offer)

    def keep(self) -> None:
        """The call went through."""
        if self._loaded:
            self._kept = _encode(self._offers)
            self._kept_handed = len(self._handed)

    def forget(self) -> None:
        """The call failed: all is as before it."""
        if self._loaded:
            self._offers = _decode_offers(self._kept)
            del self._handed[self._kept_handed :]

    # Around the commit ----------------------------------------------------------------------------------------

    def announce(self) -> None:
        """The group is about to be committed: write down what it changes."""
        if self._loaded and self._kept != self._read:
            self._before = self._read
            self._write(self._kept)

    def settle(self) -> None:
        """What the group changed is on the disk: send what was handed over."""
        try:
            for handed in self._handed:
                self._send(handed)
        finally:
            self._end()

    def drop(self) -> None:
        """The group came to nothing: write down again what was there before it."""
        try:
            if self._before is not None:
                self._write(self._before)
        finally:
            self._read = b""
            self._end()

    def _end(self) -> None:
        self._handed.clear()
        self._kept_handed = 0
        self._loaded = False
        self._before = None

    # The file and the FIFOs -------------------------------------------------------------------------------------

    def _load(self) -> list[Offer]:
        if not self._loaded:
            data = self._content()
            if data != self._read or data != self._kept:
                try:
                    self._offers = _decode_offers(data)
                except msgspec.DecodeError:
                    self._offers = []
                self._read = data
                self._kept = _encode(self._offers)
                self._lines.keep([offer.post for offer in self._offers])
            self._loaded = True
        return self._offers

    def _content(self) -> bytes:
        data = os.pread(self._file, PAGE, 0)
        if len(data) >= HEAD.size:
            size, checksum = HEAD.unpack_from(data)
            if PAGE - HEAD.size < size <= os.fstat(self._file).st_size:
                data += os.pread(self._file, size, PAGE)
            content = data[HEAD.size : HEAD.size + size]
            if zlib.crc32(content) == checksum:
                return content
        return _encode([])

    def _write(self, content: bytes) -> None:
        data = HEAD.pack(len(content), zlib.crc32(content)) + content
        try:
            written = os.pwrite(self._file, data, 0)
        except OSError:
            written = 0
        if written != len(data):  # A full disk: better none than those of before.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, 0)
            self._kept = self._read = b""
            return
        self._read = content

    def _remove(self, post: str) -> None:
        self._offers = [other for other in self._load() if other.post != post]

    def _refuse(self, offer: Offer) -> None:
        """Send no more under an offer. What was sent stays named, in case that its worker still lives."""
        if offer.handed:
            offer.given = len(offer.handed)
        else:
            self._remove(offer.post)

    def _hears(self, post: str) -> bool:
        """Whether there is a worker that would get one more message, after those of this group."""
        mine = self._posts.get(post)
        if mine is not None:
            return mine.hears
        try:
            descriptor = self._lines.get(post, post)
        except FileNotFoundError:
            return False
        if descriptor is None:
            return False
        unread = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))[0]
        taken = 2 * -(-unread // PAGE) + sum(handed.offer.post == post for handed in self._handed)
        return taken < capacity_of(descriptor) // PAGE

    def _send(self, handed: Handed) -> None:
        mine = self._posts.get(handed.offer.post)
        if mine is not None:
            mine.take_soon(handed)
        elif handed.message:
            # A worker that ended since we looked has got it and lost it: its lease will be over.
            with contextlib.suppress(OSError):
                descriptor = self._lines.get(handed.offer.post, handed.offer.post)
                if descriptor is not None:
                    os.write(descriptor, LENGTH.pack(len(handed.message)) + handed.message)
