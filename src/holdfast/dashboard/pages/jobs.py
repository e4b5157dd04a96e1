"""Jobs of all queues or of one, the latest first: by state, type, error, id and time, a page at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC
from typing import Any

from msgspec.structs import replace

from holdfast.core.job import Job, JobKey, JobState
from holdfast.core.names import check_id, check_type
from holdfast.dashboard.page import Fragment, WebPage, of_queue
from holdfast.dashboard.pages.queues import queue_page
from holdfast.dashboard.view import View
from holdfast.jobs.moments import time_or_age
from holdfast.queue.connection import Connection
from holdfast.queue.filters import query_of
from holdfast.store import ListQuery, Page, QueueStats

SHOWN = 50
SCAN = 4000
"""The most jobs that one page reads. If none of them matches, the page is empty. The next page continues there."""
SHORT_PAGE = 20
"""Up to this many queues, all are read, even those whose count of such jobs is 0: counts can be 10 s old."""
FILTERS = ("id", "queue", "type", "error", "since", "until")
WITH_ERRORS = (JobState.FAILED, JobState.RETRYING)
"""The states in which a filter by error searches, unless one is chosen."""


async def read(view: View) -> dict[str, Any]:
    """The counts by state, and a page of jobs."""
    only = view.text("queue")
    if only:
        queues, all_counted = await view.store.stats(view.tenant, [view.checked_queue(only)]), True
    else:
        found = await queue_page(view)
        queues, all_counted = [one for one in found.queues if view.sees(one.queue)], found.cursor is None
    counts: Counter[str] = Counter()
    for one in queues:
        counts.update(one.counts)
    query = await _query(view)
    if not only:
        query = replace(query, queues=_with_jobs(queues, query) if all_counted else view.viewer.queues)
    page = await _page(view, query, [one.queue for one in queues])
    return {
        "counts": counts,
        "all_counted": all_counted,
        "jobs": page.jobs,
        "cursor": page.cursor,
        "is_filtered": any(view.text(name) for name in (*FILTERS, "state")),
        "command": _command(view),
    }


async def filters(view: View) -> dict[str, Any]:
    """The names of queues, for the field of the form."""
    found = await queue_page(view)
    return {"names": [one.queue for one in found.queues if view.sees(one.queue)]}


async def _query(view: View) -> ListQuery:
    """The list that the request asks for. Raises InvalidOption or InvalidName."""
    given = {name: view.text(name) or None for name in FILTERS}
    state = view.text("state") or (WITH_ERRORS if given["error"] else None)
    query = await query_of(
        Connection(None, view.store, tenant=view.tenant, blobs=view.queue.blobs),
        {
            "queue": given["queue"], "state": state, "error": given["error"],
            "type": None if given["type"] is None else check_type(given["type"]),
            "id": None if given["id"] is None else check_id(given["id"]),
            "since": time_or_age("since", given["since"], UTC), "until": time_or_age("until", given["until"], UTC),
        },
        newest=True, cursor=view.text("cursor") or None, limit=SHOWN,
    )  # fmt: skip
    return replace(query, scan=SCAN)


def _with_jobs(queues: Sequence[QueueStats], query: ListQuery) -> frozenset[str]:
    """The queues to read: each one of these costs a read."""
    is_short = len(queues) <= SHORT_PAGE
    return frozenset(one.queue for one in queues if is_short or any(one.counts.get(state) for state in query.states))


async def _page(view: View, query: ListQuery, queues: Sequence[str]) -> Page:
    """The jobs that match. The job with exactly this id comes first, however many there are."""
    exact: list[Job] = []
    if query.id is not None:
        found = await view.store.get([JobKey(view.tenant, queue, query.id) for queue in queues])
        now = await view.store.now()
        exact = [job for job in found if job is not None and query.matches(job, now)]
    page = await view.store.list(query)
    keys = {job.key for job in exact}
    first = [] if query.cursor else exact
    return replace(page, jobs=[*first, *(job for job in page.jobs if job.key not in keys)])


def _command(view: View) -> str:
    """The shell command for the same."""
    given = {name: view.text(name) for name in ("state", *FILTERS)}
    return view.command("list", "--newest", **{name: text for name, text in given.items() if text})


PAGE = WebPage("/jobs", "Jobs", "jobs.html", {"list": Fragment(read, of_queue)}, read=filters, nav="Jobs", key="b")
