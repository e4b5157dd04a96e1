"""`python -m bench.quick`: Holdfast's memory and file stores, and huey on SQLite, in one run on one machine.

Figures of different machines and moments do not compare; those of one run do. Each measure is taken in several rounds,
ours and huey's in turns, and shown as the median with its spread.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import math
import os
import platform
import shutil
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import depth, ours, peer_huey
from bench.measure import Figures
from bench.ours import CONCURRENCY, PREFETCH, SIZES

HERE = Path(__file__).parent
RESULTS = HERE / "results-quick.json"
COMMITS = 100
HUEY_JOBS = {"default": 1_500, "on": 500, "off": 1_500}
HUEY_WAITS = 6
HUEY_TUNED_WAITS = 40

FILE, MEMORY, HUEY = "file", "memory", "huey"
SUBJECTS = (FILE, MEMORY, HUEY, "huey fsync=True", "huey fsync=False", "huey, polling 10 ms")
RATES = ("bulk enqueue", "awaited enqueue", "concurrent enqueue", "drain")
WAITS = tuple(f"{name} p{p}" for name in ("idle enqueue to start", "request/response") for p in (50, 99))
CPU = "drain, processor time"
COMMIT = "one SQLite commit"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.quick", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without", action="append", default=[], choices=["huey", "depth", "memory"])
    arguments = parser.parse_args()
    console = Console(width=max(120, Console().width))
    figures = Figures()
    began = time.monotonic()
    # Beside the code and not in /tmp, which is memory on many machines: fsync must mean something.
    (HERE / "out").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="quick-", dir=HERE / "out") as directory:
        asyncio.run(_measure(figures, Path(directory), arguments, console))
    seconds = time.monotonic() - began
    result = {"settings": _settings(arguments, seconds), "figures": figures.as_dict()}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    _show(console, figures, arguments.rounds)
    console.print(f"\n{seconds:.0f} s in all. Every value is in bench/{RESULTS.name}", highlight=False)
    return 0


async def _measure(figures: Figures, directory: Path, arguments: argparse.Namespace, console: Console) -> None:
    with_huey, with_memory = "huey" not in arguments.without, "memory" not in arguments.without
    for number in range(arguments.rounds):
        console.print(f"round {number + 1} of {arguments.rounds}", style="dim", highlight=False)
        here = directory / str(number)
        here.mkdir()
        commits(figures, here / "raw.db")
        await ours.file_rates(figures, here / "rates")
        if with_huey:
            peer_huey.rates(figures, here / "huey.db", "default", HUEY_JOBS["default"])
        await ours.file_singles(figures, here / "singles")
        if with_huey:
            peer_huey.rates(figures, here / "huey-on.db", "on", HUEY_JOBS["on"])
        await ours.file_waits(figures, here / "waits")
        if with_huey:
            peer_huey.waits(figures, here / "huey-idle.db", HUEY_WAITS)
            peer_huey.waits(figures, here / "huey-tuned.db", HUEY_TUNED_WAITS, *peer_huey.POLL)
            peer_huey.rates(figures, here / "huey-off.db", "off", HUEY_JOBS["off"])
        if with_memory:
            await ours.memory(figures, number)
        shutil.rmtree(here)
    if "depth" not in arguments.without:
        console.print("claims, with up to a million jobs waiting", style="dim", highlight=False)
        await depth.file(figures, directory / "depth")
        if with_memory:
            await depth.memory(figures)


def commits(figures: Figures, path: Path) -> None:
    """The floor under every durable change: one row and one commit."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("CREATE TABLE rows (n INTEGER)")
        for n in range(COMMITS):
            began = time.perf_counter()
            db.execute("INSERT INTO rows VALUES (?)", (n,))
            figures.add(COMMIT, "SQLite", (time.perf_counter() - began) * 1000)


# The table ---------------------------------------------------------------------------------------------------------


def _show(console: Console, figures: Figures, rounds: int) -> None:
    for table in (_rates_table(figures, rounds), _waits_table(figures, rounds), _depth_table(figures)):
        console.print()
        console.print(table)
    commit = figures.median(COMMIT, "SQLite")
    console.print(
        f"""
One row, one commit on this disk (SQLite, WAL, synchronous=FULL): {commit:.2f} ms, {1000 / commit:,.0f} a second.
Holdfast: no-op async job, results and events on. Drained by one worker process with concurrency {CONCURRENCY} and
prefetch {PREFETCH} (memory: in the same process), from the first handler to the last acknowledgement on the disk.
Jobs: {SIZES.bulk:,} in bulk and drained (memory {SIZES.memory:,}), {SIZES.singles:,} awaited one by one and
{SIZES.concurrent:,} concurrently.
huey {_huey_version()}: SqliteHuey, no-op task that stores no result, consumer with -w 1 -k thread. Its default,
fsync=None, is SQLite's own setting, {_sqlite_default()} here; with fsync=False a power cut loses jobs.
It has no bulk enqueue (one by one is taken instead), no leases, no acknowledgements and no events.""",
        style="dim",
        highlight=False,
    )


def _rates_table(figures: Figures, rounds: int) -> Table:
    table = Table(title=f"Jobs per second, median of {rounds} rounds", title_justify="left")
    table.add_column("")
    for subject in SUBJECTS[:5]:
        table.add_column(subject.replace(" fsync", "\nfsync"), justify="right")
    table.add_column("file / huey", justify="right", style="bold")
    for measure in RATES:
        # Without a bulk enqueue, one by one is what huey has.
        base = "drain" if measure == "drain" else "awaited enqueue"
        ratio = figures.median(measure, FILE) / figures.median(base, HUEY)
        cells = [_cell(figures, measure, subject, "{:,.0f}") for subject in SUBJECTS[:5]]
        table.add_row(measure, *cells, _times(ratio))
    ratio = figures.median(CPU, HUEY) / figures.median(CPU, FILE)
    cells = [_cell(figures, CPU, subject, "{:,.0f}") for subject in SUBJECTS[:5]]
    table.add_row("µs of processor a job, draining", *cells, _times(ratio))
    return table


def _waits_table(figures: Figures, rounds: int) -> Table:
    table = Table(title=f"Milliseconds on an idle queue, median of {rounds} rounds", title_justify="left")
    table.add_column("")
    subjects = (FILE, MEMORY, HUEY, "huey, polling 10 ms")
    for subject in subjects:
        table.add_column(subject, justify="right")
    for measure in WAITS:
        table.add_row(measure, *(_cell(figures, measure, subject, "{:,.2f}") for subject in subjects))
    return table


def _depth_table(figures: Figures) -> Table:
    table = Table(title="Milliseconds for one claim, by how many jobs are waiting", title_justify="left")
    table.add_column("")
    for waiting in depth.DEPTHS:
        table.add_column(f"{waiting:,}", justify="right")
    table.add_column("1,000,000 / 1,000", justify="right", style="bold")
    for subject in (FILE, MEMORY):
        for limit in depth.LIMITS:
            values = [figures.median(depth.measure(limit, waiting), subject) for waiting in depth.DEPTHS]
            cells = [_text(value, "{:.3f}") for value in values]
            table.add_row(f"{subject}, claim of {limit}", *cells, _times(values[-1] / values[0]))
    return table


def _cell(figures: Figures, measure: str, subject: str, form: str) -> str:
    values = figures.values(measure, subject)
    if not values:
        return "-"
    return f"{_text(figures.median(measure, subject), form)}\n[dim]{_short(min(values))} - {_short(max(values))}[/]"


def _short(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:.1f}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _text(value: float, form: str) -> str:
    return "-" if math.isnan(value) else form.format(value)


def _times(ratio: float) -> str:
    return _text(ratio, "{:.1f} x")


# What it was measured on -------------------------------------------------------------------------------------------


def _settings(arguments: argparse.Namespace, seconds: float) -> dict[str, object]:
    return {
        "rounds": arguments.rounds,
        "seconds": round(seconds, 1),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
        "huey": _huey_version(),
        "sqlite default synchronous": _sqlite_default(),
        "concurrency": CONCURRENCY,
        "prefetch": PREFETCH,
        "sizes": {"bulk": SIZES.bulk, "memory": SIZES.memory, "singles": SIZES.singles, "concurrent": SIZES.concurrent},
    }


def _huey_version() -> str:
    return importlib.metadata.version("huey")


def _sqlite_default() -> str:
    with closing(sqlite3.connect(":memory:")) as db:
        return ("OFF", "NORMAL", "FULL", "EXTRA")[db.execute("PRAGMA synchronous").fetchone()[0]]


if __name__ == "__main__":
    sys.exit(main())
