"""Lists and the log: reading page by page. [EVENT-2, EVENT-3]"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

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

_ORDERS: tuple[tuple[frozenset[JobState], str], ...] = (
    (WAITING, "w"),
    (frozenset({JobState.LEASED}), "l"),
    (TERMINAL, ""),
)
_CURSOR = re.compile(r"([0-2])\.(\d{1,16})\.((?:[0-9a-f]{2})+)")
_OFFSET = re.compile(r"\d{1,16}(\.\d{1,16})*")


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


async def events(shards: Shards, tenant: str | None, after: str | None, limit: int) -> EventPage:
    """Events after an offset, of one tenant or of all: then those of the shards are put together by time."""
    places = None if after is None else parse_offset(shards, after)
    reading = range(shards.count) if tenant is None else [shards.of(tenant)]
    # Of a tenant many others' events may have to be passed; a page may be empty and say that there is more.
    wanted = max(limit // len(reading), 1) if tenant is None else max(limit, 1000)
    found: list[tuple[int, int, int, Event]] = []
    starts = [-1] * shards.count if places is None else list(places)
    ends: dict[int, tuple[int, bool]] = {}
    trimmed = False
    for shard in range(shards.count) if places is None else reading:
        request = encode((starts[shard], wanted if shard in reading else 0, BYTES))
        gone, last, most, *chunks = await shards.run("events", shard, request)
        if starts[shard] > max(last, most):
            raise InvalidOption("after", f"{after!r} is not an offset of this store")
        if starts[shard] < 0:
            starts[shard] = gone
        elif starts[shard] < gone:
            starts[shard], trimmed = gone, True
        end = starts[shard]
        for at in range(0, len(chunks), 4):
            for number, event in records.to_events(*chunks[at : at + 4]):
                if number > starts[shard]:
                    found.append((event.at, shard, number, event))
                    end = number
        ends[shard] = (end, end < last)
    if trimmed:
        raise EventsTrimmed(after or "", join_offset(starts))
    if len(reading) > 1:
        found.sort(key=lambda entry: entry[:3])
    return _page(found, starts, ends, tenant, limit)


def _page(
    found: list[tuple[int, int, int, Event]],
    places: list[int],
    ends: dict[int, tuple[int, bool]],
    tenant: str | None,
    limit: int,
) -> EventPage:
    page: list[Event] = []
    for n, (_, shard, number, event) in enumerate(found):
        if len(page) == limit:
            return EventPage(page, join_offset(places), more=n < len(found))
        places[shard] = number
        if tenant is None or event.tenant == tenant:
            event.offset = join_offset(places)
            page.append(event)
    for shard, (end, _) in ends.items():
        places[shard] = end
    return EventPage(page, join_offset(places), more=any(more for _, more in ends.values()))
