"""A change of named jobs: lock, read, move by `core.lifecycle`, write what came of it, all in one transaction.

Only what this transaction has locked is changed. A job that is read without a lock, to answer or to decide by, is
marked so: others may claim it, finish it or forget it at any time.

The hot moves (enqueue of new ids, claim, complete) are stated again in migrations/; everything else is made of this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from holdfast.core.dedup import LASTING, Binding
from holdfast.core.errors import StoreBusy
from holdfast.core.events import Event
from holdfast.core.job import TERMINAL, Envelope, Job, JobKey
from holdfast.core.lifecycle import forgotten
from holdfast.store import Hint
from holdfast.stores.postgres import log, rows
from holdfast.stores.postgres.connection import Session
from holdfast.stores.postgres.lanes import Lane, LaneCache
from holdfast.stores.postgres.rows import CODES, Row
from holdfast.stores.postgres.usage import Changes, size_of, size_to_be

KeyScope = tuple[int, str, str]
MAX_DONE_HINTS = 50
"""More ends than this in one queue are told as one."""


class Effects(Struct):
    """What there is to tell once a change is committed."""

    ready: dict[int, int] = field(default_factory=dict[int, int])
    """By lane the earliest moment at which something becomes visible."""
    ended: list[JobKey] = field(default_factory=list[JobKey])
    canceled: list[JobKey] = field(default_factory=list[JobKey])
    """Those that were leased."""
    withdrawn: set[int] = field(default_factory=set[int])
    """Lanes where waiting jobs were canceled."""
    logged: bool = False

    def arrives(self, lane: int, visible_at: int) -> None:
        """Something waits in this lane."""
        at = self.ready.get(lane)
        self.ready[lane] = visible_at if at is None else min(at, visible_at)

    def ends(self, key: JobKey) -> None:
        """A job reached a terminal state."""
        self.ended.append(key)

    def hints(self, cache: LaneCache) -> list[tuple[Hint, str, str, str]]:
        """As hints."""
        found: list[tuple[Hint, str, str, str]] = []
        for number in self.ready:
            lane = cache.by_number.get(number)  # None: all was forgotten in this very moment.
            found.append((Hint.READY, lane.tenant, lane.queue, "") if lane else (Hint.READY, "", "", ""))
        found += _endings(self.ended)
        found += [(Hint.CANCELED, tenant, queue, id_) for tenant, queue, id_ in self.canceled]
        if self.logged:
            found.append((Hint.EVENTS, "", "", ""))
        return found


def _endings(keys: Sequence[JobKey]) -> list[tuple[Hint, str, str, str]]:
    """Where many jobs of a queue have ended, that is told of the queue and not of each."""
    if len(keys) <= MAX_DONE_HINTS:
        return [(Hint.DONE, tenant, queue, id_) for tenant, queue, id_ in keys]
    counts = Counter(key[:2] for key in keys)
    many = {names for names, count in counts.items() if count > MAX_DONE_HINTS}
    few = [(Hint.DONE, tenant, queue, id_) for tenant, queue, id_ in keys if (tenant, queue) not in many]
    return [(Hint.DONE, tenant, queue, "") for tenant, queue in many] + few


class JobRow(Struct):
    """A job as it was found, and as it is to be written."""

    lane: Lane
    job: Job
    hot: bool
    """It stands in `jobs`, else in `done`."""
    logged: int
    locked: bool
    size: int = 0
    """Stored bytes, as it was found."""
    state: int | None = None
    """The code of its state, as it was found. None: it is new."""
    changed: bool = False
    new: bool = False


class UnitOfWork:
    """The changes of one transaction, in these lanes.

    It never asks the memory which lane has a name or a number: the memory may forget all, and learn the lanes of other
    data, while a statement is under way. Each statement compares the lanes that it uses with the database.
    """

    def __init__(self, session: Session, cache: LaneCache, lanes: Iterable[Lane], now: int = 0, xid: int = 0) -> None:
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
    async def begin(cls, session: Session, cache: LaneCache, keys: Collection[tuple[Lane, str]]) -> UnitOfWork:
        """Lock these jobs and read those that were there to be locked, and no other."""
        wanted = sorted({(lane.number, id_) for lane, id_ in keys})
        lanes, ids = [lane for lane, _ in wanted], [id_ for _, id_ in wanted]
        unit = cls(session, cache, [lane for lane, _ in keys])
        unit.xid, unit.now, *locked = await session.value("lock_jobs", lanes, ids, unit.fingerprint(lanes))
        if locked:
            for row in await session.rows("find_locked", locked):
                unit.take(row, locked=True)
        return unit

    def fingerprint(self, numbers: Iterable[int]) -> str:
        """What a statement compares that uses the lanes of these numbers."""
        return self._cache.fingerprint(self.lanes[number] for number in numbers)

    async def read(self, lanes: Sequence[int], ids: Sequence[str], locked: Collection[int] = ()) -> None:
        """Read jobs by id. What is not `locked`, by number, may change at any time."""
        for row in await self.session.rows("find", lanes, ids, self.fingerprint(lanes)):
            self.now = self.now or row["now"]
            self.take(row, locked=row["seq"] in locked)

    def take(self, row: Row, *, locked: bool) -> JobRow:
        """A job as it was read."""
        lane = self.lanes[row["lane"]]
        job = rows.to_job(row, lane.tenant, lane.queue)
        held = JobRow(lane, job, job.state not in TERMINAL, row["logged"], locked, size_of(row), row["state"])
        self.found[lane.number, job.id] = held
        return held

    @property
    def lives(self) -> dict[JobKey, int]:
        """Which jobs it has, by number."""
        return {held.job.key: held.job.seq for held in self.found.values()}

    def keep_to(self, lives: Mapping[JobKey, int]) -> None:
        """Leave later lives of these ids alone."""
        self.found = {
            at: held for at, held in self.found.items() if lives.get(held.job.key, held.job.seq) == held.job.seq
        }

    def find(self, key: JobKey) -> JobRow | None:
        """The job, to be changed, unless it is past its retention. [TENANT-2]"""
        held = self.find_any(key)
        return held if held is not None and held.locked and not forgotten(held.job, self.now) else None

    def find_any(self, key: JobKey) -> JobRow | None:
        """The job that has this id, to decide by: also one that waits to be pruned, or is not locked."""
        lane = self._named.get(key[:2])
        return None if lane is None else self.found.get((lane.number, key.id))

    # Moves ----------------------------------------------------------------------------------------------------

    def move(self, held: JobRow, make: Callable[[], Event]) -> None:
        """Make a move on a job, and what follows from it."""
        job = _locked(held).job
        event = make()
        held.changed = True
        self.log(event, held.lane)
        if job.state in TERMINAL:
            self.effects.ends(job.key)
            self.drop_key(held, "until_terminal")
            self.drop_key(held, "until_started")
        else:
            self.effects.arrives(held.lane.number, job.visible_at)

    def add(self, lane: Lane, job: Job, event: Event) -> None:
        """A new job."""
        self.found[lane.number, job.id] = JobRow(lane, job, hot=True, logged=0, locked=True, changed=True, new=True)
        self.effects.arrives(lane.number, job.visible_at)
        self.log(event, lane)

    def forget(self, held: JobRow) -> None:
        """Remove an ended job for good, this life of its id alone. [KEEP-1]"""
        del self.found[held.lane.number, held.job.id]
        self._gone.append(_locked(held))

    def log(self, event: Event, lane: Lane) -> None:
        """Add an event, in the same transaction as its change. [EVENT-1]"""
        self.events.append((event, lane.number))
        self.effects.logged = True

    def drop_key(self, held: JobRow, policy: str) -> None:
        idempotency = held.job.envelope.idempotency
        if idempotency is not None and idempotency.policy == policy:
            scope = scope_of(held.lane, held.job.envelope)
            binding = self.bound.get(scope)
            if binding is not None and binding.job_id == held.job.id and binding.policy == policy:
                del self.bound[scope]
            self._dropped_keys.append((*scope, held.job.id, policy))

    # Writing --------------------------------------------------------------------------------------------------

    @property
    def filed_under(self) -> int:
        """The transaction to file the events under: ours, or that of an earlier event if it is later. [EVENT-2]"""
        before = [held.logged for held in (*self.found.values(), *self._gone)]
        return max([self.xid, *before])

    async def save(self) -> Effects:
        """Write everything."""
        xid = self.filed_under
        changed = [held for held in self.found.values() if held.changed]
        old = [held for held in changed if not held.new]
        ended = [held for held in old if held.hot and held.job.state in TERMINAL]
        revived = [held for held in old if not held.hot and held.job.state not in TERMINAL]
        rest = [held for held in old if held.hot and held.job.state not in TERMINAL]
        if self._gone:
            await self._save_gone()
        if ended:
            await self._run("end_jobs", (_ended(held.job, xid) for held in ended))
        if revived:
            await self._run("revive_jobs", (_moved(held.job, xid)[:4] + _tail(held.job, xid) for held in revived))
        if rest:
            columns = ((*_moved(held.job, xid)[:4], held.job.deadline, *_tail(held.job, xid)) for held in rest)
            await self._run("save_jobs", columns)
        new = [held for held in changed if held.new]
        usage = self._usage(changed)
        if new:
            await self._run("put_jobs", (_new(held, xid) for held in new))
        if self._dropped_keys:
            await self._run("drop_keys", self._dropped_keys)
        if self.bound:
            self._count_keys(await self._run("bind_keys", self._bindings()), usage)
        await self._save_log(xid, usage)
        if self._freed:
            await self.session.value("note_freed", xid)
        return self.effects

    def _usage(self, changed: Iterable[JobRow]) -> Changes:
        """Changes of what tenants keep."""
        usage = Changes()
        for held in changed:
            usage.job(held.lane.number, held.state, CODES[held.job.state], size_to_be(held.job) - held.size)
        for held in self._gone:
            usage.job(held.lane.number, held.state, None, -held.size)
        return usage

    def _bindings(self) -> Iterable[tuple[Any, ...]]:
        return ((*scope, b.job_id, b.policy, b.expires_at) for scope, b in self.bound.items())

    def _count_keys(self, found: Iterable[Row], usage: Changes) -> None:
        # Upkeep may have deleted an expired binding since it was read: only the insert knows whether it replaced one.
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
        """Ids that no job has any more, each with the number of the job that had it."""
        gone = [(held.lane.number, held.job.id, held.job.seq) for held in self._gone]
        return [(lane, id_, seq) for lane, id_, seq in gone if (lane, id_) not in self.found]

    async def _save_gone(self) -> None:
        await self.session.rows("forget_jobs", [held.job.seq for held in self._gone])
        blobs = [held.job.result.blob for held in self._gone if held.job.result is not None and held.job.result.blob]
        if blobs:
            await self.session.rows("drop_blobs", blobs)
        if self._freed:
            await self._run("drop_ids", self._freed)

    async def _run(self, name: str, items: Iterable[tuple[Any, ...]]) -> list[Row]:
        return await self.session.rows(name, *(list(column) for column in zip(*items, strict=True)))


def _locked(held: JobRow) -> JobRow:
    """What is to be changed. Raises StoreBusy for a job that came after the locks were taken."""
    if not held.locked:
        raise StoreBusy(f"job {held.job.id!r} was enqueued at this very moment; try again")
    return held


def scope_of(lane: Lane, envelope: Envelope) -> KeyScope:
    """What a key is unique in."""
    return (lane.number, envelope.type, envelope.idempotency.key if envelope.idempotency else "")


def _moved(job: Job, xid: int) -> tuple[Any, ...]:
    return (job.seq, CODES[job.state], job.visible_at, job.attempts, *_tail(job, xid))


def _tail(job: Job, xid: int) -> tuple[Any, ...]:
    return (rows.pack_extra(job), xid, job.events)


def _ended(job: Job, xid: int) -> tuple[Any, ...]:
    result = rows.pack_result(job.result)
    return (*_moved(job, xid), job.finished_at, job.expires_at, result, job.result_ttl_ms)


def _new(held: JobRow, xid: int) -> tuple[Any, ...]:
    job, lane, e = held.job, held.lane, held.job.envelope
    key = None if e.idempotency is None else e.idempotency.key
    return (
        job.seq, job.visible_at, job.enqueued_at, job.result_ttl_ms, xid, lane.queue_id, lane.number,
        CODES[job.state], 9 - e.priority, job.id, e.type, e.request_id, key, rows.pack_head(e), e.payload,
        rows.pack_extra(job),
    )  # fmt: skip
