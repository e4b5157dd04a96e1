"""Queues: the jobs of each by state, the oldest that waits, how many complete, and whether it is paused."""

from __future__ import annotations

from typing import Any

from holdfast.core.job import WAITING
from holdfast.dashboard.page import Action, Done, Form, Fragment, WebPage
from holdfast.dashboard.view import View
from holdfast.service.tokens import ADMIN
from holdfast.store import PAGE_LIMIT, QueuePage, QueueStats


async def read(view: View) -> dict[str, Any]:
    """One page of queues by name, with their counts."""
    page = await queue_page(view, view.text("cursor") or None)
    return {
        "queues": [one for one in page.queues if view.sees(one.queue)],
        "rates": await view.tail(),
        "cursor": page.cursor,
        "waiting": waiting,
    }


async def queue_page(view: View, cursor: str | None = None) -> QueuePage:
    """A page of the queues that the viewer may see."""
    only = view.viewer.queues
    if only is None:
        return await view.source.queue_page(view.tenant, cursor, view.asked_at)
    names = [name for name in sorted(only) if name > (cursor or "")]
    found = await view.store.stats(view.tenant, names[:PAGE_LIMIT])
    used = [one for one in found if one.paused or any(one.counts.values())]
    return QueuePage(used, names[PAGE_LIMIT - 1] if len(names) > PAGE_LIMIT else None)


def waiting(stats: QueueStats) -> int:
    """The jobs that a worker can claim, now or when they are due."""
    return sum(stats.counts.get(state, 0) for state in WAITING)


async def pause(view: View, form: Form) -> Done:
    """Hand out no more jobs. [CLAIM-5]"""
    return await _set_paused(view, form, paused=True)


async def resume(view: View, form: Form) -> Done:
    """Hand out jobs again."""
    return await _set_paused(view, form, paused=False)


async def _set_paused(view: View, form: Form, *, paused: bool) -> Done:
    name = view.checked_queue(form.text("queue"))
    await (view.queue.pause(name) if paused else view.queue.resume(name))
    says = f"Paused {name}. It accepts jobs and hands out none." if paused else f"Resumed {name}."
    return Done(says)


PAGE = WebPage(
    "/queues", "Queues", "queues.html", {"table": Fragment(read)}, nav="Queues", key="q",
    actions=(
        Action("/queues/pause", "queue.pause", ADMIN, pause, ("queue",)),
        Action("/queues/resume", "queue.resume", ADMIN, resume, ("queue",)),
    ),
)  # fmt: skip
