"""The overview: what waits, what runs, what fails, and how fast it goes."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from holdfast.charts import Size
from holdfast.core.errors import Unsupported
from holdfast.core.job import JobState
from holdfast.dashboard.page import Fragment, WebPage
from holdfast.dashboard.pages.queues import queue_page, waiting
from holdfast.dashboard.pages.workers import queues_of, sees_host, shows
from holdfast.dashboard.view import View
from holdfast.store import QueueStats, WorkerPage

BUSIEST = 6
SIZES = (Size("wide", 1000, 190, 44, 11, 10), Size("narrow", 340, 180, 44, 11, 4))


async def read_now(view: View) -> dict[str, Any]:
    """Counts over the tenant's queues, and its workers."""
    page = await queue_page(view)
    queues = [one for one in page.queues if view.sees(one.queue)]
    counts: Counter[str] = Counter()
    for one in queues:
        counts.update(one.counts)
    oldest = [one.oldest_ready_at for one in queues if one.oldest_ready_at is not None]
    listed = await _workers(view)
    workers = [one for one in (listed.workers if listed is not None else ()) if shows(view, one)]
    # A tenant does not learn how busy other tenants keep the workers for all tenants.
    known = [one for one in workers if sees_host(view, one)]
    return {
        "counts": counts,
        "oldest": min(oldest, default=None),
        "queues": sorted(queues, key=_busy, reverse=True)[:BUSIEST],
        "waiting": waiting,
        "more_queues": page.cursor is not None or len(queues) > BUSIEST,
        "all_counted": page.cursor is None,
        "workers": None if listed is None else workers,
        "known": known,
        "queues_of": partial(queues_of, view),
        "more_workers": listed is not None and listed.cursor is not None,
        "paused": sum(one.paused for one in queues),
    }


async def read_rate(view: View) -> dict[str, Any]:
    """The throughput of the last minutes, and the newest failures."""
    tail = await view.tail()
    return {"chart": tail.chart(), "rates": tail, "failures": tail.failures, "sizes": SIZES}


async def _workers(view: View) -> WorkerPage | None:
    """The living workers; None if the store does not list them."""
    try:
        return await view.store.worker_page(view.tenant)
    except Unsupported:
        return None


def _busy(one: QueueStats) -> tuple[int, int, str]:
    return waiting(one) + one.counts.get(JobState.LEASED, 0), one.counts.get(JobState.FAILED, 0), one.queue


PAGE = WebPage(
    "/", "Overview", "overview.html", {"now": Fragment(read_now), "rate": Fragment(read_rate)}, nav="Overview", key="o"
)
