"""The log: events of one tenant or of all, ranges for Spark, readers. [EVENT-2, EVENT-3]

The log is in the order of commits, so nothing is ever inserted before an event that was read.
"""

from __future__ import annotations

from itertools import pairwise

from holdfast.core.errors import EventsTrimmed
from holdfast.core.events import Event, Gap, Gathered
from holdfast.extensions import LogRange
from holdfast.store import EventPage, LogPage, Reader
from holdfast.stores.foundationdb import entries
from holdfast.stores.foundationdb.entries import LogEntry, to_offset, to_position
from holdfast.stores.foundationdb.keyspace import STAMP_BYTES, pack, span, unpack
from holdfast.stores.foundationdb.transactions import Transactions
from holdfast.stores.foundationdb.unit_of_work import Work

READ = 100
"""The most entries that one read returns."""

Located = tuple[bytes, LogEntry]
"""The position of an entry's key, and the entry."""


async def events(work: Work, tenant: str | None, after: str | None, limit: int) -> EventPage:
    """Events after an offset, of one tenant or of all."""
    start = await start_of(work, tenant, after)
    found: list[Event] = []
    reached, more = start, True
    while more and len(found) < limit:
        part, more = await _entries(work, tenant, reached, limit - len(found))
        for position, entry in part:
            for place, event in entries.to_events(position, entry):
                at = entries.at_number(position, place)
                if at <= reached or (tenant is not None and event.tenant != tenant):
                    continue
                if len(found) == limit:
                    more = True
                    break
                found.append(event)
                reached = at
            else:
                reached = max(reached, last_of(position, entry))
    if tenant is not None:
        return EventPage(found, to_offset(reached), more)
    if not more:  # Behind the last event that is kept, others may have been trimmed.
        reached = max(reached, await last_cut(work))
    gaps = await _gaps(work, start, reached)
    return EventPage(found, to_offset(reached), more, gaps)


def last_of(position: bytes, entry: LogEntry) -> bytes:
    """The position of an entry's last event."""
    return entries.at_number(position, entry.places[-1])


async def start_of(work: Work, tenant: str | None, after: str | None) -> bytes:
    """The position to read from. Raises EventsTrimmed if events after the offset are gone."""
    cut = work.trimmed
    if tenant is not None:
        cut = await work.tr.get(work.keys.cut_of(tenant), snapshot=True) or entries.START
    if after is None:
        return max(cut, work.trimmed)
    start = to_position(after, work.version)
    if start < cut:
        raise EventsTrimmed(after, to_offset(cut))
    return start


async def _entries(work: Work, tenant: str | None, position: bytes, wanted: int) -> tuple[list[Located], bool]:
    """The next entries with events after a position, and whether there are more."""
    count = min(READ, max(2, wanted))
    if tenant is None:
        prefix = work.keys.log
        rows = await _from(work, prefix, position, count)
        found = [(key[len(prefix) :], value) for key, value in rows]
    else:
        prefix = work.keys.log_of(tenant)
        rows = await _from(work, prefix, position, count)
        places = [key[len(prefix) :] for key, _ in rows]
        values = await work.tr.get_all([work.keys.log_at(place) for place in places], snapshot=True)
        found = [(place, value) for place, value in zip(places, values, strict=True) if value is not None]
    located = [(place, entries.unpack_entry(value, entries.number_in(place))) for place, value in found]
    return located, len(rows) >= count


async def _from(work: Work, prefix: bytes, position: bytes, count: int) -> list[tuple[bytes, bytes]]:
    """Rows by position: from the entry that has this position on."""
    end = prefix + b"\xff" * STAMP_BYTES
    before = await work.tr.get_range(
        prefix + position[:10], prefix + position + b"\x00", limit=1, reverse=True, snapshot=True
    )
    begin = before[0][0] if before else prefix + position
    return await work.tr.get_range(begin, end, limit=count + len(before), snapshot=True)


async def read_entries(work: Work, position: bytes, count: int) -> list[Located]:
    """Up to `count` entries with events after a position, and perhaps the one before them."""
    prefix = work.keys.log
    rows = await _from(work, prefix, position, count)
    places = [key[len(prefix) :] for key, _ in rows]
    values = (value for _, value in rows)
    return [(at, entries.unpack_entry(value, entries.number_in(at))) for at, value in zip(places, values, strict=True)]


async def _gaps(work: Work, start: bytes, reached: bytes) -> list[Gap]:
    """What single tenants have lost between two positions."""
    prefix = work.keys.cuts + b"\x33"
    rows = await work.tr.get_range(prefix + start + b"\xff", prefix + b"\xff" * STAMP_BYTES, snapshot=True)
    found = ((key[len(prefix) : len(prefix) + STAMP_BYTES], key) for key, _ in rows)
    return [
        Gap(unpack(key, len(prefix) + STAMP_BYTES)[0], to_offset(start), to_offset(min(cut, reached)))
        for cut, key in found
        if start < reached
    ]


async def end_of(work: Work) -> bytes:
    """The position of the last event, also if it was trimmed."""
    prefix = work.keys.log
    rows = await work.tr.get_range(prefix, prefix + b"\xff" * STAMP_BYTES, limit=1, reverse=True, snapshot=True)
    trimmed = max(work.trimmed, await last_cut(work))
    if not rows:
        return trimmed
    position = rows[0][0][len(prefix) :]
    return max(trimmed, last_of(position, entries.unpack_entry(rows[0][1], entries.number_in(position))))


async def last_cut(work: Work, before: bytes = b"\xff" * STAMP_BYTES) -> bytes:
    """The last of the positions up to which tenants' events were trimmed."""
    prefix = work.keys.cuts + b"\x33"
    rows = await work.tr.get_range(prefix, prefix + before, limit=1, reverse=True, snapshot=True)
    return rows[0][0][len(prefix) :][:STAMP_BYTES] if rows else entries.START


async def last_offset(work: Work) -> str:
    """The position of the end of the log."""
    return to_offset(await end_of(work))


# Ranges -------------------------------------------------------------------------------------------------------------


async def bounds(transactions: Transactions, after: str | None, most: int | None, end: str | None) -> tuple[str, str]:
    """The offsets where a read of about `most` events after `after` begins and ends; `end` at the latest."""

    async def ends(work: Work) -> tuple[bytes, bytes]:
        start = await start_of(work, None, after)
        return start, await end_of(work) if end is None else to_position(end, work.version, "end")

    start, stop = await transactions.read(ends)
    if most is not None:
        stop = (await _edges(transactions, start, stop, most, 1))[-1]
    return to_offset(start), to_offset(max(start, stop))


async def split(transactions: Transactions, after: str, end: str, size: int) -> list[LogRange]:
    """The log between two offsets, in ranges of about `size` events."""

    async def ends(work: Work) -> tuple[bytes, bytes]:
        return await start_of(work, None, after), to_position(end, work.version, "end")

    start, stop = await transactions.read(ends)
    edges = [start, *await _edges(transactions, start, stop, size, None)] if start < stop else [start]
    return [LogRange(0, to_offset(one), to_offset(other)) for one, other in pairwise(edges)]


async def _edges(transactions: Transactions, start: bytes, stop: bytes, size: int, most: int | None) -> list[bytes]:
    """Where ranges of about `size` events end; the last one at `stop`, or after `most` ranges."""
    edges: list[bytes] = []
    count, at, more = 0, start, start < stop
    while more:
        part, more = await transactions.read(lambda work: _entries(work, None, at, READ))  # noqa: B023 - awaited
        for position, entry in part:
            for place in entry.places:
                here = entries.at_number(position, place)
                if here <= at:
                    continue
                if here > stop:
                    more = False
                    break
                at, count = here, count + 1
                if count == size:
                    edges.append(at)
                    count = 0
                    if len(edges) == most:
                        return edges
        if not part:
            break
    if not edges or edges[-1] < stop:
        edges.append(stop)
    return edges


async def read(work: Work, log_range: LogRange, limit: int) -> LogPage:
    """About the first `limit` events of a range."""
    start = await start_of(work, None, log_range.after)
    stop = to_position(log_range.end, work.version, "end")
    gathered = Gathered()
    at = start
    while at < stop and gathered.count < limit:
        part, _ = await _entries(work, None, at, limit - gathered.count)
        before = at
        for position, entry in part:
            here = [entries.at_number(position, place) for place in entry.places]
            inside = [n for n, place in enumerate(here) if at < place <= stop][: limit - gathered.count]
            if inside:
                gathered.add(entries.to_columns(position, entry).part(inside[0], inside[-1] + 1))
                at = here[inside[-1]]
        if at == before:
            at = stop
    return LogPage(gathered.parts, to_offset(at), at < stop, await _gaps(work, start, at))


# Readers ------------------------------------------------------------------------------------------------------------


async def set_reader(work: Work, reader: Reader) -> None:
    """Register a reader, or move it forward."""
    key = work.keys.reader(reader.tenant or "", reader.name)
    position = to_position(reader.offset, work.version, "offset")
    before = await work.tr.get(key)
    if before is None or before < position:
        work.set(key, position)


async def drop_reader(work: Work, tenant: str | None, name: str) -> bool:
    """Forget a reader. Returns whether there was one."""
    key = work.keys.reader(tenant or "", name)
    if await work.tr.get(key) is None:
        return False
    work.clear(key)
    return True


async def readers(work: Work, tenant: str | None) -> list[Reader]:
    """The readers of a tenant, or those of all tenants."""
    prefix = work.keys.readers + pack(tenant or "")
    rows = await work.tr.get_range(*span(prefix), snapshot=True)
    return [Reader(tenant, unpack(key, len(prefix))[0], to_offset(position)) for key, position in rows]
