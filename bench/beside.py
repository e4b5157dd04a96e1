"""The part of a run on a server: Holdfast, its peers, and the server alone."""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import depth, environments, ours, tables, tables_peers
from bench.measure import Figures
from bench.ours import SIZES, Settings
from bench.peer import Gone, Peer


@dataclass(frozen=True)
class Ground:
    """A kind of server to be measured on, and who is measured there."""

    name: str
    subject: str
    """How our own figures there are called."""
    server: Callable[[], Any]
    setting: str
    """How the server is set."""
    rivals: Mapping[str, tuple[Peer, ...]]
    """The peers, in groups: with the best of each of them we are compared."""
    raw: Callable[[Figures, Any], None]
    alone: Callable[[Figures], Table]
    """What only we are asked, and the server alone."""
    prefetch: int | None = None
    """How far our worker claims ahead here, where another number is better than elsewhere."""

    @property
    def peers(self) -> tuple[Peer, ...]:
        return tuple(peer for peers in self.rivals.values() for peer in peers)


async def measure(
    ground: Ground, figures: Figures, arguments: argparse.Namespace, console: Console, settings: Settings
) -> Any:
    """On one server, emptied in between; who comes first changes from round to round."""
    settings = settings._replace(prefetch=arguments.prefetch or ground.prefetch or settings.prefetch)
    asked = wanted(ground, arguments)
    missing = _prepare(asked, console)
    subjects: list[Peer | None] = [None] if "ours" in arguments.parts else []
    subjects += [peer for peer in asked if peer.name not in missing]
    with ground.server() as server:
        for number in range(arguments.rounds):
            console.print(f"{ground.name}, round {number + 1} of {arguments.rounds}", style="dim", highlight=False)
            ground.raw(figures, server)
            turn = number % max(1, len(subjects))
            # What does not change from round to round is asked once.
            parts = arguments.parts - ({"bytes"} if number else set())
            for peer in subjects[turn:] + subjects[:turn]:
                began = time.monotonic()
                if peer is None:
                    await _measure_ours(figures, ground.subject, server, settings, parts)
                elif peer.name not in missing:
                    more = {"cores"} if peer.environment in arguments.on_all_cores else set()
                    missing |= _measure_peer(figures, peer, server, parts | more, console)
                name = peer.name if peer else "Holdfast"
                console.print(f"  {name}: {time.monotonic() - began:.0f} s", style="dim", highlight=False)
        if {"ours", "depth"} <= arguments.parts:
            console.print(f"{ground.name}, claims", style="dim", highlight=False)
            server.empty()
            await depth.on_server(figures, ground.subject, server.url)
        version = server.version
    about = {peer.name: {"versions": peer.version, "settings": peer.settings, "lacks": peer.lacks} for peer in asked}
    return {"version": version, "missing": missing, "peers": about, "ours": settings._asdict()}


def wanted(ground: Ground, arguments: argparse.Namespace) -> list[Peer]:
    """The peers that are asked for, by the name of their environment."""
    if "peers" not in arguments.parts:
        return []
    return [peer for peer in ground.peers if not arguments.peers or peer.environment in arguments.peers]


def show(ground: Ground, console: Console, figures: Figures, rounds: int, about: Any) -> None:
    missing = about["missing"]
    shown = [*tables_peers.beside_peers(ground, figures, rounds, missing), ground.alone(figures)]
    if figures.values(depth.measure(depth.LIMITS[0], depth.DEPTHS[0]), ground.subject):
        shown += [tables.claims(figures, [ground.subject]), tables.claims_of_all(figures, [ground.subject])]
    for table in shown:
        console.print()
        console.print(table)
    console.print(
        f"\n{ground.name} {about['version']} {ground.setting}, one server for all, emptied in between.\n"
        "Every queue runs a no-op job. Drained from the first handler until nothing was left to acknowledge.\n"
        f"Our worker: concurrency {about['ours']['concurrency']}, prefetch {about['ours']['prefetch']}.\n"
        + tables_peers.notes(ground, figures, missing),
        style="dim",
        markup=False,
        highlight=False,
    )


async def _measure_ours(figures: Figures, subject: str, server: Any, settings: Settings, parts: frozenset[str]) -> None:
    await ours.rates(figures, subject, server, settings)
    if "cores" in parts:
        await ours.drain_on_all_cores(figures, subject, server, settings)
    server.empty()
    await ours.idle(figures, subject, server.url, settings)
    if "bytes" in parts:
        await ours.kept(figures, subject, server, settings)
    if "recovery" in parts:
        server.empty()
        await depth.recovery(figures, subject, server.url, SIZES.leases)
    if "crowd" in parts:
        await ours.crowd(figures, subject, server)


def _measure_peer(figures: Figures, peer: Peer, server: Any, parts: frozenset[str], console: Console) -> dict[str, str]:
    """If it fails, it is named with its error and left out from then on."""
    try:
        peer.rates(figures, server)
        if "cores" in parts:
            peer.drain_on_all_cores(figures, server)
        peer.idle(figures, server)
        if "bytes" in parts:
            peer.memory(figures, server)
        if "recovery" in parts and peer.recovers:
            peer.recover(figures, server)
        if "crowd" in parts and peer.crowded is not None:
            peer.crowd(figures, server)
    except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
        lines = "\n".join([f"{peer.name} failed: {error}", *getattr(error, "__notes__", [])])
        console.print(lines, style="yellow", highlight=False, markup=False)
        return {peer.name: f"failed, {_reason(error)}"}
    return {}


def _reason(error: Exception) -> str:
    """In words for the page: no commands, and no places of this machine."""
    if isinstance(error, subprocess.CalledProcessError):
        return f"its driver ended with {error.returncode}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"its driver did not end within {error.timeout:.0f} s"
    return str(error) if isinstance(error, (TimeoutError, Gone)) else type(error).__name__


def _prepare(peers: Sequence[Peer], console: Console) -> dict[str, str]:
    """Install the peers; those that cannot be, and why."""
    missing: dict[str, str] = {}
    for peer in peers:
        try:
            if not environments.ready(peer.environment):
                console.print(f"installing {peer.name} (once)", style="dim", highlight=False)
                environments.prepare(peer.environment)
        except environments.NotInstalled as error:
            missing[peer.name] = f"not installed, {error}"
            console.print(f"{peer.name} is not installed: {error}", style="yellow", highlight=False)
    return missing
