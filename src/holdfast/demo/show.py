"""The output of the demo: progress bars on a terminal, lines elsewhere, tables at the end."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from holdfast import JobState
from holdfast.core.job import TERMINAL
from holdfast.demo.audit import DemoAudit, Times, percentile
from holdfast.demo.fleet import SIZE
from holdfast.demo.plan import POISON_ID, TenantPlan

LINE_EVERY_S = 2.0
ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELED)


class Show:
    """The progress of the demo: a line for each incident, and a bar for each tenant."""

    def __init__(self, plans: Sequence[TenantPlan], console: Console) -> None:
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
        """Seconds since the start."""
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        """Print an incident."""
        line(self._console, f"[dim]{self.elapsed_s:5.1f} s[/]  {text}")

    def update(self, counts: Mapping[str, Mapping[JobState, int]]) -> None:
        """Show the progress of each tenant."""
        ended = {name: sum(states.get(state, 0) for state in TERMINAL) for name, states in counts.items()}
        if self._console.is_terminal:
            for name, states in counts.items():
                waiting = ("leased", JobState.LEASED), ("to retry", JobState.RETRYING), ("dead", JobState.FAILED)
                text = ", ".join(f"{states[state]} {word}" for word, state in waiting if states.get(state))
                self._progress.update(self._bars[name], completed=ended[name], states=text)
            self._progress.refresh()
        elif self.elapsed_s >= self._line_at:
            self._line_at = self.elapsed_s + LINE_EVERY_S
            self.say("   ".join(f"{name} {ended[name]:,} of {self._totals[name]:,}" for name in counts))


def headline(console: Console, plans: Sequence[TenantPlan], directory: Path, lease_s: float) -> None:
    """Print the tenants and workers."""
    total = sum(plan.total for plan in plans)
    what = f"{total:,} jobs of {len(plans)} tenants, {SIZE} worker processes"
    line(console, f"[bold]Holdfast demo[/]: {what}, no server, data in {escape(str(directory))}\n")
    for plan in plans:
        line(console, f"  [bold]{plan.tenant.name:<8}[/] {plan.total:>5,} jobs, {plan.tenant.habit}")
    line(console, "\nSome jobs fail and are retried, some are delayed, some are canceled. A worker holds each")
    line(
        console, f"job with a lease of {lease_s:g} s, which it renews. When a worker dies, its leases expire and other"
    )
    line(console, "workers get the jobs.\n")


def report(console: Console, plans: Sequence[TenantPlan], found: DemoAudit, killed: tuple[int, int]) -> None:
    """Print the tables, and what they mean."""
    names = [plan.tenant.name for plan in plans]
    bulk = next(plan for plan in plans if not plan.tenant.trickles)
    console.print()
    console.print(_states_table(names, found))
    console.print()
    console.print(_times_table(names, found))
    line(console, "  wait: from the time a job was due until its handler began. Tenants take turns: the")
    sent = f"{len(bulk.messages):,} jobs that {bulk.tenant.name} enqueued at once"
    line(console, f"  {sent} delayed only that tenant.\n")
    line(console, "[bold]What happened meanwhile[/]")
    for number, text in _happenings(found, *killed):
        line(console, f"  {number:>5,}  {text}")
    style = "bold red" if found.lost else "bold green"
    line(console, f"\n[{style}]lost: {len(found.lost):,}[/]")
    if not found.lost:
        line(console, f"  {found.acknowledged.total():,} enqueues were acknowledged. Each of these jobs ended exactly")
        line(console, "  once, as completed, failed or canceled; the store and the event log agree on each.")
    for lost in found.lost[:20]:
        line(console, f"  [red]{escape('/'.join(lost.job))}: {escape(lost.text)}[/]")


def _happenings(found: DemoAudit, by_us: int, by_poison: int) -> Iterator[tuple[int, str]]:
    yield found.events["retried"], "attempts failed and were retried"
    killers = f"{by_us} by the demo, {by_poison} by the poison job"
    yield by_us + by_poison, f"worker processes were killed ({killers}); each was replaced"
    yield found.leases_lost, "leases expired because of that; other workers got the jobs"
    yield found.run_again, "jobs ran again because of that: a handler runs at least once"
    yield found.finished_twice, "of these had already finished and did their work twice: make handlers idempotent"
    for record in found.dead:
        if record.id == POISON_ID:
            yield 1, f"poison job became a dead letter after {record.attempts} attempts (reason: {record.reason})"


def what_next(console: Console, directory: Path, store: str) -> None:
    """Print commands to explore the data."""
    line(console, f"\nThe data is in [bold]{escape(str(directory))}[/]. Explore it:")
    holdfast = command()
    for text in (
        f"stats --store {shlex.quote(store)} --tenant acme",
        f"dlq list --store {shlex.quote(store)} --tenant initech --queue images",
        f"events --store {shlex.quote(store)} --tenant initech --id {POISON_ID}",
    ):
        line(console, escape(f"  {holdfast} {text}"))


def _states_table(names: Sequence[str], found: DemoAudit) -> Table:
    table = Table(title="How the jobs ended", title_justify="left", title_style="bold")
    table.add_column("tenant")
    for name in ("completed", "dead letters", "canceled", "lost", "jobs"):
        table.add_column(name, justify="right")
    lost = Counter(one.job[0] for one in found.lost)
    rows = [[*(found.states[name][state] for state in ENDED), lost[name], found.acknowledged[name]] for name in names]
    for name, row in zip(names, rows, strict=True):
        table.add_row(name, *(f"{cell:,}" for cell in row))
    table.add_section()
    table.add_row("all", *(f"{sum(column):,}" for column in zip(*rows, strict=True)), style="bold")
    return table


def _times_table(names: Sequence[str], found: DemoAudit) -> Table:
    table = Table(title="How long it took", title_justify="left", title_style="bold")
    table.add_column("tenant")
    for name in ("wait p50", "wait p99", "run p50", "run p99"):
        table.add_column(name, justify="right")
    for name in names:
        times = found.times.get(name, Times())
        cells = [percentile(values, percent) for values in (times.waits, times.runs) for percent in (50, 99)]
        table.add_row(name, *(_duration(cell) for cell in cells))
    return table


def line(console: Console, text: str) -> None:
    """Print a line without wrapping it."""
    console.print(text, highlight=False, soft_wrap=True)


def _duration(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def command() -> str:
    """How to call `holdfast` from here: by its name, if the shell finds the same one."""
    ours = Path(sys.executable).with_name("holdfast")
    found = shutil.which("holdfast")
    if found is not None and Path(found).resolve() == ours.resolve():
        return "holdfast"
    here = Path.cwd()
    return shlex.quote(str(ours.relative_to(here) if ours.is_relative_to(here) else ours))
