"""Workers: those that serve the tenant, or all of them for operators; and what one of them holds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from holdfast.core.errors import Unsupported
from holdfast.core.job import Job, JobState
from holdfast.core.names import check_id
from holdfast.dashboard.page import Fragment, WebPage
from holdfast.dashboard.pages.queues import queue_page
from holdfast.dashboard.view import NotShown, View
from holdfast.store import PAGE_LIMIT, ListQuery, Signal, WorkerInfo, WorkerPage

SHOWN, QUEUES_SHOWN = 50, 8
MAX_PAGES = 10
"""The most pages of workers to search for one."""
READ, MAX_LOOKED = 100, 1000
"""How many leased jobs to read at a time, and in all."""
STALE_MS = 20_000
"""A worker is late if it was not seen for this long. It reports every 10 s, and counts as living for 30 s."""
LEASED = frozenset({JobState.LEASED})


async def read(view: View) -> dict[str, Any]:
    """A page of workers by id."""
    try:
        page = await view.store.worker_page(_whose(view), view.text("cursor") or None, SHOWN)
        is_known = True
    except Unsupported:
        page, is_known = WorkerPage([], None), False
    return {
        "is_known": is_known,
        "workers": [one for one in page.workers if shows(view, one)],
        "cursor": page.cursor,
        "late": await _late_before(view),
        "queues_of": partial(queues_of, view),
        "sees_hosts": partial(sees_host, view),
        "is_all": _whose(view) is None,
    }


async def read_one(view: View) -> dict[str, Any]:
    """One worker, and the jobs of this tenant that it holds."""
    id = check_id(view.text("id"), "worker id")
    try:
        worker, is_known = await _find(view, id), True
    except Unsupported:
        worker, is_known = None, False
    jobs, all_looked = await _held(view, id)
    return {
        "id": id,
        "is_known": is_known,
        "worker": worker,
        "jobs": jobs,
        "all_looked": all_looked,
        "late": await _late_before(view),
        "sees_host": worker is not None and sees_host(view, worker),
    }


def at_times(view: View, signal: Signal) -> bool:
    """No hint is about this fragment, as heartbeats make none. It is renewed every few seconds."""
    del view, signal
    return False


def _whose(view: View) -> str | None:
    """The tenant whose workers are shown. None: all of them, for an operator who asks for that."""
    if view.text("all") and not view.viewer.is_operator:
        raise NotShown(404, "There is no such page.")
    return None if view.text("all") else view.tenant


def shows(view: View, worker: WorkerInfo) -> bool:
    """Whether a worker serves a queue that the viewer sees. Without queues of its own it serves any."""
    return view.viewer.queues is None or not worker.queues or any(view.sees(queue) for queue in worker.queues)


def sees_host(view: View, worker: WorkerInfo) -> bool:
    """Whether the viewer may know its host and how busy it is. Only operators may, if it serves all tenants."""
    return view.viewer.is_operator or worker.tenant == view.tenant


def queues_of(view: View, worker: WorkerInfo) -> list[str]:
    """Some of its queues. Empty: it serves any."""
    return [name for name in worker.queues if view.sees(name)][:QUEUES_SHOWN]


async def _late_before(view: View) -> int:
    return await view.store.now() - STALE_MS


async def _find(view: View, id: str) -> WorkerInfo | None:
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await view.store.worker_page(_whose(view), cursor, PAGE_LIMIT)
        for worker in page.workers:
            if worker.worker_id == id and shows(view, worker):
                return worker
        cursor = page.cursor
        if cursor is None:
            break
    return None


async def _held(view: View, id: str) -> tuple[Sequence[Job], bool]:
    """The leased jobs of a worker among those that were read, and whether all were read."""
    queues = await queue_page(view)
    busy = [one.queue for one in queues.queues if view.sees(one.queue) and one.counts.get(JobState.LEASED)]
    found: list[Job] = []
    looked = 0
    for queue in busy:
        cursor: str | None = None
        while True:
            page = await view.store.list(ListQuery(view.tenant, queue, LEASED, cursor=cursor, limit=READ))
            found += [job for job in page.jobs if job.worker_id == id]
            looked += len(page.jobs)
            cursor = page.cursor
            if looked >= MAX_LOOKED:
                return found, False
            if cursor is None:
                break
    return found, queues.cursor is None


PAGES = (
    WebPage("/workers", "Workers", "workers.html", {"list": Fragment(read, at_times)}, nav="Workers", key="w"),
    WebPage("/worker", "Worker", "worker.html", {"worker": Fragment(read_one)}, parent="/workers"),
)
