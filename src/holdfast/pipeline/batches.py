"""What a lake records about a batch: its counts, a checksum for each day, and the gaps in the log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime

from msgspec import Struct


class Checksum(Struct, frozen=True):
    """A number of events, and the sum of their hashes modulo 2^64. See `holdfast.pipeline.checksums`."""

    events: int = 0
    total: str = f"{0:016x}"
    """In hexadecimal digits, because many JSON readers round large numbers."""

    def __add__(self, other: Checksum) -> Checksum:
        return checksum(self.events + other.events, int(self.total, 16) + int(other.total, 16))


def checksum(events: int, total: int) -> Checksum:
    """The checksum of a number of events whose hashes add up to `total`. Keeps the low 64 bits."""
    return Checksum(events, f"{total % 2**64:016x}")


class Batch(Struct, frozen=True):
    """A micro-batch that is complete in the bronze tables."""

    batch: int
    events: int
    payloads: int = 0
    missing_payloads: int = 0
    """Jobs that were gone before their payload was read."""
    gaps: int = 0
    """Gaps in the events of single tenants."""
    days: dict[str, Checksum] = {}
    """What the tasks read of each day."""


def batch_of(number: int, files: Sequence[tuple[date, int, str]]) -> Batch:
    """The batch that consists of these files, each given by its day, row count and checksum."""
    days: dict[str, Checksum] = {}
    for day, rows, total in files:
        days[str(day)] = days.get(str(day), Checksum()) + Checksum(rows, total)
    return Batch(number, sum(checksum.events for checksum in days.values()), days=days)


class LakeGap(Struct, frozen=True, rename={"from_": "from"}):
    """A range of the log that was trimmed before it was read."""

    from_: str
    to: str
    seen_at: datetime
    tenant: str | None = None
    """The one tenant whose events are missing; None: those of all tenants."""
