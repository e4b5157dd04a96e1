"""Reading jobs: get, lists, counts, pages of queues, tenants and workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from msgspec.json import Decoder
from msgspec.structs import replace

from holdfast.core import lifecycle
from holdfast.core.errors import InvalidOption
from holdfast.core.explain import AHEAD_LIMIT, OTHERS_LIMIT, OTHERS_SCAN, Standing
from holdfast.core.job import TERMINAL, WAITING, Job, JobKey, JobState, NewJob, PurgeCount
from holdfast.core.listing import GROWTH, Place, cursor_text
from holdfast.core.names import check_id
from holdfast.paging import (
    AFTER_ALL,
    QUEUES_READ,
    Part,
    merged,
    name_cursor,
    segment_cursor,
    tenant_cursor,
    tenant_page_of,
)
from holdfast.store import (
    PAGE_LIMIT,
    ListQuery,
    Page,
    PurgePage,
    QueuePage,
    QueueStats,
    TenantPage,
    WorkerInfo,
    WorkerPage,
)
from holdfast.stores.postgres import rows, usage
from holdfast.stores.postgres.connection import PostgresClient
from holdfast.stores.postgres.lanes import LaneCache, TenantLane

MAX_ROWS = 500
"""The most jobs that one statement reads."""

_SEGMENTS: tuple[tuple[str, frozenset[JobState], tuple[int, ...], tuple[str, ...]], ...] = (
    ("list_waiting", WAITING, (-1, 0, 0), ("rank", "visible_at", "seq")),
    ("list_leased", frozenset({JobState.LEASED}), (-1, 0), ("deadline", "seq")),
    ("list_ended", TERMINAL, (-1, 0), ("finished_at", "seq")),
)


_decode_worker = Decoder(WorkerInfo).decode
_DEAD = frozenset({JobState.FAILED})


async def lane_of(client: PostgresClient, cache: LaneCache, tenant: str, queue: str) -> TenantLane | None:
    """The lane of these names, if there is one."""
    lane = cache.find(tenant, queue)
    if lane is None:
        fingerprint = cache.fingerprint()
        for row in await client.rows("find_lanes", [tenant], [queue], fingerprint, repeat=True):
            lane = cache.learn(fingerprint, *row.values())
    return lane


async def lanes_of(
    client: PostgresClient, cache: LaneCache, names: Sequence[tuple[str, str]]
) -> list[TenantLane | None]:
    """The lane of each of these tenants and queues, if there is one."""
    lanes = {pair: cache.find(*pair) for pair in dict.fromkeys(names)}
    unknown = [pair for pair, lane in lanes.items() if lane is None]
    if unknown:
        tenants, queues = [tenant for tenant, _ in unknown], [queue for _, queue in unknown]
        fingerprint = cache.fingerprint()
        for row in await client.rows("find_lanes", tenants, queues, fingerprint, repeat=True):
            lane = cache.learn(fingerprint, *row.values())
            lanes[lane.tenant, lane.queue] = lane
    return [lanes[pair] for pair in names]


async def get(client: PostgresClient, cache: LaneCache, keys: Sequence[JobKey]) -> list[Job | None]:
    """Jobs by key, as shown now."""
    found: list[Job | None] = [None] * len(keys)
    positions: list[int] = []
    lanes: list[TenantLane] = []
    for n, lane in enumerate(await lanes_of(client, cache, [key[:2] for key in keys])):
        if lane is not None:
            positions.append(n)
            lanes.append(lane)
    if not positions:
        return found
    numbers = [lane.number for lane in lanes]
    for row in await client.rows(
        "find", numbers, [keys[n].id for n in positions], cache.fingerprint(lanes), repeat=True
    ):
        n = positions[cast("int", row["i"]) - 1]
        job = rows.to_job(row, keys[n].tenant, keys[n].queue)
        now: int = row["now"]
        if not lifecycle.forgotten(job, now):
            found[n] = _shown(job, now)
    return found


async def standing(client: PostgresClient, cache: LaneCache, key: JobKey) -> Standing | None:
    """What a job waits for in its queue. [TENANT-2]"""
    lane = await lane_of(client, cache, key.tenant, key.queue)
    if lane is None:
        return None
    limits = (AHEAD_LIMIT + 1, OTHERS_LIMIT + 1, OTHERS_SCAN)
    fingerprint = cache.fingerprint([lane])
    for row in await client.rows("standing", lane.queue_id, lane.number, key.id, fingerprint, *limits, repeat=True):
        job = rows.to_job(row, key.tenant, key.queue)
        if not lifecycle.forgotten(job, row["now"]):
            return Standing(_shown(job, row["now"]), row["now"], row["paused"], row["ahead"], row["others"])
    return None


async def key_holders(client: PostgresClient, cache: LaneCache, items: Sequence[NewJob]) -> list[str | None]:
    """The ids of the jobs that hold the items' idempotency keys. [ENQ-3]"""
    lanes = await lanes_of(client, cache, [item.key[:2] for item in items])
    keys = [item.envelope.idempotency.key if item.envelope.idempotency else "" for item in items]
    scopes = [
        (lane.number if lane else 0, item.envelope.type, key)
        for lane, item, key in zip(lanes, items, keys, strict=True)
    ]
    known = [lane for lane in lanes if lane is not None]
    if not known:
        return [None] * len(items)
    columns = [list(column) for column in zip(*scopes, strict=True)]
    holders: dict[tuple[int, str, str], str] = {}
    for row in await client.rows("find_keys", *columns, cache.fingerprint(known), repeat=True):
        if row["expires_at"] is None or row["expires_at"] > row["now"]:
            holders[row["lane"], row["type"], row["key"]] = row["job_id"]
    return [holders.get(scope) for scope in scopes]


async def list_jobs(client: PostgresClient, cache: LaneCache, query: ListQuery) -> Page:
    """A page: waiting in claim order, then leased by deadline, then ended by time; or all by time."""
    now = await client.value("now", repeat=True)
    lane = await lane_of(client, cache, query.tenant, query.queue)
    if lane is None:
        return Page([], None, now)
    jobs: list[Job] = []
    cursor = query.cursor
    scanned = 0
    walk = _walk_back if query.newest else _walk
    async for position, job in walk(client, lane, cache.fingerprint([lane]), query):
        scanned += 1
        if query.matches(job, now):
            if len(jobs) == query.limit:
                return Page(jobs, cursor, now)
            jobs.append(_shown(job, now))
            cursor = position
        elif scanned >= query.scan:
            return Page(jobs, position, now)
    return Page(jobs, None, now)


async def _walk(
    client: PostgresClient, lane: TenantLane, fingerprint: str, query: ListQuery
) -> AsyncIterator[tuple[str, Job]]:
    """The jobs of a lane from the cursor on, each with the cursor of its position."""
    start, after = segment_cursor(query.cursor)
    for number, (name, states, first, columns) in enumerate(_SEGMENTS):
        if number < start or not query.states & states:
            continue
        position = after if number == start and after else first
        if len(position) != len(first):
            raise InvalidOption("cursor", f"{query.cursor!r} did not come from a list")
        statement = "list_dead" if query.states & states == _DEAD else name
        size = min(query.limit + 1, MAX_ROWS)
        while True:
            found = await client.rows(statement, lane.queue_id, lane.number, *position, size, fingerprint, repeat=True)
            for row in found:
                position = tuple(row[column] for column in columns)
                yield ".".join(map(str, (number, *position))), rows.to_job(row, query.tenant, query.queue)
            if len(found) < size:
                break


async def _walk_back(
    client: PostgresClient, lane: TenantLane, fingerprint: str, query: ListQuery
) -> AsyncIterator[tuple[str, Job]]:
    """The jobs of a lane by time, the latest first, each with its own cursor."""
    sizes: dict[str, int] = {}
    lists: list[tuple[str, str]] = []
    if query.states & WAITING:
        lists.append(("newest_waiting", "visible_at"))
    if JobState.LEASED in query.states:
        lists.append(("newest_leased", "deadline"))
    if ended := query.states & TERMINAL:
        lists.append(("newest_dead" if ended == _DEAD else "newest_ended", "finished_at"))

    async def read(statement: str, column: str, before: Place) -> Part[Mapping[str, Any]]:
        size = min(sizes.get(statement, query.limit + 1), MAX_ROWS)
        bounds = (lane.queue_id, lane.number, *before, query.since or 0, size)
        found = await client.rows(statement, *bounds, fingerprint, repeat=True)
        sizes[statement] = size * GROWTH  # Few match: read more at once.
        items = [((row[column], row["seq"]), row) for row in found]
        return items, items[-1][0] if len(items) == size else None

    async for place, row in merged([partial(read, *one) for one in lists], query.before()):
        if row is not None:
            yield cursor_text(place), rows.to_job(row, query.tenant, query.queue)


async def queue_page(
    client: PostgresClient, cache: LaneCache, tenant: str, cursor: str | None, limit: int
) -> QueuePage:
    """Reads up to PAGE_LIMIT queues, and leaves out those without jobs that are not paused."""
    limit = min(limit, PAGE_LIMIT)
    found = await client.rows("queues_after", tenant, name_cursor(cursor), limit, repeat=True)
    used = await usage.count_jobs(client, cache, found, used=True)
    return QueuePage(used, found[-1]["queue"] if len(found) == limit else None)


async def tenant_page(client: PostgresClient, cursor: str | None, limit: int) -> TenantPage:
    """Tenants with jobs or settings. Reads a bounded number of queues."""
    tenant, queue = tenant_cursor(cursor)
    limit = min(limit, PAGE_LIMIT)
    arguments = (tenant, queue or AFTER_ALL, AFTER_ALL, limit, QUEUES_READ)
    looks = await client.rows("lanes_after", *arguments, repeat=True)
    names = [row["tenant"] for row in looks if row["used"]]
    stop: tuple[str, str] | None = None
    if len(names) == limit or len(looks) == QUEUES_READ:
        last = looks[-1]
        stop = (last["tenant"], "" if last["used"] else last["queue"])
    again = tenant if queue else None  # The last page did not finish this tenant.
    settings = await client.rows("tenants_with_settings", tenant, again, limit + 1, repeat=True)
    return tenant_page_of(names, [row["tenant"] for row in settings], stop, limit)


async def purge_counts(client: PostgresClient, tenant: str | None, cursor: str | None, limit: int) -> PurgePage:
    """How many jobs were purged, by tenant. [EVENT-1]"""
    rows_ = await client.rows("purge_counts", cursor or "", tenant, limit, repeat=True)
    found = [PurgeCount(row["tenant"], row["series"], row["count"]) for row in rows_]
    return PurgePage(found, found[-1].tenant if len(found) == limit else None)


async def worker_page(client: PostgresClient, tenant: str | None, cursor: str | None, limit: int) -> WorkerPage:
    """Live workers, among up to PAGE_LIMIT that are read."""
    limit = min(limit, PAGE_LIMIT)
    found = await client.rows("workers", name_cursor(cursor, check_id), limit, repeat=True)
    live = [
        replace(_decode_worker(row["info"]), started_at=row["started_at"], seen_at=row["seen_at"])
        for row in found
        if row["lives"]
    ]
    mine = [worker for worker in live if tenant is None or worker.tenant in (None, tenant)]
    return WorkerPage(mine, found[-1]["worker_id"] if len(found) == limit else None)


async def stats(client: PostgresClient, cache: LaneCache, tenant: str, queues: Sequence[str]) -> list[QueueStats]:
    """Counts per state as shown now. A queue that is not there has no jobs."""
    found = await client.rows("queues_named", tenant, list(queues), repeat=True)
    counted = {stats.queue: stats for stats in await usage.count_jobs(client, cache, found)}
    missing = [queue for queue in queues if queue not in counted]
    now = await client.value("now", repeat=True) if missing else 0
    none = dict.fromkeys(JobState, 0)
    return [counted.get(queue) or QueueStats(queue, dict(none), None, paused=False, now=now) for queue in queues]


def _shown(job: Job, now: int) -> Job:
    job.state = lifecycle.shown(job, now)
    return job
