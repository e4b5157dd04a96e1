"""Counts of what tenants keep, and of the jobs of each queue by state. [TENANT-5]

Each call puts its changes into its row of the log. Upkeep adds them up, in the transaction that moves the mark of
counted rows: no row is updated by every call. Counts of jobs are read with the changes that are not added up yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.budgets import RECORD_BYTES, Usage
from holdfast.core.codes import STATE_CODES, STATES
from holdfast.core.job import Job
from holdfast.store import QueueStats
from holdfast.stores.postgres import log_reads, rows
from holdfast.stores.postgres.connection import PostgresClient
from holdfast.stores.postgres.lanes import LaneCache
from holdfast.stores.postgres.rows import Row

INT_MAX = 2**31 - 1
COUNT_ROWS = 2000
"""How many rows of the log one statement counts, or looks through to trim it."""
MAX_UNCOUNTED = 1000
"""If a read finds more uncounted changes than this, it counts some of them, so that the next read is faster."""
SCAN_LIMIT = 10_000
"""To tell due jobs from later ones, a page of queues reads at most this many of each."""
EXPIRED_LIMIT = 1000
"""The most jobs past their retention, not pruned yet, that are subtracted from a count."""
PAUSED = 10_000
"""The most paused queues without jobs that are counted."""


def size_of(row: Row) -> int:
    """Stored bytes of a job, from its row."""
    return len(row["payload"]) + len(row["extra"] or b"") + len(row["result"] or b"")


def size_to_be(job: Job) -> int:
    """Stored bytes of a job once it is saved."""
    extra, result = rows.pack_extra(job), rows.pack_result(job.result)
    return len(job.envelope.payload) + len(extra or b"") + len(result or b"")


class Changes:
    """Changes of the counts of lanes: keys, bytes (records included), and jobs by state."""

    def __init__(self) -> None:
        self._lanes: dict[int, list[int]] = {}
        """By lane: keys, bytes, and the jobs of each state in the order of their codes."""

    def job(self, lane: int, before: int | None, after: int | None, bytes_: int = 0) -> None:
        """A job changes its state, by code, and its size. `before` None: it is new; `after` None: it is removed."""
        if before == after and not bytes_:
            return
        change = self._lane(lane)
        change[1] += bytes_
        if before is not None:
            change[2 + before] -= 1
            change[1] -= RECORD_BYTES
        if after is not None:
            change[2 + after] += 1
            change[1] += RECORD_BYTES

    def keys(self, lane: int, more: int) -> None:
        """Keys that outlive their jobs were bound or dropped."""
        change = self._lane(lane)
        change[0] += more
        change[1] += RECORD_BYTES * more

    def _lane(self, lane: int) -> list[int]:
        return self._lanes.setdefault(lane, [0] * (2 + len(STATE_CODES)))

    def flat(self) -> list[int]:
        """The format of `usage` in a row of the log, see usage_rows() in migrations/. Empty: nothing changed."""
        numbers: list[int] = []
        for lane, (keys, size, *states) in self._lanes.items():
            first = max(-INT_MAX, min(size, INT_MAX))
            numbers += (lane, keys, first, *states)
            # The column has 32-bit numbers: a purge of many large jobs takes several.
            for left in range(abs(size - first), 0, -INT_MAX):
                numbers += (lane, 0, min(left, INT_MAX) * (1 if size > 0 else -1), *(0 for _ in states))
        return numbers


async def usage(client: PostgresClient, tenant: str) -> Usage:
    """What upkeep has counted."""
    (found,) = await client.rows("usage", tenant, PAUSED, repeat=True)
    return Usage(*found.values())


async def count_jobs(
    client: PostgresClient, cache: LaneCache, queues: Sequence[Row], *, used: bool = False
) -> list[QueueStats]:
    """The jobs of these queues by state, as shown now. The work is bounded for any number of jobs, see ADR 23.

    `used`: leave out queues that are not paused and store no jobs. Jobs that wait to be pruned count as stored.
    """
    if not queues:
        return []
    lanes = [row["lane"] for row in queues]
    found = await client.rows("count_jobs", lanes, SCAN_LIMIT // len(lanes), EXPIRED_LIMIT, repeat=True)
    if found[0]["uncounted"] > MAX_UNCOUNTED:
        end = (await log_reads.ends(client, cache)).end
        await client.value("count_step", *end[:3], COUNT_ROWS, False, repeat=True)
    by_lane = {row["lane"]: row for row in found}
    stats: list[QueueStats] = []
    for queue in queues:
        row = by_lane[queue["lane"]]
        if row["stored"] or queue["paused"] or not used:
            counts = dict(zip(STATES, row["counts"], strict=True))
            stats.append(QueueStats(queue["queue"], counts, row["oldest"], paused=queue["paused"], now=row["now"]))
    return stats
