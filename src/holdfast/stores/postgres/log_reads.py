"""Reading the log: pages of events, whole ranges, and where the log begins and ends. [EVENT-2, EVENT-3]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from holdfast.core.errors import EventsTrimmed, InvalidOption
from holdfast.core.events import Event, Gap, Gathered
from holdfast.extensions import LogRange
from holdfast.store import EventPage, LogPage
from holdfast.stores.postgres import log
from holdfast.stores.postgres.connection import Link
from holdfast.stores.postgres.lanes import Memory
from holdfast.stores.postgres.log import END, Place
from holdfast.stores.postgres.rows import Row

FIRST_CHUNKS, CHUNKS = 8, 200
"""How many rows of the log one statement reads."""
LOOK_AHEAD = 1000
"""How many events a tenant's page looks through at least."""


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
