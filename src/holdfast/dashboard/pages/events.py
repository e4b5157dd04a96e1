"""Events as they happen: the newest of the tenant's log, by queue, kind and id."""

from __future__ import annotations

from itertools import islice
from typing import Any, get_args

from holdfast.core.errors import InvalidOption
from holdfast.core.events import EventKind
from holdfast.core.names import check_id
from holdfast.dashboard.histories import entry_of
from holdfast.dashboard.page import Fragment, WebPage, of_queue
from holdfast.dashboard.view import View
from holdfast.store import Hint, Signal

SHOWN = 200
KINDS: tuple[str, ...] = get_args(EventKind)


async def read(view: View) -> dict[str, Any]:
    """The newest events that match, the newest first."""
    queue, kind, id = view.text("queue"), view.text("kind"), view.text("id")
    if queue:
        view.checked_queue(queue)
    if kind and kind not in KINDS:
        raise InvalidOption("kind", f"{kind!r} is not one of {', '.join(KINDS)}")
    if id:
        check_id(id)
    tail = await view.tail()
    matching = (
        event
        for event in reversed(tail.events)
        if (not queue or event.queue == queue) and (not kind or event.kind == kind) and (not id or event.job_id == id)
    )
    found = list(islice(matching, SHOWN + 1))
    return {
        "lines": [(event, entry_of(event)) for event in found[:SHOWN]],
        "more": len(found) > SHOWN,
        "complete_from": tail.complete_from,
        "kept": len(tail.events),
        "is_filtered": bool(queue or kind or id),
    }


async def filters(view: View) -> dict[str, Any]:
    """The choices of the form."""
    return {"kinds": KINDS, "asked": {name: view.text(name) for name in ("queue", "kind", "id")}}


def of_log(view: View, signal: Signal) -> bool:
    """Hints that the tenant's log grew."""
    return signal.hint is Hint.EVENTS and of_queue(view, signal)


PAGE = WebPage(
    "/events", "Events", "events.html", {"list": Fragment(read, of_log)}, read=filters, nav="Events", key="e"
)
