"""The parts of every change: the clock and the counters, lanes, jobs, keys and events.

One Transaction serves a group of calls. It collects the changes of a call, and `flush` writes each kind in one
`executemany`. The changes of a failed call are dropped with its savepoint.
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
"""The most events in one row of the log."""
MAX_LEASES = 10_000
"""The most cached leases."""
MAX_LANES = 8
"""With this many lanes that may have work, nothing is handed off to a worker for all tenants: the check is too slow."""


class FileSettings(Struct, frozen=True):
    """The options of an open store."""

    retention: Retention
    all_events: bool
    keep_events: int


def clock(shift: int, frozen_at: int | None) -> int:
    """The store's clock in milliseconds: the machine's, so that processes and reboots agree. [TIME-1]"""
    return (time.time_ns() // 1_000_000 if frozen_at is None else frozen_at) + shift


class LaneDelta(Struct):
    """How a call changes a lane.

    `counts` are of waiting, leased, completed, failed and canceled jobs, `next_at` the earliest time of a waiting one.
    """

    counts: list[int] = field(default_factory=lambda: [0, 0, 0, 0, 0])
    next_at: int | None = None
    keys: int = 0
    bytes: int = 0
    events: int = 0


class LeaseCache(Struct):
    """The leases that a process caches between transactions.

    A backup may be restored in between, so a statement that uses a cached number also compares the names.
    """

    leases: dict[JobKey, tuple[Job, int]] = field(default_factory=dict[JobKey, tuple[Job, int]])
    """Jobs that this process leased, as they were then. The row decides whether the lease is still live."""
    delivered: deque[tuple[Job, int]] = field(default_factory=deque[tuple[Job, int]])
    """Jobs handed off to this process, to be cached in the next transaction."""

    def clear(self) -> None:
        """Drop all leases, after a rollback."""
        self.leases.clear()


class Transaction:
    """The changes of one group."""

    def __init__(
        self, db: sqlite3.Connection, lease_cache: LeaseCache, settings: FileSettings, waiters: WaiterTable
    ) -> None:
        self.db = db
        self.settings = settings
        self.waiters = waiters
        # For this transaction only: after a restore, a lane number may belong to another tenant.
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

    # Calls ------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write the changes of the call."""
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
        """The call succeeded: write and keep its changes."""
        self.flush()
        self._kept = self.event
        self.waiters.keep()

    def forget(self) -> None:
        """The call failed: drop its changes. Its tokens and seqs are not used again."""
        self._clear()
        self._lanes.clear()
        self._signals.clear()
        self.event = self._kept
        self.waiters.forget()

    def next_token(self) -> int:
        """The token of the next lease. It follows the clock: a restored database reuses none. [LEASE-5]"""
        return max(self.token + 1, self.now * 1000)

    def next_seq(self) -> int:
        """The seq of the next job. It follows the clock: after a restore, a lost job's seq never names another job."""
        return max(self.seq + 1, self.now * 1000)

    def save_counters(self) -> None:
        """Write the counters, once for the group."""
        counters = (self.seq, self.token, self.event)
        if counters != self._saved:
            self.db.execute(SQL["save_counters"], counters)

    def signal(self, hint: Hint, tenant: str = "", queue: str = "", id_: str = "", job: Job | None = None) -> None:
        """Notify of this after the commit."""
        self._signals[hint, tenant, queue, id_] = job

    def take_signals(self) -> list[Signal]:
        """The signals to send after the commit."""
        signals = [Signal(*signal, job) for signal, job in self._signals.items()]
        self._signals.clear()
        return signals

    # Lanes -----------------------------------------------------------------------------------------------------

    def lane(self, tenant: str, queue: str) -> int:
        """The lane with these names, created if it is new."""
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
        """The refusal, if the lane or the tenant has reached its limit of waiting jobs. [TENANT-5]"""
        limits = self.db.execute(SQL["lane_settings"], (tenant, queue)).fetchall()
        for scope, _, limit in limits:
            if limit is None:
                continue
            query, argument = ("lane_waiting", lane) if scope else ("tenant_waiting", tenant)
            waiting = self.db.execute(SQL[query], (argument,)).fetchone()[0] + self._unwritten(tenant, lane, scope)
            if waiting >= limit:
                return QuotaExceeded(scope or None, waiting, limit)
        return None

    def has_quota(self, tenant: str, queue: str) -> bool:
        """Whether a quota applies to this lane."""
        return any(row[2] is not None for row in self.db.execute(SQL["lane_settings"], (tenant, queue)))

    def cost(self, tenant: str, queue: str) -> int:
        """The virtual time that a turn costs this tenant in this queue. [TENANT-4]"""
        for _, weight, _ in self.db.execute(SQL["lane_settings"], (tenant, queue)):
            if weight is not None:
                return fairness.cost(weight)
        return fairness.STRIDE

    def _unwritten(self, tenant: str, lane: int, scope: str) -> int:
        """The waiting jobs that this call added and has not written yet."""
        if scope:
            return self._deltas[lane].counts[0] if lane in self._deltas else 0
        return sum(delta.counts[0] for number, delta in self._deltas.items() if self._owner(number) == tenant)

    # Jobs ------------------------------------------------------------------------------------------------------

    def find(self, key: JobKey) -> tuple[Job | None, int]:
        """The job and its lane. The job is None if it does not exist or is past its retention. [TENANT-2]"""
        lane = self.find_lane(key.tenant, key.queue)
        if lane is None:
            return None, 0
        job = self.find_any(key, lane)
        return (None if job is None or forgotten(job, self.now) else job), lane

    def key_of(self, seq: int) -> JobKey | None:
        """The key of the job with this seq."""
        row = self.db.execute(SQL["job_key"], (seq,)).fetchone()
        return None if row is None else JobKey(*row)

    def find_any(self, key: JobKey, lane: int) -> Job | None:
        """The job with this id, also one that is past its retention."""
        row = self.db.execute(SQL["find_job"], (lane, key.id)).fetchone()
        return None if row is None else rows.to_job(row, key.tenant, key.queue)

    def change(self, job: Job, lane: int, transition: Callable[[], Event]) -> Event:
        """Make a transition: update the row and the counts, and notify. Returns the event, for `append`."""
        self.leases.pop(job.key, None)
        self.count(lane, job.state, -1)
        before = budgets.varying(job)
        event = transition()
        self.delta(lane).bytes += budgets.varying(job) - before
        self._changed.append(rows.changed_row(job))
        if job.state in WAITING:
            self.count(lane, job.state, +1)
            self.becomes_visible(job, lane)
        else:
            # A failed job may be replayed before its record arrives.
            whole = job.envelope.payload is not rows.ELSEWHERE and job.state is not JobState.FAILED
            self.ended(job, lane, job if whole else None)
        return event

    def arrive(self, job: Job, event: Event, lane: int) -> None:
        """A new job has its row: count it, notify, log it."""
        self.count(lane, job.state, +1)
        self._deltas[lane].bytes += budgets.RECORD_BYTES + len(job.envelope.payload)
        self.becomes_visible(job, lane)
        self.append(event, lane)

    def add_jobs(self, new: list[rows.Row]) -> int:
        """Insert jobs. Returns how many had a new id. One statement inserts many: it runs without Python's lock."""
        added = 0
        whole = len(new) - len(new) % ROWS
        for n in range(0, whole, ROWS):
            added += self.db.execute(ADD_JOBS, list(chain.from_iterable(new[n : n + ROWS]))).rowcount
        if whole < len(new):
            added += self.db.executemany(SQL["add_job"], new[whole:]).rowcount
        return added

    def hand_off(self, job: Job, event: Event, lane: int) -> bool:
        """Insert a single new job as leased to a waiting worker. Returns whether there was one. [CLAIM-1]"""
        if job.state is not JobState.READY or not rows.is_small(job):
            return False
        paused, waiting = self.db.execute(SQL["lane_state"], (lane,)).fetchone()
        if paused or self.one("any_expired", self.now) is not None:
            return False  # A claim would end expired leases first. [LEASE-3]
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

    def _nothing_waits(self, queue: str, lane: int, waiting: int, tenant: str | None) -> bool:
        """Whether a claim for this tenant, or for all (None), would find nothing. [CLAIM-2, TENANT-4]"""
        if waiting and self.has_visible(lane):
            return False
        if tenant is not None:
            return True
        others = self.db.execute(SQL["lanes_with_work"], (queue, self.now, MAX_LANES)).fetchall()
        return len(others) < MAX_LANES and not any(count and self.has_visible(number) for number, count in others)

    def has_visible(self, lane: int) -> bool:
        """Whether this lane has a visible job. Ignores a pause."""
        return self.db.execute(ANY_VISIBLE, (lane, self.now)).fetchone() is not None

    def claimed(self, job: Job, lane: int) -> None:
        """A job was leased: write it with the batch, and cache its lease."""
        self._claimed.append(job)
        self.remember(job.snapshot(), lane)

    def remember(self, job: Job, lane: int) -> None:
        """Cache the lease of a job, so that completing it needs no read."""
        if job.envelope.idempotency is None:
            if len(self.leases) >= MAX_LEASES:
                del self.leases[next(iter(self.leases))]
            self.leases[job.key] = (job, lane)

    def save_completed(self, completed: list[tuple[Job, Result | None]]) -> bool:
        """Write completions in one statement. Does nothing, and returns False, if any cached lease is outdated."""
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
        """A job has ended: count it, notify, maybe with its record, and free its key. [ENQ-3]"""
        self.count(lane, job.state, +1)
        self.signal(Hint.DONE, *job.key, None if record is None or forgotten(record, self.now) else record)
        if dedup.is_released(job):
            self.drop_key(job, lane)

    def add_payloads(self, jobs: list[Job]) -> None:
        """Store the payloads that are too large for the row."""
        large = [(job.seq, job.envelope.payload) for job in jobs if len(job.envelope.payload) > rows.SMALL]
        if large:
            self.db.executemany(SQL["add_payload"], large)

    def read_payload(self, job: Job) -> None:
        """Read the payload if it is not in the row."""
        rows.fill_payload(self.db, job)

    def count(self, lane: int, state: JobState, by: int) -> None:
        """A job entered or left a state."""
        self.delta(lane).counts[_COLUMN[state]] += by

    def delta(self, lane: int) -> LaneDelta:
        """The changes of this call to a lane."""
        delta = self._deltas.get(lane)
        if delta is None:
            delta = self._deltas[lane] = LaneDelta()
        return delta

    def becomes_visible(self, job: Job, lane: int) -> None:
        """Let claims find a waiting job, due or not, and notify."""
        delta = self._deltas[lane]
        if delta.next_at is None or job.visible_at < delta.next_at:
            delta.next_at = job.visible_at
        self.signal(Hint.READY, job.tenant, job.queue)

    def forget_job(self, job: Job, lane: int) -> None:
        """Delete an ended job. [KEEP-1]"""
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
        """The job that holds the idempotency key of this envelope. [ENQ-3]"""
        if envelope.idempotency is None:
            return None
        row = self.db.execute(SQL["find_key"], (lane, envelope.type, envelope.idempotency.key)).fetchone()
        return None if row is None else dedup.Binding(*row)

    def bind(self, envelope: Envelope, lane: int, binding: dedup.Binding, old: dedup.Binding | None) -> None:
        """Bind a job to its key, in place of an expired binding."""
        self.count_keys(lane, (binding.policy in dedup.LASTING) - (old is not None and old.policy in dedup.LASTING))
        key = envelope.idempotency.key if envelope.idempotency else ""
        self.db.execute(SQL["bind_key"], (lane, envelope.type, key, binding.job_id, binding.policy, binding.expires_at))

    def count_keys(self, lane: int, by: int) -> None:
        """Count the keys that outlive their job."""
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
