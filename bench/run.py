"""Holdfast's stores beside other queues, in one run on one machine: what `bench.quick` and `bench.full` share.

Figures of different machines and moments do not compare; those of one run do. Each measure is taken in several rounds,
ours and theirs in turns, and shown as the median with its spread.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import beside, depth, disk, ours, peer_huey, starts, tables
from bench.grounds import GROUNDS
from bench.measure import COMMIT, HELP, IMPORT, OURS, SETTLED, Figures
from bench.ours import SIZES, Settings

HERE = Path(__file__).parent
DISK = "disk"
"""The group of the stores without a server."""
ON_DISK = {"file", "memory"}
STORES = ("file", "memory", *GROUNDS)
HUEY_JOBS = {"default": 1_500, "on": 500, "off": 1_500}
HUEY_WAITS = 6
HUEY_TUNED_WAITS = 40
PARTS = {
    "ours": "Holdfast",
    "peers": "the others on a server",
    "huey": "huey on SQLite",
    "starts": "how soon a program of ours is there",
    "cores": "drain with as many worker processes as cores",
    "bytes": "what a waiting job takes",
    "recovery": "10,000 expired leases",
    "crowd": "small tenants beside a big one",
    "depth": "claims with up to a million jobs waiting, and over up to 10,000 tenants",
}


@dataclass(frozen=True)
class Run:
    """What is measured unless something else is asked for."""

    program: str
    about: str
    rounds: int
    parts: frozenset[str]
    output: Path
    peers: tuple[str, ...] = ()
    """By the names of their environments; all, if there are none."""
    on_all_cores: tuple[str, ...] = ()
    """Peers that have as many worker processes as cores once more, though this part is not asked for."""


def run(chosen: Run) -> Path:
    """Measure, show and write; says where."""
    arguments = _arguments(chosen)
    settings = Settings(arguments.concurrency, arguments.prefetch or Settings().prefetch)
    console = Console(width=max(140, Console().width))
    # Beside the code and not in /tmp, which is memory on many machines: fsync must mean something.
    (HERE / "out").mkdir(exist_ok=True)
    for group in (DISK, *GROUNDS):
        if not (set(arguments.only) & (ON_DISK if group == DISK else {group})):
            continue
        figures, about = Figures(), _about(arguments, settings)
        began = time.monotonic()
        if group == DISK:
            about |= {"peers": {"huey": peer_huey.about()} if "huey" in arguments.parts else {}, "missing": {}}
            with tempfile.TemporaryDirectory(prefix="run-", dir=HERE / "out") as directory:
                asyncio.run(_measure(figures, Path(directory), arguments, console, settings))
            _show(console, figures, arguments, settings)
        else:
            about |= asyncio.run(beside.measure(GROUNDS[group], figures, arguments, console, settings))
            beside.show(GROUNDS[group], console, figures, arguments.rounds, about)
        about["seconds"] = round(time.monotonic() - began, 1)
        keep(arguments.output, group, about, figures)
        console.print(f"\n{about['seconds']:.0f} s. Every value is in {arguments.output}", highlight=False)
    return arguments.output


def keep(path: Path, group: str, about: Mapping[str, Any], figures: Figures) -> None:
    """In place of what the last run said of this group; what it said of others stays."""
    groups = json.loads(path.read_text()) if path.exists() else {}
    groups[group] = {"settings": about, "figures": figures.as_dict()}
    path.write_text(json.dumps({name: groups[name] for name in (DISK, *GROUNDS) if name in groups}, indent=1) + "\n")


def _arguments(chosen: Run) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=chosen.program,
        description=chosen.about,
        epilog="Parts: " + "; ".join(f"{name}, {what}" for name, what in PARTS.items()),
    )
    parser.add_argument("--rounds", type=int, default=chosen.rounds)
    parser.add_argument("--only", action="append", choices=STORES, help="measure these stores alone")
    parser.add_argument("--with", action="append", default=[], choices=PARTS, dest="more", help="this part, too")
    parser.add_argument("--without", action="append", default=[], choices=PARTS, help="not this part")
    names = sorted(peer.environment for ground in GROUNDS.values() for peer in ground.peers)
    parser.add_argument(
        "--peers",
        type=lambda text: [name.strip() for name in text.lower().split(",")],
        default=list(chosen.peers),
        help=f"these peers alone: {', '.join(names)}",
    )
    parser.add_argument("--concurrency", type=int, default=Settings().concurrency)
    parser.add_argument(
        "--prefetch", type=int, help="how far our worker claims ahead, instead of what is best for each store"
    )
    parser.add_argument("--output", type=Path, default=chosen.output)
    arguments = parser.parse_args()
    if unknown := set(arguments.peers) - set(names):
        parser.error(f"no such peers: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    arguments.only = arguments.only or list(STORES)
    arguments.parts = (chosen.parts | {*arguments.more}) - {*arguments.without}
    arguments.on_all_cores = chosen.on_all_cores
    return arguments


async def _measure(
    figures: Figures, directory: Path, arguments: argparse.Namespace, console: Console, settings: Settings
) -> None:
    """On this machine's disk, and in memory."""
    for number in range(arguments.rounds):
        console.print(f"round {number + 1} of {arguments.rounds}", style="dim", highlight=False)
        here = directory / str(number)
        here.mkdir()
        if "starts" in arguments.parts:
            starts.starts(figures)
        if "file" in arguments.only:
            # What does not change from round to round is asked once.
            await _file(figures, here, settings, arguments.parts - ({"bytes"} if number else set()))
        if "memory" in arguments.only:
            await ours.memory(figures, number, settings)
            if "recovery" in arguments.parts:
                await depth.recovery(figures, "memory", f"memory:recovery-{number}", SIZES.leases)
        shutil.rmtree(here)
    if "depth" in arguments.parts:
        console.print("claims, with up to a million jobs waiting", style="dim", highlight=False)
        if "file" in arguments.only:
            await depth.file(figures, directory / "depth")
        if "memory" in arguments.only:
            await depth.memory(figures)


async def _file(figures: Figures, here: Path, settings: Settings, parts: frozenset[str]) -> None:
    with_huey = "huey" in parts
    disk.raw(figures, here / "raw.db")
    url = f"file:{here / 'rates'}"
    await ours.fill(figures, "file", url, SIZES.bulk)
    await ours.empty(figures, "file", url, SIZES.bulk, settings)
    if with_huey:
        peer_huey.rates(figures, here / "huey.db", "default", HUEY_JOBS["default"])
    await ours.enqueues(figures, "file", f"file:{here / 'singles'}")
    if with_huey:
        peer_huey.rates(figures, here / "huey-on.db", "on", HUEY_JOBS["on"])
    if "cores" in parts:
        await ours.fill(Figures(), "file", f"file:{here / 'cores'}", SIZES.bulk)
        await ours.empty_on_all_cores(figures, "file", f"file:{here / 'cores'}", SIZES.bulk, settings)
        if with_huey:
            peer_huey.on_all_cores(figures, here / "huey-cores.db", HUEY_JOBS["default"])
    if "bytes" in parts:
        await ours.kept(figures, "file", disk.Folder(here / "bytes"), settings)
        if with_huey:
            peer_huey.kept(figures, here / "huey-bytes.db", HUEY_JOBS["off"])
    if "crowd" in parts:
        await ours.crowd(figures, "file", disk.Folder(here / "crowd"))
    if "recovery" in parts:
        await depth.recovery(figures, "file", f"file:{here / 'recovery'}", SIZES.leases)
    await ours.idle(figures, "file", f"file:{here / 'waits'}", settings)
    if with_huey:
        peer_huey.waits(figures, here / "huey-idle.db", HUEY_WAITS)
        peer_huey.waits(figures, here / "huey-tuned.db", HUEY_TUNED_WAITS, *peer_huey.POLL)
        peer_huey.rates(figures, here / "huey-off.db", "off", HUEY_JOBS["off"])


def _show(console: Console, figures: Figures, arguments: argparse.Namespace, settings: Settings) -> None:
    shown = [tables.rates(figures, arguments.rounds), tables.waits(figures, arguments.rounds)]
    if "depth" in arguments.parts:
        stores = [store for store in arguments.only if store in ON_DISK]
        shown += [tables.claims(figures, stores), tables.claims_of_all(figures, stores)]
    for table in shown:
        console.print()
        console.print(table)
    if "file" in arguments.only:
        commit = figures.median(COMMIT, disk.NAME)
        console.print(
            f"\nOne row, one commit on this disk (SQLite, WAL, synchronous=FULL): {commit:.2f} ms, "
            f"{1000 / commit:,.0f} a second.\n"
            f"Ids moved and removed, {disk.BATCH} a commit: {figures.median(SETTLED, disk.NAME):,.0f} a second.",
            style="dim",
            highlight=False,
        )
    if "starts" in arguments.parts:
        console.print(
            f"\n`import holdfast` takes {figures.median(IMPORT, OURS):.0f} ms, "
            f"`holdfast --help` {figures.median(HELP, OURS):.0f} ms.",
            style="dim",
            highlight=False,
        )
    console.print(
        f"""
Holdfast: no-op async job, results and events on. Drained by one worker process with concurrency {settings.concurrency}
and prefetch {settings.prefetch} (memory: in the same process), from the first handler to the last acknowledgement.
Jobs: {SIZES.bulk:,} in bulk and drained (memory {SIZES.memory:,}, on a server {SIZES.server:,}),
{SIZES.singles:,} awaited one by one and {SIZES.concurrent:,} concurrently.
huey {peer_huey.version()} on SQLite: {peer_huey.SETTINGS}. Its default, fsync=None, is SQLite's own setting,
{_sqlite_default()} here; with fsync=False a power cut loses jobs. It has no {peer_huey.LACKS}.""",
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
        "parts": sorted(arguments.parts),
        "huey": peer_huey.version(),
        "sqlite default synchronous": _sqlite_default(),
        **settings._asdict(),
        "sizes": SIZES._asdict(),
    }


def _sqlite_default() -> str:
    with closing(sqlite3.connect(":memory:")) as db:
        return ("OFF", "NORMAL", "FULL", "EXTRA")[db.execute("PRAGMA synchronous").fetchone()[0]]
