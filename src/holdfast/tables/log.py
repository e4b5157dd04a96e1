"""The event log: ordered events, registered readers, trimming. [EVENT-1, EVENT-2, EVENT-3]

An offset is the position of an event as text. Positions count up from 1 over all tenants and are never used again.
"""

from __future__ import annotations

import copy
import math
from bisect import bisect_right
from functools import cache

from holdfast.core.errors import EventsTrimmed, InvalidOption
from holdfast.core.events import Event, Gap
from holdfast.core.trimming import Trimming, excess
from holdfast.store import EVENTS_BOUND, EVENTS_BOUND_MS, EventPage, Reader


class TableLog:
    """The kept events with their positions."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, Event]] = []
        self._last = 0
        self.grew = False
        """Whether an event was added since the notifier last sent hints."""
        self._trimmed = 0
        """No event up to this position is kept."""
        self._trimmed_of: dict[str, int] = {}
        """By tenant: none of its events up to this position is kept."""
        self._kept: dict[str, int] = {}
        """By tenant: how many of its events are kept."""
        self._readers: dict[tuple[str | None, str], int] = {}
        """By tenant (None: all) and name: the position up to which a reader has read."""

    @property
    def last_offset(self) -> str:
        """The end of the log."""
        return str(self._last)

    def kept(self, tenant: str) -> int:
        """How many events of a tenant are kept."""
        return self._kept.get(tenant, 0)

    def append(self, event: Event) -> None:
        """Add an event at the end. [EVENT-1]"""
        self._last += 1
        self.grew = True
        self._entries.append((self._last, event))
        self._kept[event.tenant] = self._kept.get(event.tenant, 0) + 1

    def read(self, tenant: str | None, after: str | None, limit: int) -> EventPage:
        """Events after an offset, of one tenant or of all. Raises EventsTrimmed if some of them are gone."""
        trimmed = self._trimmed if tenant is None else self._trimmed_of.get(tenant, 0)
        start = max(trimmed, self._trimmed) if after is None else self._position(after, "after")
        if start < trimmed:
            raise EventsTrimmed(str(start), str(trimmed))
        found: list[Event] = []
        at, end = bisect_right(self._entries, start, key=_position_of), start
        while at < len(self._entries) and len(found) < limit:
            end, event = self._entries[at]
            at += 1
            if tenant is None or event.tenant == tenant:
                event.offset = str(end)
                found.append(copy.copy(event))
        more = at < len(self._entries)
        if not more:
            end = self._last
        return EventPage(found, str(end), more, [] if tenant else self._gaps(start, end))

    def _gaps(self, start: int, end: int) -> list[Gap]:
        """The gaps of single tenants' events between two positions."""
        trimmed = ((tenant, min(position, end)) for tenant, position in sorted(self._trimmed_of.items()))
        return [Gap(tenant, str(start), str(position)) for tenant, position in trimmed if start < position]

    # Readers ------------------------------------------------------------------------------------------------------

    def set_reader(self, reader: Reader) -> None:
        """Register a reader, or move it forward."""
        key = (reader.tenant, reader.name)
        self._readers[key] = max(self._readers.get(key, 0), self._position(reader.offset, "offset"))

    def drop_reader(self, tenant: str | None, name: str) -> bool:
        """Forget a reader. Returns whether there was one."""
        return self._readers.pop((tenant, name), None) is not None

    def readers(self, tenant: str | None) -> list[Reader]:
        """The readers registered for a tenant; None: those registered for all tenants."""
        known = sorted(self._readers.items(), key=str)
        return [Reader(tenant, name, str(position)) for (owner, name), position in known if owner == tenant]

    # Trimming -----------------------------------------------------------------------------------------------------

    def trim(self, keep_events: int, now: int) -> int:
        """Trim the log to its bounds, tenant by tenant. Returns how many events were removed."""
        too_old = now - EVENTS_BOUND_MS
        young = next((n for n, (_, event) in enumerate(self._entries) if event.at > too_old), len(self._entries))
        old, entries = self._entries[:young], self._entries[young:]
        self._uncount(old)
        trimming = Trimming(excess(self._kept, keep_events, EVENTS_BOUND), cache(self._slowest_reader))
        surplus: list[tuple[int, Event]] = []
        self._entries = []
        for n, (position, event) in enumerate(entries):
            if not trimming.pending:
                self._entries += entries[n:]
                break
            (surplus if trimming.takes(event.tenant, position) else self._entries).append((position, event))
        self._uncount(surplus)
        if old or surplus:
            self._trimmed = self._entries[0][0] - 1 if self._entries else self._last
        return len(old) + len(surplus)

    def _slowest_reader(self, tenant: str) -> float:
        """The position up to which all readers of a tenant's events have read. [EVENT-2]"""
        positions = (position for (owner, _), position in self._readers.items() if owner in (None, tenant))
        return min(positions, default=math.inf)

    def _uncount(self, gone: list[tuple[int, Event]]) -> None:
        for position, event in gone:
            self._trimmed_of[event.tenant] = position
            self._kept[event.tenant] -= 1
            if not self._kept[event.tenant]:
                del self._kept[event.tenant]

    def _position(self, offset: str, option: str) -> int:
        """The position of an offset. Raises InvalidOption."""
        if offset.isascii() and offset.isdigit() and len(offset) <= len(str(self._last)) and int(offset) <= self._last:
            return int(offset)
        raise InvalidOption(option, f"{offset!r} is not an offset of this store")


def _position_of(entry: tuple[int, Event]) -> int:
    return entry[0]
