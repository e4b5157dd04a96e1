"""A change of named jobs in one transaction: lock, read, make transitions by `core.lifecycle`, write the result.

Only jobs that this transaction has locked are changed. A job that is read without a lock, to answer or decide by, is
marked so: other transactions may claim, finish or forget it at any time.

The hot transitions (enqueue of new ids, claim, complete) are stated again in migrations/; all others are made here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from holdfast.core.codes import STATE_CODES
from holdfast.core.dedup import LASTING, Binding
from holdfast.core.errors import StoreBusy
from holdfast.core.events import Event
from holdfast.core.job import TERMINAL, Envelope, Job, JobKey
from holdfast.core.lifecycle import forgotten
from holdfast.store import Hint
from holdfast.stores.postgres import log, rows
from holdfast.stores.postgres.connection import PostgresSession
from holdfast.stores.postgres.lanes import LaneCache, TenantLane
from holdfast.stores.postgres.rows import Row
from holdfast.stores.postgres.usage import Changes, size_of, size_to_be

KeyScope = tuple[int, str, str]
MAX_DONE_HINTS = 50
"""If more jobs of one queue end, one hint stands for all of them."""


class Effects(Struct):
    """What a change means for waiting processes and for the cache, once it is committed."""

    ready: dict[int, int] = field(default_factory=dict[int, int])
    """By lane, the earliest time at which a job becomes visible."""
    ended: list[JobKey] = field(default_factory=list[JobKey])
    canceled: list[JobKey] = field(default_factory=list[JobKey])
    """Canceled jobs that were leased."""
    withdrawn: set[int] = field(default_factory=set[int])
    """Lanes where waiting jobs were canceled."""
    logged: bool = False

    def arrives(self, lane: int, visible_at: int) -> None:
        """A job waits in this lane."""
        at = self.ready.get(lane)
        self.ready[lane] = visible_at if at is None else min(at, visible_at)

    def ends(self, key: JobKey) -> None:
        """A job reached a terminal state."""
        self.ended.append(key)

    def hints(self, cache: LaneCache) -> list[tuple[Hint, str, str, str]]:
        """The hints to send."""
        found: list[tuple[Hint, str, str, str]] = []
        for number in self.ready:
            lane = cache.by_number.get(number)  # None: the cache was emptied meanwhile.
            found.append((Hint.READY, lane.tenant, lane.queue, "") if lane else (Hint.READY, "", "", ""))
        found += _endings(self.ended)
        found += [(Hint.CANCELED, tenant, queue, id_) for tenant, queue, id_ in self.canceled]
        if self.logged:
            found.append((Hint.EVENTS, "", "", ""))
        return found


def _endings(keys: Sequence[JobKey]) -> list[tuple[Hint, str, str, str]]:
    """One hint per job, or one per queue where many jobs have ended."""
    if len(keys) <= MAX_DONE_HINTS:
        return [(Hint.DONE, tenant, queue, id_) for tenant, queue, id_ in keys]
    counts = Counter(key[:2] for key in keys)
    many = {names for names, count in counts.items() if count > MAX_DONE_HINTS}
    few = [(Hint.DONE, tenant, queue, id_) for tenant, queue, id_ in keys if (tenant, queue) not in many]
    return [(Hint.DONE, tenant, queue, "") for tenant, queue in many] + few


class JobRow(Struct):
    """A job as it was read, and as it will be written."""

    lane: TenantLane
    job: Job
    hot: bool
    """It was read from `jobs`; otherwise from `done`."""
    logged: int
    locked: bool
    size: int = 0
    """Stored bytes when it was read."""
    state: int | None = None
    """The code of its state when it was read. None: it is new."""
    changed: bool = False
    new: bool = False


class UnitOfWork:
    """The changes of one transaction, in these lanes.

    It never looks up a lane in the cache: the cache may be emptied and filled from other data during a statement.
    Each statement compares the lanes that it uses with the database.
    """

    def __init__(
        self, session: PostgresSession, cache: LaneCache, lanes: Iterable[TenantLane], now: int = 0, xid: int = 0
    ) -> None:
        self.session = session
        self.lanes = {lane.number: lane for lane in lanes}
        self._named = {(lane.tenant, lane.queue): lane for lane in self.lanes.values()}
        self._cache = cache
        self.now = now
        self.xid = xid
        self.effects = Effects()
        self.found: dict[tuple[int, str], JobRow] = {}
        self.events: list[tuple[Event, int]] = []
        self._gone: list[JobRow] = []
        self._dropped_keys: list[tuple[int, str, str, str, str]] = []
        self.bound: dict[KeyScope, Binding] = {}
        self.bound_before: dict[KeyScope, Binding] = {}
        """The bindings before this change."""

    @classmethod
    async def begin(
        cls, session: PostgresSession, cache: LaneCache, keys: Collection[tuple[TenantLane, str]]
    ) -> UnitOfWork:
        """Lock these jobs, and read the ones that were locked and no others."""
        wanted = sorted({(lane.number, id_) for lane, id_ in keys})
        lanes, ids = [lane for lane, _ in wanted], [id_ for _, id_ in wanted]
        unit = cls(session, cache, [lane for lane, _ in keys])
        unit.xid, unit.now, *locked = await session.value("lock_jobs", lanes, ids, unit.fingerprint(lanes))
        if locked:
            for row in await session.rows("find_locked", locked):
                unit.take(row, locked=True)
        return unit

    def fingerprint(self, numbers: Iterable[int]) -> str:
        """The fingerprint for a statement that uses the lanes of these numbers."""
        return self._cache.fingerprint(self.lanes[number] for number in numbers)

    async def read(self, lanes: Sequence[int], ids: Sequence[str], locked: Collection[int] = ()) -> None:
        """Read jobs by id. Those not in `locked`, by number, may change at any time."""
        for row in await self.session.rows("find", lanes, ids, self.fingerprint(lanes)):
            self.now = self.now or row["now"]
            self.take(row, locked=row["seq"] in locked)

    def take(self, row: Row, *, locked: bool) -> JobRow:
        """Add a row that was read."""
        lane = self.lanes[row["lane"]]
        job = rows.to_job(row, lane.tenant, lane.queue)
        found = JobRow(lane, job, job.state not in TERMINAL, row["logged"], locked, size_of(row), row["state"])
        self.found[lane.number, job.id] = found
        return found

    @property
    def seqs(self) -> dict[JobKey, int]:
        """The numbers of its jobs."""
        return {row.job.key: row.job.seq for row in self.found.values()}

    def keep_to(self, seqs: Mapping[JobKey, int]) -> None:
        """Leave out later jobs of these ids."""
        self.found = {at: row for at, row in self.found.items() if seqs.get(row.job.key, row.job.seq) == row.job.seq}

    def find(self, key: JobKey) -> JobRow | None:
        """The job, for a change, unless it is past its retention. [TENANT-2]"""
        row = self.find_any(key)
        return row if row is not None and row.locked and not forgotten(row.job, self.now) else None

    def find_any(self, key: JobKey) -> JobRow | None:
        """The job of this id, to decide by: also if it waits to be pruned or is not locked."""
        lane = self._named.get(key[:2])
        return None if lane is None else self.found.get((lane.number, key.id))

    # Transitions ----------------------------------------------------------------------------------------------

    def move(self, row: JobRow, make: Callable[[], Event]) -> None:
        """Make a transition of a job, and what follows from it."""
        job = _locked(row).job
        event = make()
        row.changed = True
        self.log(event, row.lane)
        if job.state in TERMINAL:
            self.effects.ends(job.key)
            self.drop_key(row, "until_terminal")
            self.drop_key(row, "until_started")
        else:
            self.effects.arrives(row.lane.number, job.visible_at)

    def add(self, lane: TenantLane, job: Job, event: Event) -> None:
        """Add a new job."""
        self.found[lane.number, job.id] = JobRow(lane, job, hot=True, logged=0, locked=True, changed=True, new=True)
        self.effects.arrives(lane.number, job.visible_at)
        self.log(event, lane)

    def forget(self, row: JobRow) -> None:
        """Remove a finished job, and no later job of its id. [KEEP-1]"""
        del self.found[row.lane.number, row.job.id]
        self._gone.append(_locked(row))

    def log(self, event: Event, lane: TenantLane) -> None:
        """Add an event, in the same transaction as its change. [EVENT-1]"""
        self.events.append((event, lane.number))
        self.effects.logged = True

    def drop_key(self, row: JobRow, policy: str) -> None:
        idempotency = row.job.envelope.idempotency
        if idempotency is not None and idempotency.policy == policy:
            scope = scope_of(row.lane, row.job.envelope)
            binding = self.bound.get(scope)
            if binding is not None and binding.job_id == row.job.id and binding.policy == policy:
                del self.bound[scope]
            self._dropped_keys.append((*scope, row.job.id, policy))

    # Writing --------------------------------------------------------------------------------------------------

    @property
    def filed_under(self) -> int:
        """The transaction to file the events under: this one, or that of an earlier event if it is later. [EVENT-2]"""
        before = [row.logged for row in (*self.found.values(), *self._gone)]
        return max([self.xid, *before])

    async def save(self) -> Effects:
        """Write everything."""
        xid = self.filed_under
        changed = [row for row in self.found.values() if row.changed]
        old = [row for row in changed if not row.new]
        ended = [row for row in old if row.hot and row.job.state in TERMINAL]
        revived = [row for row in old if not row.hot and row.job.state not in TERMINAL]
        rest = [row for row in old if row.hot and row.job.state not in TERMINAL]
        if self._gone:
            await self._save_gone()
        if ended:
            await self._run("end_jobs", (_ended(row.job, xid) for row in ended))
        if revived:
            await self._run("revive_jobs", (_moved(row.job, xid)[:4] + _tail(row.job, xid) for row in revived))
        if rest:
            columns = ((*_moved(row.job, xid)[:4], row.job.deadline, *_tail(row.job, xid)) for row in rest)
            await self._run("save_jobs", columns)
        new = [row for row in changed if row.new]
        usage = self._usage(changed)
        if new:
            await self._run("put_jobs", (_new(row, xid) for row in new))
        if self._dropped_keys:
            await self._run("drop_keys", self._dropped_keys)
        if self.bound:
            self._count_keys(await self._run("bind_keys", self._bindings()), usage)
        await self._save_log(xid, usage)
        if self._freed:
            await self.session.value("note_freed", xid)
        return self.effects

    def _usage(self, changed: Iterable[JobRow]) -> Changes:
        """The changes of the counts."""
        usage = Changes()
        for row in changed:
            usage.job(row.lane.number, row.state, STATE_CODES[row.job.state], size_to_be(row.job) - row.size)
        for row in self._gone:
            usage.job(row.lane.number, row.state, None, -row.size)
        return usage

    def _bindings(self) -> Iterable[tuple[Any, ...]]:
        return ((*scope, b.job_id, b.policy, b.expires_at) for scope, b in self.bound.items())

    def _count_keys(self, found: Iterable[Row], usage: Changes) -> None:
        # Upkeep may have deleted an expired binding since it was read: only the insert shows whether it replaced one.
        for row in found:
            scope = (row["lane"], row["type"], row["key"])
            before = self.bound_before.get(scope) if row["was_there"] else None
            more = (self.bound[scope].policy in LASTING) - (before is not None and before.policy in LASTING)
            if more:
                usage.keys(scope[0], more)

    async def _save_log(self, xid: int, usage: Changes) -> None:
        changes = usage.flat() or None
        if self.events:
            at = self.events[0][0].at
            await self.session.value("log", xid, at, len(self.events), *log.pack(self.events), changes)
        elif changes:
            await self.session.rows("change_usage", changes)

    @property
    def _freed(self) -> list[tuple[int, str, int]]:
        """Ids that are free now, each with the number of the job that had it."""
        gone = [(row.lane.number, row.job.id, row.job.seq) for row in self._gone]
        return [(lane, id_, seq) for lane, id_, seq in gone if (lane, id_) not in self.found]

    async def _save_gone(self) -> None:
        await self.session.rows("forget_jobs", [row.job.seq for row in self._gone])
        blobs = [row.job.result.blob for row in self._gone if row.job.result is not None and row.job.result.blob]
        if blobs:
            await self.session.rows("drop_blobs", blobs)
        if self._freed:
            await self._run("drop_ids", self._freed)

    async def _run(self, name: str, items: Iterable[tuple[Any, ...]]) -> list[Row]:
        return await self.session.rows(name, *(list(column) for column in zip(*items, strict=True)))


def _locked(row: JobRow) -> JobRow:
    """A job that may be changed. Raises StoreBusy for one that was enqueued after the locks were taken."""
    if not row.locked:
        raise StoreBusy(f"job {row.job.id!r} was enqueued just now; try again")
    return row


def scope_of(lane: TenantLane, envelope: Envelope) -> KeyScope:
    """The scope that a key is unique in."""
    return (lane.number, envelope.type, envelope.idempotency.key if envelope.idempotency else "")


def _moved(job: Job, xid: int) -> tuple[Any, ...]:
    return (job.seq, STATE_CODES[job.state], job.visible_at, job.attempts, *_tail(job, xid))


def _tail(job: Job, xid: int) -> tuple[Any, ...]:
    return (rows.pack_extra(job), xid, job.events)


def _ended(job: Job, xid: int) -> tuple[Any, ...]:
    result = rows.pack_result(job.result)
    return (*_moved(job, xid), job.finished_at, job.expires_at, result, job.result_ttl_ms)


def _new(row: JobRow, xid: int) -> tuple[Any, ...]:
    job, lane, e = row.job, row.lane, row.job.envelope
    key = None if e.idempotency is None else e.idempotency.key
    return (
        job.seq, job.visible_at, job.enqueued_at, job.result_ttl_ms, xid, lane.queue_id, lane.number,
        STATE_CODES[job.state], 9 - e.priority, job.id, e.type, e.request_id, key, rows.pack_head(e), e.payload,
        rows.pack_extra(job),
    )  # fmt: skip
