"""Counts of what tenants keep. [TENANT-5]

Each call puts its changes into its row of the log. Upkeep adds them up, in the transaction that moves the mark of
counted rows: no row is updated by every call.
"""

from __future__ import annotations

from holdfast.core.budgets import RECORD_BYTES, Usage
from holdfast.core.job import Job
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.connection import Link
from holdfast.stores.postgres.rows import Row

INT_MAX = 2**31 - 1
PAUSED = 10_000
"""The most paused queues without jobs that are counted."""


def size_of(row: Row) -> int:
    """Stored bytes of a job, from its row."""
    return len(row["payload"]) + len(row["extra"] or b"") + len(row["result"] or b"")


def size_to_be(job: Job) -> int:
    """Stored bytes of a job once it is saved."""
    extra, result = rows.pack_extra(job), rows.pack_result(job.result)
    return len(job.envelope.payload) + len(extra or b"") + len(result or b"")


class Changes(dict[int, tuple[int, int, int]]):
    """Jobs, keys and bytes (records included) by lane, added or removed."""

    def add(self, lane: int, *, jobs: int = 0, keys: int = 0, bytes_: int = 0) -> None:
        """Add a change."""
        a, b, c = self.get(lane, (0, 0, 0))
        self[lane] = (a + jobs, b + keys, c + bytes_ + RECORD_BYTES * (jobs + keys))

    def columns(self) -> tuple[list[int], ...]:
        """Lanes, jobs, keys and bytes."""
        return (list(self), *([change[n] for change in self.values()] for n in range(3)))

    def flat(self) -> list[int]:
        """The format of `usage` in a row of the log."""
        numbers: list[int] = []
        for lane, (jobs, keys, size) in self.items():
            first = max(-INT_MAX, min(size, INT_MAX))
            numbers += (lane, jobs, keys, first)
            # The column has 32-bit numbers: a purge of many large jobs takes several.
            for left in range(abs(size - first), 0, -INT_MAX):
                numbers += (lane, 0, 0, min(left, INT_MAX) * (1 if size > 0 else -1))
        return numbers


async def usage(link: Link, tenant: str) -> Usage:
    """What upkeep has counted."""
    (found,) = await link.rows("usage", tenant, PAUSED, repeat=True)
    return Usage(*found.values())
