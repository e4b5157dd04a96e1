"""What was measured, as tables on the screen."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table

from bench import depth
from bench.measure import Figures

FILE, MEMORY, HUEY = "file", "memory", "huey"
SUBJECTS = (FILE, MEMORY, HUEY, "huey fsync=True", "huey fsync=False")
RATES = ("bulk enqueue", "awaited enqueue", "concurrent enqueue", "drain")
WAITS = tuple(f"{name} p{p}" for name in ("idle enqueue to start", "request/response") for p in (50, 99))
CPU = "drain, processor time"


def rates(figures: Figures, rounds: int) -> Table:
    table = Table(title=f"Jobs per second, median of {rounds} rounds", title_justify="left")
    table.add_column("")
    for subject in SUBJECTS:
        table.add_column(subject.replace(" fsync", "\nfsync"), justify="right")
    table.add_column("file / huey", justify="right", style="bold")
    for measure in RATES:
        # Without a bulk enqueue, one by one is what huey has.
        base = "drain" if measure == "drain" else "awaited enqueue"
        ratio = figures.median(measure, FILE) / figures.median(base, HUEY)
        cells = [cell(figures, measure, subject, "{:,.0f}") for subject in SUBJECTS]
        table.add_row(measure, *cells, times(ratio))
    ratio = figures.median(CPU, HUEY) / figures.median(CPU, FILE)
    cells = [cell(figures, CPU, subject, "{:,.0f}") for subject in SUBJECTS]
    table.add_row("µs of processor a job, draining", *cells, times(ratio))
    return table


def waits(figures: Figures, rounds: int) -> Table:
    table = Table(title=f"Milliseconds on an idle queue, median of {rounds} rounds", title_justify="left")
    table.add_column("")
    subjects = (FILE, MEMORY, HUEY, "huey, polling 10 ms")
    for subject in subjects:
        table.add_column(subject, justify="right")
    for measure in WAITS:
        table.add_row(measure, *(cell(figures, measure, subject, "{:,.2f}") for subject in subjects))
    return table


def claims(figures: Figures, subjects: Sequence[str]) -> Table:
    table = Table(title="Milliseconds for one claim, by how many jobs are waiting", title_justify="left")
    table.add_column("")
    for waiting in depth.DEPTHS:
        table.add_column(f"{waiting:,}", justify="right")
    table.add_column("1,000,000 / 1,000", justify="right", style="bold")
    for subject in subjects:
        for limit in depth.LIMITS:
            values = [figures.median(depth.measure(limit, waiting), subject) for waiting in depth.DEPTHS]
            cells = [text(value, "{:.3f}") for value in values]
            table.add_row(f"{subject}, claim of {limit}", *cells, times(values[-1] / values[0]))
    return table


def claims_of_all(figures: Figures, subjects: Sequence[str]) -> Table:
    limit = depth.LIMITS[-1]
    table = Table(title=f"Milliseconds for one claim of {limit}, by how many tenants have work", title_justify="left")
    table.add_column("")
    for tenants in depth.TENANTS:
        table.add_column(f"{tenants:,}", justify="right")
    table.add_column("10,000 / 1", justify="right", style="bold")
    for subject in subjects:
        values = [figures.median(depth.measure_tenants(tenants), subject) for tenants in depth.TENANTS]
        table.add_row(subject, *(text(value, "{:.3f}") for value in values), times(values[-1] / values[0]))
    return table


def cell(figures: Figures, measure: str, subject: str, form: str) -> str:
    values = figures.values(measure, subject)
    if not values:
        return "-"
    middle = text(figures.median(measure, subject), form)
    return middle if len(values) == 1 else f"{middle}\n[dim]{short(min(values))} - {short(max(values))}[/]"


def short(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:.1f}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def text(value: float, form: str) -> str:
    return "-" if math.isnan(value) else form.format(value)


def times(ratio: float) -> str:
    return text(ratio, "{:.1f} x")
