"""The log: events, readers, and ranges that can be read in parallel. [EVENT-2, EVENT-3]

Each shard has a log of its own. An offset has a place in each of them, the number of an event, joined by dots.
"""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.errors import EventsTrimmed, InvalidOption
from holdfast.core.events import Event, EventColumns, Gap, Gathered, Numbered
from holdfast.extensions import LogRange
from holdfast.store import EventPage, LogPage, Reader
from holdfast.stores.redis.entries import Entry, to_columns, to_events
from holdfast.stores.redis.keys import lane_of
from holdfast.stores.redis.layout import NONE
from holdfast.stores.redis.records import encode
from holdfast.stores.redis.shards import Shards

READ_BYTES = 2 * 1024 * 1024
"""The approximate limit of bytes that one script reads."""
MAX_SPLITS = 1000
"""The most places at which one script splits a shard's log."""
FIRST_SCAN, NEXT_SCAN, MIN_SCAN = 100, 200, 500
"""How many events a tenant's page reads at first and in each further script, and through how many if it is not full."""

_OFFSET = re.compile(r"[0-9]{1,16}(\.[0-9]{1,16})*")


def parse_offset(shards: Shards, offset: str) -> list[int]:
    """The place in each shard's log that an offset stands for."""
    places = [int(part) for part in offset.split(".")] if _OFFSET.fullmatch(offset) else []
    if len(places) != shards.count:
        raise InvalidOption("after", f"{offset!r} is not an offset of this store")
    return places


def join_offset(places: list[int]) -> str:
    """The offset for a place in each shard's log."""
    return ".".join(map(str, places))


def _start_places(shards: Shards, offset: str | None) -> list[int]:
    return [NONE] * shards.count if offset is None else parse_offset(shards, offset)


# Readers --------------------------------------------------------------------------------------------------------


async def set_reader(shards: Shards, reader: Reader) -> None:
    """Register a reader, or move it forward."""
    places = dict(enumerate(parse_offset(shards, reader.offset)))
    if reader.tenant is not None:
        # Other shards have no events of this tenant, and their logs must not wait for its reader.
        own = shards.of(reader.tenant)
        places = {own: places[own]}
    for verb in ("check", "set"):
        for shard, place in places.items():
            if not await shards.run("readers", shard, encode((verb, reader.tenant or False, reader.name, place))):
                raise InvalidOption("offset", f"{reader.offset!r} is not an offset of this store")


async def drop_reader(shards: Shards, tenant: str | None, name: str) -> bool:
    """Drop a reader. Returns whether there was one."""
    return any(await shards.run_on_all("readers", encode(("drop", tenant or False, name))))


async def readers(shards: Shards, tenant: str | None) -> list[Reader]:
    """The readers of a tenant, or those of all tenants."""
    places: dict[str, dict[int, int]] = {}
    for shard, found in enumerate(await shards.run_on_all("readers", encode(("list", tenant or False)))):
        for name, place in zip(found[::2], found[1::2], strict=True):
            places.setdefault(name.decode(), {})[shard] = int(place)
    return [
        Reader(tenant, name, join_offset([at.get(shard, 0) for shard in range(shards.count)]))
        for name, at in sorted(places.items())
    ]


# Pages of events ------------------------------------------------------------------------------------------------


class _Entries(Struct, frozen=True):
    """The answer of `events.lua`."""

    gone: int
    """The last number that is gone."""
    start: int
    last: int
    cuts: dict[str, int]
    """For a reader of all tenants: the last number that is gone of single tenants, if that is after `start`."""
    entries: list[Entry]


class _ShardEvents(Struct):
    """The events read from one shard's log."""

    start: int
    """The place that the read started after, or the first one that is left."""
    trimmed: bool
    """Whether events after the wanted place are gone."""
    end: int
    more: bool
    at: int
    """The latest time that was read."""
    events: list[tuple[int, Event]]
    cuts: dict[str, int]


async def events(shards: Shards, tenant: str | None, after: str | None, limit: int) -> EventPage:
    """Events after an offset, of one tenant or of all. Those of several shards are merged by time.

    Many events of other tenants may come before those of one: a page may be empty and have more after it.
    """
    scan = scanned = max(limit, FIRST_SCAN)
    page = await _page(shards, tenant, after, limit, scan)
    while tenant is not None and page.more and len(page.events) < limit and scanned < MIN_SCAN:
        scan = min(NEXT_SCAN, MIN_SCAN - scanned)
        scanned += scan
        try:
            rest = await _page(shards, tenant, page.next, limit - len(page.events), scan)
        except EventsTrimmed:
            break  # Just now. The next page raises it.
        page = EventPage([*page.events, *rest.events], rest.next, rest.more)
    return page


async def _page(shards: Shards, tenant: str | None, after: str | None, limit: int, scan: int) -> EventPage:
    places = _start_places(shards, after)
    wanted = dict.fromkeys(range(shards.count), limit // shards.count + 1)
    if tenant is not None:
        wanted = dict.fromkeys(wanted, 0) if after is None else {}
        wanted[shards.of(tenant)] = scan
    own = None if tenant is None else shards.of(tenant)
    work = (_read_shard(shards, n, places[n], count, tenant if n == own else None) for n, count in wanted.items())
    found = dict(zip(wanted, await asyncio.gather(*work), strict=True))
    for shard, read in found.items():
        places[shard] = read.start
    if any(read.trimmed for read in found.values()):
        raise EventsTrimmed(after or "", join_offset(places))
    begin = list(places)
    page = _merge(found, places, tenant, limit)
    return replace(page, gaps=[gap for n, read in found.items() for gap in _gaps(n, read.cuts, begin, places)])


def _gaps(shard: int, cuts: dict[str, int], begin: list[int], end: list[int]) -> list[Gap]:
    """What single tenants of a shard have lost between two offsets. A longer gap continues on the next page."""
    after = join_offset(begin)
    return [
        Gap(tenant, after, join_offset([*end[:shard], min(cut, end[shard]), *end[shard + 1 :]]))
        for tenant, cut in cuts.items()
        if begin[shard] < cut
    ]


async def _read_entries(shards: Shards, shard: int, start: int, wanted: int, tenant: str | None = None) -> _Entries:
    request = encode((start, wanted, READ_BYTES, tenant or False))
    gone, begin, last, greatest, gaps, *values = await shards.run("events", shard, request)
    if start > max(last, greatest):
        raise InvalidOption("after", f"{start} is not an offset of this store")
    cuts = {name.decode(): int(cut) for name, cut in zip(gaps[::2], gaps[1::2], strict=True)}
    return _Entries(gone, max(begin, gone), last, cuts, list(zip(*(values[n::4] for n in range(4)), strict=True)))


async def _read_shard(shards: Shards, shard: int, start: int, wanted: int, tenant: str | None) -> _ShardEvents:
    found = await _read_entries(shards, shard, start, wanted, tenant)
    begin, cuts = found.start, found.cuts
    read: list[tuple[int, Event]] = []
    prefix = b"" if tenant is None else lane_of(tenant, "").encode().removesuffix(b"0:")
    for entry in found.entries:
        if prefix not in entry[3]:
            continue  # It has no event of the tenant.
        read += [(number, event) for number, event in to_events(*entry) if number > begin]
    reached = found.entries[-1][0] if found.entries else begin
    # Without an entry there is nothing more, even if the last events are missing.
    more = bool(found.entries) and reached < found.last
    if cuts:
        read = [(number, event) for number, event in read if number > cuts.get(event.tenant, 0)]
    end = reached if more else max(reached, found.last) if wanted else begin
    at = max((entry[2] for entry in found.entries), default=0)
    return _ShardEvents(begin, 0 <= start < found.gone, end, more, at, read, cuts)


def _merge(found: dict[int, _ShardEvents], places: list[int], tenant: str | None, limit: int) -> EventPage:
    merged: list[tuple[int, int, int, Event]] = []
    complete_until: int | None = None
    for shard, read in found.items():
        # A clock that was set back must not reverse a shard's own order: time counts as standing still.
        at = 0
        for number, event in read.events:
            at = max(at, event.at)
            merged.append((at, shard, number, event))
        # A shard that has more to read may have events of any later time: these must wait.
        if read.more:
            complete_until = read.at if complete_until is None else min(complete_until, read.at)
    page: list[Event] = []
    left = {shard: len(read.events) for shard, read in found.items()}
    for at, shard, number, event in sorted(merged, key=lambda entry: entry[:3]):
        if len(page) == limit or (complete_until is not None and at > complete_until):
            break
        places[shard], left[shard] = number, left[shard] - 1
        if tenant is None or event.tenant == tenant:
            event.offset = join_offset(places)
            page.append(event)
    more = any(left.values())
    for shard, read in found.items():
        if not left[shard]:
            # Events after the last one may be gone: continue at the end of what was read.
            places[shard] = read.end
            more = more or read.more
    return EventPage(page, join_offset(places), more)


# Ranges ---------------------------------------------------------------------------------------------------------


class _ShardRange(Struct):
    """A range of one shard's log: how many events were logged in it, and where it can be split."""

    start: int
    trimmed: bool
    end: int
    count: int
    splits: list[int]


async def bounds(shards: Shards, after: str | None, most: int | None, end: str | None) -> tuple[str, str]:
    """The offsets between which to read up to `most` events: each shard contributes its share."""
    ranges = await _ranges(shards, after, _start_places(shards, after), _start_places(shards, end), 0, 0)
    start, ends = [one.start for one in ranges], [max(one.start, one.end) for one in ranges]
    count = sum(one.count for one in ranges)
    if most is not None and count > most:
        shares = [max(1, one.count * most // count) for one in ranges]
        work = (_range(shards, n, start[n], ends[n], share, 1) for n, share in enumerate(shares))
        ends = [one.splits[0] if one.splits else one.end for one in await asyncio.gather(*work)]
    return join_offset(start), join_offset(ends)


async def split(shards: Shards, after: str, end: str, size: int) -> list[LogRange]:
    """The log between two offsets, in ranges that are each of one shard."""
    places, ends = parse_offset(shards, after), parse_offset(shards, end)
    ranges: list[LogRange] = []
    for shard, one in enumerate(await _ranges(shards, after, places, ends, size, MAX_SPLITS)):
        edges = [one.start, *one.splits, one.end] if one.start < one.end else []
        offsets = [join_offset([*places[:shard], edge, *places[shard + 1 :]]) for edge in edges]
        ranges += [LogRange(shard, *pair) for pair in pairwise(offsets)]
    return ranges


async def read(shards: Shards, log_range: LogRange, limit: int) -> LogPage:
    """The first events of a range, in whole entries."""
    shard, places = log_range.shard, parse_offset(shards, log_range.after)
    start, end = places[shard], parse_offset(shards, log_range.end)[shard]
    log = await _read_entries(shards, shard, start, limit)
    if start < log.gone:
        places[shard] = log.gone
        raise EventsTrimmed(log_range.after, join_offset(places))
    before, behind = join_offset([*places[:shard], 0])[:-1], join_offset([0, *places[shard + 1 :]])[1:]
    found, reached = Gathered(), start
    for number, count, at, raw in log.entries:
        # The range may begin or end within an entry.
        for part in to_columns(Numbered(before, number - count + 1, behind), count, at, raw):
            first = cast("Numbered", part.offset).first
            found.add(_without_cuts(part.part(max(0, start + 1 - first), max(0, end + 1 - first)), log.cuts))
        reached = number
    more = bool(log.entries) and reached < min(log.last, end)
    next_ = [*places[:shard], reached, *places[shard + 1 :]] if more else parse_offset(shards, log_range.end)
    return LogPage(found.parts, join_offset(next_), more, _gaps(shard, log.cuts, places, next_))


def _without_cuts(part: EventColumns, cuts: dict[str, int]) -> EventColumns:
    """The events that are not gone: an entry may still have events before a tenant's cut."""
    if not cuts or cuts.keys().isdisjoint(part.tenant):
        return part
    first = cast("Numbered", part.offset).first
    tenants = part.tenant if len(part.tenant) > 1 else part.tenant * part.count
    return part.chosen([number > cuts.get(tenant, 0) for number, tenant in enumerate(tenants, first)])


async def _ranges(
    shards: Shards, after: str | None, places: list[int], ends: list[int], size: int, max_splits: int
) -> list[_ShardRange]:
    work = (_range(shards, n, places[n], ends[n], size, max_splits) for n in range(shards.count))
    ranges = await asyncio.gather(*work)
    if any(one.trimmed for one in ranges):
        raise EventsTrimmed(after or "", join_offset([one.start for one in ranges]))
    return ranges


async def _range(shards: Shards, shard: int, start: int, end: int, size: int, max_splits: int) -> _ShardRange:
    request = encode((start, end, size, max_splits))
    gone, last, greatest, count, *splits = await shards.run("split_log", shard, request)
    if start > max(last, greatest):
        raise InvalidOption("after", f"{start} is not an offset of this store")
    begin = max(start, gone)
    # An empty range misses nothing, even if its place is gone.
    trimmed = 0 <= start < gone and not 0 <= end <= start
    return _ShardRange(begin, trimmed, max(begin, last) if end == NONE else end, count, splits)
