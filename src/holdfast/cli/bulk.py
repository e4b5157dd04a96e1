"""Cancel by filter, and the options that choose jobs by time."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.audit import operator
from holdfast.cli.options import words
from holdfast.cli.output import emit, progress, say
from holdfast.core.errors import InvalidOption
from holdfast.jobs.moments import time_or_age

if TYPE_CHECKING:
    from holdfast.queue.filters import JobFilter
    from holdfast.queue.queue import Queue

STEP = 200
"""The size of one step. The progress bar moves after each."""

State = Annotated[str | None, typer.Option(metavar="STATE[,STATE...]", help="Only jobs in these states.")]
Prefix = Annotated[str | None, typer.Option("--id", metavar="TEXT", help="Only jobs whose id begins with this.")]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="AGE|TIME", help="Only jobs no older than this (1h), or from this time on; `list` says by which time."
    ),
]
Until = Annotated[
    str | None, typer.Option(metavar="AGE|TIME", help="Only jobs older than this (1h), or before this time.")
]


def filters(**given: str | None) -> JobFilter:
    """The options that are given, for `Queue.list` and `Queue.cancel_where`. Raises InvalidOption."""
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if "state" in chosen:
        chosen["state"] = words("state", chosen["state"])
    for name in {"since", "until"} & chosen.keys():
        chosen[name] = time_or_age(name, chosen[name])
    return chosen  # pyright: ignore[reportReturnType]


def check_choice(job: str | None, /, *, all: bool, dry_run: bool, running: bool, **given: str | None) -> None:
    """Raise InvalidOption unless either one job or a choice of jobs is given."""
    named = [name for name, value in given.items() if value is not None]
    if job is not None and (all or dry_run or running or named):
        raise InvalidOption("ID", "give an id, or --all and filters, not both")
    if job is None and not all and not named:
        raise InvalidOption("cancel", f"nothing is selected; give an id, --all, or --{', --'.join(given)}")


async def cancel_matching(
    bound: Queue, chosen: JobFilter, facts: dict[str, Any], *, running: bool, dry_run: bool, json: bool
) -> None:
    """Cancel the jobs that match, step by step, or count them."""
    matching = await bound.cancel_where(**chosen, running=running, dry_run=True)
    if dry_run:
        at_least = "at least " if matching.more else ""
        sample = [{"queue": key.queue, "id": key.id} for key in matching.sample]
        document = {"dry_run": True, "matching": matching.count, "more": matching.more, "sample": sample}
        emit(document) if json else say(f"would cancel {at_least}{matching.count}")
        return
    count, refused, cursor, first = 0, Counter[str](), None, True
    with progress("Canceling", None if matching.more else matching.count, quiet=json) as done:
        while first or cursor is not None:
            step = await bound.cancel_where(**chosen, running=running, cursor=cursor, limit=STEP, by=operator())
            first, cursor, count = False, step.cursor, count + step.count
            refused.update(step.refused)
            facts["answers"] = {"canceled": count, **refused}
            done(step.count)
    if json:
        emit({"canceled": count, "refused": refused})
    else:
        say(f"canceled {count}" + "".join(f", {number} {why}" for why, number in refused.items()))
