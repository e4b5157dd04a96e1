"""Holdfast beside its peers on a server, as a table on the screen."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from bench import depth
from bench.limits import MOVED, SETTLED
from bench.measure import Figures
from bench.peer import Peer
from bench.tables import CPU, RATES, WAITS, cell, text

if TYPE_CHECKING:
    from bench.beside import Ground

SINGLE = "awaited enqueue"
LESS_IS_BETTER = {
    CPU: "drain, µs of worker a job",
    "drain, server time": "drain, µs of server a job",
    **{wait: f"{wait}, ms" for wait in WAITS},
}


def beside_peers(ground: Ground, figures: Figures, rounds: int, missing: Mapping[str, str]) -> Table:
    """The ratios are ours to theirs: of the medians, and in the second line the least and the most of one round."""
    title = f"On {ground.name}: jobs per second, then times, median of {rounds} rounds"
    table = Table(title=title, title_justify="left")
    names = [peer.name for peer in ground.peers]
    for header in ("", "Holdfast", *names):
        table.add_column(header, justify="right" if header else "left")
    for header in ground.rivals:
        table.add_column(f"ours /\n{header}", justify="right", style="bold")
    for measure in (*RATES, *LESS_IS_BETTER):
        form = "{:,.2f}" if measure in WAITS else "{:,.0f}"
        cells = [
            missing[subject].partition(",")[0] if subject in missing else cell(figures, measure, subject, form)
            for subject in (ground.subject, *names)
        ]
        ratios = (_ratio(figures, measure, ground.subject, peers) for peers in ground.rivals.values())
        table.add_row(LESS_IS_BETTER.get(measure, measure), *cells, *ratios)
    return table


def _ratio(figures: Figures, measure: str, subject: str, peers: Sequence[Peer]) -> str:
    """Ours to that of the best of these peers. One without a bulk or a concurrent enqueue has its single one."""
    theirs: list[list[float]] = []
    for peer in peers:
        theirs += [figures.values(measure, peer.name)]
        if measure in RATES and measure != "drain":
            theirs += [figures.values(SINGLE, peer.name)]
    theirs = [values for values in theirs if values]
    ours = figures.values(measure, subject)
    if not ours or not theirs:
        return "-"
    best = (min if measure in LESS_IS_BETTER else max)(theirs, key=statistics.median)
    pairs = [mine / other for mine, other in zip(ours, best, strict=False)]
    ratio = statistics.median(ours) / statistics.median(best)
    return f"{ratio:.2f} x\n[dim]{min(pairs):.2f} - {max(pairs):.2f}[/]"


def alone(figures: Figures, name: str, subject: str, batch: int, more: Sequence[tuple[str, float, str]] = ()) -> Table:
    """What only we are asked, and the server alone."""
    table = Table(title=f"Holdfast on {name}, and the server alone", title_justify="left")
    table.add_column("")
    table.add_column("", justify="right")
    few, many = (figures.median(depth.measure_tenants(tenants), subject) for tenants in depth.TENANTS)
    ends = (depth.DEPTHS[0], depth.DEPTHS[-1])
    bottom, top = (figures.median(depth.measure(100, waiting), subject) for waiting in ends)
    settled = figures.median(SETTLED, name)
    for label, value, form in (
        ("claim of 100, 1,000,000 waiting / 1,000 waiting", top / bottom, "{:.2f} x"),
        ("claim of 100, one tenant, ms", few, "{:.3f}"),
        ("claim of 100 over 10,000 tenants, ms", many, "{:.3f}"),
        ("10,000 tenants / one", many / few, "{:.2f} x"),
        *more,
        (f"ids moved, {batch} a call, per second", figures.median(MOVED, name), "{:,.0f}"),
        ("ids moved and removed, per second", settled, "{:,.0f}"),
        ("drain / ids moved and removed", figures.median("drain", subject) / settled, "{:.2f} x"),
    ):
        table.add_row(label, text(value, form))
    return table


def notes(ground: Ground, figures: Figures, missing: Mapping[str, str]) -> str:
    """How each peer was set; those that were not asked for are left out."""
    told = [peer for peer in ground.peers if peer.name in missing or figures.values("drain", peer.name)]
    return "\n".join(_note(peer, missing) for peer in told)


def _note(peer: Peer, missing: Mapping[str, str]) -> str:
    if peer.name in missing:
        return f"{peer.name} ({peer.version}): {missing[peer.name]}"
    lacks = f" It has no {peer.lacks}." if peer.lacks else ""
    return f"{peer.name} ({peer.version}): {peer.settings}.{lacks}"
