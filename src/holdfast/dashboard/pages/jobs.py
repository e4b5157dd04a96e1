"""Jobs: of one queue or of all, by state, type, error and id, a page at a time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from holdfast.core.job import Job, JobKey, JobState
from holdfast.core.names import check_id, check_type
from holdfast.dashboard.page import Fragment, WebPage, of_queue
from holdfast.dashboard.pages.queues import queue_page
from holdfast.dashboard.view import View
from holdfast.queue.filters import states_of
from holdfast.store import PAGE_LIMIT, ListQuery

SHOWN = 50
MAX_READS, READ_S = 20, 0.1
"""The most reads of the store for one page, and how long they may take: a filter may leave them empty. The next page
continues there."""


async def read(view: View) -> dict[str, Any]:
    """The counts by state, and a page of jobs."""
    found = await queue_page(view, None, PAGE_LIMIT)
    queues = [one for one in found.queues if view.sees(one.queue)]
    only = view.text("queue")
    if only:
        view.checked_queue(only)
        queues = await view.store.stats(view.tenant, [only])
    counts: Counter[str] = Counter()
    for one in queues:
        counts.update(one.counts)
    jobs, cursor = await _jobs(view, [one.queue for one in queues])
    return {
        "counts": counts,
        "all_counted": bool(only) or found.cursor is None,
        "jobs": jobs,
        "cursor": cursor,
        "is_filtered": any(view.text(name) for name in ("queue", "state", "type", "error", "id")),
    }


async def _jobs(view: View, queues: Sequence[str]) -> tuple[list[Job], str | None]:
    """The jobs with the id that is asked for, or a page of the jobs that match: one queue after another.

    The cursor is the name of the queue where the next page begins, and the cursor within it.
    """
    if view.text("id"):
        id = check_id(view.text("id"))
        found = await view.store.get([JobKey(view.tenant, queue, id) for queue in queues])
        return [job for job in found if job is not None], None
    error = view.text("error") or None
    states = states_of(view.text("state") or (JobState.FAILED if error else None))
    type = check_type(view.text("type")) if view.text("type") else None
    first, _, at = view.text("cursor").partition(",")
    jobs: list[Job] = []
    reads, ends_at = 0, time.monotonic() + READ_S
    for queue in sorted(queues):
        if queue < first:
            continue
        cursor = at if queue == first else ""
        while True:
            if len(jobs) >= SHOWN or reads >= MAX_READS or time.monotonic() > ends_at:
                return jobs, f"{queue},{cursor}"
            query = ListQuery(view.tenant, queue, states, type, error, cursor or None, SHOWN - len(jobs))
            page = await view.store.list(query)
            reads += 1
            jobs += page.jobs
            cursor = page.cursor or ""
            if not cursor:
                break
    return jobs, None


PAGE = WebPage("/jobs", "Jobs", "jobs.html", {"list": Fragment(read, of_queue)}, nav="Jobs", key="b")
