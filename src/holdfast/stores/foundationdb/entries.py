"""Entries of the log: the events of one transaction, column by column, and the positions of events.

A position is a versionstamp of 12 bytes: ten of the commit, and the number of the event within it, from 1 on. As text
it is `VERSION.ORDER.NUMBER`: the version of the commit, its place among the commits of that version, the number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

from msgspec import Struct, msgpack

from holdfast.core.codes import EVENT_CODES, EVENT_KINDS
from holdfast.core.errors import InvalidOption
from holdfast.core.events import Event, EventColumns, EventKind, Numbered
from holdfast.stores.foundationdb.records import PIECE

START = b"\x00" * 12
"""Before all events."""
MAX_EVENTS = 200
"""The most events of one entry."""
NONCE_BYTES = 8

_OFFSET = re.compile(r"([0-9]{1,19})\.([0-9]{1,5})\.([0-9]{1,5})", re.ASCII)
_MAX_VERSION = 2**63

_encode = msgpack.Encoder().encode
_Columns = tuple[
    bytes, int, list[int] | None, list[int], list[int], list[str], list[str], list[str], list[str], list[int],
    list[int], list[str], list[dict[str, Any]], list[int],
]  # fmt: skip
_decode = msgpack.Decoder(_Columns).decode


class LogEntry(Struct):
    """One entry: `places` are the numbers of its events, and `columns` have one value for each, or one for all."""

    nonce: bytes
    places: list[int]
    columns: tuple[list[Any], ...]

    @property
    def count(self) -> int:
        return len(self.places)

    def column(self, number: int) -> list[Any]:
        """A column with one value for each event."""
        values = self.columns[number]
        return values if len(values) == self.count else values * self.count

    @property
    def tenants(self) -> list[str]:
        return self.column(_TENANT)

    def places_of(self, tenant: str) -> list[int]:
        """The numbers of a tenant's events."""
        return [place for place, owner in zip(self.places, self.tenants, strict=True) if owner == tenant]

    @property
    def at(self) -> int:
        """The time of its last event."""
        return self.columns[_AT][-1]


_AT, _KIND, _TENANT = 0, 1, 2


def pack_events(nonce: bytes, events: list[Event], first: int) -> list[tuple[int, bytes, list[Event]]]:
    """Entries with these events: for each the number of its first event, its value, and its events."""
    found: list[tuple[int, bytes, list[Event]]] = []
    parts = [(first + at, events[at : at + MAX_EVENTS]) for at in range(0, len(events), MAX_EVENTS)]
    while parts:
        number, part = parts.pop(0)
        value = _pack(nonce, len(part), None, _columns_of(part))
        if len(value) > PIECE and len(part) > 1:
            half = len(part) // 2
            parts[:0] = [(number, part[:half]), (number + half, part[half:])]
        else:
            found.append((number, value, part))
    return found


def _columns_of(events: list[Event]) -> tuple[list[Any], ...]:
    rows = (
        (e.at, EVENT_CODES[e.kind], e.tenant, e.queue, e.job_id, e.type, e.attempt, e.token, e.worker_id, e.data,
         e.number)
        for e in events
    )  # fmt: skip
    return tuple(list(column) for column in zip(*rows, strict=True))


def _pack(nonce: bytes, count: int, places: list[int] | None, columns: Sequence[list[Any]]) -> bytes:
    """`places`: None if the numbers of the events count on from that in the key."""
    shared = (column[:1] if column.count(column[0]) == len(column) else column for column in columns)
    return _encode((nonce, count, places, *shared))


def unpack_entry(value: bytes, first: int) -> LogEntry:
    """The entry with this value, whose key has this number."""
    nonce, count, places, *columns = _decode(value)
    return LogEntry(nonce, list(range(first, first + count)) if places is None else places, tuple(columns))


def nonce_of(value: bytes) -> bytes:
    """Which transaction wrote an entry."""
    return _decode(value)[0]


def without(entry: LogEntry, tenant: str, count: int) -> LogEntry:
    """The entry without the first `count` events of a tenant."""
    left: list[int] = []
    for n, owner in enumerate(entry.tenants):
        if owner == tenant and count:
            count -= 1
        else:
            left.append(n)
    whole = (entry.column(number) for number in range(len(entry.columns)))
    return LogEntry(entry.nonce, [entry.places[n] for n in left], tuple([column[n] for n in left] for column in whole))


def pack_entry(entry: LogEntry) -> bytes:
    """The value of an entry that is not empty."""
    whole = [entry.column(number) for number in range(len(entry.columns))]
    return _pack(entry.nonce, entry.count, entry.places, whole)


def to_events(position: bytes, entry: LogEntry) -> list[tuple[int, Event]]:
    """The events of the entry at a position, each with its number."""
    stem = _stem(position)
    columns = [entry.column(number) for number in range(len(entry.columns))]
    found: list[tuple[int, Event]] = []
    rows = cast("Iterable[tuple[Any, ...]]", zip(*columns, strict=True))
    for place, (at, code, tenant, queue, id_, type_, attempt, token, worker, data, number) in zip(
        entry.places, rows, strict=True
    ):
        # A copy of the data: a change to one event must not change the others.
        kind = cast("EventKind", EVENT_KINDS[code])
        event = Event(
            kind, tenant, queue, id_, type_, at, attempt, token, worker, dict(data), f"{stem}{place}", number
        )  # fmt: skip
        found.append((place, event))
    return found


def to_columns(position: bytes, entry: LogEntry) -> EventColumns:
    """The events of the entry at a position, as columns."""
    stem = _stem(position)
    at, codes, tenant, queue, id_, type_, attempt, token, worker, data, number = entry.columns
    kinds = cast("list[EventKind]", [EVENT_KINDS[code] for code in codes])
    first = entry.places[0]
    offset: list[str] | Numbered = [f"{stem}{place}" for place in entry.places]
    if entry.places[-1] - first + 1 == entry.count:
        offset = Numbered(stem, first, "")
    return EventColumns(entry.count, offset, kinds, tenant, queue, id_, type_, at, attempt, token, worker, data, number)


# Positions --------------------------------------------------------------------------------------------------------


def number_in(position: bytes) -> int:
    """The number within its commit."""
    return int.from_bytes(position[10:], "big")


def at_number(position: bytes, number: int) -> bytes:
    """The position of another event of the same commit."""
    return position[:10] + number.to_bytes(2, "big")


def at_version(version: int) -> bytes:
    """Before all events of a version."""
    return version.to_bytes(8, "big") + b"\x00" * 4


def version_of(position: bytes) -> int:
    """The version of its commit."""
    return int.from_bytes(position[:8], "big")


def _stem(position: bytes) -> str:
    return f"{version_of(position)}.{int.from_bytes(position[8:10], 'big')}."


def to_offset(position: bytes) -> str:
    """A position as text."""
    return f"{_stem(position)}{number_in(position)}"


def to_position(offset: str, version: int, option: str = "after") -> bytes:
    """The position of an offset. Raises InvalidOption if it is none, or after `version`, which was read just now."""
    found = _OFFSET.fullmatch(offset)
    if found is not None:
        at, order, number = int(found[1]), int(found[2]), int(found[3])
        if at <= min(version, _MAX_VERSION) and order < 1 << 16 and number < 1 << 16:
            return at.to_bytes(8, "big") + order.to_bytes(2, "big") + number.to_bytes(2, "big")
    raise InvalidOption(option, f"{offset!r} is not an offset of this store")
