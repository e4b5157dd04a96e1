"""`python -m bench.quick`: Holdfast's stores beside other queues, in one run on one machine.

Figures of different machines and moments do not compare; those of one run do. Each measure is taken in several rounds,
ours and theirs in turns, and shown as the median with its spread.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
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

from bench import beside, depth, ours, peer_huey, tables
from bench.grounds import GROUNDS
from bench.measure import Figures
from bench.ours import SIZES, Settings

HERE = Path(__file__).parent
RESULTS = HERE / "results-quick.json"
STORES = ("file", "memory", *GROUNDS)
COMMITS = 100
HUEY_JOBS = {"default": 1_500, "on": 500, "off": 1_500}
HUEY_WAITS = 6
HUEY_TUNED_WAITS = 40
COMMIT = "one SQLite commit"


def main() -> int:
    arguments = _arguments()
    settings = Settings(arguments.concurrency, arguments.prefetch or Settings().prefetch)
    console = Console(width=max(140, Console().width))
    figures = Figures()
    began = time.monotonic()
    # Beside the code and not in /tmp, which is memory on many machines: fsync must mean something.
    (HERE / "out").mkdir(exist_ok=True)
    about = _about(arguments, settings)
    if {"file", "memory"} & set(arguments.only):
        with tempfile.TemporaryDirectory(prefix="quick-", dir=HERE / "out") as directory:
            asyncio.run(_measure(figures, Path(directory), arguments, console, settings))
    grounds = {name: ground for name, ground in GROUNDS.items() if name in arguments.only}
    for name, ground in grounds.items():
        about[name] = asyncio.run(beside.measure(ground, figures, arguments, console, settings))
    about["seconds"] = round(time.monotonic() - began, 1)
    arguments.output.write_text(json.dumps({"settings": about, "figures": figures.as_dict()}, indent=1) + "\n")
    _show(console, figures, arguments, settings)
    for name, ground in grounds.items():
        beside.show(ground, console, figures, arguments.rounds, about[name])
    console.print(f"\n{about['seconds']:.0f} s in all. Every value is in {arguments.output}", highlight=False)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.quick", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=STORES, help="measure these stores alone")
    parser.add_argument("--without", action="append", default=[], choices=["huey", "depth", "memory", "peers", "ours"])
    parser.add_argument("--concurrency", type=int, default=Settings().concurrency)
    parser.add_argument(
        "--prefetch", type=int, help="how far our worker claims ahead, instead of what is best for each store"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.only = [store for store in arguments.only or STORES if store not in arguments.without]
    return arguments


async def _measure(
    figures: Figures, directory: Path, arguments: argparse.Namespace, console: Console, settings: Settings
) -> None:
    """On this machine's disk, and in memory."""
    for number in range(arguments.rounds):
        console.print(f"round {number + 1} of {arguments.rounds}", style="dim", highlight=False)
        here = directory / str(number)
        here.mkdir()
        if "file" in arguments.only:
            await _file(figures, here, settings, with_huey="huey" not in arguments.without)
        if "memory" in arguments.only:
            await ours.memory(figures, number, settings)
        shutil.rmtree(here)
    if "depth" not in arguments.without:
        console.print("claims, with up to a million jobs waiting", style="dim", highlight=False)
        if "file" in arguments.only:
            await depth.file(figures, directory / "depth")
        if "memory" in arguments.only:
            await depth.memory(figures)


async def _file(figures: Figures, here: Path, settings: Settings, *, with_huey: bool) -> None:
    commits(figures, here / "raw.db")
    url = f"file:{here / 'rates'}"
    await ours.fill(figures, "file", url, SIZES.bulk)
    await ours.empty(figures, "file", url, SIZES.bulk, settings)
    if with_huey:
        peer_huey.rates(figures, here / "huey.db", "default", HUEY_JOBS["default"])
    await ours.enqueues(figures, "file", f"file:{here / 'singles'}")
    if with_huey:
        peer_huey.rates(figures, here / "huey-on.db", "on", HUEY_JOBS["on"])
    await ours.idle(figures, "file", f"file:{here / 'waits'}", settings)
    if with_huey:
        peer_huey.waits(figures, here / "huey-idle.db", HUEY_WAITS)
        peer_huey.waits(figures, here / "huey-tuned.db", HUEY_TUNED_WAITS, *peer_huey.POLL)
        peer_huey.rates(figures, here / "huey-off.db", "off", HUEY_JOBS["off"])


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


def _show(console: Console, figures: Figures, arguments: argparse.Namespace, settings: Settings) -> None:
    shown = []
    if {"file", "memory"} & set(arguments.only):
        shown += [tables.rates(figures, arguments.rounds), tables.waits(figures, arguments.rounds)]
    if any(figures.values(depth.measure(1, depth.DEPTHS[0]), store) for store in arguments.only):
        shown.append(tables.claims(figures, arguments.only))
    for table in shown:
        console.print()
        console.print(table)
    if "file" in arguments.only:
        commit = figures.median(COMMIT, "SQLite")
        console.print(
            f"\nOne row, one commit on this disk (SQLite, WAL, synchronous=FULL): {commit:.2f} ms, "
            f"{1000 / commit:,.0f} a second.",
            style="dim",
            highlight=False,
        )
    console.print(
        f"""
Holdfast: no-op async job, results and events on. Drained by one worker process with concurrency {settings.concurrency}
and prefetch {settings.prefetch} (memory: in the same process), from the first handler to the last acknowledgement.
Jobs: {SIZES.bulk:,} in bulk and drained (memory {SIZES.memory:,}, on a server {SIZES.server:,}),
{SIZES.singles:,} awaited one by one and {SIZES.concurrent:,} concurrently.
huey {_huey_version()} on SQLite: no-op task that stores no result, consumer with -w 1 -k thread. Its default,
fsync=None, is SQLite's own setting, {_sqlite_default()} here; with fsync=False a power cut loses jobs.
It has no bulk enqueue (one by one is taken instead), no leases, no acknowledgements and no events.""",
        style="dim",
        highlight=False,
    )


# What it was measured on -------------------------------------------------------------------------------------------


def _about(arguments: argparse.Namespace, settings: Settings) -> dict:
    return {
        "rounds": arguments.rounds,
        "stores": arguments.only,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
        "huey": _huey_version(),
        "sqlite default synchronous": _sqlite_default(),
        **settings._asdict(),
        "sizes": SIZES._asdict(),
    }


def _huey_version() -> str:
    return importlib.metadata.version("huey")


def _sqlite_default() -> str:
    with closing(sqlite3.connect(":memory:")) as db:
        return ("OFF", "NORMAL", "FULL", "EXTRA")[db.execute("PRAGMA synchronous").fetchone()[0]]


if __name__ == "__main__":
    sys.exit(main())
