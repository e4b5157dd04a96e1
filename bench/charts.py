"""Charts as SVG, written by hand: bars and lines in panels, on a ground of their own so that any page suits them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, PANEL, GAP, PAD = 920, 440, 40, 20
ROW, LABEL, TOP, HEAD = 22, 160, 24, 44
PLOT = 190
STYLE = """
.ground { fill: #ffffff; stroke: #d0d7de } .ink { fill: #1f2328 } .faint { fill: #59636e } .rule { stroke: #d1d9e0 }
.ours { fill: #0969da } .theirs { fill: #a8b3c1 } .line { fill: none; stroke-width: 2 } .spread { stroke: #59636e }
.s0 { stroke: #0969da; fill: #0969da } .s1 { stroke: #bc4c00; fill: #bc4c00 } .line.s0, .line.s1 { fill: none }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117; stroke: #3d444d } .ink { fill: #f0f6fc } .faint { fill: #9198a1 } .rule { stroke: #3d444d }
.ours { fill: #4493f8 } .theirs { fill: #545d68 } .spread { stroke: #9198a1 }
.s0 { stroke: #4493f8; fill: #4493f8 } .s1 { stroke: #f0883e; fill: #f0883e } .line.s0, .line.s1 { fill: none }
}
text { font: 12px system-ui, -apple-system, 'Segoe UI', sans-serif } .title { font-weight: 600; font-size: 14px }
""".strip()


class Bar(NamedTuple):
    name: str
    value: float
    least: float
    most: float
    is_ours: bool = False


class Bars(NamedTuple):
    """A panel of bars, the best first."""

    title: str
    unit: str
    bars: Sequence[Bar]
    less_is_better: bool = False

    @property
    def height(self) -> int:
        return TOP + ROW * len(self.bars)

    def draw(self) -> list[str]:
        direction = "less is better" if self.less_is_better else "more is better"
        parts = _heading(self.title, f"{self.unit}, {direction}")
        room = PANEL - LABEL - 72
        top = max((bar.most for bar in self.bars), default=1) or 1
        for number, bar in enumerate(sorted(self.bars, key=lambda bar: bar.value, reverse=not self.less_is_better)):
            y = TOP + ROW * number
            kind = "ours" if bar.is_ours else "theirs"
            length, least, most = (room * value / top for value in (bar.value, bar.least, bar.most))
            box = f'x="{LABEL}" y="{y + 3}" width="{max(length, 1):.1f}" height="{ROW - 8}" rx="2"'
            parts += [_text(LABEL - 8, y + 14, bar.name, "ink", "end"), f'<rect class="{kind}" {box}/>']
            if bar.most > bar.least:
                middle = y + ROW / 2 - 1
                parts.append(_line("spread", LABEL + least, middle, LABEL + most, middle))
            parts.append(_text(LABEL + max(length, most) + 6, y + 14, number_of(bar.value), "ink"))
        return parts


class Lines(NamedTuple):
    """A panel of lines; the axis below in powers of ten, the one beside it from nothing on."""

    title: str
    unit: str
    axis: str
    series: Sequence[tuple[str, Sequence[tuple[float, float]]]]

    @property
    def height(self) -> int:
        return HEAD + PLOT + 40

    def draw(self) -> list[str]:
        parts = _heading(self.title, self.unit)
        places = sorted({x for _, points in self.series for x, _ in points})
        top = _above(max(y for _, points in self.series for _, y in points))
        left, right, bottom = 50, PANEL - 60, HEAD + PLOT

        def across(x: float) -> float:
            span = math.log10(places[-1] / places[0]) or 1
            return left + (right - left) * math.log10(x / places[0]) / span

        def up(y: float) -> float:
            return bottom - PLOT * y / top

        for step in range(5):
            value = top * step / 4
            parts += [
                _line("rule", left, up(value), right, up(value)),
                _text(left - 6, up(value) + 4, number_of(value), "faint", "end"),
            ]
        parts += [_text(across(x), bottom + 16, f"{x:,.0f}", "faint", "middle") for x in places]
        parts.append(_text((left + right) / 2, bottom + 34, self.axis, "faint", "middle"))
        for number, (name, points) in enumerate(self.series):
            path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
            parts.append(f'<polyline class="line s{number}" points="{path}"/>')
            parts += [f'<circle class="s{number}" cx="{across(x):.1f}" cy="{up(y):.1f}" r="3"/>' for x, y in points]
            # Names beside each other above the plot: where lines meet, names on them would, too.
            start = left + 120 * number
            parts.append(f'<circle class="s{number}" cx="{start + 4}" cy="{HEAD - 10}" r="4"/>')
            parts.append(_text(start + 14, HEAD - 6, name, "ink"))
        return parts


def chart(title: str, panels: Sequence[Bars | Lines]) -> str:
    """Two panels in a row."""
    parts: list[str] = []
    y = 0
    for start in range(0, len(panels), 2):
        row = panels[start : start + 2]
        for number, panel in enumerate(row):
            inner = "\n".join(panel.draw())
            parts.append(f'<g transform="translate({PAD + number * (PANEL + GAP - PAD)} {y + PAD})">\n{inner}\n</g>')
        y += max(panel.height for panel in row) + PAD
    height = y + PAD
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n'
        f'<rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def number_of(value: float) -> str:
    """As short as it says enough: 27,500 or 1.06."""
    if value == 0:
        return "0"
    if value >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _above(value: float) -> float:
    """The next round number."""
    power = 10 ** math.floor(math.log10(value)) if value > 0 else 1
    return next(step * power for step in (1, 2, 3, 4, 6, 8, 10) if step * power >= value)


def _heading(title: str, unit: str) -> list[str]:
    return [_text(0, 12, title, "ink title"), _text(PANEL - 20, 12, unit, "faint", "end")]


def _text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
