"""Replaying or purging many dead letters: first what would be done, then in bounded steps, each a request of its own.

How far a run has come is in the address and in its form, not in the process: any process can take the next step, and
each step is checked and recorded. A run takes the jobs that had failed when it was planned, not those that fail later.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from holdfast.budgets import read_counts
from holdfast.core.errors import InvalidOption, QuotaExceeded
from holdfast.core.job import Job, Purge
from holdfast.dashboard.page import Action, Done, Form, WebPage
from holdfast.dashboard.pages import grouping
from holdfast.dashboard.pages.dead import choice_of, command
from holdfast.dashboard.pages.grouping import Choice, look
from holdfast.dashboard.view import NotShown, View
from holdfast.queue.connection import Connection
from holdfast.queue.dead_letters import purge_jobs
from holdfast.service.tokens import ADMIN

PLAN, PLAN_S = 10_000, 1.0
"""The most dead letters that a plan counts, and the longest time it takes. A run continues beyond both."""
SAMPLE = 20
STEP_S = 1.0
"""After this time a step completes its current batch and ends."""

Act = Callable[[View, str, Sequence[Job]], Awaitable[Counter[str]]]


class RunProgress(Struct, frozen=True):
    """How far a run has come."""

    until: int
    """The instant of the plan."""
    total: int
    """How many the plan counted."""
    more: int = 0
    """1 if the plan did not count them all."""
    done: int = 0
    refused: int = 0
    at: str = ""
    """Where the next step begins. A plan, and a run that is over, have none."""
    stopped: int = 0
    """1 if it ended early, at a quota."""


async def read(view: View) -> dict[str, Any]:
    """A plan, or how far a run has come."""
    do = view.text("do")
    if do not in ("replay", "purge"):
        raise NotShown(404, "There is no such page.")
    choice = choice_of(view)
    shared = {"do": do, "choice": choice, "path": f"/dead/{do}", "command": command(view, choice, do)}
    if view.text("until"):
        return {**shared, "plan": None, "progress": _progress(view.text)}
    until = await view.store.now()
    plan = await look(view, replace(choice, until=until), most=PLAN, seconds=PLAN_S, keep=SAMPLE)
    return {
        **shared,
        "plan": plan,
        "groups": plan.largest_first,
        "queues": sum((group.queues for group in plan.groups.values()), Counter[str]()),
        "progress": RunProgress(until, plan.looked, int(bool(plan.rest))),
    }


async def replay(view: View, form: Form) -> Done:
    """A step of a replay. [DEAD-1]"""
    # Read the counts first, as the command does: without them a new process would enforce no budget.
    await read_counts(view.store, view.tenant)
    return await _step(view, form, "replay", "replayed", _replay)


async def purge(view: View, form: Form) -> Done:
    """A step of a purge. [KEEP-1]"""
    return await _step(view, form, "purge", "purged", _purge)


async def _step(view: View, form: Form, do: str, did: str, act: Act) -> Done:
    before = _progress(form.text)
    queue = form.text("queue")
    choice = Choice(view.checked_queue(queue) if queue else "", form.text("error"), before.until)
    answers: Counter[str] = Counter()
    at, began = before.at, time.monotonic()
    async with aclosing(grouping.pages(view, choice, before.at, grouping.READ)) as pages:
        async for jobs, rest in pages:
            if jobs:
                answers += await act(view, jobs[0].queue, jobs)
            at = rest
            if QuotaExceeded.code in answers or time.monotonic() - began > STEP_S:
                break
    stopped = int(QuotaExceeded.code in answers)
    done = answers[did]
    after = replace(
        before, done=before.done + done, refused=before.refused + answers.total() - done,
        at="" if stopped else at, stopped=stopped,
    )  # fmt: skip
    where = {**choice.options(), **{name: value for name, value in asdict(after).items() if value}}
    says = f"{did.capitalize()} {after.done:,}{'' if after.at else ' in all'}."
    return Done(says, view.url("/dead/run", do=do, **where), {"count": done, "answers": dict(answers)})


async def _replay(view: View, queue: str, jobs: Sequence[Job]) -> Counter[str]:
    tickets = await view.queue.replay_many([job.id for job in jobs], queue=queue, by=view.by)
    return Counter(ticket.status if ticket.error is None else ticket.error.code for ticket in tickets)


async def _purge(view: View, queue: str, jobs: Sequence[Job]) -> Counter[str]:
    del queue
    connection = Connection(None, view.store, tenant=view.tenant, blobs=view.queue.blobs)
    items = [Purge(job.key, job.finished_at, job.seq, view.by) for job in jobs]
    return Counter(await purge_jobs(connection, items, jobs))


def _progress(text: Callable[[str], str]) -> RunProgress:
    def number(name: str) -> int:
        given = text(name) or "0"
        if not re.fullmatch(r"[0-9]{1,15}", given):
            raise InvalidOption(name, f"{given!r} is not a number of this page")
        return int(given)

    numbers = {name: number(name) for name in ("until", "total", "more", "done", "refused", "stopped")}
    if not numbers["until"]:
        raise InvalidOption("until", "a run begins with its plan")
    return RunProgress(**numbers, at=text("at"))


PAGE = WebPage(
    "/dead/run", "Dead letters", "dead_run.html", read=read, parent="/dead", scope=ADMIN,
    actions=(
        Action("/dead/replay", "dead_letters.replay", ADMIN, replay, ("queue", "error")),
        Action("/dead/purge", "dead_letters.purge", ADMIN, purge, ("queue", "error")),
    ),
)  # fmt: skip
