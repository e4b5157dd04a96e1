"""The ordered log: one event for each transition, made in the same atomic step. [EVENT-1]"""

from __future__ import annotations

import hashlib
import re
from itertools import compress
from typing import Any, Literal, cast

from msgspec import Struct, field
from msgspec.structs import astuple

from holdfast.core.job import AttemptError, Job

EventKind = Literal[
    "enqueued", "claimed", "extended", "progressed", "retried", "released", "expired",
    "completed", "failed", "canceled", "replayed", "purged",
]  # fmt: skip

ERROR_TEXT_LIMIT = 1024
LEASE_EXPIRED = "LeaseExpired"
"""The type of the error that stands for an attempt whose lease ran out."""

_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+|'[^']*'|\"[^\"]*\"")


class Event(Struct, gc=False):
    """One thing that happened to one job. `offset` is set by the store, and is opaque. [EVENT-2]"""

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


class EventColumns(Struct):
    """Events in their order, column by column: quicker to make and to take than a struct for each."""

    kind: list[EventKind] = field(default_factory=list[EventKind])
    tenant: list[str] = field(default_factory=list[str])
    queue: list[str] = field(default_factory=list[str])
    job_id: list[str] = field(default_factory=list[str])
    type: list[str] = field(default_factory=list[str])
    at: list[int] = field(default_factory=list[int])
    attempt: list[int] = field(default_factory=list[int])
    token: list[int] = field(default_factory=list[int])
    worker_id: list[str] = field(default_factory=list[str])
    data: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    offset: list[str] = field(default_factory=list[str])

    def __len__(self) -> int:
        return len(self.kind)

    def add(self, more: EventColumns) -> None:
        """Put others behind them."""
        for mine, theirs in zip(self._columns(), more._columns(), strict=True):
            mine.extend(theirs)

    def part(self, start: int, stop: int) -> EventColumns:
        """Those from one place up to another."""
        return EventColumns(*(column[start:stop] for column in self._columns()))

    def chosen(self, which: list[bool]) -> EventColumns:
        """Those of which `which` says so."""
        return EventColumns(*(list(compress(column, which)) for column in self._columns()))

    def events(self) -> list[Event]:
        """The same, one by one."""
        return list(map(Event, *self._columns()))

    def _columns(self) -> tuple[list[Any], ...]:
        return cast("tuple[list[Any], ...]", astuple(self))


def of(job: Job, kind: EventKind, at: int, data: dict[str, Any]) -> Event:
    """The event `kind` of `job` as it is now."""
    return Event(
        kind, job.tenant, job.queue, job.id, job.envelope.type, at, job.attempts, job.token, job.worker_id, data
    )


def error_data(error: AttemptError) -> dict[str, str]:
    """An error as it stands in an event: short, and with a fingerprint to group by."""
    return {
        "type": error.type,
        "message": error.message[:ERROR_TEXT_LIMIT],
        "fingerprint": fingerprint(error),
    }


def fingerprint(error: AttemptError) -> str:
    """The same for errors that differ only in numbers, addresses and quoted values; one for all expired leases."""
    shape = "" if error.type == LEASE_EXPIRED else _VARYING.sub("#", error.message)
    return hashlib.sha1(f"{error.type}\n{shape}".encode(errors="replace"), usedforsecurity=False).hexdigest()[:16]
