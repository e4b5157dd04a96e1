"""One transaction: the jobs and keys it has read, what it does to them, and how that is written.

Jobs are read once, change in memory by `core.lifecycle`, and are written at the end, with the keys that lead to them,
the counts, the pointers and the log. All that follows from a job is computed from its record before and after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.core import dedup
from holdfast.core.budgets import RECORD_BYTES, TenantSettings
from holdfast.core.dedup import Binding, Scope
from holdfast.core.events import Event
from holdfast.core.job import TERMINAL, WAITING, Job, JobKey
from holdfast.core.lifecycle import Retention, forgotten
from holdfast.stores.foundationdb import lanes, numbers, records
from holdfast.stores.foundationdb.awaiting import together
from holdfast.stores.foundationdb.clock import Anchor
from holdfast.stores.foundationdb.database import FdbTransaction
from holdfast.stores.foundationdb.entries import pack_events
from holdfast.stores.foundationdb.keyspace import Keyspace, pack, span, stamped
from holdfast.stores.foundationdb.records import ELSEWHERE, SMALL
from holdfast.stores.foundationdb.settings import SettingsCache, unpack_settings

_ZERO = b"\x00" * 8


class Rules(Struct, frozen=True):
    """The options of a store that changes depend on."""

    retention: Retention
    all_events: bool
    keep_events: int


class Here(Struct, frozen=True):
    """What all transactions of a handle share."""

    keys: Keyspace
    rules: Rules
    settings: SettingsCache
    place: str
    """Identifies the data."""


class Moment(Struct, frozen=True):
    """What a transaction knows at its beginning."""

    anchor: Anchor
    version: int
    trimmed: bytes
    last_token: int


class StoredJob(Struct, eq=False):
    """A job in a transaction, and what is stored of it."""

    key: JobKey
    job: Job | None = None
    apart: int | None = None
    """The size of a payload that has pieces of its own."""
    was_apart: bool = False
    pieces: int = 0
    """Further pieces of the stored record."""
    stored: bool = False
    indexes: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    counts: dict[bytes, int] = field(default_factory=dict[bytes, int])
    changed: bool = False
    new_payload: bytes | None = None


class Work:
    """A transaction at an instant."""

    def __init__(self, tr: FdbTransaction, here: Here, moment: Moment, nonce: bytes) -> None:
        self.tr = tr
        self.keys = here.keys
        self.rules = here.rules
        self.anchor = moment.anchor
        self.version = moment.version
        self.now = moment.anchor.now(moment.version)
        self.trimmed = moment.trimmed
        """No event up to this position is kept."""
        self.last_token = moment.last_token
        """The largest token of a job that was forgotten: a new life of its id gets larger ones. [LEASE-5]"""
        self.nonce = nonce
        self.logged = False
        self.first_number = 1
        """The number of the first event within the commit."""
        self.pointers = 0
        """How many pointers were made in the commit."""
        self._settings = here.settings
        self._place = here.place
        self._records: dict[JobKey, StoredJob] = {}
        self._bindings: dict[Scope, Binding | None] = {}
        self._stored_bindings: dict[Scope, Binding | None] = {}
        self._events: list[Event] = []
        self._counts: Counter[bytes] = Counter()
        self._buckets: set[bytes] = set()
        """Where retentions end of jobs that have ended."""
        self._wrote = False

    # Jobs -------------------------------------------------------------------------------------------------------------

    async def load(self, keys: Iterable[JobKey], *, snapshot: bool = False) -> None:
        """Read jobs that were not read yet. Without `snapshot`, a change of one meanwhile is a conflict."""
        missing = [key for key in dict.fromkeys(keys) if key not in self._records]
        found = await self.tr.get_all([self.keys.job(key) for key in missing], snapshot=snapshot)
        for key, raw in zip(missing, found, strict=True):
            self._records[key] = StoredJob(key) if raw is None else await self._unpack(key, raw)

    async def _unpack(self, key: JobKey, raw: bytes) -> StoredJob:
        pieces = raw[0]
        raw = raw[1:]
        if pieces:
            rest = await self.tr.get_range(*span(self.keys.job(key)), snapshot=True)
            raw += b"".join(value for _, value in rest)
        job, apart = records.unpack_job(key, raw)
        return StoredJob(
            key, job, apart, apart is not None, pieces, stored=True,
            indexes=records.indexed(self.keys, job), counts=records.counted(self.keys, job, apart),
        )  # fmt: skip

    def any(self, key: JobKey) -> Job | None:
        """A job that was loaded, also one past its retention."""
        return self._records[key].job

    def find(self, key: JobKey) -> Job | None:
        """A job that was loaded; None if it is past its retention. [TENANT-2]"""
        job = self._records[key].job
        return None if job is None or forgotten(job, self.now) else job

    def apart(self, key: JobKey) -> int | None:
        """The size of a loaded job's payload, if that has pieces of its own."""
        return self._records[key].apart

    def changed(self, job: Job) -> None:
        """The job has changed: it is written at the end."""
        self._records[job.key].changed = True

    def add(self, job: Job) -> None:
        """Add a new job, in place of one that was forgotten."""
        record = self._records[job.key]
        record.job, record.changed = job, True
        payload = job.envelope.payload
        record.apart, record.new_payload = (len(payload), payload) if len(payload) > SMALL else (None, None)

    def forget(self, job: Job) -> None:
        """Remove an ended job. [KEEP-1]"""
        record = self._records[job.key]
        record.job, record.changed = None, True
        record.apart = record.new_payload = None
        if job.token > self.last_token:
            self.last_token = job.token
            self.tr.max(self.keys.meta_of("last_token"), job.token.to_bytes(8, "little"))
        if job.result is not None and job.result.blob:
            self.set(self.keys.blob(job.result.blob), b"")

    async def fill(self, jobs: Collection[Job]) -> None:
        """Read the payloads that are not in the records."""
        await together(*(self._fill(job) for job in jobs if job.envelope.payload is ELSEWHERE))

    async def _fill(self, job: Job) -> None:
        record = self._records.get(job.key)
        if record is not None and record.new_payload is not None:
            payload = record.new_payload
        else:
            rows = await self.tr.get_range(*span(self.keys.payload(job.key)), snapshot=True)
            payload = b"".join(value for _, value in rows)
        job.envelope = replace(job.envelope, payload=payload)

    def numbers(self, count: int) -> Sequence[int]:
        """Sequence numbers larger than all that were given before."""
        return numbers.take(self._place, self.version, count)

    # Idempotency keys -------------------------------------------------------------------------------------------------

    async def load_bindings(self, scopes: Iterable[Scope]) -> None:
        """Read which jobs hold these keys."""
        missing = [scope for scope in dict.fromkeys(scopes) if scope not in self._bindings]
        found = await self.tr.get_all([self.keys.key(*scope) for scope in missing])
        for scope, raw in zip(missing, found, strict=True):
            binding = None if raw is None else records.unpack_binding(raw)
            self._bindings[scope] = self._stored_bindings[scope] = binding

    def binding(self, scope: Scope | None) -> Binding | None:
        """Which job holds a key that was loaded."""
        return None if scope is None else self._bindings[scope]

    def bind(self, scope: Scope | None, binding: Binding | None) -> None:
        """Bind a key to a job."""
        if scope is not None and binding is not None:
            self._bindings[scope] = binding

    def drop_binding(self, scope: Scope) -> None:
        """Free a key that was loaded."""
        self._bindings[scope] = None

    async def release_keys(self, jobs: Iterable[Job]) -> None:
        """Free the keys of jobs that have changed, as their policies say, unless other jobs hold them by now."""
        released = [
            (scope, job.id)
            for job in jobs
            if dedup.is_released(job) and (scope := dedup.scope_of(job.tenant, job.queue, job.envelope)) is not None
        ]
        await self.load_bindings(scope for scope, _ in released)
        for scope, id_ in released:
            binding = self._bindings[scope]
            if binding is not None and binding.job_id == id_:
                self._bindings[scope] = None

    # Everything else --------------------------------------------------------------------------------------------------

    def append(self, event: Event) -> None:
        """Add an event to the log. [EVENT-1]"""
        self._events.append(event)

    def set(self, key: bytes, value: bytes) -> None:
        """Set a key at once."""
        self._wrote = True
        self.tr.set(key, value)

    def clear(self, key: bytes) -> None:
        """Clear a key at once."""
        self._wrote = True
        self.tr.clear(key)

    def set_stamped(self, prefix: bytes, value: bytes, place: int = 0) -> None:
        """Set a key that ends with the versionstamp of the commit."""
        self._wrote = True
        self.tr.set_versionstamped_key(stamped(prefix, place), value)

    def next_pointer(self) -> int:
        """The number of the next pointer within the commit."""
        self.pointers += 1
        return self.pointers

    def count(self, key: bytes, by: int) -> None:
        """Add to a count at the end."""
        self._counts[key] += by

    def counted(self, key: bytes) -> int:
        """What this transaction adds to a count, except for jobs."""
        return self._counts[key]

    async def setting(self, tenant: str, queue: str) -> TenantSettings | None:
        """The settings of a queue; queue "": of the whole tenant."""
        cache = self._settings
        if not cache.version:
            return None
        known, place = cache.known, (tenant, queue)
        if place not in known:
            raw = await self.tr.get(self.keys.setting(tenant, queue), snapshot=True)
            known[place] = None if raw is None else unpack_settings(queue, raw)
        return known[place]

    def notify(self) -> None:
        """Notify the listeners of a change that has no event."""
        self._wrote = True
        self.tr.add(self.keys.meta_of("notified"), 1)

    # Writing ----------------------------------------------------------------------------------------------------------

    async def flush(self) -> bool:
        """Write everything. Returns whether there is anything to commit."""
        due: dict[tuple[str, str], int] = {}
        for record in self._records.values():
            if record.changed:
                self._write(record)
                job = record.job
                if job is not None and job.state in WAITING:
                    lane = (job.tenant, job.queue)
                    due[lane] = min(job.visible_at, due.get(lane, job.visible_at))
        await together(*(lanes.point(self, *lane, visible_at) for lane, visible_at in due.items()))
        for bucket in self._buckets:
            self.tr.set(bucket, b"")
        self._write_bindings()
        self._write_log()
        for key, by in self._counts.items():
            if by:
                self._wrote = True
                self.tr.add(key, by)
                if by < 0:
                    self.tr.compare_and_clear(key, _ZERO)
        return self._wrote

    def _write(self, record: StoredJob) -> None:
        tr, keys, job = self.tr, self.keys, record.job
        place = keys.job(record.key)
        if job is None and not record.stored:
            return
        self._wrote = True
        record.changed = False
        indexes = {} if job is None else records.indexed(keys, job)
        counts = {} if job is None else records.counted(keys, job, record.apart)
        for key in record.indexes:
            if key not in indexes:
                tr.clear(key)
        for key, value in indexes.items():
            if record.indexes.get(key) != value:
                tr.set(key, value)
        self._counts.update(counts)
        self._counts.subtract(record.counts)
        pieces = [] if job is None else records.cut(records.pack_job(job, record.apart))
        if record.pieces:
            tr.clear_range(*span(place))
        if pieces:
            tr.set(place, bytes((len(pieces) - 1,)) + pieces[0])
            for number, piece in enumerate(pieces[1:], 1):
                tr.set(place + pack(number), piece)
        else:
            tr.clear(place)
        self._write_payload(record)
        if job is not None and job.state in TERMINAL:
            self._buckets.add(keys.retention_bucket(job.tenant, job.queue, job.expires_at or 0))
        record.indexes, record.counts = indexes, counts
        record.pieces, record.stored = max(0, len(pieces) - 1), bool(pieces)

    def _write_payload(self, record: StoredJob) -> None:
        place = self.keys.payload(record.key)
        if record.was_apart and (record.apart is None or record.new_payload is not None):
            self.tr.clear_range(*span(place))
        if record.new_payload is not None:
            for number, piece in enumerate(records.cut(record.new_payload)):
                self.tr.set(place + pack(number), piece)
            record.new_payload = None
        record.was_apart = record.apart is not None

    def _write_bindings(self) -> None:
        for scope, binding in self._bindings.items():
            old = self._stored_bindings[scope]
            if binding == old:
                continue
            self._wrote = True
            self._stored_bindings[scope] = binding
            place, tenant = self.keys.key(*scope), scope[0]
            if old is not None and old.expires_at is not None:
                self.tr.clear(self.keys.expiring_key(old.expires_at, *scope))
            if binding is None:
                self.tr.clear(place)
            else:
                self.tr.set(place, records.pack_binding(binding))
                if binding.expires_at is not None:
                    self.tr.set(self.keys.expiring_key(binding.expires_at, *scope), b"")
            lasting = _lasts(binding) - _lasts(old)
            self.count(self.keys.kept(tenant, "keys"), lasting)
            self.count(self.keys.kept(tenant, "bytes"), lasting * RECORD_BYTES)

    def _write_log(self) -> None:
        if not self._events:
            return
        self._wrote = self.logged = True
        keys, tr = self.keys, self.tr
        for number, value, events in pack_events(self.nonce, self._events, self.first_number):
            tr.set_versionstamped_key(stamped(keys.log, number), value)
            by_tenant = Counter(event.tenant for event in events)
            for tenant, count in by_tenant.items():
                share = bytes((len(by_tenant) > 1,)) + count.to_bytes(2, "little")
                tr.set_versionstamped_key(stamped(keys.log_of(tenant), number), share)
                self.count(keys.tenant_events(tenant), count)
        self.first_number += len(self._events)
        for part, count in Counter(keys.activity(event.tenant) for event in self._events).items():
            tr.add(part, count)
        self._events = []


def _lasts(binding: Binding | None) -> int:
    return binding is not None and binding.policy in dedup.LASTING
