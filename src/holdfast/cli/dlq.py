"""Dead letters: list, replay, purge."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Awaitable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.audit import audited, operator
from holdfast.cli.options import AnyQueue, Blobs, JobType, Json, Store, Tenant
from holdfast.cli.output import emit, note, progress, say, show, when
from holdfast.cli.session import pages, queues_of, with_queue
from holdfast.core.errors import InvalidOption
from holdfast.jobs.moments import time_or_age

if TYPE_CHECKING:
    from holdfast.core.errors import HoldfastError
    from holdfast.queue.queue import Queue
    from holdfast.queue.records import JobPage, JobRecord

BATCH = 200
"""The size of a batch of replays. The progress bar moves after each."""

ErrorFilter = Annotated[
    str | None,
    typer.Option("--error", help="Only jobs whose last error has this type or fingerprint, or contains this text."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show how many jobs would be affected.")]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    group = typer.Typer(help="Dead letters: jobs that failed for good.", no_args_is_help=True, rich_markup_mode=None)
    group.command("list")(list_dead)
    group.command()(replay)
    group.command()(purge)
    app.add_typer(group, name="dlq")


def list_dead(
    *,
    store: Store = None,
    tenant: Tenant = None,
    queue: AnyQueue = None,
    type: JobType = None,
    error: ErrorFilter = None,
    limit: Annotated[int, typer.Option(min=1, help="The most jobs to show.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Continue after an earlier list.")] = None,
    json: Json = False,
) -> None:
    """List dead letters of one queue, or of all queues in turn: the oldest first, each with its last error."""

    async def act(bound: Queue) -> tuple[list[JobRecord], str | None, list[str]]:
        def page(name: str, at: str | None, size: int) -> Awaitable[JobPage]:
            return bound.dead_letters(queue=name, type=type, error=error, limit=size, cursor=at)

        found, at = await pages(bound, queue, cursor, limit, page)
        return found, at, [] if found or json else await _queues_with_dead(bound)

    found, at, elsewhere = with_queue(store, tenant, act)
    if json:
        emit({"jobs": [record.as_dict() for record in found], "cursor": at})
        return
    empty = f"No dead letters match{'' if queue is None else f' in queue {queue}'}."
    if elsewhere:
        empty += f" There are some in: {', '.join(elsewhere)}."
    show(["id", "queue", "type", "runs", "reason", "failed", "error"], map(_row, found), empty)
    if at is not None:
        note(f"There are more; continue with --cursor {shlex.quote(at)}")


def replay(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="The ids of dead letters.")] = None,
    *,
    store: Store = None,
    tenant: Tenant = None,
    queue: AnyQueue = None,
    all: Annotated[bool, typer.Option("--all", help="All dead letters of the queue, or of all queues.")] = False,
    type: JobType = None,
    error: ErrorFilter = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Replay dead letters: those with the given ids, or all that match. Exits with 1 if some could not be replayed."""
    _check_choice(ids, all=all, type=type, error=error)

    from holdfast.budgets import read_counts
    from holdfast.telemetry.audit import named

    async def act(bound: Queue) -> None:
        if ids:
            chosen = [(await _queue_of(bound, id, queue), id) for id in ids]
        else:
            chosen = [(record.queue, record.id) for record in await _matching(bound, queue, type, error)]
        if dry_run:
            matching = {"dry_run": True, "matching": len(chosen), "ids": [id for _, id in chosen]}
            _print_answer(matching, f"would replay {len(chosen)}", json)
            return
        facts.update(named(id for _, id in chosen))
        await read_counts(bound.store, bound.tenant)
        refused: list[tuple[str, HoldfastError]] = []
        with progress("Replaying", len(chosen), quiet=json) as done:
            for name in dict.fromkeys(name for name, _ in chosen):
                here = [id for other, id in chosen if other == name]
                for start in range(0, len(here), BATCH):
                    batch = here[start : start + BATCH]
                    tickets = await bound.replay_many(batch, queue=name, by=operator())
                    failed = [(ticket.id, ticket.error) for ticket in tickets if ticket.error is not None]
                    refused += failed
                    done(len(batch) - len(failed))
        count = len(chosen) - len(refused)
        facts["answers"] = {"replayed": count, **Counter(why.code for _, why in refused)}
        rest = [{"id": id, "code": why.code, "message": str(why)} for id, why in refused]
        if json or count or not refused:
            _print_answer({"replayed": count, "refused": rest}, f"replayed {count}", json)
        if refused:
            if not json:
                for _, why in refused:
                    note(f"Error: {why}")
            raise typer.Exit(1)

    choice = {"queue": queue, "type": type, "error": error}
    with audited("dead_letters.replay", store, tenant, dry_run=dry_run, **choice) as facts:
        with_queue(store, tenant, act)


def purge(
    *,
    store: Store = None,
    tenant: Tenant = None,
    queue: AnyQueue = None,
    before: Annotated[
        str | None,
        typer.Option(metavar="AGE|TIME", help="Only those that failed longer ago than this (7d), or before this time."),
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="All dead letters of the queue, or of all queues.")] = False,
    type: JobType = None,
    error: ErrorFilter = None,
    dry_run: DryRun = False,
    blobs: Blobs = None,
    json: Json = False,
) -> None:
    """Delete dead letters for good."""
    _check_choice(None, all=all, type=type, error=error, before=before)
    until = time_or_age("before", before)

    async def act(bound: Queue) -> None:
        if dry_run:
            count = len(await _matching(bound, queue, type, error, until))
            _print_answer({"dry_run": True, "matching": count}, f"would purge {count}", json)
            return
        count = 0
        for name in await queues_of(bound, queue):
            count += await bound.purge_dead_letters(before=until, queue=name, type=type, error=error, by=operator())
            facts["count"] = count
        _print_answer({"purged": count}, f"purged {count}", json)

    choice = {"queue": queue, "type": type, "error": error, "before": before}
    with audited("dead_letters.purge", store, tenant, dry_run=dry_run, **choice) as facts:
        with_queue(store, tenant, act, blobs)


def _check_choice(ids: Sequence[str] | None, *, all: bool, **filters: str | None) -> None:
    named = [name for name, value in filters.items() if value is not None]
    if ids and (all or named):
        raise InvalidOption("ids", "give ids, or --all and filters, not both")
    if not ids and not all and not named:
        flags = ", ".join(f"--{name}" for name in filters)
        raise InvalidOption("dlq", f"nothing is selected; give ids, --all, or {flags}")


async def _matching(
    bound: Queue, queue: str | None, type: str | None, error: str | None, until: datetime | timedelta | None = None
) -> list[JobRecord]:
    """The dead letters that match now. Jobs that fail later are left out."""
    from holdfast.core.times import moment

    now = moment(await bound.store.now())
    end = now if until is None else now - until if isinstance(until, timedelta) else until

    def page(name: str, at: str | None, size: int) -> Awaitable[JobPage]:
        return bound.dead_letters(queue=name, type=type, error=error, limit=size, cursor=at)

    found, _ = await pages(bound, queue, None, None, page)
    return [record for record in found if record.finished_at is not None and record.finished_at <= end]


async def _queue_of(bound: Queue, id: str, queue: str | None) -> str:
    """The queue of a dead letter. Raises InvalidOption if several queues have one with that id."""
    found: list[str] = []
    for name in await queues_of(bound, queue):
        record = await bound.get(id, queue=name) if queue is None else None
        if queue is not None or (record is not None and record.state == "failed"):
            found.append(name)
    if len(found) > 1:
        raise InvalidOption(
            "queue", f"several queues have a dead letter {id!r}: {', '.join(found)}; name one with --queue"
        )
    return found[0] if found else bound.name


async def _queues_with_dead(bound: Queue) -> list[str]:
    return [
        stats.queue for stats in await bound.queues() if any(stats.counts[s] for s in stats.counts if s == "failed")
    ]


def _row(record: JobRecord) -> list[str]:
    last = record.errors[-1] if record.errors else None
    error = f"{last.type}: {last.message}" if last else ""
    attempts = f"{record.attempts}/{record.max_attempts}"
    return [record.id, record.queue, record.type, attempts, record.reason or "", when(record.finished_at), error]


def _print_answer(document: dict[str, Any], sentence: str, json: bool) -> None:
    if json:
        emit(document)
    else:
        say(sentence)
