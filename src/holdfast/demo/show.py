"""What the demo prints: bars on a terminal, lines elsewhere, tables at the end."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from holdfast import JobState
from holdfast.core.job import TERMINAL
from holdfast.demo.audit import Audit, Times, percentile
from holdfast.demo.plan import POISON_ID, Plan

LINE_EVERY_S = 2.0
ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELED)


class Show:
    """The story as it goes: a line for each thing that happens, and how far each tenant is."""

    def __init__(self, plans: Sequence[Plan], console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._line_at = LINE_EVERY_S
        self._totals = {plan.tenant.name: plan.total for plan in plans}
        self._progress = Progress(
            TextColumn("  [bold]{task.description:<8}"),
            BarColumn(bar_width=30),
            TextColumn("{task.completed:>5,.0f} of {task.total:<5,.0f}"),
            TextColumn("[dim]{task.fields[states]}"),
            console=console,
            transient=True,
            auto_refresh=False,
        )
        self._bars: dict[str, TaskID] = {
            name: self._progress.add_task(name, total=total, states="") for name, total in self._totals.items()
        }

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    @property
    def elapsed_s(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        """Something happened."""
        self._console.print(f"[dim]{self.elapsed_s:5.1f} s[/]  {text}", highlight=False, soft_wrap=True)

    def update(self, counts: Mapping[str, Mapping[JobState, int]]) -> None:
        """How far each tenant is."""
        ended = {name: sum(states.get(state, 0) for state in TERMINAL) for name, states in counts.items()}
        if self._console.is_terminal:
            for name, states in counts.items():
                waiting = ("running", JobState.LEASED), ("to retry", JobState.RETRYING), ("dead", JobState.FAILED)
                text = ", ".join(f"{states[state]} {word}" for word, state in waiting if states.get(state))
                self._progress.update(self._bars[name], completed=ended[name], states=text)
            self._progress.refresh()
        elif self.elapsed_s >= self._line_at:
            self._line_at = self.elapsed_s + LINE_EVERY_S
            self.say("   ".join(f"{name} {ended[name]:,} of {self._totals[name]:,}" for name in counts))


def headline(console: Console, plans: Sequence[Plan], directory: Path, lease_s: float) -> None:
    """Who is who."""
    total = sum(plan.total for plan in plans)
    console.print(
        f"[bold]Holdfast demo[/]: {total:,} jobs, 3 tenants, 2 worker processes, one store in {directory}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    for plan in plans:
        console.print(f"  [bold]{plan.tenant.name:<8}[/] {plan.total:>5,} jobs, {plan.tenant.habit}", highlight=False)
    console.print(
        f"  Some fail and are retried, some wait for their time, some are canceled. A worker holds a job by a lease of\n"
        f"  {lease_s:g} s and renews it; when it dies, the lease runs out and the job goes to another worker.\n",
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def report(console: Console, plans: Sequence[Plan], found: Audit, killed: tuple[int, int], elapsed_s: float) -> None:
    """The tables, and what to make of them."""
    names = [plan.tenant.name for plan in plans]
    console.print()
    console.print(_states_table(names, found))
    console.print(_times_table(names, found))
    ours, poisoned = killed
    poison = next((record for record in found.dead if record.id == POISON_ID), None)
    lines = [
        f"errors that were retried: {found.events['retried']:,}",
        f"worker processes killed: {ours + poisoned} ({ours} by the demo, {poisoned} by the poison job), "
        f"each started again; leases that ran out: {found.events['expired'] + (poison is not None):,}",
        f"jobs run again because of that: {found.run_again:,}, of which {found.finished_twice:,} had done their work "
        "already (handlers run at least once)",
    ]
    if poison is not None:
        lines.append(
            f"the poison job: dead letter after {poison.attempts} attempts, reason {poison.reason}; "
            "the others kept flowing"
        )
    for line in lines:
        console.print(f"  {line}", highlight=False, soft_wrap=True)
    console.print()
    style = "bold red" if found.lost else "bold green"
    console.print(Text.assemble((f"lost: {len(found.lost):,}", style)))
    console.print(
        f"  {found.acknowledged:,} acknowledged enqueues, each looked up in the store and in the event log "
        f"({elapsed_s:.0f} s in all)",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    for lost in found.lost[:20]:
        console.print(f"  {'/'.join(lost.job)}: {lost.text}", style="red", highlight=False, soft_wrap=True)


def what_next(console: Console, directory: Path, store: str) -> None:
    """What to type to look around."""
    console.print(f"\nThe data is in [bold]{directory}[/]. Look around:", highlight=False, soft_wrap=True)
    command = _command()
    for text in (
        f"stats --store {shlex.quote(store)} --tenant acme",
        f"dlq list --store {shlex.quote(store)} --tenant initech --queue images",
        f"events --store {shlex.quote(store)} --tenant globex",
    ):
        console.print(f"  {command} {text}", highlight=False, soft_wrap=True, markup=False)


def _states_table(names: Sequence[str], found: Audit) -> Table:
    table = Table(title="How the jobs ended", title_justify="left", title_style="bold")
    table.add_column("tenant")
    for state in ENDED:
        table.add_column("failed (dead letters)" if state is JobState.FAILED else state.value, justify="right")
    table.add_column("anything else", justify="right")
    table.add_column("jobs", justify="right")
    rows = [(name, found.states[name]) for name in names]
    total = sum((states for _, states in rows), start=type(rows[0][1])())
    for name, states in [*rows, ("all", total)]:
        if name == "all":
            table.add_section()
        other = states.total() - sum(states[state] for state in ENDED)
        cells = [*(states[state] for state in ENDED), other, states.total()]
        table.add_row(name, *(f"{cell:,}" for cell in cells), style="bold" if name == "all" else "")
    return table


def _times_table(names: Sequence[str], found: Audit) -> Table:
    table = Table(title="How long it took", title_justify="left", title_style="bold")
    table.add_column("tenant")
    for name in ("due to start p50", "p99", "run p50", "p99"):
        table.add_column(name, justify="right")
    for name in names:
        times = found.times.get(name, Times())
        cells = [percentile(values, percent) for values in (times.waits, times.runs) for percent in (50, 99)]
        table.add_row(name, *(_duration(cell) for cell in cells))
    return table


def _duration(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def _command() -> str:
    """How to call `holdfast` from here: by its name where the shell finds the same one."""
    ours = Path(sys.executable).with_name("holdfast")
    found = shutil.which("holdfast")
    if found is not None and Path(found).resolve() == ours.resolve():
        return "holdfast"
    here = Path.cwd()
    return shlex.quote(str(ours.relative_to(here) if ours.is_relative_to(here) else ours))
