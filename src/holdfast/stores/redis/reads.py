"""Reads jobs by name, and lists and counts page by page: jobs, queues, tenants, purges."""

from __future__ import annotations

import re
import struct
from collections.abc import AsyncIterator, Sequence
from typing import Any

from holdfast.core import lifecycle
from holdfast.core.codes import STATE_CODES
from holdfast.core.errors import InvalidOption
from holdfast.core.explain import OTHERS_LIMIT, Standing
from holdfast.core.job import TERMINAL, WAITING, Job, JobKey, JobState, NewJob, PurgeCount
from holdfast.core.listing import GROWTH, cursor_text
from holdfast.paging import QUEUES_READ, name_cursor, tenant_cursor, tenant_page_of
from holdfast.store import PAGE_LIMIT, ListQuery, Page, PurgePage, QueuePage, QueueStats, TenantPage
from holdfast.stores.redis import records
from holdfast.stores.redis.keys import lane_of
from holdfast.stores.redis.layout import NONE, PRIORITY_BAND
from holdfast.stores.redis.records import encode
from holdfast.stores.redis.shards import Shards

READ_LIMIT = 500
"""The most jobs that one script reads."""
READ_BYTES = 2 * 1024 * 1024
"""The approximate limit of bytes that one script reads."""

_ORDERS: tuple[tuple[frozenset[JobState], str], ...] = (
    (WAITING, "w"),
    (frozenset({JobState.LEASED}), "l"),
    (TERMINAL, ""),
)
"""The three orders of a list: their states, and the sorted set; ended jobs have one for each state."""
_COUNTED = (
    JobState.SCHEDULED, JobState.READY, JobState.RETRYING, JobState.LEASED,
    JobState.COMPLETED, JobState.FAILED, JobState.CANCELED,
)  # fmt: skip
"""The states in the order of the counts of `stats.lua`."""
_CURSOR = re.compile(r"([0-2])\.([0-9]{1,16})\.((?:[0-9a-f]{2})+)")
_PURGE_CURSOR = re.compile(r"([0-9]{1,5})\.([0-9]{1,20})", re.ASCII)
_PURGE_COUNT = struct.Struct("<QQ")


async def get(shards: Shards, keys: Sequence[JobKey]) -> list[Job | None]:
    """Read jobs, without large payloads. A missing or forgotten job is None."""

    def pack(piece: Sequence[JobKey]) -> tuple[bytes]:
        return (encode([(lane_of(key.tenant, key.queue), key.id) for key in piece]),)

    answers = await shards.run_batch("get", keys, lambda key: key.tenant, pack, repeat=True)
    return [_shown(key, raw, now) for key, (now, raw) in zip(keys, answers, strict=True)]


async def standing(shards: Shards, key: JobKey) -> Standing | None:
    """What a job waits for in its queue, without a large payload. All shards count the tenants that take turns."""
    answers = await shards.run_on_all("standing", encode(key))
    now, raw, paused, ahead, _ = answers[shards.of(key.tenant)]
    job = _shown(key, raw, now)
    if job is None:
        return None
    others = sum(answer[4] for answer in answers) if job.state is JobState.READY else 0
    return Standing(job, now, bool(paused), ahead, min(others, OTHERS_LIMIT + 1))


def _shown(key: JobKey, raw: bytes | None, now: int) -> Job | None:
    job = None if raw is None else records.to_job(*key, raw)
    if job is None or lifecycle.forgotten(job, now):
        return None
    job.state = lifecycle.shown(job, now)
    return job


async def key_holders(shards: Shards, items: Sequence[NewJob]) -> list[str | None]:
    """The ids of the jobs that hold the idempotency keys of these items; None if a key is free."""

    def pack(piece: Sequence[NewJob]) -> tuple[bytes]:
        return (encode([(lane_of(*item.key[:2]), records.key_field(item.envelope)) for item in piece]),)

    holders = await shards.run_batch("key_holders", items, lambda item: item.key.tenant, pack, repeat=True)
    return [None if holder is None else holder.decode() for holder in holders]


async def list_jobs(shards: Shards, query: ListQuery) -> Page:
    """A page: waiting jobs in claim order, then leased by deadline, then ended by time; or all by time.

    Without large payloads.
    """
    jobs: list[Job] = []
    cursor = query.cursor
    scanned = now = 0
    async for now, part in (_read_back if query.newest else _read)(shards, query):
        for place, job in part:
            scanned += 1
            if job is not None and query.matches(job, now):
                if len(jobs) == query.limit:
                    return Page(jobs, cursor, now)
                job.state = lifecycle.shown(job, now)
                jobs.append(job)
                cursor = place
            elif scanned >= query.scan:
                return Page(jobs, place, now)
    return Page(jobs, None, now)


async def _read(shards: Shards, query: ListQuery) -> AsyncIterator[tuple[int, list[tuple[str, Job | None]]]]:
    """The jobs of a lane after the cursor, in parts, each job with its own cursor."""
    start, score, member = _parse_cursor(query.cursor)
    shard = shards.of(query.tenant)
    lane = lane_of(query.tenant, query.queue)
    for order, (states, name) in enumerate(_ORDERS):
        wanted = query.states & states
        if order < start or not wanted:
            continue
        if order > start:
            member = b""
        sets = [name] if name else sorted(STATE_CODES[state] for state in wanted)
        more = True
        while more:
            request = encode((lane, sets, score if member else False, min(query.limit + 1, READ_LIMIT), READ_BYTES))
            now, more, *found = await shards.run("list", shard, request, member)
            part: list[tuple[str, Job | None]] = []
            for at in range(0, len(found), 3):
                score, member, raw = int(found[at]), found[at + 1], found[at + 2]
                job = records.to_job(query.tenant, query.queue, member[7:].decode(), raw) if raw else None
                part.append((f"{order}.{score}.{member.hex()}", job))
            yield now, part


async def _read_back(shards: Shards, query: ListQuery) -> AsyncIterator[tuple[int, list[tuple[str, Job | None]]]]:
    """The jobs of a lane by time, the latest first, in parts, each job with its own cursor."""
    time, seq = query.before()
    lane = lane_of(query.tenant, query.queue)
    ranges: list[tuple[Any, int]] = []
    if query.states & WAITING:
        ranges += [("w", rank * PRIORITY_BAND) for rank in range(10)]
    if JobState.LEASED in query.states:
        ranges.append(("l", 0))
    ranges += [(STATE_CODES[state], 0) for state in sorted(query.states & TERMINAL)]
    count, more = query.limit + 1, bool(ranges)
    while more:
        count = min(count, READ_LIMIT)
        request = encode((lane, ranges, time, count, READ_BYTES, query.since or 0))
        now, more, *found = await shards.run("newest", shards.of(query.tenant), request, seq.to_bytes(7, "big"))
        part: list[tuple[str, Job | None]] = []
        for at in range(0, len(found), 3):
            time, member, raw = int(found[at]), found[at + 1], found[at + 2]
            seq = int.from_bytes(member[:7], "big")
            job = records.to_job(query.tenant, query.queue, member[7:].decode(), raw) if raw else None
            part.append((cursor_text((time, seq)), job))
        yield now, part
        count *= GROWTH  # Few match: read more at once.


def _parse_cursor(cursor: str | None) -> tuple[int, int, bytes]:
    if cursor is None:
        return 0, 0, b""
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InvalidOption("cursor", f"{cursor!r} did not come from a list")
    return int(match[1]), int(match[2]), bytes.fromhex(match[3])


async def queue_page(shards: Shards, tenant: str, cursor: str | None, limit: int) -> QueuePage:
    """The counts of some of a tenant's queues."""
    request = encode((tenant, False, name_cursor(cursor), min(limit, PAGE_LIMIT)))
    now, following, *found = await shards.run("stats", shards.of(tenant), request)
    return QueuePage(_stats(now, found), following.decode() or None)


async def stats(shards: Shards, tenant: str, queues: Sequence[str]) -> list[QueueStats]:
    """The counts of the first of these queues: of all, unless many ended jobs wait to be pruned."""
    now, _, *found = await shards.run("stats", shards.of(tenant), encode((tenant, queues, "", len(queues))))
    return _stats(now, found)


def _stats(now: int, found: list[Any]) -> list[QueueStats]:
    stats: list[QueueStats] = []
    for name, (paused, oldest, *counts) in zip(found[::2], found[1::2], strict=True):
        numbers = dict.fromkeys(JobState, 0) | dict(zip(_COUNTED, counts, strict=True))
        oldest_at = None if oldest == NONE else oldest
        stats.append(QueueStats(name.decode(), numbers, oldest_at, paused=bool(paused), now=now))
    return stats


async def tenant_page(shards: Shards, cursor: str | None, limit: int) -> TenantPage:
    """Some tenants of all shards. Each shard reads up to some tenant; the page ends at the first of these tenants."""
    request = encode((*tenant_cursor(cursor), min(limit, PAGE_LIMIT), QUEUES_READ))
    answers = await shards.run_on_all("tenants", request)
    stops = [(tenant.decode(), queue.decode()) for tenant, queue, *_ in answers if tenant]
    names = [name.decode() for _, _, *found in answers for name in found]
    return tenant_page_of(names, (), min(stops, default=None), limit)


async def purge_counts(shards: Shards, tenant: str | None, cursor: str | None, limit: int) -> PurgePage:
    """How many jobs were purged, by tenant. A cursor has a shard and a cursor of its hash. [EVENT-1]"""
    shard, place = _parse_purge_cursor(shards, cursor)
    if tenant is not None:
        shard = shards.of(tenant)
    following, *found = await shards.run("purge_counts", shard, encode((tenant or "", place, min(limit, PAGE_LIMIT))))
    pairs = zip(found[::2], found[1::2], strict=True)
    counts = [PurgeCount(name.decode(), *_PURGE_COUNT.unpack(raw)) for name, raw in pairs]
    place = following.decode()
    if place == "0":
        shard += 1
    return PurgePage(counts, None if tenant is not None or shard == shards.count else f"{shard}.{place}")


def _parse_purge_cursor(shards: Shards, cursor: str | None) -> tuple[int, str]:
    if cursor is None:
        return 0, "0"
    match = _PURGE_CURSOR.fullmatch(cursor)
    if match is None or int(match[1]) >= shards.count:
        raise InvalidOption("cursor", f"{cursor!r} did not come from a list")
    return int(match[1]), match[2]
