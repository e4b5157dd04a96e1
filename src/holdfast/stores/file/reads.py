"""Reading, on a snapshot beside the writer: get, list, stats, events, settings."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.core import lifecycle
from holdfast.core.errors import EventsTrimmed, InvalidOption
from holdfast.core.events import Event, Gathered
from holdfast.core.job import TERMINAL, WAITING, Job, JobKey, JobState
from holdfast.store import (
    EventPage,
    ListQuery,
    LogPage,
    Page,
    QueueStats,
    Reader,
    Stretch,
    TenantSettings,
    WorkerInfo,
)
from holdfast.stores.file import rows
from holdfast.stores.file.sql import FUTURE, OLDEST_READY, SQL
from holdfast.stores.file.transaction import clock

SCAN = 10_000
"""How many rows or events a page looks through at most before it answers with what it has."""

_decode_worker = msgspec.json.Decoder(WorkerInfo).decode


def now(db: sqlite3.Connection) -> int:
    """The store's clock."""
    *_, shift, frozen_at = db.execute(SQL["counters"]).fetchone()
    return clock(shift, frozen_at)


def get(db: sqlite3.Connection, keys: Sequence[JobKey]) -> list[Job | None]:
    """Jobs by key, as shown now."""
    at = now(db)
    lanes: dict[tuple[str, str], int | None] = {}
    found: list[Job | None] = []
    for key in keys:
        lane = _lane(db, key.tenant, key.queue, lanes)
        row = None if lane is None else db.execute(SQL["find_job"], (lane, key.id)).fetchone()
        job = None if row is None else rows.to_job(row, key.tenant, key.queue)
        found.append(None if job is None or lifecycle.forgotten(job, at) else _shown(db, job, at))
    return found


def list_jobs(db: sqlite3.Connection, query: ListQuery) -> Page:
    """A page: waiting in claim order, then leased by deadline, then ended by time."""
    at = now(db)
    lane = _lane(db, query.tenant, query.queue, {})
    if lane is None:
        return Page([], None, at)
    jobs: list[Job] = []
    cursor = query.cursor
    for scanned, (place, job) in enumerate(_walk(db, lane, query), 1):
        if query.matches(job, at):
            if len(jobs) == query.limit:
                return Page(jobs, cursor, at)
            jobs.append(_shown(db, job, at))
            cursor = place
        elif scanned >= SCAN:
            return Page(jobs, place, at)
    return Page(jobs, None, at)


def _walk(db: sqlite3.Connection, lane: int, query: ListQuery) -> Iterator[tuple[str, Job]]:
    """The jobs of a lane from the cursor on, each with the cursor that stands for it."""
    start, after = _parse_cursor(query.cursor)
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


def stats(db: sqlite3.Connection, tenant: str, queues: Sequence[str] | None) -> list[QueueStats]:
    """Counts per state as shown now."""
    at = now(db)
    names = queues if queues is not None else [row[0] for row in db.execute(SQL["queues_of"], (tenant,)).fetchall()]
    return [_stats(db, tenant, queue, at) for queue in names]


def _stats(db: sqlite3.Connection, tenant: str, queue: str, at: int) -> QueueStats:
    counts = dict.fromkeys(JobState, 0)
    row = db.execute(SQL["lane_counts"], (tenant, queue)).fetchone()
    if row is None:
        return QueueStats(queue, counts, None, paused=False, now=at)
    lane, paused, waiting, leased, completed, failed, canceled = row
    for code, count in db.execute(FUTURE, (lane, at)):
        counts[rows.STATES[code]] += count
    counts[JobState.READY] = waiting - sum(counts.values())
    counts[JobState.LEASED] = leased
    counts[JobState.COMPLETED], counts[JobState.FAILED], counts[JobState.CANCELED] = completed, failed, canceled
    for code, count in db.execute(SQL["expired_counts"], (at, lane)):
        counts[rows.STATES[code]] -= count
    oldest = db.execute(OLDEST_READY, (lane, at)).fetchone()[0] if counts[JobState.READY] else None
    return QueueStats(queue, counts, oldest, paused=bool(paused), now=at)


def tenants(db: sqlite3.Connection) -> list[str]:
    """Who has jobs or settings here."""
    return [row[0] for row in db.execute(SQL["tenants"])]


def events(db: sqlite3.Connection, tenant: str | None, after: str | None, limit: int) -> EventPage:
    """Events after an offset; the log is in commit order because there is one writer at a time. [EVENT-2]"""
    start, end = _ends(db, after)
    # A tenant's page looks through a bounded stretch of the log, whatever it finds there. [EVENT-3]
    stop = min(end, start + max(limit, SCAN))
    names = _Names(db)
    page: list[Event] = []
    reached = start
    for first, chunk in db.execute(SQL["events"], (start,)):
        for n, logged in enumerate(rows.unpack_events(chunk), first):
            if n <= start:
                continue
            if len(page) == limit or n > stop:
                return EventPage(page, str(reached), more=reached < end)
            reached = n
            owner, queue = names.of(logged[2])
            if tenant is None or owner == tenant:
                page.append(rows.to_event(n, logged, owner, queue))
    return EventPage(page, str(reached), more=reached < end)


def _ends(db: sqlite3.Connection, after: str | None) -> tuple[int, int]:
    """Where to go on after an offset, and where the log ends."""
    _, _, end, trimmed, *_ = db.execute(SQL["counters"]).fetchone()
    start = trimmed if after is None else parse_offset(after)
    if start > end:
        raise InvalidOption("after", f"{after!r} is not an offset of this store")
    if start < trimmed:
        raise EventsTrimmed(str(start), str(trimmed))
    return start, end


def reach(db: sqlite3.Connection, after: str | None, most: int | None, end: str | None) -> tuple[str, str]:
    """From where and up to where to read."""
    start, last = _ends(db, after)
    last = last if end is None else parse_offset(end)
    return str(start), str(max(start, last if most is None else min(last, start + most)))


def split(db: sqlite3.Connection, after: str, end: str, size: int) -> list[Stretch]:
    """The log between two offsets, in pieces: the numbers of events have no holes."""
    stop = parse_offset(end)
    start, _ = _ends(db, after)
    return [Stretch(0, str(n), str(min(n + size, stop))) for n in range(start, stop, size)]


def read(db: sqlite3.Connection, stretch: Stretch, limit: int) -> LogPage:
    """The first events of a piece."""
    start, _ = _ends(db, stretch.after)
    end = parse_offset(stretch.end)
    stop = min(end, start + limit)
    names = _Names(db)
    found = Gathered()
    for first, chunk in db.execute(SQL["events"], (start,)):
        if first > stop:
            break
        part = rows.to_columns(first, chunk, names.of)
        found.add(part.part(max(0, start + 1 - first), stop + 1 - first))
    reached = start + found.count
    return LogPage(found.parts, str(reached), more=reached < end)


class _Names:
    """The names of lanes, read as they are needed."""

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
    return str(db.execute(SQL["counters"]).fetchone()[2])


def readers(db: sqlite3.Connection, tenant: str | None) -> list[Reader]:
    """Registered readers."""
    return [Reader(tenant, name, str(n)) for name, n in db.execute(SQL["readers"], (tenant or "",))]


def settings(db: sqlite3.Connection, tenant: str) -> list[TenantSettings]:
    """A tenant's settings."""
    found = db.execute(SQL["settings"], (tenant,))
    return [TenantSettings(queue or None, weight, max_waiting) for queue, weight, max_waiting in found]


def workers(db: sqlite3.Connection, tenant: str | None) -> list[WorkerInfo]:
    """Living workers."""
    living = [
        msgspec.structs.replace(_decode_worker(info), started_at=started_at, seen_at=seen_at)
        for info, started_at, seen_at in db.execute(SQL["workers"], (now(db),))
    ]
    return [worker for worker in living if tenant is None or worker.tenant in (None, tenant)]


def parse_offset(offset: str) -> int:
    """An offset as the number it stands for. Raises InvalidOption."""
    if not offset.isascii() or not offset.isdigit() or len(offset) > 18:  # noqa: PLR2004 - fits 64 bits
        raise InvalidOption("after", f"{offset!r} is not an offset of this store")
    return int(offset)


def _lane(db: sqlite3.Connection, tenant: str, queue: str, known: dict[tuple[str, str], int | None]) -> int | None:
    if (tenant, queue) not in known:
        row = db.execute(SQL["find_lane"], (tenant, queue)).fetchone()
        known[tenant, queue] = None if row is None else row[0]
    return known[tenant, queue]


def _shown(db: sqlite3.Connection, job: Job, at: int) -> Job:
    job.state = lifecycle.shown(job, at)
    return rows.fill_payload(db, job)


def _parse_cursor(cursor: str | None) -> tuple[int, tuple[int, ...]]:
    if cursor is None:
        return 0, ()
    try:
        segment, *place = (int(part) for part in cursor.split("."))
    except ValueError:
        raise InvalidOption("cursor", f"{cursor!r} did not come from a list") from None
    if segment not in range(3) or any(not -1 <= part < 2**62 for part in place) or not place:
        raise InvalidOption("cursor", f"{cursor!r} did not come from a list")
    return segment, tuple(place)
