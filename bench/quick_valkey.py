"""The part of `bench.quick` on Valkey: Holdfast, its peers, and the server alone."""

from __future__ import annotations

import argparse
import subprocess
from typing import Any

from rich.console import Console

from bench import depth, environments, limits, ours, tables_valkey
from bench.measure import Figures
from bench.ours import Settings
from bench.peer import Peer
from bench.peer_list import PEERS
from bench.valkey import Server


async def measure(figures: Figures, arguments: argparse.Namespace, console: Console, settings: Settings) -> Any:
    """On one server, emptied in between; who comes first changes from round to round."""
    missing = {} if "peers" in arguments.without else _prepare(console)
    subjects: list[Peer | None] = [] if "ours" in arguments.without else [None]
    subjects += [] if "peers" in arguments.without else [peer for peer in PEERS if peer.name not in missing]
    with Server() as server:
        for number in range(arguments.rounds):
            console.print(f"Valkey, round {number + 1} of {arguments.rounds}", style="dim", highlight=False)
            limits.raw(figures, server)
            turn = number % max(1, len(subjects))
            for peer in subjects[turn:] + subjects[:turn]:
                if peer is None:
                    await ours.valkey(figures, server, settings)
                elif peer.name not in missing:
                    missing |= _measure_peer(figures, peer, server, console)
        if "ours" not in arguments.without:
            console.print("Valkey, memory and claims", style="dim", highlight=False)
            await limits.memory(figures, server, settings)
            server.empty()
            if "depth" not in arguments.without:
                await depth.valkey(figures, server.url)
        version = server.version
    about = {peer.name: {"versions": peer.version, "settings": peer.settings, "lacks": peer.lacks} for peer in PEERS}
    return {"version": version, "missing": missing, "peers": about}


def show(console: Console, figures: Figures, rounds: int, about: Any) -> None:
    for table in (tables_valkey.beside_peers(figures, rounds, about["missing"]), tables_valkey.alone(figures)):
        console.print()
        console.print(table)
    console.print(
        f"\nValkey {about['version']} without persistence, one server for all, emptied in between. Every queue runs a\n"
        "no-op job. Drained from the first handler until nothing was left to acknowledge.\n"
        + tables_valkey.notes(figures, about["missing"]),
        style="dim",
        highlight=False,
    )


def _measure_peer(figures: Figures, peer: Peer, server: Server, console: Console) -> dict[str, str]:
    """If it fails, it is named with its error and left out from then on."""
    try:
        peer.rates(figures, server)
        peer.idle(figures, server)
    except (subprocess.SubprocessError, TimeoutError) as error:
        console.print(f"{peer.name} failed: {error}", *getattr(error, "__notes__", []), style="yellow", highlight=False)
        return {peer.name: f"failed, {error}"}
    return {}


def _prepare(console: Console) -> dict[str, str]:
    """Install the peers; those that cannot be, and why."""
    missing: dict[str, str] = {}
    for peer in PEERS:
        try:
            if not environments.ready(peer.environment):
                console.print(f"installing {peer.name} (once)", style="dim", highlight=False)
                environments.prepare(peer.environment)
        except environments.NotInstalled as error:
            missing[peer.name] = f"not installed, {error}"
            console.print(f"{peer.name} is not installed: {error}", style="yellow", highlight=False)
    return missing
