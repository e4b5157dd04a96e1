"""Dead letters: list, replay, purge."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.options import Blobs, JobType, Json, QueueName, Store, Tenant, moment_or_age
from holdfast.cli.output import emit, note, progress, show, when
from holdfast.cli.session import with_queue
from holdfast.core.errors import InvalidOption

if TYPE_CHECKING:
    from holdfast.core.errors import HoldfastError
    from holdfast.queue import Queue
    from holdfast.records import JobRecord

PAGE = 1000
BATCH = 200
"""Replays go out in batches of this size, so that the bar moves."""

ErrorFilter = Annotated[
    str | None, typer.Option("--error", help="Only where the last error has this type or fingerprint, or says this.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say how many it would be.")]


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
    queue: QueueName = "default",
    type: JobType = None,
    error: ErrorFilter = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Where the list before ended.")] = None,
    json: Json = False,
) -> None:
    """List dead letters, oldest first, each with its last error."""

    async def act(bound: Queue) -> tuple[list[JobRecord], str | None, list[str]]:
        found: list[JobRecord] = []
        at = cursor
        while True:
            size = min(PAGE, limit - len(found))
            page = await bound.dead_letters(queue=queue, type=type, error=error, limit=size, cursor=at)
            found += page
            at = page.cursor
            if at is None or len(found) >= limit:
                break
        return found, at, [] if found or json else await _queues_with_dead(bound)

    found, at, elsewhere = with_queue(store, tenant, act)
    if json:
        emit({"jobs": [record.as_dict() for record in found], "cursor": at})
        return
    empty = f"No dead letters like that in queue {queue}."
    if elsewhere:
        empty += f" There are some in: {', '.join(elsewhere)}."
    show(["id", "type", "runs", "reason", "failed", "error"], map(_row, found), empty)
    if at is not None:
        note(f"There are more: --cursor {at}")


def replay(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="These dead letters.")] = None,
    *,
    store: Store = None,
    tenant: Tenant = None,
    queue: QueueName = "default",
    all: Annotated[bool, typer.Option("--all", help="All dead letters of the queue.")] = False,
    type: JobType = None,
    error: ErrorFilter = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Start dead letters again: those named, or all that match. Exits with 1 if some could not be replayed."""
    _check_choice(ids, all=all, type=type, error=error)

    async def act(bound: Queue) -> None:
        chosen = ids or await _matching(bound, queue, type, error)
        if dry_run:
            _tell({"dry_run": True, "matching": len(chosen), "ids": chosen}, f"would replay {len(chosen)}", json)
            return
        refused: list[tuple[str, HoldfastError]] = []
        with progress("Replaying", len(chosen), quiet=json) as done:
            for start in range(0, len(chosen), BATCH):
                batch = chosen[start : start + BATCH]
                tickets = await bound.replay_many(batch, queue=queue)
                failed = [(ticket.id, ticket.error) for ticket in tickets if ticket.error is not None]
                refused += failed
                done(len(batch) - len(failed))
        count = len(chosen) - len(refused)
        rest = [{"id": id, "code": why.code, "message": str(why)} for id, why in refused]
        if json or count or not refused:
            _tell({"replayed": count, "refused": rest}, f"replayed {count}", json)
        if refused:
            if not json:
                note("\n".join(f"Error: {why}" for _, why in refused))
            raise typer.Exit(1)

    with_queue(store, tenant, act)


def purge(
    *,
    store: Store = None,
    tenant: Tenant = None,
    queue: QueueName = "default",
    before: Annotated[
        str | None, typer.Option(metavar="AGE|TIME", help="Only those that failed longer ago (7d), or before then.")
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="All dead letters of the queue.")] = False,
    type: JobType = None,
    error: ErrorFilter = None,
    dry_run: DryRun = False,
    blobs: Blobs = None,
    json: Json = False,
) -> None:
    """Forget dead letters for good, now."""
    _check_choice(None, all=all, type=type, error=error, before=before)
    until = moment_or_age("before", before)

    async def act(bound: Queue) -> None:
        if dry_run:
            count = len(await _matching(bound, queue, type, error, until))
            _tell({"dry_run": True, "matching": count}, f"would purge {count}", json)
            return
        count = await bound.purge_dead_letters(before=until, queue=queue, type=type, error=error)
        _tell({"purged": count}, f"purged {count}", json)

    with_queue(store, tenant, act, blobs)


def _check_choice(ids: Sequence[str] | None, *, all: bool, **filters: str | None) -> None:
    named = [name for name, value in filters.items() if value is not None]
    if ids and (all or named):
        raise InvalidOption("ids", "give ids, or --all and filters to search by, not both")
    if not ids and not all and not named:
        flags = ", ".join(f"--{name}" for name in filters)
        raise InvalidOption("dlq", f"which ones? name ids, or say --all, or search with {flags}")


async def _matching(
    bound: Queue, queue: str, type: str | None, error: str | None, until: datetime | timedelta | None = None
) -> list[str]:
    """The ids of the dead letters that match by now; jobs that fail while they are being dealt with are not taken."""
    from holdfast.options import moment

    now = moment(await bound.store.now())
    end = now if until is None else now - until if isinstance(until, timedelta) else until
    ids: list[str] = []
    cursor: str | None = None
    while True:
        page = await bound.dead_letters(queue=queue, type=type, error=error, limit=PAGE, cursor=cursor)
        ids += [record.id for record in page if record.finished_at is not None and record.finished_at <= end]
        cursor = page.cursor
        if cursor is None:
            return ids


async def _queues_with_dead(bound: Queue) -> list[str]:
    return [
        stats.queue for stats in await bound.queues() if any(stats.counts[s] for s in stats.counts if s == "failed")
    ]


def _row(record: JobRecord) -> list[str]:
    last = record.errors[-1] if record.errors else None
    said = f"{last.type}: {last.message}" if last else ""
    attempts = f"{record.attempts}/{record.max_attempts}"
    return [record.id, record.type, attempts, record.reason or "", when(record.finished_at), said]


def _tell(document: dict[str, Any], sentence: str, json: bool) -> None:
    if json:
        emit(document)
    else:
        print(sentence)
