"""The ordered log: one event for each transition, appended in the same atomic step. [EVENT-1]"""

from __future__ import annotations

import hashlib
import re
from itertools import compress
from typing import Any, Literal, cast

from msgspec import Struct, field
from msgspec.structs import astuple, replace

from holdfast.core.job import AttemptError, Job

EventKind = Literal[
    "enqueued", "claimed", "extended", "progressed", "retried", "released", "expired",
    "completed", "failed", "canceled", "replayed", "purged",
]  # fmt: skip

ERROR_TEXT_LIMIT = 1024
LARGE = 64
"""A part with this many events or more is not merged with others."""
LEASE_EXPIRED = "LeaseExpired"
"""The error type of an attempt whose lease expired."""

_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+|'[^']*'|\"[^\"]*\"")


class Event(Struct, gc=False):
    """One change of one job. The store sets `offset`, an opaque string. [EVENT-2]"""

    kind: EventKind
    tenant: str
    queue: str
    job_id: str
    type: str
    at: int
    attempt: int
    token: int
    worker_id: str
    data: dict[str, Any] = field(default_factory=dict[str, Any])
    offset: str = ""
    number: int = 0
    """Its number within its job's life, counted from 1 without a gap. 0: unknown."""


class Gap(Struct, frozen=True):
    """Events of one tenant that are no longer kept: after `after`, up to and including `to`. [EVENT-2]"""

    tenant: str
    after: str
    to: str


class Numbered(Struct, frozen=True):
    """Consecutive offsets: texts that differ in one number, which grows by one."""

    before: str
    first: int
    behind: str

    def texts(self, count: int) -> list[str]:
        """The first `count` of them."""
        return [f"{self.before}{n}{self.behind}" for n in range(self.first, self.first + count)]


class EventColumns(Struct):
    """Events in order, column by column: faster to write and read than a struct for each.

    A column has one value for each event, or a single value for all: the events of one call have much in common.
    """

    count: int
    offset: list[str] | Numbered
    kind: list[EventKind]
    tenant: list[str]
    queue: list[str]
    job_id: list[str]
    type: list[str]
    at: list[int]
    attempt: list[int]
    token: list[int]
    worker_id: list[str]
    data: list[dict[str, Any]]
    number: list[int]

    def part(self, start: int, stop: int) -> EventColumns:
        """The events from index `start` up to `stop`."""
        stop = max(start, min(stop, self.count))
        values = (column[start:stop] if len(column) > 1 else column for column in self._values())
        return EventColumns(stop - start, self._offsets_from(start, stop), *values)

    def chosen(self, which: list[bool]) -> EventColumns:
        """The events that `which` selects."""
        values = (list(compress(column, which)) if len(column) > 1 else column for column in self._values())
        return EventColumns(sum(which), list(compress(self._offsets(), which)), *values)

    def spread(self) -> EventColumns:
        """A copy with one value for each event in every column."""
        values = (list(column) if len(column) == self.count else column * self.count for column in self._values())
        return EventColumns(self.count, list(self._offsets()), *values)

    def add(self, more: EventColumns) -> None:
        """Append other events. Call `spread` on both first."""
        self.count += more.count
        for mine, theirs in zip(self._values(), more._values(), strict=True):
            mine.extend(theirs)
        self._offsets().extend(more._offsets())

    def events(self) -> list[Event]:
        """The events one by one."""
        *values, data, number = self.spread()._values()  # noqa: SLF001 - its own kind
        if len(self.data) != self.count:
            # Copies: changing one event's data must not change the others.
            data = map(dict[str, Any], data)
        return list(map(Event, *values, data, self._offsets(), number))

    def _values(self) -> tuple[list[Any], ...]:
        return cast("tuple[list[Any], ...]", astuple(self)[2:])

    def _offsets(self) -> list[str]:
        return self.offset.texts(self.count) if isinstance(self.offset, Numbered) else self.offset

    def _offsets_from(self, start: int, stop: int) -> list[str] | Numbered:
        if isinstance(self.offset, Numbered):
            return replace(self.offset, first=self.offset.first + start)
        return self.offset[start:stop]


class Gathered:
    """Collects events in few parts. It merges small parts, as each costs as much as a large one."""

    def __init__(self) -> None:
        self.parts: list[EventColumns] = []
        self.count = 0
        self._open = False

    def add(self, part: EventColumns) -> None:
        """Append other events."""
        if not part.count:
            return
        self.count += part.count
        if part.count >= LARGE:
            self.parts.append(part)
            self._open = False
        elif self._open:
            self.parts[-1].add(part.spread())
        else:
            self.parts.append(part.spread())
            self._open = True


def append(job: Job, kind: EventKind, at: int, data: dict[str, Any]) -> Event:
    """The next event of `job`, in its present state. The record counts it. [EVENT-1]"""
    job.events += 1
    return Event(
        kind, job.tenant, job.queue, job.id, job.envelope.type, at, job.attempts, job.token, job.worker_id, data,
        number=job.events,
    )  # fmt: skip


def error_data(error: AttemptError) -> dict[str, str]:
    """The form of an error in events: shortened, with a fingerprint to group by."""
    return {
        "type": error.type,
        "message": error.message[:ERROR_TEXT_LIMIT],
        "fingerprint": fingerprint(error),
    }


def fingerprint(error: AttemptError) -> str:
    """A hash that ignores numbers, addresses and quoted values in the message. All expired leases have the same one."""
    shape = "" if error.type == LEASE_EXPIRED else _VARYING.sub("#", error.message)
    return hashlib.sha1(f"{error.type}\n{shape}".encode(errors="replace"), usedforsecurity=False).hexdigest()[:16]
