"""Reading: get, list, stats, the log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Any, cast

from msgspec.json import Decoder
from msgspec.structs import replace

from holdfast.core import lifecycle
from holdfast.core.errors import EventsTrimmed, InvalidOption
from holdfast.core.events import Event, Gathered
from holdfast.core.job import TERMINAL, WAITING, Job, JobKey, JobState, PurgeCount
from holdfast.core.names import check_id
from holdfast.store import (
    BEHIND_ALL,
    PAGE_LIMIT,
    QUEUES_LOOKED_AT,
    EventPage,
    ListQuery,
    LogPage,
    Page,
    PurgePage,
    QueuePage,
    QueueStats,
    Stretch,
    TenantPage,
    WorkerInfo,
    WorkerPage,
    name_cursor,
    tenant_cursor,
    tenant_page_of,
)
from holdfast.stores.postgres import log, rows
from holdfast.stores.postgres.lanes import Lane, Memory
from holdfast.stores.postgres.link import Link
from holdfast.stores.postgres.log import END, Place

SCAN = 10_000
"""How many jobs a page of a list looks through at most before it answers with what it has."""
STRETCH = 500
"""How many jobs one statement reads."""
FIRST_CHUNKS, CHUNKS = 8, 200
"""How many rows of the log one statement reads."""
LOOK_AHEAD = 1000
"""How many events a tenant's page looks through at least."""

_SEGMENTS: tuple[tuple[str, frozenset[JobState], tuple[int, ...], tuple[str, ...]], ...] = (
    ("list_waiting", WAITING, (-1, 0, 0), ("rank", "visible_at", "seq")),
    ("list_leased", frozenset({JobState.LEASED}), (-1, 0), ("deadline", "seq")),
    ("list_ended", TERMINAL, (-1, 0), ("finished_at", "seq")),
)


_decode_worker = Decoder(WorkerInfo).decode
_DEAD = frozenset({JobState.FAILED})


async def lane_of(link: Link, memory: Memory, tenant: str, queue: str) -> Lane | None:
    """The lane of these names, if there is one."""
    lane = memory.find(tenant, queue)
    if lane is None:
        known = memory.known()
        for row in await link.rows("find_lanes", [tenant], [queue], known, repeat=True):
            lane = memory.learn(known, *row.values())
    return lane


async def lanes_of(link: Link, memory: Memory, names: Sequence[tuple[str, str]]) -> list[Lane | None]:
    """The lane of each of these tenants and queues, where there is one."""
    lanes = {pair: memory.find(*pair) for pair in dict.fromkeys(names)}
    unknown = [pair for pair, lane in lanes.items() if lane is None]
    if unknown:
        tenants, queues = [tenant for tenant, _ in unknown], [queue for _, queue in unknown]
        known = memory.known()
        for row in await link.rows("find_lanes", tenants, queues, known, repeat=True):
            lane = memory.learn(known, *row.values())
            lanes[lane.tenant, lane.queue] = lane
    return [lanes[pair] for pair in names]


async def get(link: Link, memory: Memory, keys: Sequence[JobKey]) -> list[Job | None]:
    """Jobs by key, as shown now."""
    found: list[Job | None] = [None] * len(keys)
    places: list[int] = []
    lanes: list[Lane] = []
    for n, lane in enumerate(await lanes_of(link, memory, [key[:2] for key in keys])):
        if lane is not None:
            places.append(n)
            lanes.append(lane)
    if not places:
        return found
    numbers = [lane.number for lane in lanes]
    for row in await link.rows("find", numbers, [keys[n].id for n in places], memory.known(lanes), repeat=True):
        n = places[cast("int", row["i"]) - 1]
        job = rows.to_job(row, keys[n].tenant, keys[n].queue)
        now: int = row["now"]
        if not lifecycle.forgotten(job, now):
            found[n] = _shown(job, now)
    return found


async def list_jobs(link: Link, memory: Memory, query: ListQuery) -> Page:
    """A page: waiting in claim order, then leased by deadline, then ended by time."""
    start, after = _parse_cursor(query.cursor)
    now = await link.value("now", repeat=True)
    lane = await lane_of(link, memory, query.tenant, query.queue)
    if lane is None:
        return Page([], None, now)
    jobs: list[Job] = []
    cursor = query.cursor
    scanned = 0
    async for place, job in _walk(link, lane, memory.known([lane]), query, start, after):
        scanned += 1
        if query.matches(job, now):
            if len(jobs) == query.limit:
                return Page(jobs, cursor, now)
            jobs.append(_shown(job, now))
            cursor = place
        elif scanned >= SCAN:
            return Page(jobs, place, now)
    return Page(jobs, None, now)


async def _walk(
    link: Link, lane: Lane, known: str, query: ListQuery, start: int, after: tuple[int, ...]
) -> AsyncIterator[tuple[str, Job]]:
    """The jobs of a lane from the cursor on, each with the cursor that stands for it."""
    for number, (name, states, first, columns) in enumerate(_SEGMENTS):
        if number < start or not query.states & states:
            continue
        place = after if number == start and after else first
        if len(place) != len(first):
            raise InvalidOption("cursor", f"{query.cursor!r} did not come from a list")
        statement = "list_dead" if query.states & states == _DEAD else name
        size = min(query.limit + 1, STRETCH)
        while True:
            found = await link.rows(statement, lane.line, lane.number, *place, size, known, repeat=True)
            for row in found:
                place = tuple(row[column] for column in columns)
                yield ".".join(map(str, (number, *place))), rows.to_job(row, query.tenant, query.queue)
            if len(found) < size:
                break


async def queue_page(link: Link, tenant: str, cursor: str | None, limit: int) -> QueuePage:
    """Looks at up to PAGE_LIMIT queues, with jobs or without."""
    limit = min(limit, PAGE_LIMIT)
    found = await link.rows("queues_of", tenant, name_cursor(cursor), limit, repeat=True)
    names = [row["queue"] for row in found if row["used"]]
    return QueuePage(await stats(link, tenant, names), found[-1]["queue"] if len(found) == limit else None)


async def tenant_page(link: Link, cursor: str | None, limit: int) -> TenantPage:
    """Who has jobs or settings here. Looks at a bounded number of queues."""
    tenant, queue = tenant_cursor(cursor)
    limit = min(limit, PAGE_LIMIT)
    arguments = (tenant, queue or BEHIND_ALL, BEHIND_ALL, limit, QUEUES_LOOKED_AT)
    looks = await link.rows("lanes_behind", *arguments, repeat=True)
    names = [row["tenant"] for row in looks if row["used"]]
    stop: tuple[str, str] | None = None
    if len(names) == limit or len(looks) == QUEUES_LOOKED_AT:
        last = looks[-1]
        stop = (last["tenant"], "" if last["used"] else last["queue"])
    again = tenant if queue else None  # Of this one it was not known yet.
    settings = await link.rows("tenants_with_settings", tenant, again, limit + 1, repeat=True)
    return tenant_page_of(names, [row["tenant"] for row in settings], stop, limit)


async def purge_counts(link: Link, tenant: str | None, cursor: str | None, limit: int) -> PurgePage:
    """How many jobs were purged, by tenant. [EVENT-1]"""
    rows_ = await link.rows("purge_counts", cursor or "", tenant, limit, repeat=True)
    found = [PurgeCount(row["tenant"], row["series"], row["count"]) for row in rows_]
    return PurgePage(found, found[-1].tenant if len(found) == limit else None)


async def worker_page(link: Link, tenant: str | None, cursor: str | None, limit: int) -> WorkerPage:
    """Living workers, of up to PAGE_LIMIT that were looked at."""
    limit = min(limit, PAGE_LIMIT)
    found = await link.rows("workers", name_cursor(cursor, check_id), limit, repeat=True)
    living = [
        replace(_decode_worker(row["info"]), started_at=row["started_at"], seen_at=row["seen_at"])
        for row in found
        if row["lives"]
    ]
    mine = [worker for worker in living if tenant is None or worker.tenant in (None, tenant)]
    return WorkerPage(mine, found[-1]["worker_id"] if len(found) == limit else None)


async def stats(link: Link, tenant: str, queues: Sequence[str]) -> list[QueueStats]:
    """Counts per state as shown now."""
    now = await link.value("now", repeat=True)
    counts = {queue: dict.fromkeys(JobState, 0) for queue in queues}
    paused: dict[str, bool] = {}
    oldest: dict[str, int] = {}
    for row in await link.rows("counts", tenant, list(counts), now, repeat=True):
        queue: str = row["queue"]
        paused[queue] = row["paused"]
        if row["state"] is None:
            continue
        state = rows.STATES[cast("int", row["state"])]
        counts[queue][state] += row["count"]
        if state is JobState.READY:
            oldest[queue] = row["oldest"]
    return [QueueStats(q, dict(counts[q]), oldest.get(q), paused=paused.get(q, False), now=now) for q in queues]


# The log ----------------------------------------------------------------------------------------------------------


class Ends:
    """Where the log begins and ends for a reader."""

    def __init__(self, row: Any) -> None:
        self.trimmed = Place(*(row[name] for name in ("trimmed_epoch", "trimmed_xid", "trimmed_n", "trimmed_k")))
        last = Place(*(row[name] or 0 for name in ("epoch", "xid", "n", "count")))
        self.end = max(last, self.trimmed, _beginning(row["begins"] or (0, 0)))
        self.held: bool = row["held"]
        """Whether there is more, behind a transaction that is still open."""
        self._gap: list[int] | None = row["gap"]

    def check(self, place: Place) -> None:
        """Raise EventsTrimmed for the place that the ends were read for, if events between it and the rest are lost."""
        if place < self.trimmed:
            raise EventsTrimmed(str(place), str(self.trimmed))
        if self._gap is None:
            return
        last, begins = Place(*self._gap[2:]), _beginning(self._gap)
        if last < place < begins:
            raise EventsTrimmed(str(place), str(begins))


def _beginning(epoch: Sequence[int]) -> Place:
    """The place before the first event of an epoch."""
    return Place(epoch[0], epoch[1], 0, 0)


async def ends(link: Link, memory: Memory, after: Place = END) -> Ends:
    """Where the log begins and ends now, for a reader that has read up to `after`."""
    (row,) = await link.rows("log_ends", *after[:2], memory.known(), repeat=True)
    return Ends(row)


async def events(
    link: Link, memory: Memory, tenant: str | None, after: str | None, limit: int
) -> tuple[EventPage, bool]:
    """Events after an offset, and whether some are held up behind an open transaction. [EVENT-2, EVENT-3]"""
    start, found = await _begin(link, memory, after)
    page, reached = await _page(link, memory, tenant, start, found.end, limit)
    if reached > start:
        try:
            await _check_whole(link, start)
        except EventsTrimmed:
            if after is not None:
                raise
            return await events(link, memory, tenant, None, limit)
    return EventPage(page, str(reached), more=reached < found.end), found.held


async def _page(
    link: Link, memory: Memory, tenant: str | None, start: Place, end: Place, limit: int
) -> tuple[list[Event], Place]:
    """Events from a place on, and the place behind the last that was looked at."""
    page: list[Event] = []
    reached = start
    passed = 0
    # A tenant's page looks through a bounded stretch of the log, whatever it finds there.
    while reached < end and len(page) < limit and passed < max(limit, LOOK_AHEAD):
        known = memory.known()
        chunk = await link.rows("events", *reached[:3], *end[:3], min(CHUNKS, limit + 1), known, repeat=True)
        chunk = [row for row in chunk if Place(row["epoch"], row["xid"], row["n"], row["count"]) > reached]
        if not chunk:
            return page, end
        lanes = await _learn(link, memory, known, {lane for row in chunk for lane in row["lanes"]})
        for row in chunk:
            place = Place(row["epoch"], row["xid"], row["n"], 0)
            skip = reached.k if place[:3] == reached[:3] else 0
            for k, event in log.unpack(row, skip, lanes.__getitem__):
                if len(page) == limit:
                    return page, reached
                reached = place._replace(k=k)
                passed += 1
                if tenant is None or event.tenant == tenant:
                    page.append(event)
    return page, reached


async def reach(link: Link, memory: Memory, after: str | None, most: int | None, last: str) -> tuple[str, str]:
    """From where and up to where to read; the log ends, or ended, at `last`."""
    (start, _), end = await _begin(link, memory, after), log.parse_offset(last)
    if most is not None:
        cuts = await _cuts(link, start, end, most, 1)
        end = cuts[0] if cuts else end
    return str(start), str(max(start, end))


async def written(link: Link, memory: Memory) -> Place:
    """Where the log ends, also where an open transaction keeps readers from it."""
    rows = await link.rows("log_written", repeat=True)
    return max([(await ends(link, memory)).end, *(Place(*row.values()) for row in rows)])


async def split(link: Link, memory: Memory, after: str, end: str, size: int) -> list[Stretch]:
    """The log between two offsets, in pieces of whole rows."""
    (start, _), stop = await _begin(link, memory, after), log.parse_offset(end)
    edges = [start, *(cut for cut in await _cuts(link, start, stop, size, None) if start < cut < stop), stop]
    return [Stretch(0, str(one), str(other)) for one, other in pairwise(edges) if one < other]


async def read(link: Link, memory: Memory, stretch: Stretch, limit: int) -> LogPage:
    """The first events of a piece, in whole rows."""
    (start, _), end = await _begin(link, memory, stretch.after), log.parse_offset(stretch.end)
    reached = start
    page = Gathered()
    wanted = FIRST_CHUNKS
    while reached < end and page.count < limit:
        known = memory.known()
        chunk = await link.rows("events", *reached[:3], *end[:3], wanted, known, repeat=True)
        lanes = await _learn(link, memory, known, {lane for row in chunk for lane in row["lanes"]})
        for row in chunk:
            place = Place(row["epoch"], row["xid"], row["n"], row["count"])
            last = min(place, end)
            skip = reached.k if place[:3] == reached[:3] else 0
            page.add(log.columns(row, skip, last.k, lanes.__getitem__))
            reached = max(reached, last)
        if len(chunk) < wanted:
            reached = end
        # A row may have one event or a thousand; and the first of them has been read already.
        wanted = max(2, min(CHUNKS, (limit - page.count) * wanted // max(1, page.count) + 1))
    await _check_whole(link, start)
    return LogPage(page.parts, str(reached), more=reached < end)


async def _begin(link: Link, memory: Memory, after: str | None) -> tuple[Place, Ends]:
    """Where to go on after an offset, and where the log ends. Raises EventsTrimmed, InvalidOption."""
    start = None if after is None else log.parse_offset(after)
    found = await ends(link, memory, start or END)
    if start is None:
        return found.trimmed, found
    if start > found.end:
        raise InvalidOption("after", f"{after!r} is not an offset of this store")
    found.check(start)
    return start, found


async def readable(link: Link, memory: Memory, offset: str) -> Place:
    """Where a registered reader is. It may be behind what is trimmed: it is told when it reads."""
    place = log.parse_offset(offset, "offset")
    found = await ends(link, memory, place)
    if place > found.end:
        raise InvalidOption("offset", f"{offset!r} is not an offset of this store")
    if place >= found.trimmed:
        found.check(place)
    return place


async def _check_whole(link: Link, start: Place) -> None:
    """Raise EventsTrimmed if what was read from `start` on may have gaps.

    Rows are missing if it was trimmed meanwhile: no snapshot keeps what is truncated. Its mark was set before.
    """
    (mark,) = await link.rows("trimmed", repeat=True)
    trimmed = Place(*mark.values())
    if trimmed > start:
        raise EventsTrimmed(str(start), str(trimmed))


async def _cuts(link: Link, start: Place, end: Place, size: int, most: int | None) -> list[Place]:
    rows = await link.rows("log_cuts", *start[:3], *end[:3], size, most, repeat=True)
    return [Place(*row.values()) for row in rows]


async def _learn(link: Link, memory: Memory, known: str, numbers: set[int]) -> dict[int, tuple[str, str]]:
    """Tenant and queue of each of these lanes, as they are in the data that `known` names."""
    unknown = [number for number in numbers if number not in memory.by_number]
    if unknown:
        for row in await link.rows("lanes_by_number", unknown, known, repeat=True):
            memory.learn(known, *row.values())
    with memory.lock:
        lanes = [memory.lane(number) for number in numbers]
        memory.check(known)
    return {lane.number: (lane.tenant, lane.queue) for lane in lanes}


def _shown(job: Job, now: int) -> Job:
    job.state = lifecycle.shown(job, now)
    return job


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
