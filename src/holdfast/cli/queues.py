"""Whole queues: stats, queues, pause, resume."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.audit import audited
from holdfast.cli.options import Json, Store, Tenant
from holdfast.cli.output import emit, on_terminal, rich_table, say, show, span
from holdfast.cli.session import all_queues, with_queue
from holdfast.core.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.queue.queue import Queue
    from holdfast.queue.records import Stats

REFRESH_S = 1.0

QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")]

_WAITING = ("ready", "scheduled", "retrying", "blocked")
_STATES = (*_WAITING, "leased", "completed", "failed", "canceled")
_RARE = ("scheduled", "retrying", "blocked", "canceled")
_COLUMNS = ("queue", *_STATES, "oldest ready", "paused")
_NONE = "No queues yet: the first job creates its queue."


def stats(
    queue: Annotated[str | None, typer.Argument(metavar="[QUEUE]", help="One queue. Default: all.")] = None,
    *,
    store: Store = None,
    tenant: Tenant = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show changes until Ctrl-C.")] = False,
    json: Json = False,
) -> None:
    """Count jobs by state, in one queue or in all queues of the tenant."""
    import asyncio

    async def look(bound: Queue) -> Sequence[Stats]:
        return await bound.queues() if queue is None else [await bound.stats(queue)]

    async def first_look(bound: Queue) -> Sequence[Stats]:
        found = await look(bound)
        if queue is not None and not any(found[0].counts.values()) and not found[0].paused:
            raise await _queue_not_found(bound, queue)
        return found

    async def follow(bound: Queue) -> None:
        async def looks() -> AsyncIterator[Sequence[Stats]]:
            yield await first_look(bound)
            while True:
                await asyncio.sleep(REFRESH_S)
                yield await look(bound)

        await (_live(looks()) if on_terminal() and not json else _changes(looks(), json))

    if not watch:
        found = with_queue(store, tenant, first_look)
        _print(found, json)
        return
    try:
        with_queue(store, tenant, follow)
    except KeyboardInterrupt:
        raise typer.Exit from None


def list_queues(*, store: Store = None, tenant: Tenant = None, json: Json = False) -> None:
    """List the tenant's queues."""
    found = with_queue(store, tenant, lambda bound: bound.queues())
    if json:
        emit({"queues": [_short(one) for one in found]})
        return
    rows = [
        [one["queue"], str(one["waiting"]), str(one["running"]), str(one["dead_letters"]), _paused(one["paused"])]
        for one in map(_short, found)
    ]
    show(["queue", "waiting", "running", "dead letters", "paused"], rows, _NONE)


def pause(queue: QueueArgument, *, store: Store = None, tenant: Tenant = None, json: Json = False) -> None:
    """Pause a queue: it accepts new jobs, but workers get none."""
    with audited("queue.pause", store, tenant, queue=queue):
        with_queue(store, tenant, lambda bound: bound.pause(queue))
    _print_paused(queue, json, paused=True)


def resume(queue: QueueArgument, *, store: Store = None, tenant: Tenant = None, json: Json = False) -> None:
    """Resume a paused queue."""
    with audited("queue.resume", store, tenant, queue=queue):
        with_queue(store, tenant, lambda bound: bound.resume(queue))
    _print_paused(queue, json, paused=False)


class QueueNotFound(HoldfastError):
    """The tenant has no such queue."""

    code = "queue_not_found"


async def _queue_not_found(bound: Queue, queue: str) -> QueueNotFound:
    """The error for a queue that has no jobs and no settings. It suggests similar names, or lists all."""
    names = await all_queues(bound)
    error = QueueNotFound(f"{bound.tenant} has no queue {queue!r}: there are no jobs in it")
    if similar := get_close_matches(queue, names):
        error.add_note(f"Did you mean: {', '.join(similar)}?")
    elif names:
        error.add_note(f"Queues of {bound.tenant}: {', '.join(names)}.")
    return error


def _print_paused(queue: str, json: bool, *, paused: bool) -> None:
    if json:
        emit({"queue": queue, "paused": paused})
    else:
        say(f"{'paused' if paused else 'resumed'} {queue}")


def _print(found: Sequence[Stats], json: bool, *, line: bool = False) -> None:
    if json:
        emit(_document(found), line=line)
    elif on_terminal():
        show(*_without_zeros(_COLUMNS, _rows(found)), _NONE)
    else:
        show(_COLUMNS, _rows(found), _NONE)


async def _live(looks: AsyncIterator[Sequence[Stats]]) -> None:
    """Update one table in place."""
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        async for found in looks:
            live.update(rich_table(*_without_zeros(_COLUMNS, _rows(found))), refresh=True)


async def _changes(looks: AsyncIterator[Sequence[Stats]], json: bool) -> None:
    """Print the counts again whenever they change."""
    before: Any = None
    async for found in looks:
        counts = [(one.queue, one.counts, one.paused) for one in found]
        if counts != before:
            before = counts
            _print(found, json, line=True)


def _rows(found: Sequence[Stats]) -> list[list[str]]:
    rows: list[list[str]] = []
    for one in found:
        by_name = {state.value: str(count) for state, count in one.counts.items()}
        ends = [span(one.oldest_ready_age), _paused(one.paused)]
        rows.append([one.queue, *(by_name[state] for state in _STATES), *ends])
    return rows


def _without_zeros(columns: Sequence[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """The table without the columns of rare states that are all 0: a terminal is narrow."""
    zero = [name in _RARE and all(row[at] == "0" for row in rows) for at, name in enumerate(columns)]

    def kept(line: Sequence[str]) -> list[str]:
        return [cell for cell, drop in zip(line, zero, strict=True) if not drop]

    return kept(columns), [kept(row) for row in rows]


def _paused(paused: bool) -> str:
    return "yes" if paused else "no"


def _short(one: Stats) -> dict[str, Any]:
    counts = {state.value: count for state, count in one.counts.items()}
    return {
        "queue": one.queue,
        "waiting": sum(counts[state] for state in _WAITING),
        "running": counts["leased"],
        "dead_letters": counts["failed"],
        "paused": one.paused,
    }


def _document(found: Sequence[Stats]) -> dict[str, Any]:
    return {
        "queues": [
            {
                "queue": one.queue,
                "counts": one.counts,
                "oldest_ready_age_s": None if one.oldest_ready_age is None else one.oldest_ready_age.total_seconds(),
                "paused": one.paused,
            }
            for one in found
        ]
    }
