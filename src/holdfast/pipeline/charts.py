"""Charts as inline SVG: lines over hours, with a table of the same numbers for those who cannot see them.

Each is drawn twice, for a desk and for a phone, and the style sheet shows one of them: labels keep their size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape

NONE = "-"
"""Where there is no number."""
TOP, RIGHT, BOTTOM = 12, 8, 26
THIN, THICKER = 1.5, 0.8
DOT, LARGER = 2.8, 1.4
"""How thick a line is at least and how large the dot of an hour, and by how much more for each one drawn over them."""
_SHORT = 16.0
"""A line that is shorter has dots too, to be seen."""
_TICKS_MS = (0, 1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 86_400_000, 864_000_000)
_DAY = 24
_STEPS = (1, 2, 3, 6, 12)
"""Hours between two labels, while they are less than a day."""


@dataclass(frozen=True)
class Size:
    """For which screen a chart is drawn. What is on it is measured in the units of its drawing."""

    name: str
    width: int
    height: int
    left: int
    letters: int
    """How high they are, as the style sheet says."""
    most_hours: int
    """How many hours are labeled."""

    @property
    def inner_width(self) -> int:
        return self.width - self.left - RIGHT

    @property
    def inner_height(self) -> int:
        return self.height - TOP - BOTTOM

    def text_width(self, text: str) -> float:
        """About how wide a label is."""
        return 0.6 * self.letters * len(text)


WIDE = Size("wide", 720, 240, 56, 11, 8)
NARROW = Size("narrow", 420, 240, 62, 13, 4)


@dataclass(frozen=True)
class Line:
    """One value for each hour; None where there is none. `color` is a class of the style sheet."""

    name: str
    color: str
    values: Sequence[float | None]
    filled: bool = False
    """Down to 0, so that a line over it can be the same and hide nothing."""


@dataclass(frozen=True)
class Band:
    """The room between two values for each hour."""

    name: str
    low: Sequence[float | None]
    high: Sequence[float | None]


@dataclass(frozen=True)
class Chart:
    """Lines over the same hours, the first drawn thickest and beneath. `logarithmic` is for durations in ms."""

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
        """The picture in both sizes, with a title and, over each hour of the wide one, its numbers."""
        return self._drawn(WIDE, [self._hover(n) for n in range(len(self.hours))]) + self._drawn(NARROW, [])

    def legend(self) -> str:
        """Which line is which."""
        names = [
            f'<li class="{line.color}{" filled" if line.filled else ""}"><i></i>{escape(line.name)}</li>'
            for line in self.lines
        ]
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

    def _drawn(self, size: Size, over: list[str]) -> str:
        scale = self._scale(size)
        name = f"{self.id}-{size.name}"
        box = f'viewBox="0 0 {size.width} {size.height}" class="chart {size.name}"'
        parts = [
            f'<svg {box} role="img" aria-labelledby="{name}">',
            f'<title id="{name}">{escape(self.title)}</title>',
            *self._levels(scale),
            *self._times(size),
            *self._shapes(scale),
            *over,
            "</svg>",
        ]
        return "".join(parts)

    def _scale(self, size: Size) -> Scale:
        known = [value for line in self.lines for value in line.values if value is not None]
        known += [value for value in (self.band.high if self.band else ()) if value is not None]
        known += [] if self.mark is None else [self.mark]
        if self.logarithmic:
            return LogScale(min(known, default=0.0), max(known, default=0.0), size)
        return Scale(max(known, default=0.0), size)

    def _x(self, size: Size, n: float) -> float:
        return size.left + size.inner_width * (n + 0.5) / max(1, len(self.hours))

    def _levels(self, scale: Scale) -> Iterator[str]:
        size = scale.size
        across = f'x1="{size.left}" x2="{size.width - RIGHT}"'
        for value in scale.ticks():
            y = scale.y(value)
            yield f'<line class="grid" {across} y1="{y:.1f}" y2="{y:.1f}"/>'
            place = f'x="{size.left - 6}" y="{y + 4:.1f}" text-anchor="end"'
            yield f'<text class="tick" {place}>{escape(_short(value, self.show))}</text>'
        if self.mark is not None:
            y = scale.y(self.mark)
            yield f'<line class="mark" {across} y1="{y:.1f}" y2="{y:.1f}"/>'

    def _times(self, size: Size) -> Iterator[str]:
        """Round times of the day, and the date at midnight."""
        count = len(self.hours)
        days = -(-count // (_DAY * size.most_hours))
        step = next((step for step in _STEPS if count <= step * size.most_hours), _DAY)
        for n, hour in enumerate(self.hours):
            if hour.hour % step or (step == _DAY and hour.toordinal() % days):
                continue
            text = f"{hour:%d %b}" if hour.hour == 0 else f"{hour:%H:%M}"
            x = min(self._x(size, n), size.width - size.text_width(text) / 2)
            yield f'<text class="tick" x="{x:.1f}" y="{size.height - 6}" text-anchor="middle">{text}</text>'

    def _shapes(self, scale: Scale) -> Iterator[str]:
        if self.band is not None:
            pairs = [
                (self._x(scale.size, n), low, high)
                for n, (low, high) in enumerate(zip(self.band.low, self.band.high, strict=True))
                if low is not None and high is not None
            ]
            outline = [f"{x:.1f},{scale.y(high):.1f}" for x, _, high in pairs]
            outline += [f"{x:.1f},{scale.y(low):.1f}" for x, low, _ in reversed(pairs)]
            yield f'<polygon class="band" points="{" ".join(outline)}"/>'
        for n, line in enumerate(self.lines):
            yield from self._columns(line, scale) if line.filled else self._pieces(line, scale, len(self.lines) - 1 - n)

    def _columns(self, line: Line, scale: Scale) -> Iterator[str]:
        """A column for each hour, all in one shape."""
        half = scale.size.inner_width / max(1, len(self.hours)) / 2
        ground = f"{scale.y(0):.1f}"
        outline = [f"{scale.size.left},{ground}"]
        for n, value in enumerate(line.values):
            x, y = self._x(scale.size, n), scale.y(value or 0)
            outline += [f"{x - half:.1f},{y:.1f}", f"{x + half:.1f},{y:.1f}"]
        outline.append(f"{scale.size.width - RIGHT},{ground}")
        yield f'<polygon class="filled {line.color}" points="{" ".join(outline)}"/>'

    def _pieces(self, line: Line, scale: Scale, over: int) -> Iterator[str]:
        """The line without what is not known. The more are drawn `over` it the thicker it is, to be seen beneath."""
        pieces: list[list[tuple[float, float]]] = [[]]
        for n, value in enumerate(line.values):
            if value is None:
                pieces.append([])
            else:
                pieces[-1].append((self._x(scale.size, n), scale.y(value)))
        for piece in filter(None, pieces):
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in piece)
            yield f'<polyline class="line {line.color}" stroke-width="{THIN + over * THICKER:g}" points="{points}"/>'
            if piece[-1][0] - piece[0][0] < _SHORT:
                radius = f"{DOT + over * LARGER:g}"
                yield from (f'<circle class="{line.color}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>' for x, y in piece)

    def _hover(self, n: int) -> str:
        """A strip over one hour whose title the browser shows."""
        width = WIDE.inner_width / max(1, len(self.hours))
        said = [f"{line.name} {self._said(line.values[n])}" for line in self.lines if line.values[n] is not None]
        text = escape(f"{self.hours[n]:%a %d %b %H:%M}: {', '.join(said) or 'nothing'}")
        return (
            f'<rect class="hover" x="{self._x(WIDE, n) - width / 2:.1f}" y="{TOP}" width="{width:.1f}" '
            f'height="{WIDE.inner_height}"><title>{text}</title></rect>'
        )

    def _said(self, value: float | None) -> str:
        return NONE if value is None else self.show(value)


def _short(value: float, show: Callable[[float], str]) -> str:
    """A number beside an axis; thousands and millions of what has no unit are named."""
    text = show(value)
    if value >= 10_000 and text.replace(",", "").replace(".", "").isdigit():  # noqa: PLR2004
        return f"{value / 1e6:g} M" if value >= 1e6 else f"{value / 1e3:g} k"  # noqa: PLR2004
    return text


class Scale:
    """From a value to its height, from 0 on."""

    def __init__(self, most: float, size: Size = WIDE) -> None:
        self.size, self.most = size, self._round_up(most)

    @staticmethod
    def _round_up(most: float) -> float:
        if most <= 0:
            return 1.0
        power = 10.0 ** math.floor(math.log10(most))
        return next(step * power for step in (1, 2, 4, 5, 10) if step * power >= most)

    def y(self, value: float) -> float:
        return self.size.height - BOTTOM - self.size.inner_height * self._share(value)

    def ticks(self) -> list[float]:
        """Round values, none so near the one below that their labels would touch."""
        kept: list[float] = []
        for value in self._round_values():
            if not kept or self.y(kept[-1]) - self.y(value) >= 1.5 * self.size.letters:
                kept.append(value)
        return kept

    def _share(self, value: float) -> float:
        return value / self.most

    def _round_values(self) -> list[float]:
        # 1, 2, 4 or 5 at the top: in steps that are as round.
        steps = 4 if f"{self.most:e}"[0] in "24" else 5
        return [self.most * n / steps for n in range(steps + 1)]


class LogScale(Scale):
    """The same for durations in ms, from the round one below the least on."""

    def __init__(self, least: float, most: float, size: Size = WIDE) -> None:
        self.least = float(max((tick for tick in _TICKS_MS if tick < least), default=0))
        super().__init__(most, size)
        self.most = max(most, 10 * self.least, 10.0)

    def _share(self, value: float) -> float:
        lowest, highest = math.log1p(self.least), math.log1p(self.most)
        return (math.log1p(max(value, self.least)) - lowest) / (highest - lowest)

    def _round_values(self) -> list[float]:
        return [float(tick) for tick in _TICKS_MS if self.least <= tick <= self.most]
