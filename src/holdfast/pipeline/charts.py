"""Charts as inline SVG: lines over hours, with a table of the same numbers for those who cannot see them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape

NONE = "-"
"""Where there is no number."""
WIDTH, HEIGHT = 720, 240
LEFT, RIGHT, TOP, BOTTOM = 56, 8, 12, 26
_TICKS_MS = (1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 86_400_000, 864_000_000)


@dataclass(frozen=True)
class Line:
    """One value for each hour; None where there is none. `color` is a class of the style sheet."""

    name: str
    color: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class Band:
    """The room between two values for each hour."""

    name: str
    low: Sequence[float | None]
    high: Sequence[float | None]


@dataclass(frozen=True)
class Chart:
    """Lines over the same hours. `logarithmic` is for durations in ms."""

    id: str
    title: str
    hours: Sequence[datetime]
    lines: Sequence[Line]
    show: Callable[[float], str]
    band: Band | None = None
    logarithmic: bool = False
    mark: float | None = None
    """A level that is drawn across."""

    def svg(self) -> str:
        """The picture, with a title and, over each hour, its numbers."""
        scale = self._scale()
        parts = [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{self.id}-t" class="chart">',
            f'<title id="{self.id}-t">{escape(self.title)}</title>',
            *self._grid(scale),
            *self._shapes(scale),
            *(self._hover(n) for n in range(len(self.hours))),
            "</svg>",
        ]
        return "".join(parts)

    def legend(self) -> str:
        """Which line is which."""
        names = [f'<li class="{line.color}"><i></i>{escape(line.name)}</li>' for line in self.lines]
        if self.band is not None:
            names.append(f'<li class="band"><i></i>{escape(self.band.name)}</li>')
        return f'<ul class="legend">{"".join(names)}</ul>'

    def table(self) -> str:
        """The same numbers as text."""
        head = "".join(f"<th scope=col>{escape(line.name)}</th>" for line in self.lines)
        rows = "".join(
            f"<tr><th scope=row>{hour:%Y-%m-%d %H:%M}</th>"
            + "".join(f"<td>{self._said(line.values[n])}</td>" for line in self.lines)
            + "</tr>"
            for n, hour in enumerate(self.hours)
        )
        return f"<table><thead><tr><th scope=col>hour (UTC)</th>{head}</tr></thead><tbody>{rows}</tbody></table>"

    # Drawing ----------------------------------------------------------------------------------------------

    def _scale(self) -> Scale:
        known = [value for line in self.lines for value in line.values if value is not None]
        known += [value for value in (self.band.high if self.band else ()) if value is not None]
        known += [] if self.mark is None else [self.mark]
        return Scale(max(known, default=0.0), logarithmic=self.logarithmic)

    def _x(self, n: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (n + 0.5) / max(1, len(self.hours))

    def _grid(self, scale: Scale) -> list[str]:
        parts: list[str] = []
        for value in scale.ticks():
            y = scale.y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            kind = "tick minor" if self.logarithmic and value == 0 else "tick"
            parts.append(
                f'<text class="{kind}" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{self.show(value)}</text>'
            )
        if self.mark is not None:
            y = scale.y(self.mark)
            parts.append(f'<line class="mark" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        step = max(1, math.ceil(len(self.hours) / 7))
        layout = "%H:%M" if len(self.hours) <= 24 else "%d %b" if step >= 24 else "%d %b %H:%M"  # noqa: PLR2004 - hours
        for n in range(0, len(self.hours), step):
            text = escape(self.hours[n].strftime(layout))
            kind = "tick x minor" if n // step % 3 else "tick x"
            place = f'x="{self._x(n):.1f}" y="{HEIGHT - 6}" text-anchor="middle"'
            parts.append(f'<text class="{kind}" {place}>{text}</text>')
        return parts

    def _shapes(self, scale: Scale) -> list[str]:
        parts: list[str] = []
        if self.band is not None:
            pairs = [
                (self._x(n), low, high)
                for n, (low, high) in enumerate(zip(self.band.low, self.band.high, strict=True))
                if low is not None and high is not None
            ]
            outline = [f"{x:.1f},{scale.y(high):.1f}" for x, _, high in pairs]
            outline += [f"{x:.1f},{scale.y(low):.1f}" for x, low, _ in reversed(pairs)]
            parts.append(f'<polygon class="band" points="{" ".join(outline)}"/>')
        for line in self.lines:
            shape = f'<polyline class="line {line.color}" points="'
            parts += [f'{shape}{" ".join(piece)}"/>' for piece in self._pieces(line, scale)]
        return parts

    def _pieces(self, line: Line, scale: Scale) -> list[list[str]]:
        """The line without what is not known; a single point becomes a short dash."""
        pieces: list[list[str]] = [[]]
        for n, value in enumerate(line.values):
            if value is None:
                pieces.append([])
            else:
                pieces[-1].append(f"{self._x(n):.1f},{scale.y(value):.1f}")
        dash = (WIDTH - LEFT - RIGHT) / max(1, len(self.hours)) / 2
        for piece in pieces:
            if len(piece) == 1:
                x, _, y = piece[0].partition(",")
                piece[:] = [f"{float(x) - dash:.1f},{y}", f"{float(x) + dash:.1f},{y}"]
        return [piece for piece in pieces if piece]

    def _hover(self, n: int) -> str:
        """A strip over one hour whose title the browser shows."""
        width = (WIDTH - LEFT - RIGHT) / max(1, len(self.hours))
        said = [f"{line.name} {self._said(line.values[n])}" for line in self.lines if line.values[n] is not None]
        text = escape(f"{self.hours[n]:%a %d %b %H:%M}: {', '.join(said) or 'nothing'}")
        return (
            f'<rect class="hover" x="{self._x(n) - width / 2:.1f}" y="{TOP}" width="{width:.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM}"><title>{text}</title></rect>'
        )

    def _said(self, value: float | None) -> str:
        return NONE if value is None else self.show(value)


class Scale:
    """From a value to its height."""

    def __init__(self, most: float, *, logarithmic: bool) -> None:
        self._log = logarithmic
        self.most = max(most, 10.0) if logarithmic else self._round_up(most)

    @staticmethod
    def _round_up(most: float) -> float:
        if most <= 0:
            return 1.0
        power = 10.0 ** math.floor(math.log10(most))
        return next(step * power for step in (1, 2, 4, 5, 10) if step * power >= most)

    def y(self, value: float) -> float:
        share = math.log1p(max(0.0, value)) / math.log1p(self.most) if self._log else value / self.most
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    def ticks(self) -> list[float]:
        if self._log:
            return [0.0, *(float(tick) for tick in _TICKS_MS if tick <= self.most)]
        # 1, 2, 4 or 5 at the top: in steps that are as round.
        steps = 4 if f"{self.most:e}"[0] in "24" else 5
        return [self.most * n / steps for n in range(steps + 1)]
