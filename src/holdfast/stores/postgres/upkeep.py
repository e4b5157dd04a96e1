"""Expired leases, retention, the trimming of the log. [LEASE-3, KEEP-1, EVENT-2]"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import partial

from holdfast.core import lifecycle
from holdfast.core.errors import StoreBusy
from holdfast.core.job import JobKey
from holdfast.core.lifecycle import Retention
from holdfast.core.retry import spread
from holdfast.core.trimming import Excess, level
from holdfast.store import EVENTS_BOUND, EVENTS_BOUND_MS, Pruned, Reaped
from holdfast.stores.postgres import log_reads, rows
from holdfast.stores.postgres.connection import PostgresClient, PostgresSession
from holdfast.stores.postgres.lanes import LaneCache
from holdfast.stores.postgres.log import END, Position
from holdfast.stores.postgres.sql import SLOTS
from holdfast.stores.postgres.unit_of_work import Effects, UnitOfWork
from holdfast.stores.postgres.usage import COUNT_ROWS, Changes

PARTITION_BYTES = 64 << 20
"""How large a partition of the log may grow, indexes included, before the next one is used.

Seven of them are about what the longest log takes if each event has a row of its own (480 bytes).
"""
WAITERS_KEPT_MS = 600_000
"""How long waiters of workers that are gone are kept."""
TRUNCATE_LOCK_MS = 100
"""How long a truncation waits for a lock. Readers of the log wait behind it, so this is short."""


async def reap(
    session: PostgresSession, cache: LaneCache, limit: int, random: float, keep: Retention
) -> tuple[Reaped, Effects, list[int]]:
    """End expired leases, oldest deadline first. If lanes are not cached, does nothing and answers their numbers."""
    now, fingerprint = await session.value("now"), cache.fingerprint()
    found = await session.rows("lock_expired", now, limit, fingerprint)
    numbers = {row["lane"] for row in found}
    with cache.lock:
        cache.check(fingerprint)
        lanes = {number: lane for number in numbers if (lane := cache.by_number.get(number))}
    unknown = [number for number in numbers if number not in lanes]
    if unknown:
        return Reaped([], now, None), Effects(), unknown
    keys: list[JobKey] = []
    effects = Effects()
    if found:
        unit = UnitOfWork(session, cache, lanes.values(), now, await session.value("xid"))
        for row in found:
            job_row = unit.take(row, locked=True)
            chance = spread(random, len(keys))
            unit.move(job_row, partial(lifecycle.expire, job_row.job, chance, now, keep))
            keys.append(job_row.job.key)
        effects = await unit.save()
    return Reaped(keys, now, await session.value("next_deadline")), effects, []


async def forget(session: PostgresSession, cache: LaneCache, limit: int, *, blobs: bool) -> tuple[int, list[str], bool]:
    """Forget jobs past their retention, expired keys and workers. Answers how many jobs, blobs to delete, and more."""
    now = await session.value("now")
    gone = await session.rows("expired_jobs", now, limit, cache.fingerprint())
    if gone:
        await session.rows("forget_jobs", [row["seq"] for row in gone])
        await session.rows("drop_ids", *([row[name] for row in gone] for name in ("lane", "id", "seq")))
        results = [rows.to_result(row["result"]) for row in gone if row["result"] is not None]
        unneeded = [result.blob for result in results if result.blob]
        if unneeded:
            await session.rows("drop_blobs", unneeded)
    dropped = await session.rows("drop_expired_keys", now, limit)
    changes = Changes()
    for row in gone:
        changes.job(row["lane"], row["state"], None, -row["size"])
    for row in dropped:
        changes.keys(row["lane"], -1)
    if flat := changes.flat():
        await session.rows("change_usage", flat)
    await session.rows("forget_workers", now)
    await session.rows("forget_waiters", now - WAITERS_KEPT_MS)
    await session.rows("forget_waiter_queues")
    names = [row["name"] for row in await session.rows("take_blobs", limit)] if blobs else []
    more = len(names) == limit or (len(gone) == limit and await session.value("any_expired", now))
    if gone:
        await session.value("note_freed", max(row["logged"] for row in gone))
    return len(gone), names, more


async def trim(client: PostgresClient, cache: LaneCache, keep_events: int) -> int:
    """Count new rows of the log, then remove events of tenants above the level, and old ones. [EVENT-2, TENANT-5]

    Each row is read twice, in bounded steps: when it is counted, and when its events are removed or kept.
    """
    end = (await log_reads.ends(client, cache)).end
    while await client.value("count_step", *end[:3], COUNT_ROWS, True, repeat=True):
        pass
    old = await client.value("now", repeat=True) - EVENTS_BOUND_MS
    soft, hard = await _levels(client, keep_events)
    gone, more = 0, True
    while more:
        version, over = await _excess(client, soft, hard)
        positions = await _slowest(client, over)
        columns = (
            list(over), [one.soft for one in over.values()], [one.hard for one in over.values()],
            *([position[n] for position in positions] for n in range(len(Position._fields))),
        )  # fmt: skip
        (found,) = await client.rows("trim_step", version, *columns, old, COUNT_ROWS)
        events, more = found.values()
        gone += events or 0
    await _clear(client)
    return gone


async def _levels(client: PostgresClient, keep_events: int) -> tuple[int, int]:
    """The soft and hard levels: the most events a tenant may keep. Fixed for all steps of one prune."""
    found = await client.rows("events_kept", keep_events, repeat=True)
    kept = [row["events"] for row in found if row["events"] is not None]
    if not kept:
        return EVENTS_BOUND, EVENTS_BOUND
    rest = found[0]["total"] - sum(kept)
    return level(kept, keep_events - rest), level(kept, EVENTS_BOUND - rest)


async def _excess(client: PostgresClient, soft: int, hard: int) -> tuple[int, dict[str, Excess]]:
    """The tenants above the soft level, and the version of `trimming` that they were read at."""
    found = await client.rows("most_events", soft, repeat=True)
    over = {row["tenant"]: Excess(row["events"] - soft, row["events"] - hard) for row in found if row["tenant"]}
    return found[0]["version"], over


async def _slowest(client: PostgresClient, tenants: Iterable[str]) -> list[Position]:
    """For each tenant the position of its slowest reader: its own readers, and those of all tenants."""
    found = await client.rows("slowest_readers", ["", *tenants], repeat=True)
    positions = {row["tenant"]: Position(row["epoch"], row["xid"], row["n"], row["k"]) for row in found}
    return [min(positions.get("", END), positions.get(tenant, END)) for tenant in tenants]


async def _clear(client: PostgresClient) -> None:
    """Truncate partitions whose rows are all trimmed, and switch to an empty one if the one in use is large."""
    slots = await client.rows("slots", repeat=True)
    (written,) = (row for row in slots if row["written"])
    empty = [row["slot"] for row in slots if row["empty"]]
    for row in slots:
        if row["trimmed"] and row is not written:
            # A partition in use is left for the next time, so that no reader waits long behind this lock.
            with contextlib.suppress(StoreBusy):
                if await client.change(partial(_truncate, row["slot"]), lock_ms=TRUNCATE_LOCK_MS):
                    empty.append(row["slot"])
    if written["size"] >= PARTITION_BYTES and empty:
        following = min(empty, key=lambda slot: (slot - written["slot"]) % SLOTS)
        await client.rows("switch_slot", written["slot"], following, repeat=True)


async def _truncate(slot: int, session: PostgresSession) -> bool:
    await session.rows(f"lock_slot_{slot}")
    # Check again under the lock: rows may have been written meanwhile.
    trimmed: bool = await session.value(f"slot_is_trimmed_{slot}")
    if trimmed:
        await session.rows(f"truncate_slot_{slot}")
    return trimmed


async def prune(client: PostgresClient, cache: LaneCache, limit: int, keep_events: int, *, blobs: bool) -> Pruned:
    """Forget jobs past their retention, never waiting or leased ones, and trim the log. [KEEP-1]"""
    jobs, names, more = await client.change(lambda session: forget(session, cache, limit, blobs=blobs))
    return Pruned(jobs, await trim(client, cache, keep_events), names, more)
