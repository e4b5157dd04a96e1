"""The workers that wait for a job, shared between processes.

The file `DIR/waiters` holds one entry for each waiting worker. Writers read and write it under the lock that all of
them hold. It is never flushed: after a power cut no worker is waiting. Each worker has a FIFO in `DIR/inboxes`. Before
a process hands a job off, it opens the FIFO and makes sure that it has a reader and room for the message. It sends the
message after the commit, still under the lock. So when a worker withdraws its entry, all jobs that were handed off to
it are already in its FIFO.

The entry names each job that is handed off, and is written just before the commit. If a process dies between its commit
and the message, the name stays in the file: the worker finds that the job never arrived, and releases it.
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
from holdfast.stores.file.notifications import FifoWriters, capacity_of

HEAD = struct.Struct(">II")
"""The length and the checksum of the content: a process can die while it writes, and a disk can lose a write."""
LENGTH = struct.Struct(">H")
"""The length of the message that follows."""
PAGE = 4096
"""The unit in which a pipe allocates room: two neighboring pages together always hold more than one page of data."""


class Waiter(Struct, array_like=True):
    """A worker that waits for up to `limit` jobs. `handed_off` lists the jobs sent to it, as (seq, token)."""

    inbox: str
    number: int
    worker: str
    tenant: str | None
    queues: list[str]
    lease_ms: int
    limit: int
    until: int
    handed_off: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    @property
    def room(self) -> int:
        """How many more jobs can be handed off to it."""
        return self.limit - len(self.handed_off)


class HandOff(Struct):
    """A leased job to send to a waiter after the commit."""

    waiter: Waiter
    job: Job
    lane: int
    now: int
    message: bytes


_encode = msgpack.Encoder().encode
_decode_waiters = msgpack.Decoder(list[Waiter]).decode


class LocalInbox(Protocol):
    """The inbox of a worker in this process."""

    @property
    def can_receive(self) -> bool:
        """Whether a job sent to it arrives."""
        ...

    def receive_soon(self, handoff: HandOff) -> None:
        """Receive a job. From any thread."""
        ...


class WaiterTable:
    """The waiters of all processes, as one writer sees them. Use it only under the lock between processes."""

    def __init__(self, directory: Path, inboxes: Mapping[str, LocalInbox]) -> None:
        self._fifos = FifoWriters(directory / "inboxes")
        self._inboxes = inboxes
        """The inboxes of this process."""
        self._file = modes.open_file(directory / "waiters", group=modes.is_shared(directory / NAME))
        self._read: bytes = b""
        """The content of the file."""
        self._kept: bytes = b""
        """The content after the successful calls of this group."""
        self._waiters: list[Waiter] = []
        self._loaded = False
        self._handoffs: list[HandOff] = []
        self._kept_handoffs = 0
        self._before: bytes | None = None
        """The content before this group wrote to the file."""

    def close(self) -> None:
        os.close(self._file)
        self._fifos.close()

    # In a transaction -----------------------------------------------------------------------------------------

    def find(self, tenant: str, queue: str, now: int, is_next: Callable[[str | None], bool]) -> Waiter | None:
        """The waiter with the most room for a job of this lane, among those that can receive it.

        `is_next(t)` says whether the job is the next one for a worker of tenant `t`, or of all tenants (None).
        [CLAIM-2, TENANT-4]
        """
        fitting = [
            waiter
            for waiter in self._load()
            if waiter.room > 0 and waiter.until > now
            if waiter.tenant in (tenant, None) and queue in waiter.queues
        ]
        for waiter in sorted(fitting, key=lambda waiter: -waiter.room):
            if is_next(waiter.tenant):
                if self._can_receive(waiter.inbox):
                    return waiter
                self._close_waiter(waiter)
        return None

    def pack(self, waiter: Waiter, job: Job, lane: int, now: int) -> HandOff | None:
        """The hand-off of a job to this waiter; None if the job is too large for a message."""
        message = b""
        if waiter.inbox not in self._inboxes:
            message = _encode((waiter.number, now, job.tenant, job.queue, rows.full_row(job, lane)))
            if len(message) + LENGTH.size > select.PIPE_BUF:
                return None
        return HandOff(waiter, job, lane, now, message)

    def hand_off(self, handoff: HandOff) -> None:
        """Send the job after the commit."""
        handoff.waiter.handed_off.append((handoff.job.seq, handoff.job.token))
        self._handoffs.append(handoff)

    def withdraw(self, inbox: str) -> tuple[int, list[tuple[int, int]]]:
        """Remove a worker's entry. Returns its number and the jobs handed off under it."""
        for waiter in self._load():
            if waiter.inbox == inbox:
                self._remove(inbox)
                return waiter.number, waiter.handed_off
        return 0, []

    def add(self, waiter: Waiter) -> None:
        """Add an entry, and remove expired ones. An entry that names jobs stays until their leases have expired."""
        now = waiter.until - registered_ms(waiter.lease_ms)
        self._waiters = [
            other for other in self._load() if other.until + (other.lease_ms if other.handed_off else 0) > now
        ]
        self._waiters.append(waiter)

    def keep(self) -> None:
        """The call succeeded: keep its changes."""
        if self._loaded:
            self._kept = _encode(self._waiters)
            self._kept_handoffs = len(self._handoffs)

    def forget(self) -> None:
        """The call failed: undo its changes."""
        if self._loaded:
            self._waiters = _decode_waiters(self._kept)
            del self._handoffs[self._kept_handoffs :]

    # Around the commit ----------------------------------------------------------------------------------------

    def before_commit(self) -> None:
        """Write the changes of the group to the file."""
        if self._loaded and self._kept != self._read:
            self._before = self._read
            self._write(self._kept)

    def after_commit(self) -> None:
        """Send the jobs that the group handed off."""
        try:
            for handoff in self._handoffs:
                self._send(handoff)
        finally:
            self._end()

    def after_rollback(self) -> None:
        """Restore the content from before the group."""
        try:
            if self._before is not None:
                self._write(self._before)
        finally:
            self._read = b""
            self._end()

    def _end(self) -> None:
        self._handoffs.clear()
        self._kept_handoffs = 0
        self._loaded = False
        self._before = None

    # The file and the FIFOs -------------------------------------------------------------------------------------

    def _load(self) -> list[Waiter]:
        if not self._loaded:
            data = self._content()
            if data != self._read or data != self._kept:
                try:
                    self._waiters = _decode_waiters(data)
                except msgspec.DecodeError:
                    self._waiters = []
                self._read = data
                self._kept = _encode(self._waiters)
                self._fifos.keep([waiter.inbox for waiter in self._waiters])
            self._loaded = True
        return self._waiters

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
        if written != len(data):  # The disk is full. No entries are better than outdated ones.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, 0)
            self._kept = self._read = b""
            return
        self._read = content

    def _remove(self, inbox: str) -> None:
        self._waiters = [other for other in self._load() if other.inbox != inbox]

    def _close_waiter(self, waiter: Waiter) -> None:
        """Hand off nothing more to it. The jobs already handed off stay named, in case the worker is still alive."""
        if waiter.handed_off:
            waiter.limit = len(waiter.handed_off)
        else:
            self._remove(waiter.inbox)

    def _can_receive(self, inbox: str) -> bool:
        """Whether the inbox has a reader, and room for one more message after those of this group."""
        local = self._inboxes.get(inbox)
        if local is not None:
            return local.can_receive
        try:
            descriptor = self._fifos.get(inbox, inbox)
        except FileNotFoundError:
            return False
        if descriptor is None:
            return False
        unread = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))[0]
        taken = 2 * -(-unread // PAGE) + sum(handoff.waiter.inbox == inbox for handoff in self._handoffs)
        return taken < capacity_of(descriptor) // PAGE

    def _send(self, handoff: HandOff) -> None:
        local = self._inboxes.get(handoff.waiter.inbox)
        if local is not None:
            local.receive_soon(handoff)
        elif handoff.message:
            # If the worker has ended since the check, the job is lost until its lease expires.
            with contextlib.suppress(OSError):
                descriptor = self._fifos.get(handoff.waiter.inbox, handoff.waiter.inbox)
                if descriptor is not None:
                    os.write(descriptor, LENGTH.pack(len(handoff.message)) + handoff.message)
