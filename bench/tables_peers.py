"""Holdfast beside its peers on a server, as a table on the screen."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.table import Table

from bench import depth, stats
from bench.measure import ALL_CORES, CORES, MOVED, RECOVERED, SETTLED, SMALL, WAITING, Figures
from bench.peer import Peer
from bench.tables import CPU, RATES, WAITS, cell, text

if TYPE_CHECKING:
    from bench.beside import Ground

BESIDE = 5
"""Peers in a table, as the width of a screen has it."""
ENQUEUES = ("awaited enqueue", "concurrent enqueue", "bulk enqueue")
"""Each can be used in place of those after it."""
MORE_IS_BETTER = {
    **{rate: rate for rate in RATES},
    "drain": "drain, one worker process",
    ALL_CORES: f"drain, {CORES} worker processes",
}
LESS_IS_BETTER = {
    CPU: "drain, µs of worker a job",
    "drain, server time": "drain, µs of server a job",
    f"{ALL_CORES}, processor time": f"{ALL_CORES}, µs of workers a job",
    f"{ALL_CORES}, server time": f"{ALL_CORES}, µs of server a job",
    **{wait: f"{wait}, ms" for wait in WAITS},
    **{f"{SMALL} p{percent}": f"{SMALL} p{percent}, ms" for percent in (50, 99)},
    RECOVERED: RECOVERED,
    WAITING: WAITING,
}


def beside_peers(ground: Ground, figures: Figures, rounds: int, missing: Mapping[str, str]) -> Iterator[Table]:
    """A few peers in each, and in the last one ours beside the best of each group."""
    names = [peer.name for peer in measured(ground, figures, missing)]
    rivals = {group: peers for group, peers in ground.rivals.items() if any(peer.name in names for peer in peers)}
    title = f"On {ground.name}: jobs per second, then times, median of {rounds} rounds"
    for start in range(0, len(names) or 1, BESIDE):
        last = start + BESIDE >= len(names)
        yield _table(ground, title, figures, missing, names[start : start + BESIDE], rivals if last else {})


def _table(
    ground: Ground,
    title: str,
    figures: Figures,
    missing: Mapping[str, str],
    names: Sequence[str],
    rivals: Mapping[str, Sequence[Peer]],
) -> Table:
    """The ratios are ours to theirs: of the medians, and in the second line the least and the most of one round."""
    table = Table(title=title, title_justify="left")
    for header in ("", "Holdfast", *names):
        table.add_column(header, justify="right" if header else "left")
    for header in rivals:
        table.add_column(f"ours /\n{header}", justify="right", style="bold")
    for measure in (*MORE_IS_BETTER, *LESS_IS_BETTER):
        if not any(figures.values(measure, subject) for subject in (ground.subject, *names)):
            continue
        form = "{:,.2f}" if measure in WAITS else "{:,.0f}"
        cells = [
            missing[subject].partition(",")[0] if subject in missing else cell(figures, measure, subject, form)
            for subject in (ground.subject, *names)
        ]
        ratios = (_ratio(figures, measure, ground.subject, peers) for peers in rivals.values())
        table.add_row((MORE_IS_BETTER | LESS_IS_BETTER)[measure], *cells, *ratios)
        if measure == ALL_CORES and rivals:
            # The other way round: what they reach with all of the machine, beside one process of ours.
            ratios = (_ratio(figures, "drain", ground.subject, peers, ALL_CORES) for peers in rivals.values())
            table.add_row(f"ours with one / theirs with {CORES}", *[""] * (len(names) + 1), *ratios)
    return table


def _ratio(figures: Figures, measure: str, subject: str, peers: Sequence[Peer], beside: str = "") -> str:
    ours = figures.values(measure, subject)
    theirs = best(figures, beside or measure, [peer.name for peer in peers])
    if not ours or theirs is None:
        return "-"
    pairs = stats.pairs(ours, theirs.values)
    ratio = statistics.median(ours) / statistics.median(theirs.values)
    return f"{ratio:.2f} x" + (f"\n[dim]{min(pairs):.2f} - {max(pairs):.2f}[/]" if len(pairs) > 1 else "")


class Best(NamedTuple):
    name: str
    values: list[float]


def best(figures: Figures, measure: str, names: Sequence[str]) -> Best | None:
    """The best of these by its median. One that enqueues faster in another way than this one has that."""
    ways = ENQUEUES[: ENQUEUES.index(measure) + 1] if measure in ENQUEUES else (measure,)
    found = [Best(name, values) for name in names for way in ways if (values := figures.values(way, name))]
    choose = min if measure in LESS_IS_BETTER else max
    return choose(found, key=lambda one: statistics.median(one.values), default=None)


def alone(figures: Figures, name: str, subject: str, batch: int, more: Sequence[tuple[str, float, str]] = ()) -> Table:
    """What only we are asked, and the server alone."""
    table = Table(title=f"Holdfast on {name}, and the server alone", title_justify="left")
    table.add_column("")
    table.add_column("", justify="right")
    few, many = (
        figures.median(depth.measure_tenants(tenants), subject) for tenants in (depth.TENANTS[0], depth.TENANTS[-1])
    )
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


def measured(ground: Ground, figures: Figures, missing: Mapping[str, str]) -> list[Peer]:
    """Those that were asked for."""
    return [peer for peer in ground.peers if peer.name in missing or figures.values("drain", peer.name)]


def notes(ground: Ground, figures: Figures, missing: Mapping[str, str]) -> str:
    """How each peer was set."""
    return "\n".join(note(peer, missing) for peer in measured(ground, figures, missing))


def note(peer: Peer, missing: Mapping[str, str]) -> str:
    if peer.name in missing:
        return f"{peer.name} ({peer.version}): {missing[peer.name]}"
    lacks = f" It has no {peer.lacks}." if peer.lacks else ""
    return f"{peer.name} ({peer.version}): {peer.settings}.{lacks}"
