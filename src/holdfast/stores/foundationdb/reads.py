"""Reads by snapshot: jobs, counts, pages of names, settings, workers."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence

import msgspec

from holdfast.core import codes, lifecycle
from holdfast.core.budgets import TenantSettings, Usage
from holdfast.core.dedup import expired, scope_of
from holdfast.core.explain import AHEAD_LIMIT, OTHERS_LIMIT, OTHERS_SCAN, Standing
from holdfast.core.job import Job, JobKey, JobState, NewJob, PurgeCount
from holdfast.core.names import OPERATOR, check_id, join_key
from holdfast.paging import name_cursor, name_page, tenant_cursor
from holdfast.store import PurgePage, QueuePage, QueueStats, TenantPage, WorkerInfo, WorkerPage
from holdfast.stores.foundationdb import records
from holdfast.stores.foundationdb.awaiting import together
from holdfast.stores.foundationdb.keyspace import after, pack, span, unpack
from holdfast.stores.foundationdb.lanes import LaneJobs, heads
from holdfast.stores.foundationdb.records import number
from holdfast.stores.foundationdb.settings import unpack_settings
from holdfast.stores.foundationdb.unit_of_work import Work

READ = 1_000
"""The most keys that one read returns."""
_LATER = (JobState.SCHEDULED, JobState.RETRYING)
_ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELED)

_encode_worker = msgspec.msgpack.Encoder().encode
_decode_worker = msgspec.msgpack.Decoder(tuple[int, WorkerInfo]).decode


async def shown(work: Work, keys: Sequence[JobKey]) -> list[Job | None]:
    """Jobs as they are shown now, with their payloads. [TENANT-2]"""
    await work.load(keys, snapshot=True)
    found = [work.find(key) for key in keys]
    await work.fill([job for job in found if job is not None])
    answers: list[Job | None] = []
    for job in found:
        view = None if job is None else job.snapshot()
        if view is not None:
            view.state = lifecycle.shown(view, work.now)
        answers.append(view)
    return answers


async def key_holders(work: Work, items: Sequence[NewJob]) -> list[str | None]:
    """The ids of the jobs that hold the items' idempotency keys. [ENQ-3]"""
    scopes = [scope_of(item.key.tenant, item.key.queue, item.envelope) for item in items]
    await work.load_bindings(scope for scope in scopes if scope is not None)
    found = (work.binding(scope) for scope in scopes)
    return [None if one is None or expired(one, work.now) else one.job_id for one in found]


async def standing(work: Work, key: JobKey) -> Standing | None:
    """What a job waits for in its queue. [TENANT-2]"""
    (job,) = await shown(work, [key])
    if job is None:
        return None
    keys, tr = work.keys, work.tr
    paused = await tr.get(keys.lane_paused(key.tenant, key.queue), snapshot=True) is not None
    if job.state is not JobState.READY:
        return Standing(job, work.now, paused)
    place = (records.rank_of(job), job.visible_at, job.seq, job.id)
    lane = LaneJobs(work, key.tenant, key.queue, paused=False)
    await lane.fetch(AHEAD_LIMIT + 1)
    ahead = 0
    while ahead <= AHEAD_LIMIT and await lane.has_visible():
        other = lane.take()
        if (other.rank, other.visible_at, other.seq, other.key.id) >= place:
            break
        ahead += 1
    return Standing(job, work.now, paused, ahead, await _others(work, key))


async def _others(work: Work, key: JobKey) -> int:
    """Other tenants with visible work in a queue of this name."""
    prefix, later = work.keys.pointers(key.queue), work.keys.later_pointers(key.queue)
    active, due = await together(
        work.tr.get_range(prefix, prefix + b"\xff" * 12, limit=2 * OTHERS_SCAN, snapshot=True),
        work.tr.get_range(span(later)[0], later + pack(work.now + 1), limit=OTHERS_SCAN, snapshot=True),
    )
    names = [value.decode() for _, value in active] + [unpack(name, len(later))[1] for name, _ in due]
    others = [name for name in dict.fromkeys(names) if name != key.tenant][:OTHERS_SCAN]
    found = await together(*(LaneJobs(work, name, key.queue).has_visible() for name in others))
    return min(sum(found), OTHERS_LIMIT + 1)


# Counts -------------------------------------------------------------------------------------------------------------


async def stats(work: Work, tenant: str, queues: Iterable[str]) -> list[QueueStats]:
    """Counts by the states shown now."""
    return list(await together(*(_stats(work, tenant, queue) for queue in queues)))


async def _stats(work: Work, tenant: str, queue: str) -> QueueStats:
    prefix = work.keys.lane_counts(tenant, queue)
    rows, paused, expired_ = await together(
        work.tr.get_range(*span(prefix), snapshot=True),
        work.tr.get(work.keys.lane_paused(tenant, queue), snapshot=True),
        _expired(work, tenant, queue),
    )
    by_code = {unpack(key, len(prefix))[0]: number(value) for key, value in rows}
    counts = dict.fromkeys(JobState, 0)
    counts[JobState.LEASED] = by_code.get(codes.LEASED, 0)
    for state in _ENDED:
        counts[state] = by_code.get(codes.STATE_CODES[state], 0) - expired_.get(codes.STATE_CODES[state], 0)
    oldest: int | None = None
    waiting = by_code.get(records.WAITING_COUNT, 0)
    if waiting:
        later, oldest = await _waiting(work, tenant, queue)
        for code, count in later.items():
            counts[codes.STATES[code]] = count
        counts[JobState.READY] = waiting - sum(later.values())
    return QueueStats(queue, counts, oldest, paused=paused is not None, now=work.now)


async def _waiting(work: Work, tenant: str, queue: str) -> tuple[dict[int, int], int | None]:
    """The number of jobs that are not due yet, by state, and since when the oldest visible one has waited."""
    first = await together(*(_later(work, tenant, queue, state) for state in _LATER))
    times = [at for _, at in await heads(work, tenant, queue, snapshot=True) if at <= work.now]
    later = {codes.STATE_CODES[state]: count for state, count in zip(_LATER, first, strict=True)}
    return later, min(times, default=None)


async def _later(work: Work, tenant: str, queue: str, state: JobState) -> int:
    """How many jobs of a state are not due yet: the rest of this second by milliseconds, then by larger steps."""
    prefix, code, now = work.keys.later_counts(tenant, queue), codes.STATE_CODES[state], work.now
    reads: list[Awaitable[list[tuple[bytes, bytes]]]] = []
    end = span(prefix + pack(records.LATER_SHIFTS[0], code))[1]
    for shift, finer in zip(records.LATER_SHIFTS, (*records.LATER_SHIFTS[1:], None), strict=True):
        begin = prefix + pack(shift, code, (now >> shift) + 1)
        reads.append(work.tr.get_range(begin, end, snapshot=True))
        if finer is not None:
            end = prefix + pack(finer, code, ((now >> shift) + 1) << (shift - finer))
    return sum(number(value) for rows in await together(*reads) for _, value in rows)


async def _expired(work: Work, tenant: str, queue: str) -> dict[int, int]:
    """Ended jobs past their retention that are still kept, by state."""
    prefix = work.keys.retained(tenant, queue)
    begin, end = span(prefix)[0], prefix + pack(work.now + 1)
    found: dict[int, int] = {}
    while rows := await work.tr.get_range(begin, end, limit=READ, snapshot=True):
        for _, value in rows:
            found[value[0]] = found.get(value[0], 0) + 1
        if len(rows) < READ:
            break
        begin = after(rows[-1][0])
    return found


async def queue_page(work: Work, tenant: str, cursor: str | None, limit: int) -> QueuePage:
    """Counts of the next queues that have jobs or are paused."""
    place = name_cursor(cursor)
    parts = (_names(work, prefix, place, limit) for prefix in (work.keys.queues(tenant), work.keys.paused(tenant)))
    names, following = name_page({name for part in await together(*parts) for name in part}, place, limit)
    return QueuePage(await stats(work, tenant, names), following)


async def _names(work: Work, prefix: bytes, place: str, limit: int) -> list[str]:
    """The names behind a prefix, after a place: one more than the limit, if there are more."""
    begin, end = span(prefix)
    if place:
        begin = prefix + pack(place) + b"\xff"
    rows = await work.tr.get_range(begin, end, limit=limit + 1, snapshot=True)
    return [unpack(key, len(prefix))[0] for key, _ in rows]


async def tenant_page(work: Work, cursor: str | None, limit: int) -> TenantPage:
    """The next tenants that have jobs or settings."""
    place = tenant_cursor(cursor)[0]
    with_jobs, with_settings = await together(
        _names(work, work.keys.tenants, place, limit + 1), _names(work, work.keys.settings, place, READ)
    )
    names, following = name_page({*with_jobs, *with_settings} - {OPERATOR}, place, limit)
    if len(with_settings) > READ:  # The names of tenants with settings are known only so far.
        names = [name for name in names if name <= with_settings[-1]]
        following = names[-1] if names else with_settings[-1]
    return TenantPage(names, following and join_key(following, ""))


async def usage(work: Work, tenant: str) -> Usage:
    """What a tenant keeps. [TENANT-5]"""
    keys, tr = work.keys, work.tr
    names = ("keys", "bytes")
    jobs, events, *kept = await together(
        tr.get(keys.tenant_jobs(tenant), snapshot=True),
        tr.get(keys.tenant_events(tenant), snapshot=True),
        *(tr.get(keys.kept(tenant, name), snapshot=True) for name in names),
    )
    queues: set[str] = set()
    for prefix in (keys.queues(tenant), keys.paused(tenant)):
        place = ""
        while found := await _names(work, prefix, place, READ):
            queues.update(found)
            place = found[-1]
    return Usage(number(jobs), number(kept[0]), number(kept[1]), len(queues), number(events))


async def purge_counts(work: Work, tenant: str | None, cursor: str | None, limit: int) -> PurgePage:
    """How many jobs were purged, by tenant. [EVENT-1]"""
    if tenant is not None:
        raw = await work.tr.get(work.keys.purge(tenant), snapshot=True)
        purges = None if raw is None else records.to_purges(raw)
        return PurgePage([] if purges is None else [PurgeCount(tenant, purges.series, purges.count)], None)
    prefix = work.keys.purges
    begin, end = span(prefix)
    if cursor is not None:
        begin = after(prefix + pack(cursor))
    rows = await work.tr.get_range(begin, end, limit=limit, snapshot=True)
    counts: list[PurgeCount] = []
    for key, value in rows:
        purges = records.to_purges(value)
        counts.append(PurgeCount(unpack(key, len(prefix))[0], purges.series, purges.count))
    return PurgePage(counts, counts[-1].tenant if len(rows) == limit else None)


# Settings and workers -----------------------------------------------------------------------------------------------


async def settings(work: Work, tenant: str) -> list[TenantSettings]:
    """A tenant's own settings first, then those of its queues by name."""
    prefix = work.keys.settings + pack(tenant)
    rows = await work.tr.get_range(*span(prefix), snapshot=True)
    return [unpack_settings(unpack(key, len(prefix))[0], value) for key, value in rows]


async def worker_page(work: Work, tenant: str | None, cursor: str | None, limit: int) -> WorkerPage:
    """Live workers among the next ones, by id."""
    prefix = work.keys.workers
    begin, end = span(prefix)
    place = name_cursor(cursor, check_id)
    if place:
        begin = after(prefix + pack(place))
    rows = await work.tr.get_range(begin, end, limit=limit, snapshot=True)
    found = [_decode_worker(value) for _, value in rows]
    live = [worker for expires_at, worker in found if expires_at > work.now]
    mine = [worker for worker in live if tenant is None or worker.tenant in (None, tenant)]
    return WorkerPage(mine, found[-1][1].worker_id if len(rows) == limit else None)


def pack_worker(expires_at: int, worker: WorkerInfo) -> bytes:
    """A worker as a value."""
    return _encode_worker((expires_at, worker))


def unpack_worker(raw: bytes) -> tuple[int, WorkerInfo]:
    """The end of a worker's last beat, and the worker."""
    return _decode_worker(raw)
