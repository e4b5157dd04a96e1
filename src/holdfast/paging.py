"""Cursors, pages and counts, the same for every store."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from heapq import nsmallest
from typing import Protocol, TypeVar

from holdfast.core import lifecycle
from holdfast.core.errors import (
    InvalidName,
    InvalidOption,
)
from holdfast.core.job import WAITING, Job, JobState
from holdfast.core.names import OPERATOR, check_queue, check_tenant, join_key
from holdfast.store import ListQuery, Page, QueueStats, TenantPage


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
    """A page of the next tenants with jobs and of the next with settings. `stop`: where the search for jobs ended.

    It is after a tenant, or inside one whose jobs have not been found yet.
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


# For stores that have all jobs of a tenant queue at hand. ------------------------------------------------------


def list_page(jobs: Iterable[Job], query: ListQuery, now: int) -> Page:
    """The page that `query` asks for, of all jobs of its tenant queue. The records are copies."""
    after = _parse_position(query.cursor)
    found = ((_list_position(job), job) for job in jobs if query.matches(job, now))
    page = nsmallest(query.limit + 1, (pair for pair in found if pair[0] > after), key=lambda pair: pair[0])
    cursor = ".".join(map(str, page[query.limit - 1][0])) if len(page) > query.limit else None
    return Page([shown_job(job, now) for _, job in page[: query.limit]], cursor, now)


def queue_stats(queue: str, jobs: Iterable[Job], now: int, *, paused: bool) -> QueueStats:
    """The counts of a tenant queue, of all its jobs."""
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
