"""Lists and the log: reading page by page. [EVENT-2, EVENT-3]"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

from msgspec import Struct

from holdfast.core import lifecycle
from holdfast.core.errors import EventsTrimmed, InvalidOption
from holdfast.core.events import Event
from holdfast.core.job import TERMINAL, WAITING, Job, JobState
from holdfast.store import EventPage, ListQuery, Page
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
LOOK_AHEAD = 1000
"""How many events a tenant's page looks through at least."""

_ORDERS: tuple[tuple[frozenset[JobState], str], ...] = (
    (WAITING, "w"),
    (frozenset({JobState.LEASED}), "l"),
    (TERMINAL, ""),
)
_CURSOR = re.compile(r"([0-2])\.([0-9]{1,16})\.((?:[0-9a-f]{2})+)")
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
    events: list[tuple[int, Event]]


async def events(shards: Shards, tenant: str | None, after: str | None, limit: int) -> EventPage:
    """Events after an offset, of one tenant or of all: then those of the shards are put together by time."""
    places = [-1] * shards.count if after is None else parse_offset(shards, after)
    # Of one tenant many others' events may have to be passed: a page may be empty and say that there is more.
    wanted = dict.fromkeys(range(shards.count), limit // shards.count + 1)
    if tenant is not None:
        wanted = dict.fromkeys(wanted, 0) if after is None else {}
        wanted[shards.of(tenant)] = max(limit, LOOK_AHEAD)
    found = await asyncio.gather(*(_read_log(shards, n, places[n], count) for n, count in wanted.items()))
    stretches = dict(zip(wanted, found, strict=True))
    for shard, stretch in stretches.items():
        places[shard] = stretch.start
    if any(stretch.trimmed for stretch in found):
        raise EventsTrimmed(after or "", join_offset(places))
    return _page(stretches, places, tenant, limit)


async def _read_log(shards: Shards, shard: int, start: int, wanted: int) -> _Stretch:
    gone, last, most, *chunks = await shards.run("events", shard, encode((start, wanted, BYTES)))
    if start > max(last, most):
        raise InvalidOption("after", f"{start} is not an offset of this store")
    begin = max(start, gone)
    read: list[tuple[int, Event]] = []
    for at in range(0, len(chunks), 4):
        read += [(number, event) for number, event in records.to_events(*chunks[at : at + 4]) if number > begin]
    end = read[-1][0] if read else begin
    return _Stretch(begin, 0 <= start < gone, end, end < last, read)


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
        if stretch.more and stretch.events:
            known = at if known is None else min(known, at)
    page: list[Event] = []
    for at, shard, number, event in sorted(merged, key=lambda entry: entry[:3]):
        if len(page) == limit or (known is not None and at > known):
            return EventPage(page, join_offset(places), more=True)
        places[shard] = number
        if tenant is None or event.tenant == tenant:
            event.offset = join_offset(places)
            page.append(event)
    return EventPage(page, join_offset(places), more=any(stretch.more for stretch in stretches.values()))
