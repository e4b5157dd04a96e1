"""The memory store: the reference. Plain dicts and heaps under one lock, the rules from `core`.

Heaps hold entries that may have gone stale (the job moved on); a stale entry is dropped when it comes up, and a
heap that is mostly stale is rebuilt, so that its size stays in proportion to what is live.
"""

from __future__ import annotations

import asyncio
import copy
import math
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from heapq import heapify, heappop, heappush, nsmallest
from itertools import islice
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.budgets import BudgetEnforcer
from holdfast.core import dedup, fairness, lease, lifecycle
from holdfast.core.budgets import RECORD_BYTES, Usage, merged, weight
from holdfast.core.errors import (
    EventsTrimmed,
    InvalidOption,
    JobNotFound,
    NotReplayable,
    QuotaExceeded,
    StoreMismatch,
    Unsupported,
)
from holdfast.core.events import Event, Gap
from holdfast.core.job import (
    CLAIMABLE,
    PURGE_COUNT_MS,
    PURGE_COUNTS_DROPPED,
    TERMINAL,
    WAITING,
    Cancel,
    CancelStatus,
    Claimed,
    ClaimRequest,
    Extend,
    Extended,
    Finish,
    Finished,
    Job,
    JobKey,
    JobState,
    Lease,
    NewJob,
    Purge,
    PurgeCount,
    PurgeStatus,
    Queued,
    Replayed,
    Report,
    Reported,
    SetResultTtl,
    TtlStatus,
)
from holdfast.core.names import OPERATOR, check_id, join_key
from holdfast.core.retry import spread
from holdfast.core.trimming import Trimming, excess
from holdfast.opening import CommonOptions, Options, StoreUrl
from holdfast.paging import name_cursor, tenant_cursor
from holdfast.store import (
    ALL_HINTS,
    EVENTS_BOUND,
    EVENTS_BOUND_MS,
    JOINING,
    PAGE_LIMIT,
    REPAIR_LIMIT,
    Capabilities,
    EnqueueAnswer,
    EventPage,
    ExtendAnswer,
    Finding,
    FinishAnswer,
    Hint,
    Listener,
    ListQuery,
    Page,
    Pruned,
    PurgePage,
    QueuePage,
    QueueStats,
    Reader,
    Reaped,
    ReplayAnswer,
    ReportAnswer,
    Signal,
    TenantPage,
    TenantSettings,
    WorkerInfo,
    WorkerPage,
)

CAPABILITIES = Capabilities(
    name="memory",
    durable=False,
    survives_power_loss=False,
    many_processes=False,
    many_hosts=False,
    transactional_enqueue=False,
    exact_turns=True,
    exact_quota=True,
    notes={
        "durable": "Everything is gone when the process ends.",
        "clock": "The clock of the process when it started, plus monotonic time: it never jumps.",
    },
)

I = TypeVar("I")  # noqa: E741 - an item
A = TypeVar("A")

_READY = JobState.READY
_stores: dict[str, MemoryStore] = {}
_stores_lock = threading.Lock()


def open_memory(url: StoreUrl) -> MemoryStore:
    """`memory:` is one store per process, `memory:NAME` another; the first to open it sets its options."""
    options = Options(url)
    common = options.common()
    options.finish()
    with _stores_lock:
        store = _stores.setdefault(url.rest, MemoryStore(common))
    if store.options != common and url.options:
        raise StoreMismatch(f"memory:{url.rest} is already open in this process with other options")
    return store


class Lane(Struct):
    """One tenant's jobs in one queue name."""

    tenant: str
    queue: str
    ready: list[tuple[int, int, int, Job]] = field(default_factory=list[tuple[int, int, int, Job]])
    jobs: dict[str, Job] = field(default_factory=dict[str, Job])
    waiting: int = 0
    paused: bool = False
    time: int = 0
    in_turns: bool = False


class Line(Struct):
    """One queue name over all tenants: what is not due yet, and whose turn it is."""

    later: list[tuple[int, int, Job]] = field(default_factory=list[tuple[int, int, Job]])
    lanes: dict[str, Lane] = field(default_factory=dict[str, Lane])
    turns: list[fairness.Lane] = field(default_factory=list[fairness.Lane])
    entering: set[str] = field(default_factory=set[str])
    floor: int = 0
    waiting: int = 0


class MemoryStore:
    """Jobs in this process. Safe from several threads and event loops at once."""

    def __init__(self, options: CommonOptions) -> None:
        self.options = options
        self.enforcer = BudgetEnforcer(self, options)
        self._lock = threading.RLock()
        self._epoch = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000
        self._frozen_at = self._epoch + time.monotonic_ns() // 1_000_000
        self._shift = 0
        self._lines: dict[str, Line] = {}
        self._leases: list[tuple[int, int, int, Job]] = []
        self._leased = 0
        self._waiting: dict[str, int] = {}
        self._ended: list[tuple[int, int, Job]] = []
        self._ended_count = 0
        self._bindings: dict[tuple[str, str, str, str], dedup.Binding] = {}
        self._dropped_blobs: list[str] = []
        self._purges: dict[str, tuple[PurgeCount, int]] = {}
        self._seq = 0
        self._token = 0
        self._bytes: dict[str, int] = {}
        # The log: events with their places. Of a tenant, all up to its cut are gone; of all, all up to `_trimmed`.
        self._log: list[tuple[int, Event]] = []
        self._last = 0
        self._trimmed = 0
        self._cuts: dict[str, int] = {}
        self._kept: dict[str, int] = {}
        self._readers: dict[tuple[str | None, str], int] = {}
        self._settings: dict[tuple[str, str | None], TenantSettings] = {}
        self._workers: dict[str, tuple[int, WorkerInfo]] = {}
        self._listeners: dict[object, tuple[asyncio.AbstractEventLoop, Listener, frozenset[Hint]]] = {}
        self._wanted: frozenset[Hint] = frozenset()
        self._signals: set[tuple[Hint, str, str, str]] = set()

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """The jobs stay as long as the process."""
        await self.enforcer.close()

    async def sibling(self) -> MemoryStore:
        return self

    async def now(self) -> int:
        return self._now()

    async def shift_clock(self, ms: int) -> None:
        if self.options.test_clock == "0":
            raise Unsupported("shifting the clock (open it with test_clock=1)", "memory")
        with self._lock:
            self._shift += ms
            self._signals.update((hint, "", "", "") for hint in (Hint.READY, Hint.DONE))
            self._send_signals()

    def listen(self, listener: Listener, hints: Collection[Hint] = ALL_HINTS) -> Callable[[], None]:
        token = object()
        self._listeners[token] = (asyncio.get_running_loop(), listener, frozenset(hints))
        self._tune()

        def stop() -> None:
            if self._listeners.pop(token, None) is not None:
                self._tune()

        return stop

    def _tune(self) -> None:
        """Note which hints anybody wants; DONE comes with every job, and is told only where somebody listens."""
        self._wanted = frozenset(hint for _, _, hints in list(self._listeners.values()) for hint in hints)

    # Jobs -----------------------------------------------------------------------------------------------------

    async def enqueue(
        self, items: Sequence[NewJob], *, connection: Any = None, under: Lease | None = None
    ) -> list[EnqueueAnswer]:
        if connection is not None:
            raise Unsupported(JOINING, "memory")
        if not self.enforcer.admits(items):
            return await self.enforcer.enqueue(items, lambda admitted: self._take_in(admitted, under))
        return self._each(items, self._enqueue, under)

    async def _take_in(self, items: Sequence[NewJob], under: Lease | None) -> list[EnqueueAnswer]:
        return self._each(items, self._enqueue, under)

    def _enqueue(self, new: NewJob, now: int) -> EnqueueAnswer:
        tenant, queue, id_ = new.key
        lane = self._lane(tenant, queue)
        existing = lane.jobs.get(id_)
        scope = _scope(tenant, queue, new.envelope)
        binding = self._bindings.get(scope) if scope else None
        holder = lane.jobs.get(binding.job_id) if binding else None
        answer = dedup.decide(new, existing, binding, holder, now)
        if answer is not None:
            return answer
        refusal = self._over_quota(lane)
        if refusal is not None:
            return refusal
        if existing is not None:
            self._forget(existing)
        self._seq += 1
        job, event = lifecycle.enqueue(new, self._seq, now)
        lane.jobs[id_] = job
        self._count(job, +1)
        bound = dedup.bind(new, now)
        if scope and bound:
            self._bindings[scope] = bound
        self._put_in_line(job, now)
        self._append(event)
        return Queued(id_, job.state)

    async def claim(self, request: ClaimRequest) -> Claimed:
        with self._lock:
            now = self._now()
            self._reap(REPAIR_LIMIT, request.random, now)
            taken: list[Job] = []
            pickers = [self._picker(request.tenant, name, now) for name in dict.fromkeys(request.queues)]
            while pickers and len(taken) < request.limit:
                # One from each queue in rotation; a queue without visible work leaves the round. [TENANT-4]
                still: list[Iterator[Job]] = []
                for picker in pickers:
                    job = next(picker, None) if len(taken) < request.limit else None
                    if job is not None:
                        taken.append(self._lease(job, request, now))
                        still.append(picker)
                pickers = still
            next_at = None if len(taken) == request.limit else self._next_at(request)
            self._send_signals()
            return Claimed(taken, now, next_at)

    def _picker(self, tenant: str | None, queue: str, now: int) -> Iterator[Job]:
        line = self._lines.get(queue)
        if line is None:
            return
        self._promote(line, now)
        if tenant is not None:
            lane = line.lanes.get(tenant)
            while lane is not None and (job := _first(lane)) is not None:
                heappop(lane.ready)
                yield job
            return
        self._enter(line)
        picked: list[Job] = []

        def take(tenant: str) -> bool:
            lane = line.lanes[tenant]
            job = _first(lane)
            if job is None:
                lane.in_turns = False
                return False
            heappop(lane.ready)
            line.floor = max(line.floor, lane.time)
            lane.time += self._cost(tenant, queue)
            picked.append(job)
            return True

        while fairness.turns(line.turns, 1, take, lambda tenant: self._cost(tenant, queue)):
            yield picked.pop()

    def _enter(self, line: Line) -> None:
        """Let the lanes that got visible work into the turns, at the current minimum. [TENANT-4]"""
        while line.turns and _first(line.lanes[line.turns[0][1]]) is None:
            line.lanes[heappop(line.turns)[1]].in_turns = False
        floor = line.turns[0][0] if line.turns else line.floor
        for tenant in sorted(line.entering):
            lane = line.lanes[tenant]
            if not lane.in_turns and _first(lane) is not None:
                lane.time = fairness.entry(lane.time, floor)
                lane.in_turns = True
                heappush(line.turns, (lane.time, tenant))
        line.entering.clear()

    def _promote(self, line: Line, now: int) -> None:
        while line.later and line.later[0][0] <= now:
            visible_at, _, job = heappop(line.later)
            if job.state in CLAIMABLE and job.visible_at == visible_at:
                self._put_in_line(job, now)

    def _put_in_line(self, job: Job, now: int) -> None:
        line = self._lines[job.queue]
        if job.visible_at > now:
            heappush(line.later, (job.visible_at, job.seq, job))
        else:
            lane = line.lanes[job.tenant]
            heappush(lane.ready, (-job.envelope.priority, job.visible_at, job.seq, job))
            line.entering.add(job.tenant)
        self._signals.add((Hint.READY, job.tenant, job.queue, ""))

    def _lease(self, job: Job, request: ClaimRequest, now: int) -> Job:
        self._token += 1
        self._count(job, -1)
        event = lifecycle.claim(job, self._token, now + request.lease_ms, request.worker_id, now)
        self._count(job, +1)
        heappush(self._leases, (job.deadline, job.seq, job.token, job))
        if job.envelope.idempotency is not None:
            self._drop_binding(job, "until_started")
        self._append(event)
        return job.snapshot()

    def _next_at(self, request: ClaimRequest) -> int | None:
        soonest = [line.later[0][0] for name in request.queues if (line := self._lines.get(name)) and line.later]
        if self._leases:
            soonest.append(self._leases[0][0])
        return min(soonest, default=None)

    async def finish(self, items: Sequence[Finish], *, connection: Any = None) -> list[FinishAnswer]:
        if connection is not None:
            raise Unsupported(JOINING, "memory")
        return self._each(items, self._finish)

    def _finish(self, item: Finish, now: int) -> FinishAnswer:
        job = self._find(item.key, now)
        answer = lease.check(job, item.key, item.token, item.outcome, now)
        if job is None or answer is not None:
            return answer or JobNotFound(item.key.queue, item.key.id)
        self._count(job, -1)
        event = lifecycle.finish(job, item, now, self.options.retention)
        self._count(job, +1)
        self._after_lease(job, now)
        self._append(event)
        return Finished(job.state)

    def _after_lease(self, job: Job, now: int) -> None:
        if job.state in TERMINAL:
            self._end(job)
        else:
            self._put_in_line(job, now)

    async def extend(self, items: Sequence[Extend]) -> list[ExtendAnswer]:
        return self._each(items, self._extend)

    def _extend(self, item: Extend, now: int) -> ExtendAnswer:
        job = self._find(item.key, now)
        refusal = lease.check_live(job, item.key, item.token, now)
        if job is None or refusal is not None:
            return refusal or JobNotFound(item.key.queue, item.key.id)
        event = lifecycle.extend(job, item.lease_ms, now, logged=self.options.all_events)
        heappush(self._leases, (job.deadline, job.seq, job.token, job))
        self._tidy_leases()
        if event is not None:
            self._append(event)
        return Extended(job.deadline, now)

    async def report(self, items: Sequence[Report]) -> list[ReportAnswer]:
        return self._each(items, self._report)

    def _report(self, item: Report, now: int) -> ReportAnswer:
        job = self._find(item.key, now)
        refusal = lease.check_live(job, item.key, item.token, now)
        if job is None or refusal is not None:
            return refusal or JobNotFound(item.key.queue, item.key.id)
        event = lifecycle.report(job, item, now, logged=self.options.all_events)
        if event is not None:
            self._append(event)
        return Reported()

    async def cancel(self, items: Sequence[Cancel]) -> list[CancelStatus]:
        return self._each(items, self._cancel)

    def _cancel(self, item: Cancel, now: int) -> CancelStatus:
        job = self._find(item.key, now)
        if job is None or not lifecycle.is_life(job, item.seq):
            return "not_found"
        if job.state is JobState.COMPLETED or job.state is JobState.FAILED or job.state is JobState.CANCELED:
            return job.state.value
        running = job.state is JobState.LEASED
        if running and item.only_waiting:
            return "processing"
        event = self._change(job, lambda: lifecycle.cancel(job, now, self.options.retention))
        self._end(job)
        self._append(event)
        if running:
            self._signals.add((Hint.CANCELED, job.tenant, job.queue, job.id))
        self._tidy_line(self._lines[job.queue], self._lines[job.queue].lanes[job.tenant])
        return "canceled"

    async def replay(self, keys: Sequence[JobKey], *, under: Lease | None = None) -> list[ReplayAnswer]:
        return await self.enforcer.replay(keys, lambda admitted: self._replay_all(admitted, under))

    async def _replay_all(self, keys: Sequence[JobKey], under: Lease | None) -> list[ReplayAnswer]:
        return self._each(keys, self._replay, under)

    def _replay(self, key: JobKey, now: int) -> ReplayAnswer:
        job = self._find(key, now)
        if job is None:
            return JobNotFound(key.queue, key.id)
        if job.state is not JobState.FAILED:
            return NotReplayable(key.queue, key.id, f"it is {lifecycle.shown(job, now)}, not failed")
        scope = _scope(key.tenant, key.queue, job.envelope)
        idempotency = job.envelope.idempotency
        retakes = scope if idempotency and idempotency.policy == "until_terminal" else None
        lane = self._lane(key.tenant, key.queue)
        binding = self._bindings.get(retakes) if retakes else None
        if binding and dedup.by_key(binding, lane.jobs.get(binding.job_id), now) is not None:
            return NotReplayable(key.queue, key.id, f"job {binding.job_id!r} holds its idempotency key by now")
        refusal = self._over_quota(lane)
        if refusal is not None:
            return refusal
        if retakes:
            self._bindings[retakes] = dedup.Binding(job.id, "until_terminal")
        self._ended_count -= 1
        event = self._change(job, lambda: lifecycle.replay(job, now))
        self._put_in_line(job, now)
        self._append(event)
        return Replayed()

    async def purge(self, items: Sequence[Purge]) -> list[PurgeStatus]:
        return self._each(items, self._purge)

    def _purge(self, item: Purge, now: int) -> PurgeStatus:
        job = self._find(item.key, now)
        if job is None or not lifecycle.is_life(job, item.seq):
            return "not_found"
        if job.state not in TERMINAL or (item.finished_at is not None and item.finished_at != job.finished_at):
            return "not_terminal"
        self._append(lifecycle.purge(job, now, self._count_purge(job, now)))
        self._forget(job)
        return "purged"

    def _count_purge(self, job: Job, now: int) -> PurgeCount:
        before, _ = self._purges.pop(job.tenant, (PurgeCount(job.tenant, job.seq, 0), now))
        counted = replace(before, count=before.count + 1)
        self._purges[job.tenant] = counted, now  # Behind all others: so they are by age.
        for tenant, (_, at) in list(islice(self._purges.items(), PURGE_COUNTS_DROPPED)):
            if at >= now - PURGE_COUNT_MS:
                break
            del self._purges[tenant]
        return counted

    async def set_result_ttl(self, items: Sequence[SetResultTtl]) -> list[TtlStatus]:
        return self._each(items, self._set_result_ttl)

    def _set_result_ttl(self, item: SetResultTtl, now: int) -> TtlStatus:
        job = self._find(item.key, now)
        if job is None or not lifecycle.is_life(job, item.seq):
            return "not_found"
        if job.state not in TERMINAL:
            return "not_terminal"
        lifecycle.set_result_ttl(job, item.ttl_ms, now)
        self._schedule_forgetting(job)
        return "updated"

    # Reading --------------------------------------------------------------------------------------------------

    async def get(self, keys: Sequence[JobKey]) -> list[Job | None]:
        with self._lock:
            now = self._now()
            found = [self._find(key, now) for key in keys]
            return [None if job is None else _shown(job, now) for job in found]

    async def key_holders(self, items: Sequence[NewJob]) -> list[str | None]:
        with self._lock:
            now = self._now()
            scopes = [_scope(item.key.tenant, item.key.queue, item.envelope) for item in items]
            found = [self._bindings.get(scope) if scope else None for scope in scopes]
            return [None if b is None or dedup.expired(b, now) else b.job_id for b in found]

    async def list(self, query: ListQuery) -> Page:
        with self._lock:
            now = self._now()
            line = self._lines.get(query.queue)
            lane = line.lanes.get(query.tenant) if line else None
            start = _parse_cursor(query.cursor)
            places = ((_place(job), job) for job in (lane.jobs.values() if lane else ()) if query.matches(job, now))
            after = (pair for pair in places if start is None or pair[0] > start)
            page = nsmallest(query.limit + 1, after, key=lambda pair: pair[0])
            rest = page[query.limit :]
            page = page[: query.limit]
            cursor = ".".join(map(str, page[-1][0])) if rest else None
            return Page([_shown(job, now) for _, job in page], cursor, now)

    async def stats(self, tenant: str, queues: Sequence[str] | None = None) -> list[QueueStats]:
        with self._lock:
            now = self._now()
            return [self._stats(tenant, queue, now) for queue in (self._queues(tenant) if queues is None else queues)]

    async def queue_page(self, tenant: str, cursor: str | None = None, limit: int = PAGE_LIMIT) -> QueuePage:
        names, following = _page(self._queues(tenant), name_cursor(cursor), limit)
        return QueuePage(await self.stats(tenant, names), following)

    def _queues(self, tenant: str) -> list[str]:
        with self._lock:
            lanes = ((name, line.lanes.get(tenant)) for name, line in self._lines.items())
            return sorted(name for name, lane in lanes if lane and (lane.jobs or lane.paused))

    def _stats(self, tenant: str, queue: str, now: int) -> QueueStats:
        line = self._lines.get(queue)
        lane = line.lanes.get(tenant) if line else None
        counts = dict.fromkeys(JobState, 0)
        oldest: int | None = None
        for job in lane.jobs.values() if lane else ():
            if lifecycle.forgotten(job, now):
                continue
            state = lifecycle.shown(job, now)
            counts[state] += 1
            if state is _READY and (oldest is None or job.visible_at < oldest):
                oldest = job.visible_at
        return QueueStats(queue, counts, oldest, paused=bool(lane and lane.paused), now=now)

    async def tenants(self) -> list[str]:
        with self._lock:
            names = {tenant for line in self._lines.values() for tenant, lane in line.lanes.items() if lane.jobs}
            return sorted((names | {tenant for tenant, _ in self._settings}) - {OPERATOR})

    async def tenant_page(self, cursor: str | None = None, limit: int = PAGE_LIMIT) -> TenantPage:
        names, following = _page(await self.tenants(), tenant_cursor(cursor)[0], limit)
        return TenantPage(names, following and join_key(following, ""))

    async def purge_counts(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> PurgePage:
        with self._lock:
            names = sorted(name for name in self._purges if tenant in (None, name))
            names, following = _page(names, cursor or "", limit)
            return PurgePage([self._purges[name][0] for name in names], following)

    # Events ---------------------------------------------------------------------------------------------------

    async def events(self, tenant: str | None, after: str | None, limit: int) -> EventPage:
        with self._lock:
            cut = self._trimmed if tenant is None else self._cuts.get(tenant, 0)
            start = max(cut, self._trimmed) if after is None else _parse_offset(after)
            if start > self._last:
                raise InvalidOption("after", f"{after!r} is not an offset of this store")
            if start < cut:
                raise EventsTrimmed(str(start), str(cut))
            found: list[Event] = []
            at, reached = bisect_right(self._log, start, key=_place_of), start
            while at < len(self._log) and len(found) < limit:
                reached, event = self._log[at]
                at += 1
                if tenant is None or event.tenant == tenant:
                    event.offset = str(reached)
                    found.append(copy.copy(event))
            more = at < len(self._log)
            if not more:
                reached = self._last
            return EventPage(found, str(reached), more, [] if tenant else self._gaps(start, reached))

    def _gaps(self, start: int, reached: int) -> list[Gap]:
        """What is gone of single tenants between two places."""
        cuts = sorted(self._cuts.items())
        return [Gap(tenant, str(start), str(min(cut, reached))) for tenant, cut in cuts if start < min(cut, reached)]

    async def last_offset(self) -> str:
        with self._lock:
            return str(self._last)

    async def set_reader(self, reader: Reader) -> None:
        with self._lock:
            at = _parse_offset(reader.offset)
            if at > self._last:
                raise InvalidOption("offset", f"{reader.offset!r} is not an offset of this store")
            key = (reader.tenant, reader.name)
            self._readers[key] = max(self._readers.get(key, 0), at)

    async def drop_reader(self, tenant: str | None, name: str) -> bool:
        with self._lock:
            return self._readers.pop((tenant, name), None) is not None

    async def readers(self, tenant: str | None) -> list[Reader]:
        with self._lock:
            return [Reader(t, name, str(at)) for (t, name), at in sorted(self._readers.items(), key=str) if t == tenant]

    # Settings, workers, upkeep ----------------------------------------------------------------------------------

    async def pause(self, tenant: str, queue: str, *, paused: bool) -> None:
        with self._lock:
            lane = self._lane(tenant, queue)
            lane.paused = paused
            line = self._lines[queue]
            if paused:
                # It leaves the turns at once, and when it goes on it enters them like any other newcomer.
                line.turns = [turn for turn in line.turns if turn[1] != tenant]
                heapify(line.turns)
                lane.in_turns = False
            else:
                line.entering.add(tenant)
                self._signals.add((Hint.READY, tenant, queue, ""))
                self._send_signals()

    async def set_tenant(self, tenant: str, settings: TenantSettings) -> None:
        with self._lock:
            old = self._settings.get((tenant, settings.queue), TenantSettings(settings.queue))
            share = old.weight if settings.weight is None else settings.weight
            max_waiting = old.max_waiting if settings.max_waiting is None else settings.max_waiting
            budgets = merged(old.budgets, settings.budgets)
            self._settings[tenant, settings.queue] = TenantSettings(settings.queue, share, max_waiting, budgets)
        if settings.budgets is not None:
            await self.enforcer.refresh(tenant)

    async def tenant_settings(self, tenant: str) -> Sequence[TenantSettings]:
        with self._lock:
            mine = [settings for (name, _), settings in self._settings.items() if name == tenant]
            return sorted(mine, key=lambda settings: settings.queue or "")

    async def usage(self, tenant: str) -> Usage:
        return await self.enforcer.take_usage(tenant, self._usage(tenant))

    async def _usage(self, tenant: str) -> Usage:
        with self._lock:
            queues = self._queues(tenant)
            jobs = sum(len(self._lines[queue].lanes[tenant].jobs) for queue in queues)
            keys = sum(scope[0] == tenant and b.policy in dedup.LASTING for scope, b in self._bindings.items())
            size = self._bytes.get(tenant, 0) + keys * RECORD_BYTES
            return Usage(jobs, keys, size, len(queues), self._kept.get(tenant, 0))

    async def beat(self, worker: WorkerInfo, ttl_ms: int) -> None:
        with self._lock:
            now = self._now()
            if ttl_ms <= 0:
                self._workers.pop(worker.worker_id, None)
                return
            known = self._workers.get(worker.worker_id)
            started_at = known[1].started_at if known and known[0] > now else now
            self._workers[worker.worker_id] = (now + ttl_ms, replace(worker, started_at=started_at, seen_at=now))

    async def workers(self, tenant: str | None) -> Sequence[WorkerInfo]:
        with self._lock:
            now = self._now()
            self._workers = {name: entry for name, entry in self._workers.items() if entry[0] > now}
            living = [worker for _, worker in self._workers.values()]
            return sorted(
                (w for w in living if tenant is None or w.tenant in (None, tenant)), key=lambda w: w.worker_id
            )

    async def worker_page(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> WorkerPage:
        living = {worker.worker_id: worker for worker in await self.workers(tenant)}
        names, following = _page(list(living), name_cursor(cursor, check_id), limit)
        return WorkerPage([living[name] for name in names], following)

    async def reap(self, limit: int, random: float) -> Reaped:
        with self._lock:
            now = self._now()
            keys = self._reap(limit, random, now)
            self._send_signals()
            return Reaped(keys, now, self._leases[0][0] if self._leases else None)

    def _reap(self, limit: int, random: float, now: int) -> list[JobKey]:
        keys: list[JobKey] = []
        while self._leases and len(keys) < limit:
            deadline, _, token, job = self._leases[0]
            if not _holds(deadline, token, job):
                heappop(self._leases)
                continue
            if deadline > now:
                break
            heappop(self._leases)
            expire = partial(lifecycle.expire, job, spread(random, len(keys)), now, self.options.retention)
            event = self._change(job, expire)
            self._after_lease(job, now)
            self._append(event)
            keys.append(job.key)
        return keys

    async def prune(self, limit: int, *, blobs: bool = True) -> Pruned:
        with self._lock:
            now = self._now()
            jobs = 0
            while self._ended and jobs < limit and self._ended[0][0] <= now:
                expires_at, _, job = heappop(self._ended)
                if job.expires_at == expires_at and self._is_kept(job):
                    self._forget(job)
                    jobs += 1
            self._bindings = {
                scope: b for scope, b in self._bindings.items() if b.expires_at is None or b.expires_at > now
            }
            more = bool(self._ended) and self._ended[0][0] <= now
            names: list[str] = []
            if blobs:
                names, self._dropped_blobs = self._dropped_blobs, []
            return Pruned(jobs, self._trim(now), names, more)

    def _trim(self, now: int) -> int:
        young = next((n for n, (_, e) in enumerate(self._log) if e.at > now - EVENTS_BOUND_MS), len(self._log))
        gone, log = self._log[:young], self._log[young:]
        self._cut(gone)
        trimming = Trimming(excess(self._kept, self.options.keep_events, EVENTS_BOUND), self._slowest)
        taken: list[tuple[int, Event]] = []
        self._log = []
        for n, (place, event) in enumerate(log):
            if not trimming.pending:
                self._log += log[n:]
                break
            (taken if trimming.takes(event.tenant, place) else self._log).append((place, event))
        self._cut(taken)
        if gone or taken:
            self._trimmed = self._log[0][0] - 1 if self._log else self._last
        return len(gone) + len(taken)

    def _slowest(self, tenant: str) -> float:
        """Up to where all readers have read that a tenant's events are kept for. [EVENT-2]"""
        return min((at for (whose, _), at in self._readers.items() if whose in (None, tenant)), default=math.inf)

    def _cut(self, gone: list[tuple[int, Event]]) -> None:
        for place, event in gone:
            self._cuts[event.tenant] = place
            self._kept[event.tenant] -= 1
            if not self._kept[event.tenant]:
                del self._kept[event.tenant]

    async def doctor(self) -> Sequence[Finding]:
        return [
            Finding("ok", "store", f"{sum(len(lane.jobs) for lane in self._all_lanes())} jobs in this process"),
            Finding("warn", "durability", "everything is gone when the process ends", "use file:DIR or a server"),
        ]

    # The small steps ------------------------------------------------------------------------------------------

    def _each(self, items: Sequence[I], step: Callable[[I, int], A], under: Lease | None = None) -> list[A]:
        """Do one step for each item, all at the same instant, and tell of it afterwards."""
        with self._lock:
            now = self._now()
            if under is not None:
                lease.check_under(self._find(under.key, now), under, now)
            answers = [step(item, now) for item in items]
            self._send_signals()
        return answers

    def _now(self) -> int:
        if self.options.test_clock == "frozen":
            return self._frozen_at + self._shift
        return self._epoch + time.monotonic_ns() // 1_000_000 + self._shift

    def _lane(self, tenant: str, queue: str) -> Lane:
        line = self._lines.get(queue)
        if line is None:
            line = self._lines[queue] = Line()
        lane = line.lanes.get(tenant)
        if lane is None:
            lane = line.lanes[tenant] = Lane(tenant, queue)
        return lane

    def _all_lanes(self) -> Iterable[Lane]:
        return (lane for line in self._lines.values() for lane in line.lanes.values())

    def _find(self, key: JobKey, now: int) -> Job | None:
        line = self._lines.get(key.queue)
        lane = line.lanes.get(key.tenant) if line else None
        job = lane.jobs.get(key.id) if lane else None
        return None if job is None or lifecycle.forgotten(job, now) else job

    def _is_kept(self, job: Job) -> bool:
        return self._lines[job.queue].lanes[job.tenant].jobs.get(job.id) is job

    def _change(self, job: Job, move: Callable[[], Event]) -> Event:
        """Make a move and keep the counts of waiting and leased jobs right."""
        self._count(job, -1)
        event = move()
        self._count(job, +1)
        return event

    def _count(self, job: Job, by: int) -> None:
        """Take a job into the counts as it is now (+1), or out of them (-1)."""
        self._bytes[job.tenant] = self._bytes.get(job.tenant, 0) + by * weight(job)
        if job.state in WAITING:
            line = self._lines[job.queue]
            line.waiting += by
            self._waiting[job.tenant] = self._waiting.get(job.tenant, 0) + by
            line.lanes[job.tenant].waiting += by
        elif job.state is JobState.LEASED:
            self._leased += by
            if len(self._leases) > 2 * self._leased + 64:
                self._tidy_leases()

    def _end(self, job: Job) -> None:
        """What follows a job's end: its key is free, and one day it is forgotten. [ENQ-3, KEEP-1]"""
        self._ended_count += 1
        if job.envelope.idempotency is not None:
            self._drop_binding(job, "until_terminal")
            self._drop_binding(job, "until_started")
        self._schedule_forgetting(job)
        if Hint.DONE in self._wanted:
            self._signals.add((Hint.DONE, job.tenant, job.queue, job.id))

    def _schedule_forgetting(self, job: Job) -> None:
        heappush(self._ended, (job.expires_at or 0, job.seq, job))
        if len(self._ended) > 2 * self._ended_count + 64:
            self._ended = [e for e in self._ended if e[2].expires_at == e[0] and self._is_kept(e[2])]
            heapify(self._ended)

    def _forget(self, job: Job) -> None:
        if self._is_kept(job):
            del self._lines[job.queue].lanes[job.tenant].jobs[job.id]
            self._ended_count -= 1
            self._count(job, -1)
            if job.result is not None and job.result.blob:
                self._dropped_blobs.append(job.result.blob)

    def _drop_binding(self, job: Job, policy: str) -> None:
        idempotency = job.envelope.idempotency
        if idempotency is None or idempotency.policy != policy:
            return
        scope = _scope(job.tenant, job.queue, job.envelope)
        binding = self._bindings.get(scope) if scope else None
        if scope and binding and binding.job_id == job.id:
            del self._bindings[scope]

    def _over_quota(self, lane: Lane) -> QuotaExceeded | None:
        for queue in (lane.queue, None):
            settings = self._settings.get((lane.tenant, queue))
            if settings is None or settings.max_waiting is None:
                continue
            waiting = lane.waiting
            if queue is None:
                waiting = self._waiting.get(lane.tenant, 0)
            if waiting >= settings.max_waiting:
                return QuotaExceeded(queue, waiting, settings.max_waiting)
        return None

    def _cost(self, tenant: str, queue: str) -> int:
        for scope in (queue, None):
            settings = self._settings.get((tenant, scope))
            if settings is not None and settings.weight is not None:
                return fairness.cost(settings.weight)
        return fairness.STRIDE

    def _tidy_leases(self) -> None:
        if len(self._leases) > 2 * self._leased + 64:
            self._leases = [entry for entry in self._leases if _holds(entry[0], entry[2], entry[3])]
            heapify(self._leases)

    def _tidy_line(self, line: Line, lane: Lane) -> None:
        if len(lane.ready) > 2 * lane.waiting + 64:
            lane.ready = [entry for entry in lane.ready if _waits(entry[1], entry[3])]
            heapify(lane.ready)
        if len(line.later) > 2 * line.waiting + 64:
            line.later = [entry for entry in line.later if _waits(entry[0], entry[2])]
            heapify(line.later)

    def _append(self, event: Event) -> None:
        self._last += 1
        self._log.append((self._last, event))
        self._kept[event.tenant] = self._kept.get(event.tenant, 0) + 1
        self._signals.add(_EVENTS)

    def _send_signals(self) -> None:
        if not self._signals:
            return
        changes, self._signals = self._signals, set()
        if not self._listeners:
            return
        for loop, listener, hints in list(self._listeners.values()):
            signals = [Signal(*change) for change in changes if change[0] in hints]
            if signals and not loop.is_closed():
                loop.call_soon_threadsafe(_deliver, listener, signals)


_EVENTS = (Hint.EVENTS, "", "", "")


def _deliver(listener: Listener, signals: list[Signal]) -> None:
    for signal in signals:
        listener(signal)


def _waits(visible_at: int, job: Job) -> bool:
    return job.state in CLAIMABLE and job.visible_at == visible_at


def _holds(deadline: int, token: int, job: Job) -> bool:
    return job.state is JobState.LEASED and job.token == token and job.deadline == deadline


def _first(lane: Lane) -> Job | None:
    """The job of this lane that is next, if any is visible."""
    if lane.paused:
        return None
    while lane.ready:
        _, visible_at, _, job = lane.ready[0]
        if _waits(visible_at, job):
            return job
        heappop(lane.ready)
    return None


def _scope(tenant: str, queue: str, envelope: Any) -> tuple[str, str, str, str] | None:
    idempotency = envelope.idempotency
    return (tenant, queue, envelope.type, idempotency.key) if idempotency else None


def _shown(job: Job, now: int) -> Job:
    view = job.snapshot()
    view.state = lifecycle.shown(job, now)
    return view


def _place(job: Job) -> tuple[int, int, int, int]:
    """Where a job stands in a list: waiting in claim order, then leased by deadline, then ended by time."""
    if job.state in WAITING:
        return (0, -job.envelope.priority, job.visible_at, job.seq)
    if job.state is JobState.LEASED:
        return (1, 0, job.deadline, job.seq)
    return (2, 0, job.finished_at or 0, job.seq)


def _parse_cursor(cursor: str | None) -> tuple[int, ...] | None:
    if cursor is None:
        return None
    try:
        return tuple(int(part) for part in cursor.split("."))
    except ValueError:
        raise InvalidOption("cursor", f"{cursor!r} did not come from a list") from None


def _page(names: Sequence[str], after: str, limit: int) -> tuple[list[str], str | None]:
    """Names behind one, and the cursor of the next page."""
    behind = [name for name in names if name > after]
    return behind[:limit], behind[limit - 1] if len(behind) > limit else None


def _place_of(entry: tuple[int, Event]) -> int:
    return entry[0]


def _parse_offset(offset: str) -> int:
    if not offset.isascii() or not offset.isdigit() or len(offset) > 18:  # noqa: PLR2004 - fits 64 bits
        raise InvalidOption("after", f"{offset!r} is not an offset of this store")
    return int(offset)
