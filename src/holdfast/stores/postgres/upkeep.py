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
from holdfast.stores.postgres.connection import Link, Session
from holdfast.stores.postgres.lanes import Memory
from holdfast.stores.postgres.log import END, Place
from holdfast.stores.postgres.sql import SLOTS
from holdfast.stores.postgres.unit_of_work import News, Unit
from holdfast.stores.postgres.usage import COUNT_ROWS, Changes

PARTITION_BYTES = 64 << 20
"""How large a partition of the log is, indexes included, before the next one is written to.

Seven of them are about what the longest log takes if each event has a row of its own (480 bytes).
"""
OFFERS_KEPT_MS = 600_000
"""How long offers of workers that are gone are kept at most, where no enqueue meets them."""
TRUNCATE_LOCK_MS = 100
"""How long readers of the log wait behind us for somebody who still writes to a partition that is past."""


async def reap(
    session: Session, memory: Memory, limit: int, random: float, keep: Retention
) -> tuple[Reaped, News, list[int]]:
    """End expired leases, oldest deadline first. Answers lanes instead if some are not known yet, and did nothing."""
    now, known = await session.value("now"), memory.known()
    found = await session.rows("hold_expired", now, limit, known)
    numbers = {row["lane"] for row in found}
    with memory.lock:
        memory.check(known)
        lanes = {number: lane for number in numbers if (lane := memory.by_number.get(number))}
    unknown = [number for number in numbers if number not in lanes]
    if unknown:
        return Reaped([], now, None), News(), unknown
    keys: list[JobKey] = []
    news = News()
    if found:
        unit = Unit(session, memory, lanes.values(), now, await session.value("xid"))
        for row in found:
            held = unit.take(row, locked=True)
            chance = spread(random, len(keys))
            unit.move(held, partial(lifecycle.expire, held.job, chance, now, keep))
            keys.append(held.job.key)
        news = await unit.save()
    return Reaped(keys, now, await session.value("next_deadline")), news, []


async def forget(session: Session, memory: Memory, limit: int, *, blobs: bool) -> tuple[int, list[str], bool]:
    """Forget jobs past their retention, expired keys and workers: how many, blobs to delete, and if more are left."""
    now = await session.value("now")
    gone = await session.rows("forgotten_jobs", now, limit, memory.known())
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
    await session.rows("forget_offers", now - OFFERS_KEPT_MS)
    await session.rows("forget_offer_places")
    names = [row["name"] for row in await session.rows("take_blobs", limit)] if blobs else []
    more = len(names) == limit or (len(gone) == limit and await session.value("any_forgotten", now))
    if gone:
        await session.value("free", max(row["logged"] for row in gone))
    return len(gone), names, more


async def trim(link: Link, memory: Memory, keep_events: int) -> int:
    """Count new rows of the log, then remove events of tenants above the level, and old ones. [EVENT-2, TENANT-5]

    Each row is read twice, in bounded steps: when it is counted, and when its events are removed or kept.
    """
    end = (await log_reads.ends(link, memory)).end
    while await link.value("count_stretch", *end[:3], COUNT_ROWS, repeat=True):
        pass
    old = await link.value("now", repeat=True) - EVENTS_BOUND_MS
    soft, hard = await _levels(link, keep_events)
    gone, more = 0, True
    while more:
        version, over = await _excess(link, soft, hard)
        places = await _slowest(link, over)
        columns = (
            list(over), [one.soft for one in over.values()], [one.hard for one in over.values()],
            *([place[n] for place in places] for n in range(len(Place._fields))),
        )  # fmt: skip
        (found,) = await link.rows("trim_stretch", version, *columns, old, COUNT_ROWS)
        events, more = found.values()
        gone += events or 0
    await _clear(link)
    return gone


async def _levels(link: Link, keep_events: int) -> tuple[int, int]:
    """The soft and hard levels: the most events a tenant may keep. Fixed for all steps of one prune."""
    found = await link.rows("events_kept", keep_events, repeat=True)
    kept = [row["events"] for row in found if row["events"] is not None]
    if not kept:
        return EVENTS_BOUND, EVENTS_BOUND
    rest = found[0]["total"] - sum(kept)
    return level(kept, keep_events - rest), level(kept, EVENTS_BOUND - rest)


async def _excess(link: Link, soft: int, hard: int) -> tuple[int, dict[str, Excess]]:
    """The tenants above the soft level, and the version of `trimming` that they were read at."""
    found = await link.rows("most_events", soft, repeat=True)
    over = {row["tenant"]: Excess(row["events"] - soft, row["events"] - hard) for row in found if row["tenant"]}
    return found[0]["version"], over


async def _slowest(link: Link, tenants: Iterable[str]) -> list[Place]:
    """For each tenant the place of its slowest reader: its own readers, and those of all tenants."""
    found = await link.rows("slowest_readers", ["", *tenants], repeat=True)
    places = {row["tenant"]: Place(row["epoch"], row["xid"], row["n"], row["k"]) for row in found}
    return [min(places.get("", END), places.get(tenant, END)) for tenant in tenants]


async def _clear(link: Link) -> None:
    """Empty the partitions that hold nothing but what is past, and go on to an empty one if that in use is large."""
    slots = await link.rows("slots", repeat=True)
    (written,) = (row for row in slots if row["written"])
    empty = [row["slot"] for row in slots if row["empty"]]
    for row in slots:
        if row["past"] and row is not written:
            # One that somebody still uses waits for the next time, and so does nobody who comes after us.
            with contextlib.suppress(StoreBusy):
                if await link.change(partial(_truncate, row["slot"]), lock_ms=TRUNCATE_LOCK_MS):
                    empty.append(row["slot"])
    if written["size"] >= PARTITION_BYTES and empty:
        following = min(empty, key=lambda slot: (slot - written["slot"]) % SLOTS)
        await link.rows("turn", written["slot"], following, repeat=True)


async def _truncate(slot: int, session: Session) -> bool:
    await session.rows(f"lock_slot_{slot}")
    # What was being written until we had the lock may be newer than what is past.
    past: bool = await session.value(f"slot_is_past_{slot}")
    if past:
        await session.rows(f"truncate_slot_{slot}")
    return past


async def prune(link: Link, memory: Memory, limit: int, keep_events: int, *, blobs: bool) -> Pruned:
    """Forget what is past its retention. Waiting and leased jobs never are. [KEEP-1]"""
    jobs, names, more = await link.change(lambda session: forget(session, memory, limit, blobs=blobs))
    return Pruned(jobs, await trim(link, memory, keep_events), names, more)
