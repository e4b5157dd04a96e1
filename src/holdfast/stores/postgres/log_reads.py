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
from holdfast.stores.postgres.connection import PostgresClient
from holdfast.stores.postgres.lanes import LaneCache
from holdfast.stores.postgres.log import END, Position
from holdfast.stores.postgres.rows import Row

FIRST_ROWS, MAX_ROWS = 8, 200
"""How many rows of the log the first statement of a page reads, and the most that one reads."""
MIN_SCAN = 1000
"""The least number of events that a tenant's page reads."""


class Ends:
    """Where the log begins and ends for a reader."""

    def __init__(self, row: Any) -> None:
        self.trimmed = _position(row, "trimmed_")
        """Kept events up to here are in `kept_events`."""
        self.floor = _position(row, "floor_")
        """Events of all tenants up to here are removed."""
        self.version: int = row["version"]
        last = Position(*(row[name] or 0 for name in ("epoch", "xid", "n", "count")))
        self.end = max(last, self.trimmed, _beginning(row["begins"] or (0, 0)))
        self.held: bool = row["held"]
        """Whether an open transaction delays further events."""
        self._gap: list[int] | None = row["gap"]

    def check(self, position: Position, cut: Position) -> None:
        """Raise EventsTrimmed if events just after the position that the ends were read for are lost.

        `cut` is the last removed event: of the reader's tenant, or of all tenants.
        """
        if position < cut:
            raise EventsTrimmed(str(position), str(cut))
        if self._gap is None:
            return
        last, begins = Position(*self._gap[2:]), _beginning(self._gap)
        if last < position < begins:
            raise EventsTrimmed(str(position), str(begins))


def _position(row: Any, prefix: str) -> Position:
    return Position(*(row[prefix + name] for name in Position._fields))


def _beginning(epoch: Sequence[int]) -> Position:
    """The position before the first event of an epoch."""
    return Position(epoch[0], epoch[1], 0, 0)


async def ends(client: PostgresClient, cache: LaneCache, after: Position = END) -> Ends:
    """Where the log begins and ends now, for a reader that has read up to `after`."""
    (row,) = await client.rows("log_ends", *after[:2], cache.fingerprint(), repeat=True)
    return Ends(row)


async def events(
    client: PostgresClient, cache: LaneCache, tenant: str | None, after: str | None, limit: int
) -> tuple[EventPage, bool]:
    """Events after an offset, and whether an open transaction delays more. [EVENT-2, EVENT-3]"""
    while True:
        start, found, gaps = await _begin(client, cache, after, tenant)
        page, reached = await _page(client, cache, tenant, start, found, limit)
        if reached == start or await _is_whole(client, start, found):
            return EventPage(page, str(reached), reached < found.end, gaps(reached)), found.held


async def _page(
    client: PostgresClient, cache: LaneCache, tenant: str | None, start: Position, found: Ends, limit: int
) -> tuple[list[Event], Position]:
    """Events from a position on, and the position after the last one that was read."""
    page: list[Event] = []
    reached = start
    passed = 0
    # A tenant's page reads a bounded part of the log, whatever it finds there.
    most, wanted = max(limit, MIN_SCAN), min(FIRST_ROWS, MAX_ROWS, limit + 1)
    while reached < found.end and len(page) < limit and passed < most:
        chunk, lanes, behind = await _chunk(client, cache, reached, found, found.end, wanted, tenant)
        for row in chunk:
            position = Position(row["epoch"], row["xid"], row["n"], 0)
            skip = reached.k if position[:3] == reached[:3] else 0
            for k, event in log.unpack(row, skip, lanes.__getitem__):
                if len(page) == limit:
                    return page, reached
                reached = position._replace(k=k)
                passed += 1
                if tenant is None or event.tenant == tenant:
                    page.append(event)
        reached = behind or reached
        wanted = _rows_for(most - passed, wanted, passed)
    return page, reached


def _rows_for(left: int, rows: int, found: int) -> int:
    """How many rows to read for `left` more events, if `rows` rows had `found` events: a row has one or a thousand."""
    return max(1, min(MAX_ROWS, left * rows // max(1, found)))


async def _chunk(
    client: PostgresClient,
    cache: LaneCache,
    reached: Position,
    found: Ends,
    end: Position,
    wanted: int,
    tenant: str | None = None,
) -> tuple[list[Row], dict[int, tuple[str, str]], Position | None]:
    """The next rows up to a position, the names of their lanes, and the position to continue from if there are no more.

    Reads `kept_events` up to the trimmed position, and the partitions after it.
    """
    fingerprint = cache.fingerprint()
    if reached < found.trimmed:
        end = min(end, found.trimmed)
        name, more = ("kept_events", ()) if tenant is None else ("kept_events_of", (tenant,))
        chunk = await client.rows(name, *reached, *end, wanted, fingerprint, *more, repeat=True)
    else:
        # The first of them may have been read already.
        chunk = await client.rows("events", *reached[:3], *end[:3], wanted + 1, fingerprint, repeat=True)
    behind = end if len(chunk) < wanted else None
    chunk = [
        row for row in chunk if Position(row["epoch"], row["xid"], row["n"], row["first"] + row["count"]) > reached
    ]
    return chunk, await _learn(client, cache, fingerprint, {lane for row in chunk for lane in row["lanes"]}), behind


async def bounds(
    client: PostgresClient, cache: LaneCache, after: str | None, most: int | None, last: str
) -> tuple[str, str]:
    """From where and up to where to read. `last` is the end of the log, now or earlier."""
    (start, found, _), end = await _begin(client, cache, after), log.parse_offset(last)
    if most is not None:
        cuts = await _cuts(client, start, end, found, most, 1)
        end = cuts[0] if cuts else end
    return str(start), str(max(start, end))


async def written(client: PostgresClient, cache: LaneCache) -> Position:
    """Where the log ends, including events that an open transaction delays."""
    rows = await client.rows("log_written", repeat=True)
    return max([(await ends(client, cache)).end, *(Position(*row.values()) for row in rows)])


async def split(client: PostgresClient, cache: LaneCache, after: str, end: str, size: int) -> list[LogRange]:
    """The log between two offsets, in pieces of whole rows."""
    (start, found, _), stop = await _begin(client, cache, after), log.parse_offset(end)
    edges = [start, *(cut for cut in await _cuts(client, start, stop, found, size, None) if start < cut < stop), stop]
    return [LogRange(0, str(one), str(other)) for one, other in pairwise(edges) if one < other]


async def read(client: PostgresClient, cache: LaneCache, piece: LogRange, limit: int) -> LogPage:
    """The first events of a piece, in whole rows."""
    while True:
        (start, found, gaps), end = await _begin(client, cache, piece.after), log.parse_offset(piece.end)
        reached = start
        page = Gathered()
        wanted = FIRST_ROWS
        while reached < end and page.count < limit:
            chunk, lanes, behind = await _chunk(client, cache, reached, found, end, wanted)
            for row in chunk:
                position = Position(row["epoch"], row["xid"], row["n"], row["first"] + row["count"])
                last = min(position, end)
                skip = reached.k if position[:3] == reached[:3] else 0
                page.add(log.columns(row, skip, last.k, lanes.__getitem__))
                reached = max(reached, last)
            reached = behind or reached
            wanted = _rows_for(limit - page.count, wanted, page.count)
        if await _is_whole(client, start, found):
            return LogPage(page.parts, str(reached), reached < end, gaps(reached))


async def _begin(
    client: PostgresClient, cache: LaneCache, after: str | None, tenant: str | None = None
) -> tuple[Position, Ends, Callable[[Position], list[Gap]]]:
    """The position to read from, the ends of the log, and a function for the gaps of single tenants up to a position.

    Raises EventsTrimmed, InvalidOption.
    """
    start = None if after is None else log.parse_offset(after)
    found = await ends(client, cache, start or END)
    if start is not None and start > found.end:
        raise InvalidOption("after", f"{after!r} is not an offset of this store")
    cut, cuts = found.floor, list[tuple[str, Position]]()
    if (start or found.floor) < found.trimmed:
        if tenant is None:
            rows = await client.rows("cuts", *(start or found.floor), repeat=True)
            cuts = [(row["tenant"], _position(row, "")) for row in rows]
        else:
            rows = await client.rows("cut_of", tenant, repeat=True)
            cut = Position(*rows[0].values()) if rows else Position(0, 0, 0, 0)
    begin = max(cut, found.floor) if start is None else start
    if start is not None:
        found.check(start, cut)

    def gaps(reached: Position) -> list[Gap]:
        if reached == begin:
            return []
        return [Gap(name, str(begin), str(min(position, reached))) for name, position in cuts]

    return begin, found, gaps


async def readable(client: PostgresClient, cache: LaneCache, offset: str) -> Position:
    """The position of a registered reader. It may be trimmed already: then the next read raises EventsTrimmed."""
    position = log.parse_offset(offset, "offset")
    found = await ends(client, cache, position)
    if position > found.end:
        raise InvalidOption("offset", f"{offset!r} is not an offset of this store")
    if position >= found.floor:
        found.check(position, found.floor)
    return position


async def _is_whole(client: PostgresClient, start: Position, found: Ends) -> bool:
    """Whether nothing after `start` was trimmed since the ends were read.

    A snapshot does not keep truncated rows, but `trimming` changes before a truncation.
    """
    (mark,) = await client.rows("trimmed", repeat=True)
    return mark["version"] == found.version or _position(mark, "trimmed_") <= start


async def _cuts(
    client: PostgresClient, start: Position, end: Position, found: Ends, size: int, most: int | None
) -> list[Position]:
    """Where pieces of this size end, at most `most` of them."""
    cuts: list[Position] = []
    before = 0
    if start < found.trimmed:
        kept = (*start, *min(end, found.trimmed))
        cuts = [Position(*row.values()) for row in await client.rows("kept_cuts", *kept, size, most, repeat=True)]
        if len(cuts) == most:
            return cuts
        before = await client.value("kept_between", *kept, repeat=True)
        start = min(end, found.trimmed)
    rows = await client.rows("log_cuts", *start[:3], *end[:3], size, most, before, repeat=True)
    return cuts + [Position(*row.values()) for row in rows]


async def _learn(
    client: PostgresClient, cache: LaneCache, fingerprint: str, numbers: set[int]
) -> dict[int, tuple[str, str]]:
    """Tenant and queue of each of these lanes, in the data of this fingerprint."""
    unknown = [number for number in numbers if number not in cache.by_number]
    if unknown:
        for row in await client.rows("lanes_by_number", unknown, fingerprint, repeat=True):
            cache.learn(fingerprint, *row.values())
    with cache.lock:
        lanes = [cache.lane(number) for number in numbers]
        cache.check(fingerprint)
    return {lane.number: (lane.tenant, lane.queue) for lane in lanes}
