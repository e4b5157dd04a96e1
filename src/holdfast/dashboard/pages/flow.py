"""One flow: its graph, its steps, and why each one waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.explain import without_others
from holdfast.core.flow import check_flow_id
from holdfast.core.job import TERMINAL, WAITING, JobState
from holdfast.core.names import FLOWS
from holdfast.dashboard.graph import NAMED, graph
from holdfast.dashboard.page import Action, Done, Form, Fragment, WebPage, of_tenant
from holdfast.dashboard.view import NotShown, View
from holdfast.flows.flow import FlowRecord, StepRecord
from holdfast.service.tokens import ADMIN, PRODUCE
from holdfast.store import Signal

SHOWN = 200
"""The steps in one page of the table."""
EXPLAINED = 4
"""The most waiting steps whose reason is read from the store. The others show it on their own pages."""


def concerns(view: View, signal: Signal) -> bool:
    """Hints about this flow and its steps."""
    id = view.query.get("id", "")
    return of_tenant(view, signal) and (signal.id in ("", id) or signal.id.startswith(f"{id}/"))


async def read(view: View) -> dict[str, Any]:
    """What does not change. 404 if there is no such flow."""
    await _found(view)
    return {"command": view.command("flow", "show", of=view.query.get("id", ""))}


async def read_flow(view: View) -> dict[str, Any]:
    """The flow and its steps as they are now."""
    try:
        flow = await _found(view)
    except NotShown:
        return {"flow": None}
    steps = flow.steps
    states = {step.name: step.state for step in steps}
    first = _first(view, len(steps))
    part = steps[first : first + SHOWN]
    explained = await _explained(view, part)
    label = f"The graph of the flow: {len(steps)} steps. The table below has the same."
    return {
        "flow": flow,
        "graph": graph(steps, lambda place: _link(view, steps[place], place), label),
        "steps": [(step, explained.get(step.name) or why(step, states, flow.state)) for step in part],
        "first": first,
        "before": max(0, first - SHOWN) if first else None,
        "following": first + SHOWN if first + SHOWN < len(steps) else None,
        "done": sum(step.state is JobState.COMPLETED for step in steps),
        "why": await _why_it_waits(view, flow),
        "may_cancel": view.may_cancel and flow.state not in TERMINAL,
        "may_replay": view.may_act and flow.state is JobState.FAILED,
    }


async def _found(view: View) -> FlowRecord:
    """The flow. One with a step in a queue that the viewer may not see answers like one that does not exist."""
    flow = await view.queue.flow(check_flow_id(view.query.get("id", "")))
    if flow is None or not all(view.sees(step.queue) for step in flow.steps):
        raise NotShown(404, "There is no such flow. A flow that has ended is forgotten when its time is over.")
    return flow


def _first(view: View, count: int) -> int:
    text = view.text("from")
    return min(int(text), count - 1) if text.isdecimal() and len(text) <= len(str(count)) else 0


def _link(view: View, step: StepRecord, place: int) -> str:
    """A step that is a job leads to its page, another one to its line in the table."""
    if step.enqueued_at is not None:
        return view.url("/job", queue=step.queue, id=step.id)
    start = place - place % SHOWN
    return f"{view.url('/flow', **{'id': view.text('id'), 'from': start or ''})}#step-{place}"


def why(step: StepRecord, states: Mapping[str, JobState], flow: JobState) -> str:
    """Why a step waits or has ended, from what is known of its flow."""
    if step.error is not None:
        return step.error
    if step.state is JobState.READY and step.enqueued_at is None:
        return "The process that leads the flow enqueues it next."
    if step.state in WAITING:
        return f"It waits in {step.queue}: its page says why."
    if step.state is not JobState.BLOCKED:
        return ""
    if flow in TERMINAL:
        return f"It never started: the flow is {flow}."
    left = [name for name in step.after if states.get(name) is not JobState.COMPLETED]
    more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
    return f"Waits for {', '.join(f'{name} ({states[name]})' for name in left[:NAMED])}{more}."


async def _explained(view: View, steps: Sequence[StepRecord]) -> dict[str, str]:
    """The reason of the first waiting steps, as `explain` gives it."""
    waiting = [step for step in steps if step.state in WAITING and step.enqueued_at is not None][:EXPLAINED]
    return {step.name: await _reason(view, step.id, step.queue) for step in waiting}


async def _why_it_waits(view: View, flow: FlowRecord) -> str:
    return await _reason(view, flow.id, FLOWS) if flow.state in WAITING else ""


async def _reason(view: View, id: str, queue: str) -> str:
    explanation = await view.queue.explain(id, queue=queue)
    if not view.viewer.is_operator:
        explanation = without_others(explanation)
    return " ".join(cause.text for cause in explanation.causes if cause.code != "flow")


async def cancel(view: View, form: Form) -> Done:
    """Cancel a flow and its open steps. [CANCEL-1]"""
    del form
    flow = await _found(view)
    answer = (await view.queue.cancel(flow.id, queue=FLOWS, by=view.by)).status
    says = f"Canceled {flow.id} and its open steps." if answer == "canceled" else f"Too late: {flow.id} is {answer}."
    return Done(says, view.url("/flow", id=flow.id), {"answers": {answer: 1}})


async def replay(view: View, form: Form) -> Done:
    """Continue a failed flow where it failed. [DEAD-1]"""
    del form
    flow = await _found(view)
    await view.queue.replay(flow.id, queue=FLOWS, by=view.by)
    return Done(f"Replayed {flow.id}: it continues where it failed.", view.url("/flow", id=flow.id))


PAGE = WebPage(
    "/flow", "Flow", "flow.html", {"flow": Fragment(read_flow, concerns)}, read=read, parent="/flows",
    actions=(
        Action("/flow/cancel", "flow.cancel", PRODUCE, cancel, ("id",)),
        Action("/flow/replay", "flow.replay", ADMIN, replay, ("id",)),
    ),
)  # fmt: skip
