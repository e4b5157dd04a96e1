"""Expired leases, retention, the trimming of the log. [LEASE-3, KEEP-1, EVENT-2]"""

from __future__ import annotations

import contextlib
from functools import partial

from holdfast.core import lifecycle
from holdfast.core.errors import StoreBusy
from holdfast.core.job import JobKey
from holdfast.core.lifecycle import Retention
from holdfast.core.retry import spread
from holdfast.store import EVENTS_BOUND, EVENTS_BOUND_MS, Pruned, Reaped
from holdfast.stores.postgres import reads, rows
from holdfast.stores.postgres.lanes import Memory
from holdfast.stores.postgres.link import Link, Session
from holdfast.stores.postgres.log import Place
from holdfast.stores.postgres.unit import News, Unit

SLOT_BITS = 14
"""The numbers of a partition's rows agree but for that many bits, see the function `log`."""


async def reap(
    session: Session, memory: Memory, limit: int, random: float, keep: Retention
) -> tuple[Reaped, News, list[int]]:
    """End expired leases, oldest deadline first. Answers lanes instead if some are not known yet, and did nothing."""
    now = await session.value("now")
    found = await session.rows("hold_expired", now, limit)
    unknown = [row["lane"] for row in found if row["lane"] not in memory.by_number]
    if unknown:
        return Reaped([], now, None), News(), unknown
    keys: list[JobKey] = []
    news = News()
    if found:
        unit = Unit(session, memory, now, await session.value("xid"))
        for row in found:
            held = unit.take(row)
            chance = spread(random, len(keys))
            unit.move(held, partial(lifecycle.expire, held.job, chance, now, keep))
            keys.append(held.job.key)
        news = await unit.save()
    return Reaped(keys, now, await session.value("next_deadline")), news, []


async def forget(session: Session, limit: int, *, blobs: bool) -> tuple[int, list[str], bool]:
    """Forget jobs past their retention, expired keys and workers: how many, blobs to delete, and if more are left."""
    now = await session.value("now")
    gone = await session.rows("forgotten_jobs", now, limit)
    if gone:
        await session.rows("forget_jobs", [row["seq"] for row in gone])
        await session.rows("drop_ids", [row["lane"] for row in gone], [row["id"] for row in gone])
        await session.value("free", max(row["logged"] for row in gone))
        results = [rows.to_result(row["result"]) for row in gone if row["result"] is not None]
        dropped = [result.blob for result in results if result.blob]
        if dropped:
            await session.rows("drop_blobs", dropped)
    await session.rows("drop_expired_keys", now, limit)
    await session.rows("forget_workers", now)
    names = [row["name"] for row in await session.rows("take_blobs", limit)] if blobs else []
    more = len(names) == limit or (len(gone) == limit and await session.value("any_forgotten", now))
    return len(gone), names, more


async def trim(link: Link, keep_events: int) -> int:
    """Cut the log where nobody needs it: behind the slowest reader, but never later than the bounds. Whole rows go."""
    ends = await reads.ends(link)
    if ends.end <= ends.trimmed:
        return 0
    now = await link.value("now", repeat=True)
    slowest = [Place(*row.values()) for row in await link.rows("slowest_reader", repeat=True)]
    cut: Place | None = None
    gone = 0
    for row in await link.rows("log_sizes", *ends.trimmed[:3], *ends.end[:3], repeat=True):
        place = Place(row["epoch"], row["xid"], row["n"], row["count"])
        newer = int(row["newer"])
        seen = not slowest or place <= slowest[0]
        may_go = newer >= keep_events and seen
        must_go = newer >= EVENTS_BOUND or row["at"] <= now - EVENTS_BOUND_MS
        if not (may_go or must_go):
            break
        cut = place
        gone += row["count"]
    if cut is None:
        return 0
    await link.rows("set_trimmed", *cut, repeat=True)
    await _truncate(link, cut)
    return gone


async def _truncate(link: Link, cut: Place) -> None:
    """Empty the partitions that hold nothing but what is past. One that somebody still uses waits for the next time."""
    found = await link.rows("slots", *cut[:3], repeat=True)
    if not found:
        return
    newest = max(row["last"] for row in found)
    for row in found:
        # Never the one that is written to now, nor its successor.
        ahead = newest >> SLOT_BITS > row["last"] >> SLOT_BITS
        if row["past"] and ahead:
            with contextlib.suppress(StoreBusy):
                await link.change(partial(_truncate_slot, row["slot"], cut))


async def _truncate_slot(slot: int, cut: Place, session: Session) -> None:
    await session.rows(f"lock_slot_{slot}")
    # What was being written until we had the lock may be newer than what is past.
    if await session.value(f"slot_is_past_{slot}", *cut[:3]):
        await session.rows(f"truncate_slot_{slot}")


async def prune(link: Link, limit: int, keep_events: int, *, blobs: bool) -> Pruned:
    """Forget what is past its retention. Waiting and leased jobs never are. [KEEP-1]"""
    jobs, names, more = await link.change(lambda session: forget(session, limit, blobs=blobs))
    return Pruned(jobs, await trim(link, keep_events), names, more)
