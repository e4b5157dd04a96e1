"""Moving a tenant to another store."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.audit import audited
from holdfast.cli.options import Json, Tenant, duration, tenant_name
from holdfast.cli.output import emit, note, progress, say, show
from holdfast.cli.session import shown_url

if TYPE_CHECKING:
    from holdfast.migrate import Moved, MovePlan
    from holdfast.migrate.mover import StepRunner
    from holdfast.store import QueueStats

Source = Annotated[str, typer.Argument(metavar="SRC", help="The store that has the tenant's jobs.")]
Target = Annotated[str, typer.Argument(metavar="DST", help="The store that is to have them.")]
Wait = Annotated[str, typer.Option("--wait", metavar="SECONDS", help="How long to wait for jobs that run in SRC.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the queues and counts, and change nothing.")]
Forget = Annotated[
    bool, typer.Option("--forget", help="Give up a move that has not ended, as one of its stores is gone for good.")
]

STAYS = "Finished jobs, with results and dead letters, and the log stay in SRC; what has moved shows there as canceled."


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command("move")(move_tenant)


def move_tenant(
    source: Source,
    target: Target,
    *,
    tenant: Tenant = None,
    wait: Wait = "60",
    dry_run: DryRun = False,
    forget: Forget = False,
    json: Json = False,
) -> None:
    """Move a tenant's waiting jobs, schedules and settings to another store.

    Its queues are paused in both stores while it runs. If it is interrupted, the same command goes on. Finished jobs
    and the log stay; so do flows under way, which are to end first.
    """
    plan = make_plan(source, target, tenant, wait)
    if dry_run:
        tell_preview(plan, json)
    elif forget:
        tell_forgotten(plan, json)
    else:
        tell_moved(run(plan, None, json), json)


def make_plan(source: str, target: str, tenant: str | None, wait: str) -> MovePlan:
    """What a command was told to do. Raises InvalidOption."""
    from holdfast.core.errors import InvalidOption
    from holdfast.migrate import MovePlan
    from holdfast.opening import parse_url

    waits = duration("wait", wait)
    for name, url in (("SRC", source), ("DST", target)):
        if parse_url(url).scheme == "memory":
            raise InvalidOption(name, "memory: lives in one process, and its jobs end with this command; give another")
    return MovePlan(source, target, tenant_name(tenant), waits.total_seconds() if waits else 0.0)


def run(plan: MovePlan, run_steps: StepRunner | None, json: bool) -> Moved:
    """Move, and show how far it is."""
    import asyncio

    from holdfast.migrate import move

    try:
        with audited("tenant.move", plan.source, plan.tenant, target=shown_url(plan.target)) as facts:
            done = asyncio.run(move(plan, run_steps, partial(progress, quiet=json)))
            facts["count"] = done.jobs
        return done
    except KeyboardInterrupt:
        note("Interrupted. Queues are paused in both stores if jobs were being moved; the same command goes on.")
        raise typer.Exit(1) from None


def tell_preview(plan: MovePlan, json: bool) -> None:
    """Show what would move."""
    import asyncio

    from holdfast.migrate import preview

    found = asyncio.run(preview(plan))
    rows = [_counts(one) for one in found.queues]
    open_move = found.info
    if json:
        answer: dict[str, Any] = {"dry_run": True, "tenant": plan.tenant, "queues": rows, "open_move": None}
        if open_move is not None:
            answer["open_move"] = {
                "source": open_move.source, "target": open_move.target, "under_way": found.under_way,
                "paused": found.paused,
            }  # fmt: skip
        emit(answer)
        return
    columns = ["queue", "waiting", "running", "finished", "paused"]
    show(columns, [[_cell(row[name]) for name in columns] for row in rows], "There is nothing to move.")
    note(f"would move {sum(row['waiting'] for row in rows)} jobs. {STAYS}")
    if open_move is not None and found.under_way:
        note(f"A move {open_move} is under way; another one waits for its end.")
    elif open_move is not None:
        note(f"A move {open_move} was stopped before its end; it has paused: {', '.join(found.paused) or 'nothing'}.")
        note("The same command goes on with it; --forget gives it up, where one of its stores is gone for good.")


def tell_forgotten(plan: MovePlan, json: bool) -> None:
    """Give up a move, and show which queues go on."""
    import asyncio

    from holdfast.migrate import forget

    with audited("tenant.forget_move", plan.source, plan.tenant, target=shown_url(plan.target)):
        done = asyncio.run(forget(plan))
    if json:
        emit({"forgotten": [{"store": one.store, "queues": one.queues} for one in done]})
        return
    for one in done:
        say(f"{one.store} has forgotten the move; as before it go on: {', '.join(one.queues)}")
    note("Jobs that were copied but not taken away are in both stores: if the other one comes back, they run twice.")


def tell_moved(done: Moved, json: bool) -> None:
    """Show what has moved."""
    moved = [one for one in done.queues if one.jobs or one.left or one.finished or one.paused]
    if json:
        emit(
            {
                "tenant": done.tenant, "source": done.source, "target": done.target, "jobs": done.jobs,
                "left": done.left, "settings": done.settings, "passes": done.passes, "resumed": done.resumed,
                "queues": [
                    {
                        "queue": one.queue, "jobs": one.jobs, "left": one.left, "finished": one.finished,
                        "source_sum": checksum(one.source_sum), "target_sum": checksum(one.target_sum),
                        "paused": one.paused, "source_paused": one.source_paused,
                    }
                    for one in moved
                ],
            }
        )  # fmt: skip
        return
    rows = [
        [one.queue, str(one.jobs), checksum(one.source_sum), checksum(one.target_sum), str(one.finished + one.left)]
        for one in moved
    ]
    show(["queue", "moved", "sum in SRC", "sum in DST", "stays"], rows)
    if done.resumed:
        note("Went on with a move that had not ended; what that one has moved is not counted here.")
    say(f"moved {done.jobs} jobs and {done.settings} settings of {done.tenant} to {done.target}")
    if done.left:
        note(f"{done.left} did not wait any more when they were to be taken away; they stay in SRC.")
    for name in (one.queue for one in done.queues if one.paused):
        note(f"{name} is paused in DST, as it was: holdfast resume {name} --store DST --tenant {done.tenant}")
    if stopped := [one.queue for one in done.queues if one.source_paused]:
        note(f"Paused in SRC, too, as before: {', '.join(stopped)}")
    note(STAYS)


def checksum(number: int) -> str:
    """A sum as it is shown."""
    return f"{number:016x}"


def _counts(one: QueueStats) -> dict[str, Any]:
    from holdfast.core.job import TERMINAL, WAITING

    def count(states: Sequence[str] | frozenset[Any]) -> int:
        return sum(number for state, number in one.counts.items() if state in states)

    return {
        "queue": one.queue,
        "waiting": count(WAITING),
        "running": count(["leased"]),
        "finished": count(TERMINAL),
        "paused": one.paused,
    }


def _cell(value: Any) -> str:
    return ("yes" if value else "") if isinstance(value, bool) else str(value)
