"""Flows: those that run and those that are kept, and how far each has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import MsgspecError, Struct

from holdfast.core.errors import UnknownCodec
from holdfast.core.flow import Plan, is_own, plan_of, step_key
from holdfast.core.job import TERMINAL, Job, JobState
from holdfast.core.names import FLOWS
from holdfast.dashboard.page import Fragment, WebPage, of_tenant
from holdfast.dashboard.view import View
from holdfast.queue.filters import states_of
from holdfast.store import ListQuery, Signal

SHOWN = 25
SEARCHED = 200
"""The most flows to read for a token that is limited to some queues."""
MAX_STEPS_READ = 300
"""The most steps that are read to show how far the running flows of a page have come."""


class FlowRow(Struct, frozen=True):
    """A flow. `steps` is 0 if its plan cannot be read here, `done` is None if it was not counted."""

    job: Job
    steps: int
    done: int | None
    bad: int


def concerns(view: View, signal: Signal) -> bool:
    """Hints about flows, and about jobs with the id of a step."""
    return of_tenant(view, signal) and (signal.queue in ("", FLOWS) or not signal.id or "/" in signal.id)


async def read(view: View) -> dict[str, Any]:
    """A page of flows: those that run first, then the others by when they ended."""
    states = states_of(view.text("state") or None)
    (stats,) = await view.store.stats(view.tenant, [FLOWS])
    only = view.viewer.queues
    query = ListQuery(view.tenant, FLOWS, states, cursor=view.text("cursor") or None, limit=SHOWN)
    if only is not None:
        # A token that is limited to some queues gets one page: the store's cursor would reveal other flows.
        query = ListQuery(view.tenant, FLOWS, states, limit=SEARCHED)
    page = await view.store.list(query)
    found = [(job, plan_in(job)) for job in page.jobs]
    if only is not None:
        found = [(job, plan) for job, plan in found if plan is not None and _sees(view, plan)][:SHOWN]
    return {
        "rows": await _rows(view, found),
        "counts": stats.counts if only is None else {},
        "is_paused": stats.paused,
        "cursor": page.cursor if only is None else None,
    }


def plan_in(job: Job) -> Plan | None:
    """The plan of a flow, if it can be read here."""
    try:
        return plan_of(job.envelope)
    except (UnknownCodec, MsgspecError, ValueError):
        return None


def _sees(view: View, plan: Plan) -> bool:
    """Whether the viewer may see the queues of all steps."""
    return all(view.sees(step.queue) for step in plan.steps)


async def _rows(view: View, found: Sequence[tuple[Job, Plan | None]]) -> list[FlowRow]:
    """How far the flows have come: reads the steps of running flows at once, up to MAX_STEPS_READ steps."""
    left, wanted = MAX_STEPS_READ, list[tuple[Job, Plan]]()
    for job, plan in found:
        if plan is not None and job.state not in TERMINAL and len(plan.steps) <= left:
            left -= len(plan.steps)
            wanted.append((job, plan))
    keys = [step_key(job, step) for job, plan in wanted for step in plan.steps]
    steps = iter(await view.store.get(keys) if keys else ())
    counted: dict[str, tuple[int, int]] = {}
    for job, plan in wanted:
        own = [step.state for step, _ in zip(steps, plan.steps, strict=False) if step is not None and is_own(job, step)]
        counted[job.id] = own.count(JobState.COMPLETED), own.count(JobState.FAILED)
    rows: list[FlowRow] = []
    for job, plan in found:
        count = 0 if plan is None else len(plan.steps)
        done, bad = counted.get(job.id, (count if job.state is JobState.COMPLETED else None, 0))
        rows.append(FlowRow(job, count, done, bad))
    return rows


PAGE = WebPage("/flows", "Flows", "flows.html", {"list": Fragment(read, concerns)}, nav="Flows", key="f")
