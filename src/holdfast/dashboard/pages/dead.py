"""Dead letters: groups of jobs that failed for good with the same error, and one such group."""

from __future__ import annotations

from collections import Counter
from typing import Any

from holdfast.core.job import JobState
from holdfast.core.names import check_id
from holdfast.dashboard.page import Action, Done, Form, Fragment, WebPage
from holdfast.dashboard.pages.grouping import Choice, Look, look
from holdfast.dashboard.pages.queues import queue_page
from holdfast.dashboard.view import View
from holdfast.service.tokens import ADMIN
from holdfast.store import Hint, Signal

SHOWN = 50


async def read(view: View) -> dict[str, Any]:
    """The groups among the dead letters that were read, the largest first."""
    choice = choice_of(view)
    found = await look(view, choice, view.text("cursor"))
    page = await queue_page(view)
    dead = {one.queue: one.counts.get(JobState.FAILED, 0) for one in page.queues if view.sees(one.queue)}
    seen = Counter[str]()
    for group in found.groups.values():
        seen += group.queues
    # Counts can be 10 s old.
    dead = {name: max(dead.get(name, 0), seen[name]) for name in {*dead, *seen}}
    return {
        "look": found,
        "groups": found.largest_first,
        "choice": choice,
        "queues": {name: count for name, count in sorted(dead.items()) if count or name == choice.queue},
        "total": dead.get(choice.queue, 0) if choice.queue else sum(dead.values()),
        "is_first": not view.text("cursor"),
    }


async def read_group(view: View) -> dict[str, Any]:
    """What the jobs of a group have in common, and a page of them."""
    choice = choice_of(view)
    found = await look(view, choice, keep=SHOWN)
    listed = await look(view, choice, view.text("cursor"), most=SHOWN, keep=SHOWN) if view.text("cursor") else found
    group = next(iter(found.largest_first or listed.largest_first), None)
    return {
        "look": found,
        "choice": choice,
        "group": group,
        "jobs": listed.jobs,
        "cursor": listed.rest if listed is not found else await _after_first(view, choice, found),
        "commands": [command(view, choice, do) for do in ("list", "replay", "purge")],
    }


async def _after_first(view: View, choice: Choice, found: Look) -> str:
    """Where the second page begins."""
    return found.rest if found.looked <= SHOWN else (await look(view, choice, most=SHOWN)).rest


def choice_of(view: View) -> Choice:
    """The dead letters that a request is about. A queue that the viewer must not see answers like a missing page."""
    queue = view.text("queue")
    return Choice(view.checked_queue(queue) if queue else "", view.text("error"))


def command(view: View, choice: Choice, do: str) -> str:
    """The shell command for the same."""
    options = choice.options()
    return view.command("dlq", do, *([] if options or do == "list" else ["--all"]), **options)


def of_log(view: View, signal: Signal) -> bool:
    """Hints that the tenant's log grew: there may be new dead letters."""
    return signal.hint is Hint.EVENTS and signal.tenant in ("", view.tenant)


async def replay(view: View, form: Form) -> Done:
    """Start one dead letter again. [DEAD-1]"""
    queue, id = view.checked_queue(form.text("queue") or view.text("queue")), _id(view)
    await view.queue.replay(id, queue=queue, by=view.by)
    return Done(f"Replayed {id}: it is ready again, with attempts from 0.", facts={"answers": {"replayed": 1}})


async def purge(view: View, form: Form) -> Done:
    """Forget one dead letter. [KEEP-1]"""
    queue, id = view.checked_queue(form.text("queue") or view.text("queue")), _id(view)
    answer = await view.queue.purge(id, queue=queue, by=view.by)
    says = {"purged": f"Purged {id}.", "not_terminal": f"Too late: {id} is not finished any more."}
    return Done(says.get(answer, f"There is no job {id} any more."), facts={"answers": {answer: 1}})


def _id(view: View) -> str:
    return check_id(view.query.get("id", ""))


PAGES = (
    WebPage("/dead", "Dead letters", "dead.html", {"groups": Fragment(read, of_log)}, nav="Dead letters", key="d"),
    WebPage(
        "/dead/group", "Dead letters", "dead_group.html", {"group": Fragment(read_group, of_log)}, parent="/dead",
        actions=(
            Action("/dead/replay-one", "dead_letters.replay", ADMIN, replay),
            Action("/dead/purge-one", "jobs.purge", ADMIN, purge),
        ),
    ),
)  # fmt: skip
