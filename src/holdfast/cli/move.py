"""`holdfast move`: moves a tenant to another store."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.audit import audited
from holdfast.cli.options import Json, Tenant, tenant_name
from holdfast.cli.output import emit, note, progress, say, show
from holdfast.cli.session import shown_url
from holdfast.jobs.moments import duration

if TYPE_CHECKING:
    from holdfast.migrate import Moved, MovePlan
    from holdfast.migrate.mover import StepRunner
    from holdfast.store import QueueStats

Source = Annotated[str, typer.Argument(metavar="SRC", help="The store that has the tenant's jobs.")]
Target = Annotated[str, typer.Argument(metavar="DST", help="The store to move them to.")]
Wait = Annotated[
    str, typer.Option("--wait", metavar="SECONDS", help="How long to wait for jobs that are running in SRC.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the queues and counts, but change nothing.")]
Forget = Annotated[
    bool, typer.Option("--forget", help="Give up an unfinished move, if one of its stores is gone for good.")
]

STAYS = "Finished jobs, their results, dead letters and the log stay in SRC, where moved jobs show as canceled."


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

    The tenant's queues are paused in both stores meanwhile. After an interruption, the same command continues. Finished
    jobs and the log stay in SRC, and so do running flows, which should end first.
    """
    plan = make_plan(source, target, tenant, wait)
    if dry_run:
        print_preview(plan, json)
    elif forget:
        print_forgotten(plan, json)
    else:
        print_moved(run(plan, None, json), json)


def make_plan(source: str, target: str, tenant: str | None, wait: str) -> MovePlan:
    """The move that the options describe. Raises InvalidOption."""
    from holdfast.migrate import MovePlan
    from holdfast.opening import check_shared

    waits = duration("wait", wait)
    for name, url in (("SRC", source), ("DST", target)):
        check_shared(name, url, "ends with this process; give another store")
    return MovePlan(source, target, tenant_name(tenant), waits.total_seconds() if waits else 0.0)


def run(plan: MovePlan, run_steps: StepRunner | None, json: bool) -> Moved:
    """Move, with a progress bar."""
    import asyncio

    from holdfast.migrate import move

    try:
        with audited("tenant.move", plan.source, plan.tenant, target=shown_url(plan.target)) as facts:
            done = asyncio.run(move(plan, run_steps, partial(progress, quiet=json)))
            facts["count"] = done.jobs
        return done
    except KeyboardInterrupt:
        note("Interrupted. If jobs were being moved, queues stay paused in both stores; the same command continues.")
        raise typer.Exit(1) from None


def print_preview(plan: MovePlan, json: bool) -> None:
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
        note(f"A move {open_move} is running; another move waits for its end.")
    elif open_move is not None:
        note(f"A move {open_move} was stopped before its end; it paused: {', '.join(found.paused) or 'nothing'}.")
        note("The same command continues it; --forget gives it up, if one of its stores is gone for good.")


def print_forgotten(plan: MovePlan, json: bool) -> None:
    """Give up a move, and show the queues that are as before."""
    import asyncio

    from holdfast.migrate import forget

    with audited("tenant.forget_move", plan.source, plan.tenant, target=shown_url(plan.target)):
        done = asyncio.run(forget(plan))
    if json:
        emit({"forgotten": [{"store": one.store, "queues": one.queues} for one in done]})
        return
    for one in done:
        say(f"{one.store} has forgotten the move; these queues are as before it: {', '.join(one.queues)}")
    note("Jobs that were copied but not taken away are in both stores. If the other store comes back, they run twice.")


def print_moved(done: Moved, json: bool) -> None:
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
        note("Continued an unfinished move; jobs that it had already moved are not counted here.")
    say(f"moved {done.jobs} jobs and {done.settings} settings of {done.tenant} to {done.target}")
    if done.left:
        note(f"{done.left} jobs were no longer waiting when their turn came; they stay in SRC.")
    for name in (one.queue for one in done.queues if one.paused):
        note(f"{name} is paused in DST, as it was in SRC: holdfast resume {name} --store DST --tenant {done.tenant}")
    if stopped := [one.queue for one in done.queues if one.source_paused]:
        note(f"Also paused in SRC, as before: {', '.join(stopped)}")
    note(STAYS)


def checksum(number: int) -> str:
    """A checksum in hexadecimal digits."""
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
