"""Reading: get, list, stats, the log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from itertools import pairwise
from typing import Any, cast

from msgspec.json import Decoder
from msgspec.structs import replace

from holdfast.core import lifecycle
from holdfast.core.errors import EventsTrimmed, InvalidOption
from holdfast.core.events import Event, Gap, Gathered
from holdfast.core.job import TERMINAL, WAITING, Job, JobKey, JobState, NewJob, PurgeCount
from holdfast.core.names import check_id
from holdfast.extensions import LogRange
from holdfast.paging import BEHIND_ALL, QUEUES_LOOKED_AT, name_cursor, tenant_cursor, tenant_page_of
from holdfast.store import (
    PAGE_LIMIT,
    EventPage,
    ListQuery,
    LogPage,
    Page,
    PurgePage,
    QueuePage,
    QueueStats,
    TenantPage,
    WorkerInfo,
    WorkerPage,
)
from holdfast.stores.postgres import log, rows
from holdfast.stores.postgres.connection import Link
from holdfast.stores.postgres.lanes import Lane, Memory
from holdfast.stores.postgres.log import END, Place
from holdfast.stores.postgres.rows import Row

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


async def key_holders(link: Link, memory: Memory, items: Sequence[NewJob]) -> list[str | None]:
    """The ids of the jobs that hold the items' idempotency keys. [ENQ-3]"""
    lanes = await lanes_of(link, memory, [item.key[:2] for item in items])
    keys = [item.envelope.idempotency.key if item.envelope.idempotency else "" for item in items]
    scopes = [
        (lane.number if lane else 0, item.envelope.type, key)
        for lane, item, key in zip(lanes, items, keys, strict=True)
    ]
    known = [lane for lane in lanes if lane is not None]
    if not known:
        return [None] * len(items)
    columns = [list(column) for column in zip(*scopes, strict=True)]
    holders: dict[tuple[int, str, str], str] = {}
    for row in await link.rows("find_keys", *columns, memory.known(known), repeat=True):
        if row["expires_at"] is None or row["expires_at"] > row["now"]:
            holders[row["lane"], row["type"], row["key"]] = row["job_id"]
    return [holders.get(scope) for scope in scopes]


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
        self.trimmed = _place(row, "trimmed_")
        """Up to here what is left is in `kept_events`."""
        self.floor = _place(row, "floor_")
        """Up to here the events of all tenants are gone."""
        self.version: int = row["version"]
        last = Place(*(row[name] or 0 for name in ("epoch", "xid", "n", "count")))
        self.end = max(last, self.trimmed, _beginning(row["begins"] or (0, 0)))
        self.held: bool = row["held"]
        """Whether there is more, behind a transaction that is still open."""
        self._gap: list[int] | None = row["gap"]

    def check(self, place: Place, cut: Place) -> None:
        """Raise EventsTrimmed for the place that the ends were read for, if events between it and the rest are lost.

        Up to `cut` are those that are gone of the reader's tenant, or of all.
        """
        if place < cut:
            raise EventsTrimmed(str(place), str(cut))
        if self._gap is None:
            return
        last, begins = Place(*self._gap[2:]), _beginning(self._gap)
        if last < place < begins:
            raise EventsTrimmed(str(place), str(begins))


def _place(row: Any, prefix: str) -> Place:
    return Place(*(row[prefix + name] for name in Place._fields))


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
    while True:
        start, found, gaps = await _begin(link, memory, after, tenant)
        page, reached = await _page(link, memory, tenant, start, found, limit)
        if reached == start or await _is_whole(link, start, found):
            return EventPage(page, str(reached), reached < found.end, gaps(reached)), found.held


async def _page(
    link: Link, memory: Memory, tenant: str | None, start: Place, found: Ends, limit: int
) -> tuple[list[Event], Place]:
    """Events from a place on, and the place behind the last that was looked at."""
    page: list[Event] = []
    reached = start
    passed = 0
    # A tenant's page looks through a bounded stretch of the log, whatever it finds there.
    while reached < found.end and len(page) < limit and passed < max(limit, LOOK_AHEAD):
        chunk, lanes, behind = await _chunk(link, memory, reached, found, found.end, min(CHUNKS, limit + 1), tenant)
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
        reached = behind or reached
    return page, reached


async def _chunk(
    link: Link, memory: Memory, reached: Place, found: Ends, end: Place, wanted: int, tenant: str | None = None
) -> tuple[list[Row], dict[int, tuple[str, str]], Place | None]:
    """The next rows up to a place, the names of their lanes, and the place to continue from if there are no more.

    Reads `kept_events` up to the trimmed place, and the partitions after it.
    """
    known = memory.known()
    if reached < found.trimmed:
        end = min(end, found.trimmed)
        name, more = ("kept_events", ()) if tenant is None else ("kept_events_of", (tenant,))
        chunk = await link.rows(name, *reached, *end, wanted, known, *more, repeat=True)
    else:
        # The first of them may have been read already.
        chunk = await link.rows("events", *reached[:3], *end[:3], wanted + 1, known, repeat=True)
    behind = end if len(chunk) < wanted else None
    chunk = [row for row in chunk if Place(row["epoch"], row["xid"], row["n"], row["first"] + row["count"]) > reached]
    return chunk, await _learn(link, memory, known, {lane for row in chunk for lane in row["lanes"]}), behind


async def bounds(link: Link, memory: Memory, after: str | None, most: int | None, last: str) -> tuple[str, str]:
    """From where and up to where to read; the log ends, or ended, at `last`."""
    (start, found, _), end = await _begin(link, memory, after), log.parse_offset(last)
    if most is not None:
        cuts = await _cuts(link, start, end, found, most, 1)
        end = cuts[0] if cuts else end
    return str(start), str(max(start, end))


async def written(link: Link, memory: Memory) -> Place:
    """Where the log ends, also where an open transaction keeps readers from it."""
    rows = await link.rows("log_written", repeat=True)
    return max([(await ends(link, memory)).end, *(Place(*row.values()) for row in rows)])


async def split(link: Link, memory: Memory, after: str, end: str, size: int) -> list[LogRange]:
    """The log between two offsets, in pieces of whole rows."""
    (start, found, _), stop = await _begin(link, memory, after), log.parse_offset(end)
    edges = [start, *(cut for cut in await _cuts(link, start, stop, found, size, None) if start < cut < stop), stop]
    return [LogRange(0, str(one), str(other)) for one, other in pairwise(edges) if one < other]


async def read(link: Link, memory: Memory, stretch: LogRange, limit: int) -> LogPage:
    """The first events of a piece, in whole rows."""
    while True:
        (start, found, gaps), end = await _begin(link, memory, stretch.after), log.parse_offset(stretch.end)
        reached = start
        page = Gathered()
        wanted = FIRST_CHUNKS
        while reached < end and page.count < limit:
            chunk, lanes, behind = await _chunk(link, memory, reached, found, end, wanted)
            for row in chunk:
                place = Place(row["epoch"], row["xid"], row["n"], row["first"] + row["count"])
                last = min(place, end)
                skip = reached.k if place[:3] == reached[:3] else 0
                page.add(log.columns(row, skip, last.k, lanes.__getitem__))
                reached = max(reached, last)
            reached = behind or reached
            # A row may have one event or a thousand.
            wanted = max(1, min(CHUNKS, (limit - page.count) * wanted // max(1, page.count)))
        if await _is_whole(link, start, found):
            return LogPage(page.parts, str(reached), reached < end, gaps(reached))


async def _begin(
    link: Link, memory: Memory, after: str | None, tenant: str | None = None
) -> tuple[Place, Ends, Callable[[Place], list[Gap]]]:
    """The place to read from, the ends of the log, and a function for the gaps of single tenants up to a place.

    Raises EventsTrimmed, InvalidOption.
    """
    start = None if after is None else log.parse_offset(after)
    found = await ends(link, memory, start or END)
    if start is not None and start > found.end:
        raise InvalidOption("after", f"{after!r} is not an offset of this store")
    cut, cuts = found.floor, list[tuple[str, Place]]()
    if (start or found.floor) < found.trimmed:
        if tenant is None:
            rows = await link.rows("cuts", *(start or found.floor), repeat=True)
            cuts = [(row["tenant"], _place(row, "")) for row in rows]
        else:
            rows = await link.rows("cut_of", tenant, repeat=True)
            cut = Place(*rows[0].values()) if rows else Place(0, 0, 0, 0)
    begin = max(cut, found.floor) if start is None else start
    if start is not None:
        found.check(start, cut)

    def gaps(reached: Place) -> list[Gap]:
        if reached == begin:
            return []
        return [Gap(name, str(begin), str(min(place, reached))) for name, place in cuts]

    return begin, found, gaps


async def readable(link: Link, memory: Memory, offset: str) -> Place:
    """Where a registered reader is. It may be behind what is trimmed: it is told when it reads."""
    place = log.parse_offset(offset, "offset")
    found = await ends(link, memory, place)
    if place > found.end:
        raise InvalidOption("offset", f"{offset!r} is not an offset of this store")
    if place >= found.floor:
        found.check(place, found.floor)
    return place


async def _is_whole(link: Link, start: Place, found: Ends) -> bool:
    """Whether nothing behind `start` was trimmed since the ends were read.

    A snapshot does not keep truncated rows, but `trimming` changes before a truncation.
    """
    (mark,) = await link.rows("trimmed", repeat=True)
    return mark["version"] == found.version or _place(mark, "trimmed_") <= start


async def _cuts(link: Link, start: Place, end: Place, found: Ends, size: int, most: int | None) -> list[Place]:
    """Where pieces of this size end, up to `most` of them."""
    cuts: list[Place] = []
    before = 0
    if start < found.trimmed:
        kept = (*start, *min(end, found.trimmed))
        cuts = [Place(*row.values()) for row in await link.rows("kept_cuts", *kept, size, most, repeat=True)]
        if len(cuts) == most:
            return cuts
        before = await link.value("kept_between", *kept, repeat=True)
        start = min(end, found.trimmed)
    rows = await link.rows("log_cuts", *start[:3], *end[:3], size, most, before, repeat=True)
    return cuts + [Place(*row.values()) for row in rows]


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
