"""Prints the output of commands: Rich tables and bars on a terminal, plain lines elsewhere, JSON for programs.

Rich is loaded only on a terminal. Control characters in texts of jobs (ids, messages) are escaped: a job must not be
able to move an operator's cursor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from holdfast.core.text import printable, printable_json

if TYPE_CHECKING:
    from rich.table import Table

STYLES: Mapping[str, str] = {
    "ready": "cyan", "leased": "yellow", "completed": "green", "failed": "bold red", "canceled": "dim",
    "retrying": "magenta", "scheduled": "blue", "paused": "yellow", "held": "green", "not held": "bold red",
    "ok": "green", "warn": "yellow", "bad": "bold red",
}  # fmt: skip
"""The colors of words that fill a cell or a value."""

MAX_UNBROKEN = 40
"""The longest name that a table keeps on one line."""

_PARTS = ((86400, "d"), (3600, "h"), (60, "m"))


def on_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def emit(document: Any, *, line: bool = False) -> None:
    """Print one JSON document: indented on a terminal, otherwise, or with `line`, on one line."""
    import msgspec

    text = msgspec.json.encode(document, enc_hook=str)
    if on_terminal() and not line:
        text = msgspec.json.format(text, indent=2)
    print(printable_json(text.decode()), flush=True)


def say(text: str = "", *, lines: bool = False) -> None:
    """Print a line, or several with `lines`. Commands print only through this module."""
    print(printable(text, lines=lines), flush=True)


def note(text: str, *, lines: bool = False) -> None:
    """Print a message to standard error, apart from the result."""
    print(printable(text, lines=lines), file=sys.stderr, flush=True)


def show(columns: Sequence[str], rows: Iterable[Sequence[str]], empty: str = "") -> None:
    """Print rows under their headings, or the message `empty` if there are none."""
    rows = list(rows)
    if not rows and empty:
        note(empty)
    elif on_terminal():
        from rich.console import Console

        Console().print(rich_table(columns, rows))
    else:
        for line in plain_table(columns, rows):
            print(line)


def show_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair a line. Empty values are left out."""
    shown = [(name, printable(value, lines=True)) for name, value in pairs if value]
    width = max((len(name) for name, _ in shown), default=0)
    if on_terminal():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        for name, value in shown:
            grid.add_row(Text(name, "dim"), Text(value, STYLES.get(value, ""), overflow="fold"))
        Console().print(grid)
        return
    for name, value in shown:
        print(f"{name:<{width}}  {value}")


def rich_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table for a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    lines = [[printable(cell) for cell in row] for row in rows]
    for number, column in enumerate(columns):
        # The first column is for copying: fold the others first.
        whole = number == 0 and all(len(line[0]) <= MAX_UNBROKEN for line in lines)
        table.add_column(Text(printable(column)), overflow="fold", no_wrap=whole)
    for line in lines:
        table.add_row(*(Text(cell, STYLES.get(cell, "")) for cell in line))
    return table


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table as aligned plain lines with headings. Empty cells are `-`, so that `awk` finds the columns."""
    lines = [[printable(column).upper().replace(" ", "_") for column in columns]]
    lines += [[printable(cell) or "-" for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


def when(at: datetime | None, units: int = 1) -> str:
    """An instant: relative to now on a terminal, ISO 8601 elsewhere."""
    if at is None:
        return ""
    if not on_terminal():
        return at.isoformat(timespec="milliseconds")
    away = at - datetime.now(UTC)
    return f"in {span(away, units)}" if away > timedelta() else f"{span(-away, units)} ago"


def moment(at: datetime | None) -> str:
    """An instant on its own line: on a terminal also the time of day."""
    return f"{clock(at)} ({when(at, 2)})" if at is not None and on_terminal() else when(at)


def clock(at: datetime) -> str:
    """An instant: local time on a terminal, ISO 8601 elsewhere."""
    if not on_terminal():
        return at.isoformat(timespec="milliseconds")
    here, today = at.astimezone(), datetime.now().astimezone()
    return f"{here:%H:%M:%S}" if here.date() == today.date() else f"{here:%Y-%m-%d %H:%M:%S}"


def span(length: timedelta | None, units: int = 2) -> str:
    """A duration in its largest units."""
    if length is None:
        return ""
    left = length.total_seconds()
    if left < 10:  # noqa: PLR2004 - tenths matter only there
        return f"{left:.1f}s"
    left = int(left)
    parts: list[str] = []
    for size, unit in _PARTS:
        if left >= size or parts:
            parts.append(f"{left // size}{unit}")
            left %= size
    return " ".join([*parts, f"{left}s"][:units])


@contextmanager
def progress(label: str, total: int | None, *, quiet: bool = False) -> Generator[Callable[[int], None]]:
    """Show progress on standard error: a bar on a terminal, a line for each tenth elsewhere.

    The block gets a function; call it with the number of finished items.
    """
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(label, total=total)
            yield lambda more: bar.advance(task, more)
    else:
        yield _Tenths(label, total).add


class _Tenths:
    """Progress in plain lines."""

    def __init__(self, label: str, total: int | None) -> None:
        self._label, self._total = label, total
        self._done = self._printed = 0

    def add(self, more: int) -> None:
        self._done += more
        if not self._total:
            return
        tenth = 10 * self._done // self._total
        if tenth > self._printed:
            self._printed = tenth
            note(f"{self._label}: {self._done} of {self._total}")
