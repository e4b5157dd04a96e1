"""What every change is made of: the clock and the counters, lanes, jobs, keys and events.

One Transaction serves a group of calls. What a call changed is gathered and written by `flush`, each kind in one
`executemany`; a call that failed is forgotten with its savepoint.
"""

from __future__ import annotations

import sqlite3
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import msgspec
from msgspec import Struct, field

from holdfast.core import budgets, dedup, fairness, lifecycle
from holdfast.core.errors import QuotaExceeded
from holdfast.core.events import Event
from holdfast.core.job import WAITING, Envelope, Job, JobKey, JobState, Result
from holdfast.core.lifecycle import Retention, forgotten
from holdfast.store import Hint, Signal
from holdfast.stores.file import rows
from holdfast.stores.file.sql import ADD_JOBS, ANY_VISIBLE, ROWS, SQL
from holdfast.stores.file.waiters import WaiterTable

_COUNTED = (JobState.LEASED, JobState.COMPLETED, JobState.FAILED, JobState.CANCELED)
_COLUMN = {**dict.fromkeys(WAITING, 0), **{state: n for n, state in enumerate(_COUNTED, 1)}}
_encode_json = msgspec.json.Encoder().encode

CHUNK = 1000
"""How many events stand in one row of the log at most."""
MAX_LEASES = 10_000
MAX_LANES = 8
"""Nothing is handed over to a worker for all tenants where so many lanes may have work: looking would take too long."""


class FileSettings(Struct, frozen=True):
    """What the store was opened with."""

    retention: Retention
    all_events: bool
    keep_events: int


def clock(shift: int, frozen_at: int | None) -> int:
    """The store's clock in milliseconds: the machine's, so that processes and reboots agree. [TIME-1]"""
    return (time.time_ns() // 1_000_000 if frozen_at is None else frozen_at) + shift


class LaneDelta(Struct):
    """How a call changed a lane: its counts of waiting, leased, completed, failed and canceled jobs, and what waits.

    And of what the tenant keeps there: keys, bytes, events.
    """

    counts: list[int] = field(default_factory=lambda: [0, 0, 0, 0, 0])
    next_at: int | None = None
    keys: int = 0
    bytes: int = 0
    events: int = 0


class LeaseCache(Struct):
    """What a process remembers between transactions.

    The database may be restored in between: so a number from here is used only where the statement compares it with the
    names that it stands for.
    """

    leases: dict[JobKey, tuple[Job, int]] = field(default_factory=dict[JobKey, tuple[Job, int]])
    """Jobs that this process leased, as they were then. The row decides whether the lease still lives."""
    delivered: deque[tuple[Job, int]] = field(default_factory=deque[tuple[Job, int]])
    """Those that were leased to it by others; to be remembered with the next transaction."""

    def clear(self) -> None:
        """Forget all, after a rollback."""
        self.leases.clear()


class Transaction:
    """The changes of one group."""

    def __init__(
        self, db: sqlite3.Connection, lease_cache: LeaseCache, settings: FileSettings, waiters: WaiterTable
    ) -> None:
        self.db = db
        self.settings = settings
        self.waiters = waiters
        # For this transaction alone: a lane number of before may be another tenant's by now.
        self._lanes: dict[tuple[str, str], int] = {}
        self.leases = lease_cache.leases
        counters = db.execute(SQL["counters"]).fetchone()
        self._saved = counters[:3]
        self.seq, self.token, self.event, self.trimmed, self.gone, shift, frozen_at = counters
        self.now = clock(shift, frozen_at)
        self._kept = self.event
        self._signals: dict[tuple[Hint, str, str, str], Job | None] = {}
        self._clear()
        while lease_cache.delivered:
            self.remember(*lease_cache.delivered.popleft())

    def _clear(self) -> None:
        self._deltas: dict[int, LaneDelta] = {}
        self._changed: list[rows.Row] = []
        self._claimed: list[Job] = []
        self._events: list[rows.LoggedEvent] = []

    # One call after another ------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what the call changed."""
        db = self.db
        if self._changed:
            db.executemany(SQL["save_job"], self._changed)
        if self._claimed:
            self._save_claimed()
        if self._events:
            self._save_events()
        for lane, delta in self._deltas.items():
            arguments = (*delta.counts, delta.next_at, lane, delta.keys, delta.bytes, delta.events)
            db.execute(SQL["move_lane"], arguments)
        self._clear()

    def _save_claimed(self) -> None:
        first = self._claimed[0]
        seqs = _encode_json([job.seq for job in self._claimed]).decode()
        self.db.execute(SQL["save_claimed"], (first.token, first.deadline, rows.pack_held(first), seqs))

    def _save_events(self) -> None:
        for n in range(0, len(self._events), CHUNK):
            chunk = self._events[n : n + CHUNK]
            first = self.event - len(self._events) + n + 1
            self.db.execute(SQL["add_events"], rows.chunk_row(first, chunk))
        for lane, count in rows.count_lanes(self._events).items():
            self.delta(lane).events += count

    def keep(self) -> None:
        """The call went through: write what it changed and stand by it."""
        self.flush()
        self._kept = self.event
        self.waiters.keep()

    def forget(self) -> None:
        """Drop what a failed call had gathered. Its token and number are not used again."""
        self._clear()
        self._lanes.clear()
        self._signals.clear()
        self.event = self._kept
        self.waiters.forget()

    def next_token(self) -> int:
        """The token of the next lease. It follows the clock: a restored database hands none out twice. [LEASE-5]"""
        return max(self.token + 1, self.now * 1000)

    def next_seq(self) -> int:
        """The number of the next job. It follows the clock: a change that names a lost life never finds another one."""
        return max(self.seq + 1, self.now * 1000)

    def save_counters(self) -> None:
        """Write the counters, once for the group."""
        counters = (self.seq, self.token, self.event)
        if counters != self._saved:
            self.db.execute(SQL["save_counters"], counters)

    def signal(self, hint: Hint, tenant: str = "", queue: str = "", id_: str = "", job: Job | None = None) -> None:
        """Something to tell once the change is on the disk."""
        self._signals[hint, tenant, queue, id_] = job

    def take_signals(self) -> list[Signal]:
        """What there is to tell after the commit."""
        signals = [Signal(*signal, job) for signal, job in self._signals.items()]
        self._signals.clear()
        return signals

    # Lanes -----------------------------------------------------------------------------------------------------

    def lane(self, tenant: str, queue: str) -> int:
        """The lane of these names, made if it is new."""
        lane = self.find_lane(tenant, queue)
        if lane is None:
            lane = self.db.execute(SQL["add_lane"], (tenant, queue)).lastrowid or 0
            self._lanes[tenant, queue] = lane
        return lane

    def find_lane(self, tenant: str, queue: str) -> int | None:
        lane = self._lanes.get((tenant, queue))
        if lane is None:
            row = self.db.execute(SQL["find_lane"], (tenant, queue)).fetchone()
            if row is not None:
                lane = self._lanes[tenant, queue] = row[0]
        return lane

    def _owner(self, lane: int) -> str:
        return self.db.execute(SQL["lane_names"], (lane,)).fetchone()[0]

    def over_quota(self, tenant: str, queue: str, lane: int) -> QuotaExceeded | None:
        """The refusal, if the lane or the tenant has all the waiting jobs that it may. [TENANT-5]"""
        limits = self.db.execute(SQL["lane_settings"], (tenant, queue)).fetchall()
        for scope, _, limit in limits:
            if limit is None:
                continue
            query, argument = ("lane_waiting", lane) if scope else ("tenant_waiting", tenant)
            waiting = self.db.execute(SQL[query], (argument,)).fetchone()[0] + self._gathered(tenant, lane, scope)
            if waiting >= limit:
                return QuotaExceeded(scope or None, waiting, limit)
        return None

    def has_quota(self, tenant: str, queue: str) -> bool:
        """Whether any quota bounds this lane."""
        return any(row[2] is not None for row in self.db.execute(SQL["lane_settings"], (tenant, queue)))

    def cost(self, tenant: str, queue: str) -> int:
        """What a turn costs this tenant here. [TENANT-4]"""
        for _, weight, _ in self.db.execute(SQL["lane_settings"], (tenant, queue)):
            if weight is not None:
                return fairness.cost(weight)
        return fairness.STRIDE

    def _gathered(self, tenant: str, lane: int, scope: str) -> int:
        """Waiting jobs that this call added and has not written yet."""
        if scope:
            return self._deltas[lane].counts[0] if lane in self._deltas else 0
        return sum(delta.counts[0] for number, delta in self._deltas.items() if self._owner(number) == tenant)

    # Jobs ------------------------------------------------------------------------------------------------------

    def find(self, key: JobKey) -> tuple[Job | None, int]:
        """The job and its lane; None for one that is not there or is past its retention. [TENANT-2]"""
        lane = self.find_lane(key.tenant, key.queue)
        if lane is None:
            return None, 0
        job = self.find_any(key, lane)
        return (None if job is None or forgotten(job, self.now) else job), lane

    def key_of(self, seq: int) -> JobKey | None:
        """The name of the job that has this number."""
        row = self.db.execute(SQL["job_key"], (seq,)).fetchone()
        return None if row is None else JobKey(*row)

    def find_any(self, key: JobKey, lane: int) -> Job | None:
        """The job that has this id, also one that is only waiting to be pruned."""
        row = self.db.execute(SQL["find_job"], (lane, key.id)).fetchone()
        return None if row is None else rows.to_job(row, key.tenant, key.queue)

    def change(self, job: Job, lane: int, move: Callable[[], Event]) -> Event:
        """Make a move on a job: the row, the counts, and what follows from it. The event is for `append`."""
        self.leases.pop(job.key, None)
        self.count(lane, job.state, -1)
        before = budgets.varying(job)
        event = move()
        self.delta(lane).bytes += budgets.varying(job) - before
        self._changed.append(rows.changed_row(job))
        if job.state in WAITING:
            self.count(lane, job.state, +1)
            self.becomes_visible(job, lane)
        else:
            # A failed one may be replayed before its record is heard of.
            whole = job.envelope.payload is not rows.ELSEWHERE and job.state is not JobState.FAILED
            self.ended(job, lane, job if whole else None)
        return event

    def arrive(self, job: Job, event: Event, lane: int) -> None:
        """A new job is in its row: count it, tell of it, log it."""
        self.count(lane, job.state, +1)
        self._deltas[lane].bytes += budgets.RECORD_BYTES + len(job.envelope.payload)
        self.becomes_visible(job, lane)
        self.append(event, lane)

    def add_jobs(self, new: list[rows.Row]) -> int:
        """Add jobs; how many had an id that was not there. Many in one statement, in which Python's lock is free."""
        added = 0
        whole = len(new) - len(new) % ROWS
        for n in range(0, whole, ROWS):
            added += self.db.execute(ADD_JOBS, list(chain.from_iterable(new[n : n + ROWS]))).rowcount
        if whole < len(new):
            added += self.db.executemany(SQL["add_job"], new[whole:]).rowcount
        return added

    def hand_off(self, job: Job, event: Event, lane: int) -> bool:
        """Take in a job, the only one of its enqueue, as leased to a worker that waits; else nothing. [CLAIM-1]"""
        if job.state is not JobState.READY or not rows.is_small(job):
            return False
        paused, waiting = self.db.execute(SQL["lane_state"], (lane,)).fetchone()
        if paused or self.one("any_expired", self.now) is not None:
            return False  # A claim would end what has run out first. [LEASE-3]
        is_next = partial(self._nothing_waits, job.queue, lane, waiting)
        waiter = self.waiters.find(job.tenant, job.queue, self.now, is_next)
        if waiter is None:
            return False
        leased = job.snapshot()
        claimed = lifecycle.claim(leased, self.next_token(), self.now + waiter.lease_ms, waiter.worker, self.now)
        handoff = self.waiters.pack(waiter, leased, lane, self.now)
        if handoff is None or self.db.execute(SQL["add_leased"], rows.full_row(leased, lane)[:-3]).rowcount != 1:
            return False
        self.waiters.hand_off(handoff)
        self.token = leased.token
        self.count(lane, leased.state, +1)
        self._deltas[lane].bytes += budgets.weight(leased)
        self.append(event, lane)
        self.append(claimed, lane)
        return True

    def _nothing_waits(self, queue: str, lane: int, waiting: int, whose: str | None) -> bool:
        """Whether a claim of this tenant, or of all, would find nothing. [CLAIM-2, TENANT-4]"""
        if waiting and self.has_visible(lane):
            return False
        if whose is not None:
            return True
        others = self.db.execute(SQL["lanes_with_work"], (queue, self.now, MAX_LANES)).fetchall()
        return len(others) < MAX_LANES and not any(count and self.has_visible(number) for number, count in others)

    def has_visible(self, lane: int) -> bool:
        """Whether a job of this lane can be claimed now, but for a pause."""
        return self.db.execute(ANY_VISIBLE, (lane, self.now)).fetchone() is not None

    def claimed(self, job: Job, lane: int) -> None:
        """A job was leased: write it with the batch, and remember it for its completion."""
        self._claimed.append(job)
        self.remember(job.snapshot(), lane)

    def remember(self, job: Job, lane: int) -> None:
        """Spare the completion of a job that was leased to this process the look at its row."""
        if job.envelope.idempotency is None:
            if len(self.leases) >= MAX_LEASES:
                del self.leases[next(iter(self.leases))]
            self.leases[job.key] = (job, lane)

    def save_completed(self, completed: list[tuple[Job, Result | None]]) -> bool:
        """Write completions in one statement, if each lease is live and its job as it is remembered; else nothing."""
        if len(completed) == 1:
            job, result = completed[0]
            data = None if result is None else rows.pack_result(result)
            lane = self._lanes[job.key[:2]]
            one = (self.now, self.now + job.result_ttl_ms, data, job.seq, job.token, lane, job.id, job.events)
            return self.db.execute(SQL["save_one_completed"], one).rowcount == 1
        results: list[bytes] = []
        batch: list[tuple[int, int, int, int | None, int, int, str, int]] = []
        position = 1
        for job, result in completed:
            data = b"" if result is None else rows.pack_result(result)
            expires_at = self.now + job.result_ttl_ms
            lane, place = self._lanes[job.key[:2]], position if data else None
            batch.append((job.seq, job.token, expires_at, place, len(data), lane, job.id, job.events))
            results.append(data)
            position += len(data)
        self.db.execute("SAVEPOINT completions")
        arguments = (self.now, b"".join(results), _encode_json(batch).decode())
        done = self.db.execute(SQL["save_completed"], arguments).rowcount == len(completed)
        if not done:
            self.db.execute("ROLLBACK TO completions")
        self.db.execute("RELEASE completions")
        return done

    def ended(self, job: Job, lane: int, record: Job | None = None) -> None:
        """What follows a job's end: counted, told, maybe with its record, its key free. [ENQ-3]"""
        self.count(lane, job.state, +1)
        self.signal(Hint.DONE, *job.key, None if record is None or forgotten(record, self.now) else record)
        if dedup.is_released(job):
            self.drop_key(job, lane)

    def add_payloads(self, jobs: list[Job]) -> None:
        """Store the payloads that are too large to stand in the row itself."""
        large = [(job.seq, job.envelope.payload) for job in jobs if len(job.envelope.payload) > rows.SMALL]
        if large:
            self.db.executemany(SQL["add_payload"], large)

    def read_payload(self, job: Job) -> None:
        """Fetch a payload that does not stand in the row."""
        rows.fill_payload(self.db, job)

    def count(self, lane: int, state: JobState, by: int) -> None:
        """A job entered or left a state."""
        self.delta(lane).counts[_COLUMN[state]] += by

    def delta(self, lane: int) -> LaneDelta:
        """What this call changes of a lane."""
        delta = self._deltas.get(lane)
        if delta is None:
            delta = self._deltas[lane] = LaneDelta()
        return delta

    def becomes_visible(self, job: Job, lane: int) -> None:
        """Let claims know of a waiting job, due or not."""
        delta = self._deltas[lane]
        if delta.next_at is None or job.visible_at < delta.next_at:
            delta.next_at = job.visible_at
        self.signal(Hint.READY, job.tenant, job.queue)

    def forget_job(self, job: Job, lane: int) -> None:
        """Remove an ended job for good. [KEEP-1]"""
        self.count(lane, job.state, -1)
        self._deltas[lane].bytes -= budgets.weight(job)
        self.db.execute(SQL["drop_job"], (job.seq,))
        if job.envelope.payload is rows.ELSEWHERE:
            self._deltas[lane].bytes -= self.one("payload_size", job.seq) - len(rows.ELSEWHERE)
            self.db.execute(SQL["drop_payload"], (job.seq,))
        if job.result is not None and job.result.blob:
            self.db.execute(SQL["drop_blob"], (job.result.blob,))

    def append(self, event: Event, lane: int) -> None:
        """Add an event, in the same transaction as its change. [EVENT-1]"""
        self.event += 1
        self._events.append(rows.logged(event, lane))
        self._signals[_EVENTS] = None

    # Keys ------------------------------------------------------------------------------------------------------

    def binding(self, envelope: Envelope, lane: int) -> dedup.Binding | None:
        """Who holds the idempotency key of this envelope. [ENQ-3]"""
        if envelope.idempotency is None:
            return None
        row = self.db.execute(SQL["find_key"], (lane, envelope.type, envelope.idempotency.key)).fetchone()
        return None if row is None else dedup.Binding(*row)

    def bind(self, envelope: Envelope, lane: int, binding: dedup.Binding, old: dedup.Binding | None) -> None:
        """Let a job hold its key, in place of an old binding that is over."""
        self.count_keys(lane, (binding.policy in dedup.LASTING) - (old is not None and old.policy in dedup.LASTING))
        key = envelope.idempotency.key if envelope.idempotency else ""
        self.db.execute(SQL["bind_key"], (lane, envelope.type, key, binding.job_id, binding.policy, binding.expires_at))

    def count_keys(self, lane: int, by: int) -> None:
        """So many more keys outlive their job, or fewer."""
        if by:
            delta = self.delta(lane)
            delta.keys += by
            delta.bytes += by * budgets.RECORD_BYTES

    def drop_key(self, job: Job, lane: int) -> None:
        """Free a job's idempotency key, unless another job holds it by now."""
        key = job.envelope.idempotency
        if key is not None:
            self.db.execute(SQL["drop_key"], (lane, job.envelope.type, key.key, job.id, key.policy))

    def one(self, name: str, *arguments: Any) -> Any:
        """The first column of the first row of a named query, or None."""
        row = self.db.execute(SQL[name], arguments).fetchone()
        return None if row is None else row[0]


_EVENTS = (Hint.EVENTS, "", "", "")
