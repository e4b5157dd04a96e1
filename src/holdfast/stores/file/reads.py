"""Reads on a snapshot, concurrent with the writer: get, list, stats, events, settings."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice, pairwise
from operator import itemgetter
from typing import Any

import msgspec

from holdfast.core import codes, lifecycle
from holdfast.core.budgets import Budgets, Usage
from holdfast.core.dedup import Binding, expired
from holdfast.core.errors import EventsTrimmed, InvalidOption
from holdfast.core.events import Event, Gap, Gathered
from holdfast.core.explain import AHEAD_LIMIT, OTHERS_LIMIT, OTHERS_SCAN, Standing
from holdfast.core.job import TERMINAL, WAITING, Job, JobKey, JobState, NewJob, PurgeCount
from holdfast.core.listing import Place, cursor_text
from holdfast.core.names import check_id
from holdfast.extensions import LogRange
from holdfast.paging import AFTER_ALL, QUEUES_READ, name_cursor, segment_cursor, tenant_cursor, tenant_page_of
from holdfast.store import (
    EventPage,
    ListQuery,
    LogPage,
    Page,
    PurgePage,
    QueuePage,
    QueueStats,
    Reader,
    TenantPage,
    TenantSettings,
    WorkerInfo,
    WorkerPage,
)
from holdfast.stores.file import rows
from holdfast.stores.file.sql import AHEAD, ANY_VISIBLE, FUTURE, OLDEST_READY, SQL
from holdfast.stores.file.transaction import clock

EVENT_SCAN = 1000
"""The most events that one page scans for a tenant before it returns what it has found, unless more are wanted."""

_OFFSET = re.compile(r"([0-9]{1,18})(\.[0-9]{1,10})?")

_decode_budgets = msgspec.json.Decoder(Budgets).decode
_decode_worker = msgspec.json.Decoder(WorkerInfo).decode


def now(db: sqlite3.Connection) -> int:
    """The store's clock."""
    *_, shift, frozen_at = db.execute(SQL["counters"]).fetchone()
    return clock(shift, frozen_at)


def get(db: sqlite3.Connection, keys: Sequence[JobKey]) -> list[Job | None]:
    """Jobs by key, in their current state."""
    at = now(db)
    lanes: dict[tuple[str, str], int | None] = {}
    found: list[Job | None] = []
    for key in keys:
        lane = _lane(db, key.tenant, key.queue, lanes)
        row = None if lane is None else db.execute(SQL["find_job"], (lane, key.id)).fetchone()
        job = None if row is None else rows.to_job(row, key.tenant, key.queue)
        found.append(None if job is None or lifecycle.forgotten(job, at) else _shown(db, job, at))
    return found


def standing(db: sqlite3.Connection, key: JobKey) -> Standing | None:
    """What a job waits for in its queue. [TENANT-2]"""
    at = now(db)
    lane = _lane(db, key.tenant, key.queue, {})
    row = None if lane is None else db.execute(SQL["find_job"], (lane, key.id)).fetchone()
    if row is None or lifecycle.forgotten(job := rows.to_job(row, key.tenant, key.queue), at):
        return None
    paused: bool = bool(db.execute(SQL["lane_paused"], (lane,)).fetchone()[0])
    job = _shown(db, job, at)
    if job.state is not JobState.READY:
        return Standing(job, at, paused)
    rank = 9 - job.envelope.priority
    ahead = db.execute(AHEAD, (lane, at, rank, job.visible_at, job.seq, AHEAD_LIMIT + 1)).fetchone()[0]
    maybe = db.execute(SQL["lanes_with_work"], (key.queue, at, OTHERS_SCAN))
    working = (
        one for one, waiting in maybe if waiting and one != lane and db.execute(ANY_VISIBLE, (one, at)).fetchone()
    )
    return Standing(job, at, paused, ahead, sum(1 for _ in islice(working, OTHERS_LIMIT + 1)))


def key_holders(db: sqlite3.Connection, items: Sequence[NewJob]) -> list[str | None]:
    """The ids of the jobs that hold the items' idempotency keys. [ENQ-3]"""
    at = now(db)
    lanes: dict[tuple[str, str], int | None] = {}
    found: list[str | None] = []
    for item in items:
        lane, envelope = _lane(db, item.key.tenant, item.key.queue, lanes), item.envelope
        key = envelope.idempotency.key if envelope.idempotency else ""
        row = None if lane is None else db.execute(SQL["find_key"], (lane, envelope.type, key)).fetchone()
        binding = None if row is None else Binding(*row)
        found.append(None if binding is None or expired(binding, at) else binding.job_id)
    return found


def list_jobs(db: sqlite3.Connection, query: ListQuery) -> Page:
    """A page of jobs: waiting ones in claim order, then leased ones by deadline, then ended ones by time.

    With `newest`, all of them by time, the latest first.
    """
    at = now(db)
    lane = _lane(db, query.tenant, query.queue, {})
    if lane is None:
        return Page([], None, at)
    jobs: list[Job] = []
    cursor = query.cursor
    walk = _walk_back if query.newest else _walk
    for scanned, (place, job) in enumerate(walk(db, lane, query), 1):
        if query.matches(job, at):
            if len(jobs) == query.limit:
                return Page(jobs, cursor, at)
            jobs.append(_shown(db, job, at))
            cursor = place
        elif scanned >= query.scan:
            return Page(jobs, place, at)
    return Page(jobs, None, at)


def _walk(db: sqlite3.Connection, lane: int, query: ListQuery) -> Iterator[tuple[str, Job]]:
    """The jobs of a lane from the cursor on, each with its own cursor."""
    start, after = segment_cursor(query.cursor)
    only_dead = query.states == frozenset({JobState.FAILED})
    segments = (
        ("list_waiting", WAITING, (-1, 0, 0), ("rank", "visible_at", "seq")),
        ("list_leased", frozenset({JobState.LEASED}), (-1, 0), ("deadline", "seq")),
        ("list_dead" if only_dead else "list_ended", TERMINAL, (-1, 0), ("finished_at", "seq")),
    )
    for number, (name, states, first, columns) in enumerate(segments):
        if number < start or not query.states & states:
            continue
        position = after if number == start and after else first
        if len(position) != len(first):
            raise InvalidOption("cursor", f"{query.cursor!r} did not come from a list")
        for row in db.execute(SQL[name], (lane, *position, -1)):
            place = ".".join(str(row[rows.COLUMN[column]]) for column in columns)
            yield f"{number}.{place}", rows.to_job(row, query.tenant, query.queue)


def _walk_back(db: sqlite3.Connection, lane: int, query: ListQuery) -> Iterator[tuple[str, Job]]:
    """The jobs of a lane by time, the latest first, each with its own cursor. Rows are read as they are needed."""
    time, seq = query.before()
    since, seq_column = query.since or 0, rows.COLUMN["seq"]

    def walk(name: str, column: str, *rank: int) -> Iterator[tuple[Place, Any]]:
        number = rows.COLUMN[column]
        for row in db.execute(SQL[name], (lane, since, time, seq, *rank)):
            yield (row[number], row[seq_column]), row

    walks: list[Iterator[tuple[Place, Any]]] = []
    if query.states & WAITING:
        walks += [walk("newest_waiting", "visible_at", rank) for rank in range(10)]
    if JobState.LEASED in query.states:
        walks.append(walk("newest_leased", "deadline"))
    if ended := query.states & TERMINAL:
        walks.append(walk("newest_dead" if ended == frozenset({JobState.FAILED}) else "newest_ended", "finished_at"))
    for place, row in merge(*walks, key=itemgetter(0), reverse=True):
        yield cursor_text(place), rows.to_job(row, query.tenant, query.queue)


def stats(db: sqlite3.Connection, tenant: str, queues: Sequence[str]) -> list[QueueStats]:
    """Counts by current state."""
    at = now(db)
    return [_stats(db, tenant, queue, at) for queue in queues]


def queue_page(db: sqlite3.Connection, tenant: str, cursor: str | None, limit: int) -> QueuePage:
    """A page of queues with jobs. Scans up to `limit` queues."""
    found = db.execute(SQL["queues_of"], (tenant, name_cursor(cursor), limit)).fetchall()
    names = [queue for queue, used in found if used]
    return QueuePage(stats(db, tenant, names), found[-1][0] if len(found) == limit else None)


def _stats(db: sqlite3.Connection, tenant: str, queue: str, at: int) -> QueueStats:
    counts = dict.fromkeys(JobState, 0)
    row = db.execute(SQL["lane_counts"], (tenant, queue)).fetchone()
    if row is None:
        return QueueStats(queue, counts, None, paused=False, now=at)
    lane, paused, waiting, leased, completed, failed, canceled = row
    for code, count in db.execute(FUTURE, (lane, at)):
        counts[codes.STATES[code]] += count
    counts[JobState.READY] = waiting - sum(counts.values())
    counts[JobState.LEASED] = leased
    counts[JobState.COMPLETED], counts[JobState.FAILED], counts[JobState.CANCELED] = completed, failed, canceled
    for code, count in db.execute(SQL["expired_counts"], (at, lane)):
        counts[codes.STATES[code]] -= count
    oldest = db.execute(OLDEST_READY, (lane, at)).fetchone()[0] if counts[JobState.READY] else None
    return QueueStats(queue, counts, oldest, paused=bool(paused), now=at)


def tenant_page(db: sqlite3.Connection, cursor: str | None, limit: int) -> TenantPage:
    """A page of tenants with jobs or settings. Scans a limited number of queues."""
    after = tenant_cursor(cursor)
    names, stop = _with_jobs(db, after, limit)
    again = after[0] if after[1] else None  # The last page stopped inside this tenant.
    settings = [row[0] for row in db.execute(SQL["tenants_with_settings"], (after[0], again, limit + 1))]
    return tenant_page_of(names, settings, stop, limit)


def _with_jobs(db: sqlite3.Connection, after: tuple[str, str], limit: int) -> tuple[list[str], tuple[str, str] | None]:
    """The next tenants that have jobs, and where the scan stopped: None at the end."""
    names: list[str] = []
    remaining = QUEUES_READ
    if not after[1]:
        after = (after[0], AFTER_ALL)
    while remaining > 0 and len(names) < limit:
        for tenant, queue, used in db.execute(SQL["lanes_behind"], (*after, remaining)):
            remaining -= 1
            after = (tenant, queue)
            if used:
                names.append(tenant)
                after = (tenant, AFTER_ALL)
                break
        else:
            if remaining > 0:
                return names, None
    return names, (after[0], "" if after[1] == AFTER_ALL else after[1])


def purge_counts(db: sqlite3.Connection, tenant: str | None, cursor: str | None, limit: int) -> PurgePage:
    """How many jobs were purged, by tenant. [EVENT-1]"""
    found = [PurgeCount(*row) for row in db.execute(SQL["purge_counts"], (cursor or "", tenant, limit))]
    return PurgePage(found, found[-1].tenant if len(found) == limit else None)


def events(db: sqlite3.Connection, tenant: str | None, after: str | None, limit: int) -> EventPage:
    """Events after an offset. The log is in commit order, because only one writer runs at a time. [EVENT-2]"""
    start, end = _ends(db, after, tenant)
    offset = after or offset_at(db, start)
    gaps = [] if tenant else _cuts(db, start)
    # A tenant's page scans a limited part of the log, however few events it finds. [EVENT-3]
    stop = _on(db, start, max(limit, EVENT_SCAN), end)
    names = _Names(db)
    page: list[Event] = []
    reached, last = start, offset
    for first, mark, chunk, last_in_chunk, lane in db.execute(SQL["events"], (start,)):
        if first > stop:
            break
        is_foreign = tenant is not None and lane is not None and names.of(lane)[0] != tenant
        if is_foreign and len(page) < limit:
            reached = min(stop, last_in_chunk)
            last = f"{reached}.{mark}"
            continue
        for n, logged in enumerate(rows.unpack_events(chunk), first):
            if n <= start:
                continue
            if len(page) == limit or n > stop:
                return EventPage(page, last, reached < end, _gaps(db, gaps, offset, reached, last))
            reached, last = n, f"{n}.{mark}"
            owner, queue = names.of(logged[2])
            if tenant is None or owner == tenant:
                page.append(rows.to_event(last, logged, owner, queue))
    # Not the last event found: the next page would scan the missing events at the end again.
    last = last if reached == stop else offset_at(db, stop)
    return EventPage(page, last, stop < end, _gaps(db, gaps, offset, stop, last))


def _cuts(db: sqlite3.Connection, start: int) -> list[tuple[str, int]]:
    """The tenants that have lost events after `start`, and the last one that each has lost."""
    return db.execute(SQL["cuts_behind"], (start,)).fetchall()


def _gaps(db: sqlite3.Connection, cuts: list[tuple[str, int]], after: str, reached: int, last: str) -> list[Gap]:
    """The gaps in a page that ends at `reached`."""
    return [Gap(tenant, after, offset_at(db, n) if n < reached else last) for tenant, n in cuts if after != last]


def _on(db: sqlite3.Connection, start: int, count: int, end: int) -> int:
    """The number `count` events after `start`, not counting trimmed events directly after it."""
    row = db.execute(SQL["first_behind"], (start,)).fetchone()
    return end if row is None else min(end, max(start, row[0] - 1) + count)


def _ends(db: sqlite3.Connection, after: str | None, tenant: str | None = None) -> tuple[int, int]:
    """The event number to continue after, and the last one in the log.

    Raises EventsTrimmed if events of the tenant after the offset are gone; without a tenant, if those of all are.
    """
    _, _, end, trimmed, *_ = db.execute(SQL["counters"]).fetchone()
    row = db.execute(SQL["cut_of"], (tenant,)).fetchone() if tenant else (trimmed,)
    cut = row[0] if row else 0
    if after is None:
        return max(cut, trimmed), end
    start = position(db, after, end, trimmed)
    if start < cut:
        raise EventsTrimmed(after, offset_at(db, cut))
    return max(start, trimmed), end


def _number(db: sqlite3.Connection, offset: str) -> int:
    _, _, end, trimmed, *_ = db.execute(SQL["counters"]).fetchone()
    return position(db, offset, end, trimmed)


def bounds(db: sqlite3.Connection, after: str | None, most: int | None, end: str | None) -> tuple[str, str]:
    """The offsets to read between."""
    start, last = _ends(db, after)
    if end is not None:
        last = _number(db, end)
    stop = last if most is None else _on(db, start, most, last)
    return offset_at(db, start), offset_at(db, max(start, stop))


def split(db: sqlite3.Connection, after: str, end: str, size: int) -> list[LogRange]:
    """The log between two offsets, in ranges of up to `size` events."""
    start, _ = _ends(db, after)
    stop = _number(db, end)
    edges = [offset_at(db, start)]
    while start < stop:
        start = _on(db, start, size, stop)
        edges.append(offset_at(db, start))
    return [LogRange(0, one, other) for one, other in pairwise(edges)]


def read(db: sqlite3.Connection, log_range: LogRange, limit: int) -> LogPage:
    """The first events of a range."""
    start, _ = _ends(db, log_range.after)
    end = _number(db, log_range.end)
    stop = _on(db, start, limit, end)
    names = _Names(db)
    found = Gathered()
    for first, mark, chunk, *_ in db.execute(SQL["events"], (start,)):
        if first > stop:
            break
        part = rows.to_columns(first, mark, chunk, names.of)
        found.add(part.part(max(0, start + 1 - first), stop + 1 - first))
    last = offset_at(db, stop)
    return LogPage(found.parts, last, stop < end, _gaps(db, _cuts(db, start), log_range.after, stop, last))


class _Names:
    """The names of lanes, read as needed."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._known: dict[int, tuple[str, str]] = {}

    def of(self, lane: int) -> tuple[str, str]:
        names = self._known.get(lane)
        if names is None:
            names = self._known[lane] = self._db.execute(SQL["lane_names"], (lane,)).fetchone()
        return names


def last_offset(db: sqlite3.Connection) -> str:
    """The end of the log."""
    return offset_at(db, db.execute(SQL["counters"]).fetchone()[2])


def readers(db: sqlite3.Connection, tenant: str | None) -> list[Reader]:
    """The registered readers."""
    found = db.execute(SQL["readers"], (tenant or "",)).fetchall()
    return [Reader(tenant, name, offset_at(db, n)) for name, n in found]


def settings(db: sqlite3.Connection, tenant: str) -> list[TenantSettings]:
    """A tenant's settings."""
    found = db.execute(SQL["settings"], (tenant,))
    return [
        TenantSettings(queue or None, weight, max_waiting, None if budgets is None else _decode_budgets(budgets))
        for queue, weight, max_waiting, budgets in found
    ]


def usage(db: sqlite3.Connection, tenant: str) -> Usage:
    """A tenant's usage, from the counters of its queues."""
    return Usage(*db.execute(SQL["usage"], (tenant,)).fetchone())


def worker_page(db: sqlite3.Connection, tenant: str | None, cursor: str | None, limit: int) -> WorkerPage:
    """A page of live workers. Scans up to `limit` workers."""
    found = db.execute(SQL["workers"], (name_cursor(cursor, check_id), limit)).fetchall()
    at = now(db)
    live = [
        msgspec.structs.replace(_decode_worker(info), started_at=started_at, seen_at=seen_at)
        for _, expires_at, info, started_at, seen_at in found
        if expires_at > at
    ]
    mine = [worker for worker in live if tenant is None or worker.tenant in (None, tenant)]
    return WorkerPage(mine, found[-1][0] if len(found) == limit else None)


def offset_at(db: sqlite3.Connection, n: int) -> str:
    """The offset of the n-th event: its number, and a check value of its chunk.

    After a backup is restored in place, new events reuse numbers: the check value tells them apart. Where no chunk is
    kept, as at the beginning of the log, an offset is only a number.
    """
    row = db.execute(SQL["chunk_at"], (n,)).fetchone()
    if row is not None and row[0] <= n:
        return f"{n}.{row[1]}"
    cut = db.execute(SQL["cut_at"], (n,)).fetchone()
    return str(n) if cut is None else f"{n}.{cut[0]}"


def position(db: sqlite3.Connection, offset: str, end: int, trimmed: int) -> int:
    """The number of the event that an offset names.

    An offset without a check value cannot be checked, nor can that of an event that was trimmed between others.

    Raises InvalidOption if it is not an offset. Raises EventsTrimmed if the log has another event there or none any
    more: it is unknown what the reader missed, so it continues with the oldest event kept. [EVENT-2]
    """
    match = _OFFSET.fullmatch(offset)
    if match is None or (int(match[1]) > end and not match[2]):
        raise InvalidOption("after", f"{offset!r} is not an offset of this store")
    n = int(match[1])
    if n < trimmed or not match[2]:
        return n
    here = offset_at(db, n)
    last_cut = db.execute(SQL["last_cut"]).fetchone()[0] or 0
    if here != offset and ("." in here or n > last_cut):
        raise EventsTrimmed(offset, offset_at(db, trimmed))
    return n


def _lane(db: sqlite3.Connection, tenant: str, queue: str, known: dict[tuple[str, str], int | None]) -> int | None:
    if (tenant, queue) not in known:
        row = db.execute(SQL["find_lane"], (tenant, queue)).fetchone()
        known[tenant, queue] = None if row is None else row[0]
    return known[tenant, queue]


def _shown(db: sqlite3.Connection, job: Job, at: int) -> Job:
    job.state = lifecycle.shown(job, at)
    return rows.fill_payload(db, job)
