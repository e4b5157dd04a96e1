"""Holdfast beside its peers on Valkey, as a table on the screen."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from rich.table import Table

from bench import depth, limits
from bench.measure import Figures
from bench.peer import Peer
from bench.peer_list import BULLMQ, PEERS
from bench.tables import CPU, RATES, WAITS, cell, text

OURS = "valkey"
SINGLE = "awaited enqueue"
LESS_IS_BETTER = {
    CPU: "drain, µs of worker a job",
    "drain, server time": "drain, µs of server a job",
    **{wait: f"{wait}, ms" for wait in WAITS},
}


def beside_peers(figures: Figures, rounds: int, missing: Mapping[str, str]) -> Table:
    """The ratios are ours to theirs: of the medians, and in the second line the least and the most of one round."""
    table = Table(title=f"On Valkey: jobs per second, then times, median of {rounds} rounds", title_justify="left")
    for header in ("", "Holdfast", *(peer.name for peer in PEERS)):
        table.add_column(header, justify="right" if header else "left")
    table.add_column("ours / best\nin Python", justify="right", style="bold")
    table.add_column(f"ours /\n{BULLMQ.name}", justify="right", style="bold")
    python = [peer.name for peer in PEERS if peer is not BULLMQ]
    for measure in (*RATES, *LESS_IS_BETTER):
        form = "{:,.2f}" if measure in WAITS else "{:,.0f}"
        cells = [
            missing[subject].partition(",")[0] if subject in missing else cell(figures, measure, subject, form)
            for subject in (OURS, *(peer.name for peer in PEERS))
        ]
        ratios = (_ratio(figures, measure, peers) for peers in (python, [BULLMQ.name]))
        table.add_row(LESS_IS_BETTER.get(measure, measure), *cells, *ratios)
    return table


def _ratio(figures: Figures, measure: str, peers: Sequence[str]) -> str:
    """Ours to that of the best of these peers. One without a bulk or a concurrent enqueue has its single one."""
    theirs: list[list[float]] = []
    for peer in peers:
        theirs += [figures.values(measure, peer)]
        if measure in RATES and measure != "drain":
            theirs += [figures.values(SINGLE, peer)]
    theirs = [values for values in theirs if values]
    ours = figures.values(measure, OURS)
    if not ours or not theirs:
        return "-"
    best = (min if measure in LESS_IS_BETTER else max)(theirs, key=statistics.median)
    pairs = [mine / other for mine, other in zip(ours, best, strict=False)]
    ratio = statistics.median(ours) / statistics.median(best)
    return f"{ratio:.2f} x\n[dim]{min(pairs):.2f} - {max(pairs):.2f}[/]"


def alone(figures: Figures) -> Table:
    """What only we are asked."""
    table = Table(title="Holdfast on Valkey, and the server alone", title_justify="left")
    table.add_column("")
    table.add_column("", justify="right")
    few, many = (figures.median(depth.measure_tenants(tenants), OURS) for tenants in depth.TENANTS)
    bottom, top = (figures.median(depth.measure(100, waiting), OURS) for waiting in (depth.DEPTHS[0], depth.DEPTHS[-1]))
    for name, value, form in (
        ("claim of 100, 1,000,000 waiting / 1,000 waiting", top / bottom, "{:.2f} x"),
        ("claim of 100, one tenant, ms", few, "{:.3f}"),
        ("claim of 100 over 10,000 tenants, ms", many, "{:.3f}"),
        ("10,000 tenants / one", many / few, "{:.2f} x"),
        ("bytes of a waiting job (text of 100)", figures.median(limits.WAITING, OURS), "{:,.0f}"),
        ("bytes of a finished job, with its events", figures.median(limits.FINISHED, OURS), "{:,.0f}"),
        ("ids moved by a script, 100 a call, per second", figures.median(limits.MOVED, "Valkey"), "{:,.0f}"),
        ("ids moved and removed, per second", figures.median(limits.SETTLED, "Valkey"), "{:,.0f}"),
        ("drain / ids moved and removed", drain_to_raw(figures), "{:.2f} x"),
    ):
        table.add_row(name, text(value, form))
    return table


def drain_to_raw(figures: Figures) -> float:
    return figures.median("drain", OURS) / figures.median(limits.SETTLED, "Valkey")


def notes(figures: Figures, missing: Mapping[str, str]) -> str:
    """How each peer was set; those that were not asked for are left out."""
    told = [peer for peer in PEERS if peer.name in missing or figures.values("drain", peer.name)]
    return "\n".join(_note(peer, missing) for peer in told)


def _note(peer: Peer, missing: Mapping[str, str]) -> str:
    if peer.name in missing:
        return f"{peer.name} ({peer.version}): {missing[peer.name]}"
    lacks = f" It has no {peer.lacks}." if peer.lacks else ""
    return f"{peer.name} ({peer.version}): {peer.settings}.{lacks}"
