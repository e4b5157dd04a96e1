"""Writes the report: one HTML page that needs no network, no script and no server.

Names of tenants and texts of errors come from outside: everything is escaped, and the page's own policy forbids
scripts and requests.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from holdfast.charts import NONE, Band, Chart, Series
from holdfast.pipeline.figures import PERCENTS, Figures, figures
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.transforms.sketches import merged, percentile

DAYS = 7
_LOOK_BACK = 48
"""The hours before the forecast that its chart shows."""
_SAMPLE = 200
_MAX_ROWS = 10
"""The rows of a table that a screen shows until all are asked for. Paper shows all."""
_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def report(spark: SparkSession, lake: Lake, path: Path, *, days: int = DAYS, title: str = "Holdfast report") -> Path:
    """Write the report of the last `days` in the built tables to `path`. A crash leaves no half page."""
    page = render(figures(spark, lake, days), title=title, now=datetime.now(UTC))
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    fresh.write_text(page, encoding="utf-8")
    fresh.replace(path)
    return path


def render(found: Figures, *, title: str, now: datetime) -> str:
    """The page as HTML."""
    style = resources.files("holdfast.pipeline").joinpath("report.css").read_text(encoding="utf-8")
    body = _body(found) if found.hours else _EMPTY
    span = f"{found.hours[0]:%d %b %Y %H:%M} to {found.hours[-1]:%d %b %Y %H:59}, " if found.hours else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body>"
        f"<header><h1>{escape(title)}</h1><p>{span}all times in UTC. Made {now:%d %b %Y %H:%M}.</p></header>"
        f"<main>{body}</main></body></html>\n"
    )


_EMPTY = (
    '<section class="empty"><h2>Nothing here yet</h2><p>The lake has no built tables. Ingest a log with '
    "<code>holdfast pipeline ingest</code>, then run <code>holdfast pipeline build</code>.</p></section>"
)


def _body(found: Figures) -> str:
    return "".join(
        (
            _tiles(found),
            _section("Throughput", _chart(_throughput(found)), "Events in each hour."),
            _section("Wait", _chart(_durations(found, "wait")), "From visible to claimed, over all attempts."),
            _section("Run time", _chart(_durations(found, "run")), "From claimed to the end of the handler."),
            _section("Error budget", *_budget(found)),
            _section("Forecast", *_forecast(found)),
            _section("Failures", _failures(found), "By the fingerprint of the error, which ignores numbers and names."),
            _section("Tenants", _tenants(found), f"The {len(found.tenants)} busiest."),
            _section("Queues", _queues(found), f"The {len(found.queues)} busiest. Percentiles are right within 2 %."),
        )
    )


def _section(title: str, content: str, text: str = "") -> str:
    lead = f"<p>{escape(text)}</p>" if text else ""
    return f"<section><h2>{escape(title)}</h2>{lead}{content}</section>"


def _chart(chart: Chart) -> str:
    return (
        f"<figure>{chart.svg()}{chart.legend()}<details><summary>As a table, by the hour ({len(chart.times)})</summary>"
        f'<div class="scroll high" tabindex="0">{chart.table()}</div></details></figure>'
    )


def _tiles(found: Figures) -> str:
    waits = merged(found.waits)
    good, bad = sum(found.good), sum(found.bad)
    tiles = [
        ("enqueued", f"{sum(found.counts['enqueued']):,}"),
        ("completed", f"{sum(found.counts['completed']):,}"),
        ("failed", f"{sum(found.counts['failed']):,}"),
        ("wait, median", _ms(percentile(waits, 50))),
        ("wait, 95 %", _ms(percentile(waits, 95))),
        ("within objective", f"{100 * good / (good + bad):.2f} %" if good + bad else NONE),
    ]
    return (
        '<dl class="tiles">' + "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in tiles) + "</dl>"
    )


def _throughput(found: Figures) -> Chart:
    colors = {"enqueued": "c1", "completed": "c2", "failed": "c3", "retried": "c4"}
    lines = [Series(kind, color, found.counts[kind], filled=kind == "enqueued") for kind, color in colors.items()]
    return Chart("throughput", "Jobs enqueued, completed, failed and retried in each hour", found.hours, lines, _count)


def _durations(found: Figures, measure: str) -> Chart:
    histograms = found.waits if measure == "wait" else found.runs
    colors = ("c2", "c1", "c4")
    lines = [
        Series(f"{percent} %", color, found.percentiles(histograms, percent))
        for percent, color in reversed([*zip(PERCENTS, colors, strict=True)])
    ]
    title = f"{measure.capitalize()} time in each hour, percentiles, on a logarithmic scale"
    return Chart(measure, title, found.hours, lines, _ms, logarithmic=True)


def _budget(found: Figures) -> tuple[str, str]:
    if not sum(found.good) + sum(found.bad):
        return "<p>No job has ended in this time.</p>", ""
    line = Series("burn rate", "c3", found.burn_rates)
    chart = Chart("budget", "Burn rate of the error budget in each hour", found.hours, [line], _rate, mark=1.0)
    text = (
        f"The objective: {100 * found.target:g} % of the jobs start within {_ms(found.start_within_ms)} and do not "
        "fail. A burn rate of 1, the dashed line, uses exactly the budget."
    )
    return _chart(chart), text


def _forecast(found: Figures) -> tuple[str, str]:
    if not found.forecast:
        return "<p>There is no full hour yet to learn from.</p>", ""
    past = found.hours[-_LOOK_BACK:]
    counts = found.counts["enqueued"][-_LOOK_BACK:]
    ahead = found.forecast
    none: list[float | None] = [None] * len(past)
    later: list[float | None] = [None] * len(ahead)
    chart = Chart(
        "forecast",
        "Jobs enqueued in the last hours, and expected in the next day",
        [*past, *(expected.hour for expected in ahead)],
        [
            Series("enqueued", "c1", [*counts, *later], filled=True),
            Series("expected", "c4", [*none, *(expected.mean for expected in ahead)]),
        ],
        _count,
        Band("lowest to highest", [*none, *(e.low for e in ahead)], [*none, *(e.high for e in ahead)]),
    )
    text = (
        "For each hour of the next day: the mean, the lowest and the highest of the same hour on up to 28 days before. "
        "It knows neither weekdays nor trends."
    )
    return _chart(chart), text


def _failures(found: Figures) -> str:
    if not found.failures:
        return "<p>None.</p>"
    highest = max(row["count"] for row in found.failures)
    columns: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("error", lambda row: f"<b>{escape(row['error_type'] or '')}</b><br><code>{escape(row['fingerprint'])}</code>"),
        ("job type", lambda row: escape(row["type"])),
        ("attempts", lambda row: f"{row['count']:,}{_bar(row['count'] / highest)}"),
        ("dead", lambda row: f"{row['dead']:,}"),
        ("tenants", lambda row: f"{row['tenants']:,}"),
        ("first", lambda row: f"{row['first_seen_at']:%d %b %H:%M}"),
        ("last", lambda row: f"{row['last_seen_at']:%d %b %H:%M}"),
        ("sample", lambda row: f'<span class="sample">{escape(_shortened(row["sample"] or ""))}</span>'),
    ]
    return _table(columns, found.failures)


def _tenants(found: Figures) -> str:
    highest = max((row["enqueued"] for row in found.tenants), default=0) or 1
    return _table(
        [("tenant", lambda row: escape(row["tenant"])), ("", lambda row: _bar(row["enqueued"] / highest)), *_counts()],
        found.tenants,
    )


def _queues(found: Figures) -> str:
    durations: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        (f"{measure} {percent}\u00a0%", lambda row, name=f"{measure}_p{percent}": _ms(row[name]))
        for measure in ("wait", "run")
        for percent in PERCENTS
    ]
    names: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("tenant", lambda row: escape(row["tenant"])),
        ("queue", lambda row: escape(row["queue"])),
    ]
    return _table([*names, *_counts(), *durations], found.queues)


def _counts() -> list[tuple[str, Callable[[dict[str, Any]], str]]]:
    kinds = ("enqueued", "completed", "failed", "retried", "expired", "canceled")
    return [(kind, lambda row, kind=kind: f"{row[kind]:,}") for kind in kinds]


def _table(columns: Sequence[tuple[str, Callable[[dict[str, Any]], str]]], rows: Sequence[dict[str, Any]]) -> str:
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name, _ in columns)
    body = "".join(
        f"<tr{' class=rest' if n >= _MAX_ROWS else ''}>{''.join(f'<td>{show(row)}</td>' for _, show in columns)}</tr>"
        for n, row in enumerate(rows)
    )
    more = (
        f'<label class="more"><input type="checkbox"> Show all {len(rows)} rows</label>'
        if len(rows) > _MAX_ROWS
        else ""
    )
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        f'{more}<p class="sideways">Scroll sideways for all columns.</p>'
    )


def _bar(share: float) -> str:
    return f'<span class="bar" style="width:{max(1, round(100 * share))}%"></span>'


# How numbers are shown ----------------------------------------------------------------------------------------


def _shortened(text: str) -> str:
    return text if len(text) <= _SAMPLE else f"{text[:_SAMPLE].rstrip()} …"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"  # noqa: PLR2004


def _rate(value: float) -> str:
    return f"{value:,.1f}"


def _ms(value: float | None) -> str:
    if value is None:
        return NONE
    if value < 1000:  # noqa: PLR2004
        return f"{value:.0f} ms"
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if value >= 2 * size or value == size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1000:.3g} s"
