"""The part of `bench.quick` on a server: Holdfast, its peers, and the server alone."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import depth, environments, ours, tables_peers
from bench.measure import Figures
from bench.ours import Settings
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
    memory: Callable[[Figures, Any, Settings], Awaitable[None]] | None = None
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
    missing = {} if "peers" in arguments.without else _prepare(ground, console)
    subjects: list[Peer | None] = [] if "ours" in arguments.without else [None]
    subjects += [] if "peers" in arguments.without else [peer for peer in ground.peers if peer.name not in missing]
    with ground.server() as server:
        for number in range(arguments.rounds):
            console.print(f"{ground.name}, round {number + 1} of {arguments.rounds}", style="dim", highlight=False)
            ground.raw(figures, server)
            turn = number % max(1, len(subjects))
            for peer in subjects[turn:] + subjects[:turn]:
                if peer is None:
                    await ours.on_server(figures, ground.subject, server, settings)
                elif peer.name not in missing:
                    missing |= _measure_peer(figures, peer, server, console)
        if "ours" not in arguments.without:
            console.print(f"{ground.name}, memory and claims", style="dim", highlight=False)
            if ground.memory is not None:
                await ground.memory(figures, server, settings)
            server.empty()
            if "depth" not in arguments.without:
                await depth.on_server(figures, ground.subject, server.url)
        version = server.version
    about = {
        peer.name: {"versions": peer.version, "settings": peer.settings, "lacks": peer.lacks} for peer in ground.peers
    }
    return {"version": version, "missing": missing, "peers": about, "ours": settings._asdict()}


def show(ground: Ground, console: Console, figures: Figures, rounds: int, about: Any) -> None:
    missing = about["missing"]
    for table in (tables_peers.beside_peers(ground, figures, rounds, missing), ground.alone(figures)):
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


def _measure_peer(figures: Figures, peer: Peer, server: Any, console: Console) -> dict[str, str]:
    """If it fails, it is named with its error and left out from then on."""
    try:
        peer.rates(figures, server)
        peer.idle(figures, server)
    except (subprocess.SubprocessError, TimeoutError, Gone) as error:
        told = "\n".join([f"{peer.name} failed: {error}", *getattr(error, "__notes__", [])])
        console.print(told, style="yellow", highlight=False, markup=False)
        return {peer.name: f"failed, {error}"}
    return {}


def _prepare(ground: Ground, console: Console) -> dict[str, str]:
    """Install the peers; those that cannot be, and why."""
    missing: dict[str, str] = {}
    for peer in ground.peers:
        try:
            if not environments.ready(peer.environment):
                console.print(f"installing {peer.name} (once)", style="dim", highlight=False)
                environments.prepare(peer.environment)
        except environments.NotInstalled as error:
            missing[peer.name] = f"not installed, {error}"
            console.print(f"{peer.name} is not installed: {error}", style="yellow", highlight=False)
    return missing
