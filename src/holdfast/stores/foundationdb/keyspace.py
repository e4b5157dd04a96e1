"""The keys: tuples of text and whole numbers in FoundationDB's tuple encoding, so that they sort by their parts.

All keys begin with the prefix of the store. Those of one tenant come together, below its name:

    ("t", tenant, "j", queue, id)                           the record of a job; (..., n): its further pieces
    ("t", tenant, "p", queue, id, n)                        the pieces of a large payload
    ("t", tenant, "w", queue, rank, visible_at, seq, id)    waiting jobs in claim order; rank = 9 - priority
    ("t", tenant, "l", queue, deadline, seq, id)            leased jobs
    ("t", tenant, "f", queue, state, finished_at, seq, id)  ended jobs
    ("t", tenant, "x", queue, expires_at, seq, id)          ended jobs by the end of their retention
    ("t", tenant, "k", queue, type, key)                    idempotency keys
    ("t", tenant, "n", queue)                               the number of the queue's jobs
    ("t", tenant, "c", queue, state)                        ... and of those in one state; 0: waiting
    ("t", tenant, "d", queue, shift, state, bucket)         ... of those due later, by visible_at >> shift
    ("t", tenant, "u", name)                                what the tenant keeps
    ("t", tenant, "a", queue)                               whether the queue has a pointer in its turns
    ("t", tenant, "o", queue)                               when its earliest job comes due, if it has only later ones
    ("t", tenant, "z", queue)                               whether it is paused
    ("t", tenant, "q")                                      written by each enqueue that a quota bounds
    ("t", tenant, "e", versionstamp)                        entries of the log with the tenant's events, and how many
    ("t", tenant, "g")                                      the last of its events that was trimmed

and these are of all tenants:

    ("e", versionstamp)                     the log: an entry for each transaction, in the order of commits
    ("a", queue, versionstamp)              tenants with work: the pointers, in the order in which they came
    ("o", queue, due_at, tenant)            tenants that have work later
    ("d", deadline, seq, tenant, queue, id) leases by deadline
    ("x", bucket, tenant, queue)            where retentions end, in steps of BUCKET_MS
    ("k", expires_at, tenant, queue, type, key)  idempotency keys with a time to live
    ("n", tenant), ("v", tenant)            the number of a tenant's jobs, and of its events
    ("g", versionstamp, tenant)             tenants by the last of their trimmed events
    ("y", tenant), ("Y", at, tenant)        counts of purges; tenants by their last purge
    ("s", tenant, queue)                    settings; queue "": of the whole tenant
    ("r", tenant, name)                     readers of the log; tenant "": of all
    ("h", worker), ("b", blob)              workers; blobs to delete
    ("i", n)                                how many events a part of the tenants has made: watched for changes
    ("m", name)                             the clock, the format, how far the log is trimmed, and other single values

A key is made and read in this file alone.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Any

from holdfast.core.job import JobKey

STAMP_BYTES = 12
"""Ten bytes of the commit, and two for a number within it."""
BUCKET_MS = 1 << 20
"""The steps in which lanes are found whose retentions have ended: 17 minutes."""
ACTIVITY_PARTS = 8
"""How many keys are watched for changes. Writes are spread over them by tenant."""

_TEXT, _STAMP, _ZERO, _ESCAPE = 0x02, 0x33, 0x14, 0xFF

Bounds = tuple[bytes, bytes]


def pack(*items: str | int) -> bytes:
    """A tuple as a key. Numbers are from 0 to 2^64."""
    return b"".join(map(_pack_item, items))


@lru_cache(maxsize=1 << 14)  # Most items are in several keys of a transaction.
def _pack_item(item: str | int) -> bytes:
    if isinstance(item, str):
        return b"\x02" + item.encode().replace(b"\x00", b"\x00\xff") + b"\x00"
    size = (item.bit_length() + 7) >> 3
    return bytes((_ZERO + size,)) + item.to_bytes(size, "big")


def unpack(key: bytes, at: int = 0) -> list[Any]:
    """The parts of a key from a place on: text, numbers, and versionstamps as bytes."""
    items: list[Any] = []
    end = len(key)
    while at < end:
        code = key[at]
        at += 1
        if code == _TEXT:
            stop = key.index(b"\x00", at)
            while stop + 1 < end and key[stop + 1] == _ESCAPE:
                stop = key.index(b"\x00", stop + 2)
            items.append(key[at:stop].replace(b"\x00\xff", b"\x00").decode())
            at = stop + 1
        elif code == _STAMP:
            items.append(key[at : at + STAMP_BYTES])
            at += STAMP_BYTES
        else:
            size = code - _ZERO
            items.append(int.from_bytes(key[at : at + size], "big"))
            at += size
    return items


def span(prefix: bytes) -> Bounds:
    """All keys that have more parts behind these."""
    return prefix + b"\x00", prefix + b"\xff"


def after(key: bytes) -> bytes:
    """The first key behind this one."""
    return key + b"\x00"


@lru_cache(maxsize=1 << 14)
def _of(root: bytes, *items: str | int) -> bytes:
    return root + pack(*items)


def _lane(root: bytes, kind: str, tenant: str, queue: str) -> bytes:
    return _of(root, "t", tenant, kind, queue)


class Keyspace:
    """The keys of one store."""

    def __init__(self, prefix: str) -> None:
        self.root = pack(prefix)
        self.log = self._of("e") + bytes((_STAMP,))
        """Followed by a versionstamp."""
        self.meta = self._of("m")
        self.deadlines = self._of("d")
        self.retentions = self._of("x")
        self.expiring_keys = self._of("k")
        self.tenants = self._of("n")
        self.event_counts = self._of("v")
        self.cuts = self._of("g")
        self.purges = self._of("y")
        self.purge_times = self._of("Y")
        self.settings = self._of("s")
        self.readers = self._of("r")
        self.workers = self._of("h")
        self.blobs = self._of("b")

    def _of(self, *items: str | int) -> bytes:
        return _of(self.root, *items)

    def parts(self, key: bytes, prefix: bytes) -> list[Any]:
        """The parts of a key behind a prefix."""
        return unpack(key, len(prefix))

    # Jobs ---------------------------------------------------------------------------------------------------------

    def job(self, key: JobKey) -> bytes:
        return _lane(self.root, "j", key.tenant, key.queue) + pack(key.id)

    def payload(self, key: JobKey) -> bytes:
        return _lane(self.root, "p", key.tenant, key.queue) + pack(key.id)

    def waiting(self, tenant: str, queue: str) -> bytes:
        """Followed by (rank, visible_at, seq, id)."""
        return _lane(self.root, "w", tenant, queue)

    def leased(self, tenant: str, queue: str) -> bytes:
        """Followed by (deadline, seq, id)."""
        return _lane(self.root, "l", tenant, queue)

    def ended(self, tenant: str, queue: str, state: int) -> bytes:
        """Followed by (finished_at, seq, id)."""
        return _lane(self.root, "f", tenant, queue) + pack(state)

    def retained(self, tenant: str, queue: str) -> bytes:
        """Followed by (expires_at, seq, id)."""
        return _lane(self.root, "x", tenant, queue)

    def retention_bucket(self, tenant: str, queue: str, expires_at: int) -> bytes:
        """The mark that retentions of this lane end around this time."""
        return self.retentions + pack(expires_at // BUCKET_MS, tenant, queue)

    def deadline(self, deadline: int, key: JobKey, seq: int) -> bytes:
        return self.deadlines + pack(deadline, seq, *key)

    def key(self, tenant: str, queue: str, type_: str, key: str) -> bytes:
        return _lane(self.root, "k", tenant, queue) + pack(type_, key)

    def expiring_key(self, expires_at: int, tenant: str, queue: str, type_: str, key: str) -> bytes:
        return self.expiring_keys + pack(expires_at, tenant, queue, type_, key)

    # Counts -------------------------------------------------------------------------------------------------------

    def queues(self, tenant: str) -> bytes:
        """Followed by a queue with jobs; the value is their number."""
        return self._of("t", tenant, "n")

    def lane_jobs(self, tenant: str, queue: str) -> bytes:
        return _lane(self.root, "n", tenant, queue)

    def lane_counts(self, tenant: str, queue: str) -> bytes:
        """Followed by a state; 0: waiting."""
        return _lane(self.root, "c", tenant, queue)

    def later_counts(self, tenant: str, queue: str) -> bytes:
        """Followed by (shift, state, visible_at >> shift)."""
        return _lane(self.root, "d", tenant, queue)

    def kept(self, tenant: str, name: str) -> bytes:
        """What a tenant keeps: waiting, bytes, keys."""
        return self._of("t", tenant, "u", name)

    def tenant_jobs(self, tenant: str) -> bytes:
        return self._of("n", tenant)

    def tenant_events(self, tenant: str) -> bytes:
        return self.event_counts + pack(tenant)

    def quota(self, tenant: str) -> bytes:
        return self._of("t", tenant, "q")

    # Pointers -----------------------------------------------------------------------------------------------------

    def active(self, tenant: str, queue: str) -> bytes:
        return _lane(self.root, "a", tenant, queue)

    def later(self, tenant: str, queue: str) -> bytes:
        return _lane(self.root, "o", tenant, queue)

    def pointers(self, queue: str) -> bytes:
        """Followed by a versionstamp; the value is the tenant."""
        return self._of("a", queue) + bytes((_STAMP,))

    def later_pointers(self, queue: str) -> bytes:
        """Followed by (due_at, tenant)."""
        return self._of("o", queue)

    def paused(self, tenant: str) -> bytes:
        """Followed by a queue that is paused."""
        return self._of("t", tenant, "z")

    def lane_paused(self, tenant: str, queue: str) -> bytes:
        return _lane(self.root, "z", tenant, queue)

    # The log ------------------------------------------------------------------------------------------------------

    def log_at(self, position: bytes) -> bytes:
        """The entry at a position: a versionstamp of 12 bytes."""
        return self.log + position

    def log_of(self, tenant: str) -> bytes:
        """Followed by the position of an entry."""
        return self._of("t", tenant, "e") + bytes((_STAMP,))

    def cut_of(self, tenant: str) -> bytes:
        return self._of("t", tenant, "g")

    def cut_at(self, position: bytes, tenant: str) -> bytes:
        return self.cuts + bytes((_STAMP,)) + position + pack(tenant)

    def activity(self, tenant: str) -> bytes:
        return self.activity_part(zlib.crc32(tenant.encode()) % ACTIVITY_PARTS)

    def activity_part(self, number: int) -> bytes:
        return self._of("i", number)

    # Everything else ----------------------------------------------------------------------------------------------

    def meta_of(self, name: str) -> bytes:
        return self.meta + pack(name)

    def setting(self, tenant: str, queue: str) -> bytes:
        return self.settings + pack(tenant, queue)

    def reader(self, tenant: str, name: str) -> bytes:
        return self.readers + pack(tenant, name)

    def worker(self, worker_id: str) -> bytes:
        return self.workers + pack(worker_id)

    def blob(self, name: str) -> bytes:
        return self.blobs + pack(name)

    def purge(self, tenant: str) -> bytes:
        return self.purges + pack(tenant)

    def purge_time(self, at: int, tenant: str) -> bytes:
        return self.purge_times + pack(at, tenant)


def stamped(prefix: bytes, number: int) -> bytes:
    """A key for `set_versionstamped_key`: the prefix, the stamp of the commit, a number within it."""
    return prefix + b"\x00" * 10 + number.to_bytes(2, "big") + len(prefix).to_bytes(4, "little")
