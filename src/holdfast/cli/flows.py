"""`holdfast flow`: show a flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import Json, Store, Tenant
from holdfast.cli.output import emit, moment, say, show, show_pairs, span
from holdfast.cli.session import with_queue
from holdfast.core.errors import JobNotFound

if TYPE_CHECKING:
    from holdfast.flows.flow import FlowRecord, StepRecord
    from holdfast.queue.queue import Queue


def register(app: typer.Typer) -> None:
    """Add these commands."""
    # With a callback a group of one command stays a group.
    group = typer.Typer(
        callback=lambda: None, help="Flows: jobs that wait for each other.", no_args_is_help=True, rich_markup_mode=None
    )
    group.command("show")(show_flow)
    app.add_typer(group, name="flow")


def show_flow(
    id: Annotated[str, typer.Argument(metavar="ID", help="The flow's id.")],
    *,
    store: Store = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Show a flow and its steps: their states, and what each one waits for."""

    async def act(bound: Queue) -> FlowRecord:
        from holdfast.core.names import FLOWS

        found = await bound.flow(id)
        if found is None:
            raise JobNotFound(FLOWS, id)
        return found

    flow = with_queue(store, tenant, act)
    if json:
        emit(flow)
        return
    done = sum(step.state == "completed" for step in flow.steps)
    show_pairs(
        [
            ("id", flow.id),
            ("name", flow.name),
            ("state", flow.state.value),
            ("steps", f"{done} of {len(flow.steps)} completed"),
            ("started", moment(flow.enqueued_at)),
            ("ended", moment(flow.finished_at)),
            ("replays", str(flow.replays or "")),
            ("error", flow.error or ""),
        ]
    )
    say()
    show(["step", "state", "type", "queue", "after", "runs", "took", "error"], map(_row, flow.steps))


def _row(step: StepRecord) -> list[str]:
    begun, ended = step.enqueued_at, step.finished_at
    took = "" if begun is None or ended is None else span(ended - begun)
    after, runs = ",".join(step.after), str(step.attempts or "")
    return [step.name, step.state.value, step.type, step.queue, after, runs, took, step.error or ""]
