"""What tenants keep: what a change adds to it, and what upkeep has counted. [TENANT-5]

A call says in its row of the log what came and went. Upkeep adds that up, in the transaction that moves on the mark of
what is counted: no other row is written by everybody.
"""

from __future__ import annotations

from holdfast.core.budgets import RECORD_BYTES, Usage
from holdfast.core.job import Job
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.link import Link
from holdfast.stores.postgres.rows import Row

PAUSED = 10_000
"""How many paused queues without jobs are looked at."""


def size_of(row: Row) -> int:
    """The bytes of a job as it is stored."""
    return len(row["payload"]) + len(row["extra"] or b"") + len(row["result"] or b"")


def size_to_be(job: Job) -> int:
    """The bytes of a job as it will be stored."""
    extra, result = rows.pack_extra(job), rows.pack_result(job.result)
    return len(job.envelope.payload) + len(extra or b"") + len(result or b"")


class Changes(dict[int, tuple[int, int, int]]):
    """What came and went, by lane: jobs, keys and bytes, with those of their records."""

    def add(self, lane: int, *, jobs: int = 0, keys: int = 0, bytes_: int = 0) -> None:
        """Count in some more."""
        a, b, c = self.get(lane, (0, 0, 0))
        self[lane] = (a + jobs, b + keys, c + bytes_ + RECORD_BYTES * (jobs + keys))

    def columns(self) -> tuple[list[int], ...]:
        """Lanes, jobs, keys and bytes."""
        return (list(self), *([change[n] for change in self.values()] for n in range(3)))

    def flat(self) -> list[int]:
        """As a row of the log has them."""
        return [number for lane, change in self.items() for number in (lane, *change)]


async def usage(link: Link, tenant: str) -> Usage:
    """What upkeep has counted."""
    (found,) = await link.rows("usage", tenant, PAUSED, repeat=True)
    return Usage(*found.values())
