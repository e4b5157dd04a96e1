"""`holdfast events`: the event log."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from holdfast.cli.options import Json, Store, Tenant, words
from holdfast.cli.output import STYLES, clock, emit, on_terminal, printable, say
from holdfast.cli.session import with_queue
from holdfast.core.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.queue.queue import Queue
    from holdfast.queue.records import Event

END = "end"
"""The offset that means the current end of the log."""

_STYLES = {**STYLES, "retried": "magenta", "expired": "magenta", "claimed": "yellow", "enqueued": "cyan"}


def events(
    *,
    store: Store = None,
    tenant: Tenant = None,
    after: Annotated[
        str | None, typer.Option(metavar="OFFSET", help="Start after this offset; `end`: only new events.")
    ] = None,
    tail: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Only the last N events; with --follow, then new ones.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new events until Ctrl-C.")] = False,
    kind: Annotated[str | None, typer.Option(metavar="KIND[,KIND...]", help="Only events of these kinds.")] = None,
    id: Annotated[str | None, typer.Option(help="Only events of this job.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Only events of this queue.")] = None,
    json: Json = False,
) -> None:
    """Print the tenant's events in order. With --json, one JSON document per line."""
    from holdfast.core.events import EventKind

    kinds = words("kind", kind)
    if unknown := set(kinds or ()) - set(get_args(EventKind)):
        raise InvalidOption("kind", f"{min(unknown)!r} is unknown; there are {', '.join(get_args(EventKind))}")

    is_wanted = _filter(kinds, id, queue)

    async def act(bound: Queue) -> None:
        write = _as_json if json else _writer()
        start = await bound.last_offset() if after == END else after
        if tail is not None:
            last, start = await _last(bound, start, tail, is_wanted)
            for event in last:
                write(event)
            if not follow:
                return
        async for event in bound.events(start, follow=follow):
            if is_wanted(event):
                write(event)

    try:
        with_queue(store, tenant, act)
    except KeyboardInterrupt:
        if not follow:
            raise
        raise typer.Exit from None


def _filter(kinds: Sequence[str] | None, id: str | None, queue: str | None) -> Callable[[Event], bool]:
    def is_wanted(event: Event) -> bool:
        return (
            (kinds is None or event.kind in kinds)
            and (id is None or event.job_id == id)
            and (queue is None or event.queue == queue)
        )

    return is_wanted


async def _last(
    bound: Queue, start: str | None, count: int, is_wanted: Callable[[Event], bool]
) -> tuple[Sequence[Event], str | None]:
    """The last matching events, and the end of the log."""
    last: deque[Event] = deque(maxlen=count)
    async for event in bound.events(start):
        start = event.offset
        if is_wanted(event):
            last.append(event)
    return list(last), start


def _as_json(event: Event) -> None:
    emit(event, line=True)


def _writer() -> Callable[[Event], None]:
    if not on_terminal():
        return lambda event: say(_line(event))
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)

    def write(event: Event) -> None:
        text = Text(_line(event))
        text.highlight_words([event.kind], _STYLES.get(event.kind, ""))
        console.print(text, soft_wrap=True)

    return write


def _line(event: Event) -> str:
    parts = [clock(event.at), f"{event.kind:<10}", f"{event.queue}/{event.job_id}", event.type or "-"]
    if event.attempt:
        parts.append(f"attempt={event.attempt}")
    if event.worker_id:
        parts.append(f"worker={event.worker_id}")
    if reason := event.data.get("reason"):
        parts.append(f"reason={reason}")
    if error := event.data.get("error"):
        parts.append(f"{error.get('type')}: {error.get('message')}")
    return printable("  ".join(parts))
