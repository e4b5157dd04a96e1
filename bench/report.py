"""`python -m bench.report [RESULTS]`: what a run measured, as tables and charts in docs/benchmarks.md.

Each group of stores has its place there, between two markers; a group that is not in the results keeps what it has.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import depth, disk, goals, stats
from bench.beside import Ground
from bench.charts import Bar, Bars, Lines, chart, number_of
from bench.grounds import GROUNDS
from bench.measure import (
    ALL_CORES,
    COMMIT,
    FINISHED,
    HELP,
    IMPORT,
    MOVED,
    OURS,
    RECOVERED,
    SETTLED,
    SMALL,
    WAITING,
    Figures,
)
from bench.tables import CPU, RATES, WAITS
from bench.tables_peers import LESS_IS_BETTER, MORE_IS_BETTER, best

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
PAGE = DOCS / "benchmarks.md"
CHARTS = "charts"
NONE = "-"
NAMES = {"file": "Holdfast, file", "memory": "Holdfast, memory", "valkey": "Holdfast", "postgres": "Holdfast"}
HUEYS = ("huey", "huey fsync=True", "huey fsync=False", "huey, polling 10 ms")
SAME_DURABILITY = ("huey", "huey, polling 10 ms")
SPENT = ("processor time", "server time")
SPENT_ON = {
    "drain": "one process, µs of worker + server a job",
    ALL_CORES: "all cores, µs of workers + server a job",
}
SPEED = {
    "bulk enqueue": "bulk enqueue, a second",
    "awaited enqueue": "awaited enqueue, a second",
    "concurrent enqueue": "concurrent enqueue, a second",
    "drain": "drain, one process, a second",
    ALL_CORES: "drain, all cores, a second",
}
TIME = {
    **{wait: f"{wait}, ms" for wait in WAITS},
    f"{SMALL} p99": f"{SMALL} p99, ms",
    RECOVERED: RECOVERED,
    WAITING: WAITING,
}


def write(results: Path, page: Path = PAGE) -> None:
    """Into the page, and its charts beside it."""
    text = page.read_text()
    folder = page.parent / CHARTS
    folder.mkdir(exist_ok=True)
    for group, data in json.loads(results.read_text()).items():
        section, charts = made(group, data["settings"], Figures.read(data["figures"]))
        text = between(text, group, section)
        for name, drawing in charts.items():
            (folder / name).write_text(drawing)
    page.write_text(text)


def between(text: str, group: str, section: str) -> str:
    """With this section between the markers of the group, whatever was there."""
    start, end = f"<!-- figures of {group} -->", f"<!-- end of the figures of {group} -->"
    before, opened, rest = text.partition(start)
    _, closed, after = rest.partition(end)
    if not opened or not closed:
        raise ValueError(f"the page has no place for {group}: it needs a line {start} and a line {end}")
    return f"{before}{start}\n{section.strip()}\n{end}{after}"


def made(group: str, about: Mapping[str, Any], figures: Figures) -> tuple[str, dict[str, str]]:
    """The section of a group, and its charts by the names of their files."""
    ground = GROUNDS.get(group)
    subjects = _subjects(ground, about, figures)
    charts = {f"{group}.svg": _bars(group, subjects, figures)}
    if lines := _lines(group, subjects, figures):
        charts[f"{group}-claims.svg"] = lines
    blocks = [
        _measured_on(ground, about),
        "\n".join(f"![{_alt(name)}]({CHARTS}/{name})" for name in charts),
        table(["jobs", *SPEED.values(), *SPENT_ON.values()], _speed(subjects, figures, about)),
        table(["milliseconds and bytes", *TIME.values()], _rows(subjects, TIME, figures, about)),
        _against(ground, subjects, figures),
        *_claims(subjects, figures),
        table(["held to", "wanted", "found", "reached"], _goals(ground, figures)),
        _limits(ground, figures),
        _peers(about),
    ]
    return "\n\n".join(block for block in blocks if block), charts


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Without the columns that say nothing."""
    if not rows:
        return ""
    keep = [n for n in range(len(header)) if n == 0 or any(row[n] != NONE for row in rows)]
    lines = [[header[n] for n in keep], ["---"] * len(keep), *([row[n] for n in keep] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _subjects(ground: Ground | None, about: Mapping[str, Any], figures: Figures) -> list[str]:
    """Holdfast, then the peers that were measured."""
    if ground is None:
        return [
            name for name in ("file", "memory", *HUEYS) if any(figures.values(one, name) for one in (*RATES, *WAITS))
        ]
    return [ground.subject, *about["peers"]]


def _measured_on(ground: Ground | None, about: Mapping[str, Any]) -> str:
    where = f"SQLite {about['sqlite']}" if ground is None else f"{ground.name} {about['version']} {ground.setting}"
    return (
        f"{where}, Python {about['python']}, {about['processors']} cores, {about['system']}. Medians of "
        f"{about['rounds']} rounds, in which each had its turn, with the least and the most of a round."
    )


def _speed(subjects: Sequence[str], figures: Figures, about: Mapping[str, Any]) -> list[list[str]]:
    rows = _rows(subjects, SPEED, figures, about)
    shown = [subject for subject in subjects if _has(subject, SPEED, figures, about)]
    for row, subject in zip(rows, shown, strict=True):
        for measure in SPENT_ON:
            spent = [figures.median(f"{measure}, {kind}", subject) for kind in SPENT]
            row.append(" + ".join(f"{value:,.0f}" for value in spent if not math.isnan(value)) or NONE)
    return rows


def _rows(
    subjects: Sequence[str], measures: Mapping[str, str], figures: Figures, about: Mapping[str, Any]
) -> list[list[str]]:
    missing = about.get("missing", {})
    rows: list[list[str]] = []
    for subject in subjects:
        if not _has(subject, measures, figures, about):
            continue
        name = NAMES.get(subject, subject)
        cells = [cell(figures.values(measure, subject)) for measure in measures]
        rows.append([f"{name} ({missing[subject]})" if subject in missing else name, *cells])
    return rows


def _has(subject: str, measures: Mapping[str, str], figures: Figures, about: Mapping[str, Any]) -> bool:
    return subject in about.get("missing", {}) or any(figures.values(measure, subject) for measure in measures)


def cell(values: Sequence[float]) -> str:
    if not values:
        return NONE
    middle = number_of(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({number_of(min(values))} to {number_of(max(values))})"


def _against(ground: Ground | None, subjects: Sequence[str], figures: Figures) -> str:
    """Ours beside the best of all, by measure, and beside the server or the disk alone."""
    ours, others = (subjects[0], subjects[1:]) if ground else ("file", SAME_DURABILITY)
    limit = figures.median(SETTLED, ground.name if ground else disk.NAME)
    rows: list[list[str]] = []
    for measure in (*MORE_IS_BETTER, *LESS_IS_BETTER):
        theirs, mine = best(figures, measure, others), figures.values(measure, ours)
        if not mine or theirs is None:
            continue
        ratio = stats.interval(stats.pairs(mine, theirs.values))
        bounds = f" ({ratio.low:.2f} to {ratio.high:.2f})" if math.isfinite(ratio.high) else ""
        rows.append(
            [
                measure,
                f"{theirs.name}, {cell(theirs.values)}",
                f"{statistics.median(mine) / statistics.median(theirs.values):.2f}",
                f"{ratio.middle:.2f}{bounds}",
                _found(statistics.median(mine) / limit) if measure in ("drain", ALL_CORES) else NONE,
            ]
        )
    head = ("ours / the best peer's", "the best peer", "of medians", "by rounds, 95 % interval", "ours / the raw limit")
    return table(head, rows)


def _claims(subjects: Sequence[str], figures: Figures) -> Iterator[str]:
    """How long a claim takes, by what waits and by how many tenants there are: the figures of the lines."""
    waiting = [
        [
            f"{NAMES[subject]}, claim of {limit}",
            *(cell_of(figures, depth.measure(limit, n), subject) for n in depth.DEPTHS),
        ]
        for subject in subjects
        for limit in depth.LIMITS
        if figures.values(depth.measure(limit, depth.DEPTHS[0]), subject)
    ]
    yield table(["ms for a claim, by jobs waiting", *(f"{n:,}" for n in depth.DEPTHS)], waiting)
    tenants = [
        [
            f"{NAMES[subject]}, claim of {depth.LIMITS[-1]}",
            *(cell_of(figures, depth.measure_tenants(n), subject) for n in depth.TENANTS),
        ]
        for subject in subjects
        if figures.values(depth.measure_tenants(depth.TENANTS[0]), subject)
    ]
    yield table(["ms for a claim, by tenants with work", *(f"{n:,}" for n in depth.TENANTS)], tenants)


def cell_of(figures: Figures, measure: str, subject: str) -> str:
    """Of many values, the middle alone."""
    return _found(figures.median(measure, subject))


def _goals(ground: Ground | None, figures: Figures) -> list[list[str]]:
    if ground is None:
        found = goals.on_disk(figures)
    else:
        python = [peer.name for peer in ground.rivals["best in Python"]]
        others = [peer.name for peer in ground.peers if peer.name not in python]
        found = {"valkey": goals.on_valkey, "postgres": goals.on_postgres}[ground.subject](figures, python, others)
    return [[one.what, one.wanted, _found(one.found), one.verdict] for one in found]


def _found(value: float) -> str:
    return NONE if math.isnan(value) else number_of(value)


def _limits(ground: Ground | None, figures: Figures) -> str:
    """The server, or the disk, alone."""
    if ground is None:
        name, subject = disk.NAME, "file"
        words = [f"One row in one commit: {cell(figures.values(COMMIT, name))} ms."]
    else:
        name, subject = ground.name, ground.subject
        words = []
    moved, settled = (cell(figures.values(measure, name)) for measure in (MOVED, SETTLED))
    words.append(f"The raw limit: ids moved {moved} a second, moved and removed {settled}.")
    if kept := figures.values(FINISHED, subject):
        words.append(f"A finished job of ours, with its result and events, takes {cell(kept)} bytes.")
    if figures.values(IMPORT, OURS):
        importing, helping = (cell(figures.values(measure, OURS)) for measure in (IMPORT, HELP))
        words.append(f"`import holdfast` takes {importing} ms, `holdfast --help` {helping} ms.")
    return " ".join(words)


def _peers(about: Mapping[str, Any]) -> str:
    """How each was set, and what it does not do."""
    lines: list[str] = []
    for name, peer in about.get("peers", {}).items():
        if name in about["missing"]:
            lines.append(f"- {name} ({peer['versions']}): {about['missing'][name]}.")
            continue
        lacks = f" It has no {peer['lacks']}." if peer["lacks"] else ""
        lines.append(f"- {name} ({peer['versions']}): {peer['settings']}.{lacks}")
    return "\n".join(lines)


def _bars(group: str, subjects: Sequence[str], figures: Figures) -> str:
    panels = [
        Bars(title, unit, [*_bars_of(measure, subjects, figures)], measure in LESS_IS_BETTER)
        for measure, title, unit in (
            ("drain", "Drain, one worker process", "jobs a second"),
            ("bulk enqueue", "Bulk enqueue", "jobs a second"),
            (goals.IDLE, "Idle: enqueue to start, p50", "ms"),
            (goals.ANSWER, "Request and response, p50", "ms"),
            (CPU, "Processor time of the worker", "µs a job"),
            (f"{SMALL} p99", "Small tenants beside a big one, p99", "ms"),
        )
    ]
    return chart(f"Holdfast beside its peers: {group}", [panel for panel in panels if len(panel.bars) > 1])


def _bars_of(measure: str, subjects: Sequence[str], figures: Figures) -> Iterator[Bar]:
    for subject in subjects:
        if values := figures.values(measure, subject):
            name = NAMES.get(subject, subject)
            yield Bar(name, statistics.median(values), min(values), max(values), is_ours=subject in NAMES)


def _lines(group: str, subjects: Sequence[str], figures: Figures) -> str:
    """How long a claim takes, by what waits and by how many tenants there are."""
    panels: list[Lines] = []
    for subject in subjects:
        depths = [
            (f"claim of {limit}", points)
            for limit in reversed(depth.LIMITS)  # The same color as in the panel of tenants.
            if (points := _points(figures, subject, {n: depth.measure(limit, n) for n in depth.DEPTHS}))
        ]
        if depths:
            panels.append(Lines(f"{NAMES[subject]}: a claim, by backlog", "ms", "jobs waiting", depths))
        if points := _points(figures, subject, {n: depth.measure_tenants(n) for n in depth.TENANTS}):
            series = [(f"claim of {depth.LIMITS[-1]}", points)]
            panels.append(Lines(f"{NAMES[subject]}: a claim, by tenants", "ms", "tenants", series))
    return chart(f"How long a claim takes: {group}", panels) if panels else ""


def _points(figures: Figures, subject: str, measures: Mapping[int, str]) -> list[tuple[float, float]]:
    return [
        (n, figures.median(measure, subject)) for n, measure in measures.items() if figures.values(measure, subject)
    ]


def _alt(name: str) -> str:
    return "A claim, by backlog and by tenants" if name.endswith("-claims.svg") else "Holdfast beside its peers"


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "results.json")
