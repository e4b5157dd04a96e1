"""Lists and the log: reading page by page. [EVENT-2, EVENT-3]"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core import lifecycle
from holdfast.core.errors import EventsTrimmed, InvalidOption
from holdfast.core.events import Event, EventColumns, Gap, Gathered, Numbered
from holdfast.core.job import TERMINAL, WAITING, Job, JobState, PurgeCount
from holdfast.extensions import LogRange
from holdfast.paging import QUEUES_LOOKED_AT, name_cursor, tenant_cursor, tenant_page_of
from holdfast.store import PAGE_LIMIT, EventPage, ListQuery, LogPage, Page, PurgePage, QueuePage, QueueStats, TenantPage
from holdfast.stores.redis import records
from holdfast.stores.redis.keys import lane_of
from holdfast.stores.redis.records import encode
from holdfast.stores.redis.shards import Shards

SCAN = 10_000
"""How many jobs a page of a list looks through at most before it answers with what it has."""
STRETCH = 500
"""How many jobs one script reads."""
BYTES = 2 * 1024 * 1024
"""How many bytes one script reads, or a little more."""
CUTS = 1000
"""How many places one script finds to cut a shard's log at."""
LOOK_AHEAD = 1000
"""How many events a tenant's page looks through at least."""

_ORDERS: tuple[tuple[frozenset[JobState], str], ...] = (
    (WAITING, "w"),
    (frozenset({JobState.LEASED}), "l"),
    (TERMINAL, ""),
)
_COUNTED = (
    JobState.SCHEDULED, JobState.READY, JobState.RETRYING, JobState.LEASED,
    JobState.COMPLETED, JobState.FAILED, JobState.CANCELED,
)  # fmt: skip
_CURSOR = re.compile(r"([0-2])\.([0-9]{1,16})\.((?:[0-9a-f]{2})+)")
_PURGE_CURSOR = re.compile(r"([0-9]{1,5})\.([0-9]{1,20})", re.ASCII)
_COUNT = struct.Struct("<QQ")
_OFFSET = re.compile(r"[0-9]{1,16}(\.[0-9]{1,16})*")


async def list_jobs(shards: Shards, query: ListQuery) -> Page:
    """A page: waiting in claim order, then leased by deadline, then ended by time. Large payloads are left out."""
    jobs: list[Job] = []
    cursor = query.cursor
    scanned = now = 0
    async for now, stretch in _stretches(shards, query):
        for place, job in stretch:
            scanned += 1
            if job is not None and query.matches(job, now):
                if len(jobs) == query.limit:
                    return Page(jobs, cursor, now)
                job.state = lifecycle.shown(job, now)
                jobs.append(job)
                cursor = place
            elif scanned >= SCAN:
                return Page(jobs, place, now)
    return Page(jobs, None, now)


async def queue_page(shards: Shards, tenant: str, cursor: str | None, limit: int) -> QueuePage:
    """One look at up to PAGE_LIMIT queues."""
    request = encode((tenant, False, name_cursor(cursor), min(limit, PAGE_LIMIT)))
    now, following, *found = await shards.run("stats", shards.of(tenant), request)
    return QueuePage(_stats(now, found), following.decode() or None)


async def stats(shards: Shards, tenant: str, queues: Sequence[str]) -> list[QueueStats]:
    """Counts of the first of these queues: of all, unless there is much that waits for the pruner."""
    now, _, *found = await shards.run("stats", shards.of(tenant), encode((tenant, queues, "", len(queues))))
    return _stats(now, found)


def _stats(now: int, found: list[Any]) -> list[QueueStats]:
    stats: list[QueueStats] = []
    for at in range(0, len(found), 2):
        paused, oldest, *counts = found[at + 1]
        numbers = dict.fromkeys(JobState, 0) | dict(zip(_COUNTED, counts, strict=True))
        oldest_at = None if oldest < 0 else oldest
        stats.append(QueueStats(found[at].decode(), numbers, oldest_at, paused=bool(paused), now=now))
    return stats


async def tenant_page(shards: Shards, cursor: str | None, limit: int) -> TenantPage:
    """One look at each shard; a tenant lives in one of them. The page ends where the first look ended."""
    request = encode((*tenant_cursor(cursor), min(limit, PAGE_LIMIT), QUEUES_LOOKED_AT))
    looks = await shards.run_everywhere("tenants", request)
    stops = [(tenant.decode(), queue.decode()) for tenant, queue, *_ in looks if tenant]
    names = [name.decode() for _, _, *found in looks for name in found]
    return tenant_page_of(names, (), min(stops, default=None), limit)


async def purge_counts(shards: Shards, tenant: str | None, cursor: str | None, limit: int) -> PurgePage:
    """How many jobs were purged, by tenant. A cursor is a shard, and a place in its hash. [EVENT-1]"""
    shard, place = _parse_purge_cursor(shards, cursor)
    if tenant is not None:
        shard = shards.of(tenant)
    following, *found = await shards.run("purge_counts", shard, encode((tenant or "", place, min(limit, PAGE_LIMIT))))
    counts = [PurgeCount(name.decode(), *_COUNT.unpack(raw)) for name, raw in zip(found[::2], found[1::2], strict=True)]
    place = following.decode()
    if place == "0":
        shard += 1
    return PurgePage(counts, None if tenant is not None or shard == shards.count else f"{shard}.{place}")


def _parse_purge_cursor(shards: Shards, cursor: str | None) -> tuple[int, str]:
    if cursor is None:
        return 0, "0"
    match = _PURGE_CURSOR.fullmatch(cursor)
    if match is None or int(match[1]) >= shards.count:
        raise InvalidOption("cursor", f"{cursor!r} did not come from a list")
    return int(match[1]), match[2]


async def _stretches(shards: Shards, query: ListQuery) -> AsyncIterator[tuple[int, list[tuple[str, Job | None]]]]:
    """The jobs of a lane from the cursor on, each with the cursor that stands for it, a stretch at a time."""
    start, score, member = _parse_cursor(query.cursor)
    shard = shards.of(query.tenant)
    lane = lane_of(query.tenant, query.queue)
    for order, (states, name) in enumerate(_ORDERS):
        wanted = query.states & states
        if order < start or not wanted:
            continue
        if order > start:
            member = b""
        sets = [name] if name else sorted(records.STATES.index(state) for state in wanted)
        more = True
        while more:
            request = encode((lane, sets, score if member else False, min(query.limit + 1, STRETCH), BYTES))
            now, more, *found = await shards.run("list", shard, request, member)
            stretch: list[tuple[str, Job | None]] = []
            for at in range(0, len(found), 3):
                score, member, raw = int(found[at]), found[at + 1], found[at + 2]
                job = records.to_job(query.tenant, query.queue, member[7:].decode(), raw) if raw else None
                stretch.append((f"{order}.{score}.{member.hex()}", job))
            yield now, stretch


def _parse_cursor(cursor: str | None) -> tuple[int, int, bytes]:
    if cursor is None:
        return 0, 0, b""
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InvalidOption("cursor", f"{cursor!r} did not come from a list")
    return int(match[1]), int(match[2]), bytes.fromhex(match[3])


# The log --------------------------------------------------------------------------------------------------------


def parse_offset(shards: Shards, offset: str) -> list[int]:
    """The place in each shard's log that an offset stands for."""
    places = [int(part) for part in offset.split(".")] if _OFFSET.fullmatch(offset) else []
    if len(places) != shards.count:
        raise InvalidOption("after", f"{offset!r} is not an offset of this store")
    return places


def join_offset(places: list[int]) -> str:
    """An offset: a place in each shard's log."""
    return ".".join(map(str, places))


class _Stretch(Struct):
    """What was read of one shard's log."""

    start: int
    """The place that was gone on from; where that is gone already, the first there is."""
    trimmed: bool
    end: int
    more: bool
    at: int
    """The latest time that was read."""
    events: list[tuple[int, Event]]
    cuts: dict[str, int]
    """On a read of all tenants: up to where events of single ones are gone, if that is behind `start`."""


async def events(shards: Shards, tenant: str | None, after: str | None, limit: int) -> EventPage:
    """Events after an offset, of one tenant or of all: then those of the shards are put together by time."""
    places = [-1] * shards.count if after is None else parse_offset(shards, after)
    # Of one tenant many others' events may have to be passed: a page may be empty and say that there is more.
    wanted = dict.fromkeys(range(shards.count), limit // shards.count + 1)
    if tenant is not None:
        wanted = dict.fromkeys(wanted, 0) if after is None else {}
        wanted[shards.of(tenant)] = max(limit, LOOK_AHEAD)
    own = None if tenant is None else shards.of(tenant)
    work = (_read_log(shards, n, places[n], count, tenant if n == own else None) for n, count in wanted.items())
    found = await asyncio.gather(*work)
    stretches = dict(zip(wanted, found, strict=True))
    for shard, stretch in stretches.items():
        places[shard] = stretch.start
    if any(stretch.trimmed for stretch in found):
        raise EventsTrimmed(after or "", join_offset(places))
    begin = list(places)
    page = _page(stretches, places, tenant, limit)
    cuts = {shard: stretch.cuts for shard, stretch in stretches.items()}
    return replace(page, gaps=[gap for shard, some in cuts.items() for gap in _gaps(shard, some, begin, places)])


def _gaps(shard: int, cuts: dict[str, int], begin: list[int], end: list[int]) -> list[Gap]:
    """What is gone of a shard's tenants between two offsets. A gap that goes on ends where the next page begins."""
    after = join_offset(begin)
    return [
        Gap(tenant, after, join_offset([*end[:shard], min(cut, end[shard]), *end[shard + 1 :]]))
        for tenant, cut in cuts.items()
        if begin[shard] < cut
    ]


class _Found(Struct, frozen=True):
    """What `events.lua` answers."""

    gone: int
    start: int
    last: int
    cuts: dict[str, int]
    chunks: list[records.Chunk]


async def _chunks(shards: Shards, shard: int, start: int, wanted: int, tenant: str | None = None) -> _Found:
    """Up to where a shard's log is gone, where it ends, and chunks from a place on."""
    request = encode((start, wanted, BYTES, tenant or False))
    gone, begin, last, most, gaps, *chunks = await shards.run("events", shard, request)
    if start > max(last, most):
        raise InvalidOption("after", f"{start} is not an offset of this store")
    cuts = {name.decode(): int(cut) for name, cut in zip(gaps[::2], gaps[1::2], strict=True)}
    return _Found(gone, max(begin, gone), last, cuts, list(zip(*(chunks[n::4] for n in range(4)), strict=True)))


async def _read_log(shards: Shards, shard: int, start: int, wanted: int, tenant: str | None) -> _Stretch:
    found = await _chunks(shards, shard, start, wanted, tenant)
    begin, cuts = found.start, found.cuts
    read: list[tuple[int, Event]] = []
    for chunk in found.chunks:
        read += [(number, event) for number, event in records.to_events(*chunk) if number > begin]
    reached = found.chunks[-1][0] if found.chunks else begin
    # Without a chunk there is no more, also where the last events are missing.
    more = bool(found.chunks) and reached < found.last
    if cuts:
        read = [(number, event) for number, event in read if number > cuts.get(event.tenant, 0)]
    end = reached if more else max(reached, found.last) if wanted else begin
    at = max((chunk[2] for chunk in found.chunks), default=0)
    return _Stretch(begin, 0 <= start < found.gone, end, more, at, read, cuts)


def _page(stretches: dict[int, _Stretch], places: list[int], tenant: str | None, limit: int) -> EventPage:
    merged: list[tuple[int, int, int, Event]] = []
    known: int | None = None
    for shard, stretch in stretches.items():
        # A clock that was set back must not turn a shard's own order around: it counts as standing still meanwhile.
        at = 0
        for number, event in stretch.events:
            at = max(at, event.at)
            merged.append((at, shard, number, event))
        # What comes after the end of a stretch that goes on waits until that is read.
        if stretch.more:
            known = stretch.at if known is None else min(known, stretch.at)
    page: list[Event] = []
    left = {shard: len(stretch.events) for shard, stretch in stretches.items()}
    for at, shard, number, event in sorted(merged, key=lambda entry: entry[:3]):
        if len(page) == limit or (known is not None and at > known):
            break
        places[shard], left[shard] = number, left[shard] - 1
        if tenant is None or event.tenant == tenant:
            event.offset = join_offset(places)
            page.append(event)
    more = any(left.values())
    for shard, stretch in stretches.items():
        if not left[shard]:
            # Behind its last event there may be some that are gone.
            places[shard] = stretch.end
            more = more or stretch.more
    return EventPage(page, join_offset(places), more)


# The log in pieces ----------------------------------------------------------------------------------------------


async def bounds(shards: Shards, after: str | None, most: int | None, end: str | None) -> tuple[str, str]:
    """From where and up to where to read, in all shards alike: they go on side by side."""
    places = [-1] * shards.count if after is None else parse_offset(shards, after)
    ends = [-1] * shards.count if end is None else parse_offset(shards, end)
    parts = await _parts(shards, after, places, ends, 0, 0)
    start, ends = [part.start for part in parts], [max(part.start, part.end) for part in parts]
    count = sum(part.count for part in parts)
    if most is not None and count > most:
        shares = [max(1, part.count * most // count) for part in parts]
        work = (_part(shards, n, start[n], ends[n], share, 1) for n, share in enumerate(shares))
        ends = [part.cuts[0] if part.cuts else part.end for part in await asyncio.gather(*work)]
    return join_offset(start), join_offset(ends)


async def split(shards: Shards, after: str, end: str, size: int) -> list[LogRange]:
    """The log between two offsets, in pieces that are each of one shard."""
    places, ends = parse_offset(shards, after), parse_offset(shards, end)
    stretches: list[LogRange] = []
    for shard, part in enumerate(await _parts(shards, after, places, ends, size, CUTS)):
        edges = [part.start, *part.cuts, part.end] if part.start < part.end else []
        offsets = [join_offset([*places[:shard], edge, *places[shard + 1 :]]) for edge in edges]
        stretches += [LogRange(shard, *pair) for pair in pairwise(offsets)]
    return stretches


async def read(shards: Shards, stretch: LogRange, limit: int) -> LogPage:
    """The first events of a piece, in whole chunks."""
    shard, places = stretch.shard, parse_offset(shards, stretch.after)
    start, end = places[shard], parse_offset(shards, stretch.end)[shard]
    log = await _chunks(shards, shard, start, limit)
    if start < log.gone:
        places[shard] = log.gone
        raise EventsTrimmed(stretch.after, join_offset(places))
    before, behind = join_offset([*places[:shard], 0])[:-1], join_offset([0, *places[shard + 1 :]])[1:]
    found, reached = Gathered(), start
    for number, count, at, raw in log.chunks:
        # Numbers go up to that of the chunk; a piece may begin or end within.
        for part in records.to_columns(Numbered(before, number - count + 1, behind), count, at, raw):
            first = cast("Numbered", part.offset).first
            found.add(_kept(part.part(max(0, start + 1 - first), max(0, end + 1 - first)), log.cuts))
        reached = number
    more = bool(log.chunks) and reached < min(log.last, end)
    next_ = [*places[:shard], reached, *places[shard + 1 :]] if more else parse_offset(shards, stretch.end)
    return LogPage(found.parts, join_offset(next_), more, _gaps(shard, log.cuts, places, next_))


def _kept(part: EventColumns, cuts: dict[str, int]) -> EventColumns:
    """Those that are not gone: an entry that was cut may still have the others."""
    if not cuts or cuts.keys().isdisjoint(part.tenant):
        return part
    first = cast("Numbered", part.offset).first
    tenants = part.tenant if len(part.tenant) > 1 else part.tenant * part.count
    return part.chosen([number > cuts.get(tenant, 0) for number, tenant in enumerate(tenants, first)])


class _Part(Struct):
    """A part of one shard's log: how many events there are in it, and where it can be cut."""

    start: int
    trimmed: bool
    end: int
    count: int
    cuts: list[int]


async def _parts(
    shards: Shards, after: str | None, places: list[int], ends: list[int], size: int, most: int
) -> list[_Part]:
    work = (_part(shards, n, places[n], ends[n], size, most) for n in range(shards.count))
    parts = await asyncio.gather(*work)
    if any(part.trimmed for part in parts):
        raise EventsTrimmed(after or "", join_offset([part.start for part in parts]))
    return parts


async def _part(shards: Shards, shard: int, start: int, end: int, size: int, most: int) -> _Part:
    gone, last, greatest, count, *cuts = await shards.run("cuts", shard, encode((start, end, size, most)))
    if start > max(last, greatest):
        raise InvalidOption("after", f"{start} is not an offset of this store")
    begin = max(start, gone)
    # What ends before it begins has nothing in it, and what is gone there is not missed.
    trimmed = 0 <= start < gone and not 0 <= end <= start
    return _Part(begin, trimmed, max(begin, last) if end < 0 else end, count, cuts)
