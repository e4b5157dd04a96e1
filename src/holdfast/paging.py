"""Cursors, pages and counts, the same for every store."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from heapq import heappop, heappush, nlargest, nsmallest
from typing import Protocol, TypeVar

from msgspec.structs import replace

from holdfast.core import lifecycle
from holdfast.core.errors import (
    InvalidName,
    InvalidOption,
)
from holdfast.core.job import WAITING, Job, JobState
from holdfast.core.listing import Place, cursor_text, parse_cursor, place_of
from holdfast.core.names import OPERATOR, check_queue, check_tenant, join_key
from holdfast.store import PAGE_LIMIT, ListQuery, Page, QueuePage, QueueStats, TenantPage


class _HasCursor(Protocol):
    @property
    def cursor(self) -> str | None: ...


P = TypeVar("P", bound=_HasCursor)


async def pages(read: Callable[[str | None], Awaitable[P]]) -> AsyncIterator[P]:
    """All pages, one after another."""
    cursor: str | None = None
    while True:
        page = await read(cursor)
        yield page
        cursor = page.cursor
        if cursor is None:
            return


QUEUES_READ = 1000
"""The most queues that one page of tenants reads to find those with jobs."""


def name_cursor(cursor: str | None, check: Callable[[str], str] = check_queue) -> str:
    """The name after which a list continues; "" from the beginning. Raises InvalidOption."""
    try:
        return "" if cursor is None else check(cursor)
    except InvalidName:
        raise InvalidOption("cursor", f"{cursor!r} is not a cursor of this list") from None


def segment_cursor(cursor: str | None) -> tuple[int, tuple[int, ...]]:
    """Where a list in claim order continues: in which of its orders, and after which place. Raises InvalidOption."""
    if cursor is None:
        return 0, ()
    try:
        segment, *place = (int(part) for part in cursor.split("."))
    except ValueError:
        raise InvalidOption("cursor", f"{cursor!r} did not come from a list") from None
    if segment not in range(3) or any(not -1 <= part < 2**62 for part in place) or not place:
        raise InvalidOption("cursor", f"{cursor!r} did not come from a list")
    return segment, tuple(place)


def tenant_cursor(cursor: str | None) -> tuple[str, str]:
    """Where a list of tenants continues: after a tenant, or after one of its queues. Raises InvalidOption.

    The cursor is `join_key(tenant, queue)`, with queue "" after the whole tenant.
    """
    if cursor is None:
        return "", ""
    found = _TENANT_CURSOR.fullmatch(cursor)
    tenant = found[2][: int(found[1])] if found else ""
    queue = found[2][len(tenant) :].partition(":")[2] if found else ""
    if join_key(tenant, queue) != cursor:
        raise InvalidOption("cursor", f"{cursor!r} is not a cursor of this list")
    return name_cursor(tenant, check_tenant), queue and name_cursor(queue)


def tenant_page_of(
    with_jobs: Sequence[str], with_settings: Sequence[str], stop: tuple[str, str] | None, limit: int
) -> TenantPage:
    """A page of the next tenants with jobs and of the next with settings.

    `stop` is the place where the search for jobs ended: after a tenant, or inside one that was not searched to its end.
    """
    names = sorted({*with_jobs, *with_settings} - {OPERATOR})
    if stop is not None:
        names = [name for name in names if name < stop[0] or (name == stop[0] and not stop[1])]
    if len(names) > limit:
        names, stop = names[:limit], (names[limit - 1], "")
    return TenantPage(names, None if stop is None else join_key(*stop))


AFTER_ALL = "\x7f"
"""A text that sorts after the names of all queues."""

_TENANT_CURSOR = re.compile(r"([0-9]{1,3}):(.*)", re.ASCII)


# Lists by time. ------------------------------------------------------------------------------------------------

X = TypeVar("X")
Part = tuple[Sequence[tuple[Place, X]], Place | None]
"""The next items of a list, and where to read on: before this place. None: there are no more."""


async def merged(
    reads: Sequence[Callable[[Place], Awaitable[Part[X]]]], before: Place
) -> AsyncIterator[tuple[Place, X | None]]:
    """The items of several lists, the latest first. It reads from a list only when the next item may come from there.

    Before each read it yields a place without an item: it has yielded all items that are later than this place.
    """
    rests = dict.fromkeys(range(len(reads)), before)
    found: list[tuple[Place, int, X]] = []
    while rests or found:
        if rests:
            number = max(rests, key=rests.__getitem__)
            place = rests[number]
            if not found or _later(place, found[0]):
                yield place, None
                items, rest = await reads[number](place)
                for (time, seq), item in items:
                    heappush(found, ((-time, -seq), number, item))
                if rest is None:
                    del rests[number]
                else:
                    rests[number] = rest
                continue
        (time, seq), _, item = heappop(found)
        yield (-time, -seq), item


def _later(place: Place, first: tuple[Place, int, object]) -> bool:
    return place > (-first[0][0], -first[0][1])


class _Lists(Protocol):
    async def list(self, query: ListQuery) -> Page: ...

    async def queue_page(self, tenant: str, cursor: str | None = None, limit: int = PAGE_LIMIT) -> QueuePage: ...

    async def now(self) -> int: ...


async def list_across(store: _Lists, query: ListQuery) -> Page:
    """A page by time over all queues of a tenant, from the lists of single queues.

    The order holds among 100 queues. A tenant with more queues gets them 100 at a time, by name. A page makes at most
    two reads for each queue, which share its limit: a page may be short or empty and still have a cursor.
    """
    _, group = parse_cursor(query.cursor)
    names, following = await _group(store, query, group)
    most = 2 * len(names)
    reads = now = 0
    part = replace(query, limit=query.limit // max(1, len(names)) + 1, scan=max(1, query.scan // max(1, most)))

    async def read(name: str, before: Place) -> Part[Job]:
        nonlocal reads, now
        reads += 1
        page = await store.list(replace(part, queue=name, queues=None, cursor=cursor_text(before)))
        now = page.now
        rest = None if page.cursor is None else parse_cursor(page.cursor)[0]
        return [(place_of(job), job) for job in page.jobs], rest

    jobs: list[Job] = []
    last = query.before()
    async for place, job in merged([partial(read, name) for name in names], last):
        if len(jobs) == query.limit or (job is None and reads >= most):
            return Page(jobs, cursor_text(last, group), now)
        last = place
        if job is not None:
            jobs.append(job)
    return Page(jobs, cursor_text(None, following) if following else None, now or await store.now())


async def _group(store: _Lists, query: ListQuery, after: str) -> tuple[list[str], str | None]:
    """The next queues that a list covers, and the last of them if there are more."""
    if query.queues is not None:
        return name_page(query.queues, after, PAGE_LIMIT)
    page = await store.queue_page(query.tenant, after or None, PAGE_LIMIT)
    return [stats.queue for stats in page.queues if query.includes(stats.queue)], page.cursor


# For stores that have all jobs of a tenant queue at hand. ------------------------------------------------------


def list_page(jobs: Iterable[Job], query: ListQuery, now: int) -> Page:
    """The page that `query` asks for, of all jobs of its queue, or of its tenant. The records are copies."""
    stored = lifecycle.stored(query.states)
    if query.newest:
        before = query.before()
        places = ((place_of(job), job) for job in jobs if job.state in stored and query.matches(job, now))
        latest = nlargest(query.limit + 1, (pair for pair in places if pair[0] < before), key=lambda pair: pair[0])
        more = len(latest) > query.limit
        shown = [shown_job(job, now) for _, job in latest[: query.limit]]
        return Page(shown, cursor_text(latest[query.limit - 1][0]) if more else None, now)
    after = _parse_position(query.cursor)
    found = ((_list_position(job), job) for job in jobs if job.state in stored and query.matches(job, now))
    page = nsmallest(query.limit + 1, (pair for pair in found if pair[0] > after), key=lambda pair: pair[0])
    cursor = ".".join(map(str, page[query.limit - 1][0])) if len(page) > query.limit else None
    return Page([shown_job(job, now) for _, job in page[: query.limit]], cursor, now)


def queue_stats(queue: str, jobs: Iterable[Job], now: int, *, paused: bool) -> QueueStats:
    """The counts of a tenant queue, from all its jobs."""
    counts = dict.fromkeys(JobState, 0)
    oldest: int | None = None
    for job in jobs:
        if lifecycle.forgotten(job, now):
            continue
        state = lifecycle.shown(job, now)
        counts[state] += 1
        if state is JobState.READY and (oldest is None or job.visible_at < oldest):
            oldest = job.visible_at
    return QueueStats(queue, counts, oldest, paused, now)


def shown_job(job: Job, now: int) -> Job:
    """A copy of a job's record, with the state that a reader sees at `now`."""
    view = job.snapshot()
    view.state = lifecycle.shown(job, now)
    return view


def name_page(names: Iterable[str], after: str, limit: int) -> tuple[list[str], str | None]:
    """The first `limit` names after `after`, in order, and the cursor of the next page."""
    following = sorted(name for name in names if name > after)
    return following[:limit], following[limit - 1] if len(following) > limit else None


def _list_position(job: Job) -> tuple[int, int, int, int]:
    """The order of a list: waiting jobs as they are claimed, then leased ones by deadline, then ended ones by time."""
    if job.state in WAITING:
        return (0, -job.envelope.priority, job.visible_at, job.seq)
    if job.state is JobState.LEASED:
        return (1, 0, job.deadline, job.seq)
    return (2, 0, job.finished_at or 0, job.seq)


def _parse_position(cursor: str | None) -> tuple[int, ...]:
    """The position after which a list continues. Raises InvalidOption."""
    if cursor is None:
        return ()
    try:
        return tuple(int(part) for part in cursor.split("."))
    except ValueError:
        raise InvalidOption("cursor", f"{cursor!r} did not come from a list") from None
