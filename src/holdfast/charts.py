"""Charts as inline SVG: lines over time, with a table of the same numbers for readers who cannot see them.

Each chart is drawn twice, for a desktop and for a phone. The style sheet shows one of them, so labels keep their size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape

NONE = "-"
"""Shown instead of a missing number."""
TOP, RIGHT, BOTTOM = 12, 8, 26
LINE_WIDTH, LINE_WIDTH_STEP = 1.5, 0.8
DOT_RADIUS, DOT_RADIUS_STEP = 2.8, 1.4
"""The width of a line and the radius of a dot; the step is added for each line that is drawn over it."""
_MIN_LENGTH = 16.0
"""A shorter line also gets dots, to be visible."""
_TICKS_MS = (0, 1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 86_400_000, 864_000_000)
_DAY = 24
_STEPS = (1, 2, 3, 6, 12)
"""Hours between two labels, while they are less than a day."""
_HOUR_S = 3600
_STEPS_S = (15, 30, 60, 120, 300, 600, 1800)
"""Seconds between two labels, while they are less than an hour."""


@dataclass(frozen=True)
class Size:
    """The size of a drawing for one kind of screen, in units of the drawing."""

    name: str
    width: int
    height: int
    left: int
    letters: int
    """The height of letters in the style sheet."""
    max_labels: int
    """The most times with a label."""

    @property
    def inner_width(self) -> int:
        return self.width - self.left - RIGHT

    @property
    def inner_height(self) -> int:
        return self.height - TOP - BOTTOM

    def text_width(self, text: str) -> float:
        """The approximate width of a label."""
        return 0.6 * self.letters * len(text)


WIDE = Size("wide", 720, 240, 56, 11, 8)
NARROW = Size("narrow", 420, 240, 62, 13, 4)


@dataclass(frozen=True)
class Series:
    """One value for each time; None if there is none. `color` is a class of the style sheet."""

    name: str
    color: str
    values: Sequence[float | None]
    filled: bool = False
    """Filled down to 0, so that a line with the same values over it hides nothing."""


@dataclass(frozen=True)
class Band:
    """The area between two values for each time."""

    name: str
    low: Sequence[float | None]
    high: Sequence[float | None]


@dataclass(frozen=True)
class Chart:
    """Lines over the same times, which are equally far apart: hours, or seconds that divide an hour.

    The first line is the thickest and at the bottom. `logarithmic` is for durations in ms.
    """

    id: str
    title: str
    times: Sequence[datetime]
    lines: Sequence[Series]
    show: Callable[[float], str]
    band: Band | None = None
    logarithmic: bool = False
    mark: float | None = None
    """A value with a line across the chart."""

    def svg(self, wide: Size = WIDE, narrow: Size = NARROW) -> str:
        """The drawing in both sizes, with a title. The wide one shows the numbers of a time on hover."""
        return self._drawn(wide, [self._hover(wide, n) for n in range(len(self.times))]) + self._drawn(narrow, [])

    def legend(self) -> str:
        """The legend of the lines."""
        names = [
            f'<li class="{line.color}{" filled" if line.filled else ""}"><i></i>{escape(line.name)}</li>'
            for line in self.lines
        ]
        if self.band is not None:
            names.append(f'<li class="band"><i></i>{escape(self.band.name)}</li>')
        return f'<ul class="legend">{"".join(names)}</ul>'

    def table(self) -> str:
        """The numbers as a table."""
        head = "".join(f"<th scope=col>{escape(line.name)}</th>" for line in self.lines)
        rows = "".join(
            f"<tr><th scope=row>{time:%Y-%m-%d %H:%M}</th>"
            + "".join(f"<td>{self._text(line.values[n])}</td>" for line in self.lines)
            + "</tr>"
            for n, time in enumerate(self.times)
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
            *self._labels(size),
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
        return size.left + size.inner_width * (n + 0.5) / max(1, len(self.times))

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

    def _labels(self, size: Size) -> Iterator[str]:
        """Labels at round times."""
        for n, text in self._hours(size) if self._step_s >= _HOUR_S else self._minutes(size):
            x = min(self._x(size, n), size.width - size.text_width(text) / 2)
            yield f'<text class="tick" x="{x:.1f}" y="{size.height - 6}" text-anchor="middle">{text}</text>'

    def _hours(self, size: Size) -> Iterator[tuple[int, str]]:
        """Round hours, with the date at midnight."""
        count = len(self.times)
        days = -(-count // (_DAY * size.max_labels))
        step = next((step for step in _STEPS if count <= step * size.max_labels), _DAY)
        for n, hour in enumerate(self.times):
            if hour.hour % step or (step == _DAY and hour.toordinal() % days):
                continue
            yield n, f"{hour:%d %b}" if hour.hour == 0 else f"{hour:%H:%M}"

    def _minutes(self, size: Size) -> Iterator[tuple[int, str]]:
        span_s = len(self.times) * self._step_s
        step = next((step for step in _STEPS_S if span_s <= step * size.max_labels), _HOUR_S)
        for n, time in enumerate(self.times):
            if not time.timestamp() % step:
                yield n, f"{time:%H:%M}" if step % 60 == 0 else f"{time:%H:%M:%S}"

    @property
    def _step_s(self) -> float:
        """The seconds between two times."""
        return (self.times[1] - self.times[0]).total_seconds() if len(self.times) > 1 else _HOUR_S

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
            yield from (
                self._columns(line, scale) if line.filled else self._segments(line, scale, len(self.lines) - 1 - n)
            )

    def _columns(self, line: Series, scale: Scale) -> Iterator[str]:
        """A column for each time, all in one shape."""
        half = scale.size.inner_width / max(1, len(self.times)) / 2
        ground = f"{scale.y(0):.1f}"
        outline = [f"{scale.size.left},{ground}"]
        for n, value in enumerate(line.values):
            x, y = self._x(scale.size, n), scale.y(value or 0)
            outline += [f"{x - half:.1f},{y:.1f}", f"{x + half:.1f},{y:.1f}"]
        outline.append(f"{scale.size.width - RIGHT},{ground}")
        yield f'<polygon class="filled {line.color}" points="{" ".join(outline)}"/>'

    def _segments(self, line: Series, scale: Scale, over: int) -> Iterator[str]:
        """The line without unknown values. It gets thicker for each line `over` it, so that it stays visible."""
        width = f"{LINE_WIDTH + over * LINE_WIDTH_STEP:g}"
        segments: list[list[tuple[float, float]]] = [[]]
        for n, value in enumerate(line.values):
            if value is None:
                segments.append([])
            else:
                segments[-1].append((self._x(scale.size, n), scale.y(value)))
        for segment in filter(None, segments):
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in segment)
            yield f'<polyline class="line {line.color}" stroke-width="{width}" points="{points}"/>'
            if segment[-1][0] - segment[0][0] < _MIN_LENGTH:
                radius = f"{DOT_RADIUS + over * DOT_RADIUS_STEP:g}"
                yield from (
                    f'<circle class="{line.color}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>' for x, y in segment
                )

    def _hover(self, size: Size, n: int) -> str:
        """A strip over one time. The browser shows its title on hover."""
        width = size.inner_width / max(1, len(self.times))
        values = [f"{line.name} {self._text(line.values[n])}" for line in self.lines if line.values[n] is not None]
        at = f"{self.times[n]:%a %d %b %H:%M}" if self._step_s >= _HOUR_S else f"{self.times[n]:%H:%M:%S}"
        text = escape(f"{at}: {', '.join(values) or 'nothing'}")
        return (
            f'<rect class="hover" x="{self._x(size, n) - width / 2:.1f}" y="{TOP}" width="{width:.1f}" '
            f'height="{size.inner_height}"><title>{text}</title></rect>'
        )

    def _text(self, value: float | None) -> str:
        return NONE if value is None else self.show(value)


def _short(value: float, show: Callable[[float], str]) -> str:
    """A number for an axis. Large numbers without a unit are shortened to thousands or millions."""
    text = show(value)
    if value >= 10_000 and text.replace(",", "").replace(".", "").isdigit():  # noqa: PLR2004
        return f"{value / 1e6:g} M" if value >= 1e6 else f"{value / 1e3:g} k"  # noqa: PLR2004
    return text


class Scale:
    """Turns values into heights, starting at 0."""

    def __init__(self, highest: float, size: Size = WIDE) -> None:
        self.size, self.highest = size, self._round_up(highest)

    @staticmethod
    def _round_up(value: float) -> float:
        if value <= 0:
            return 1.0
        power = 10.0 ** math.floor(math.log10(value))
        return next(step * power for step in (1, 2, 4, 5, 10) if step * power >= value)

    def y(self, value: float) -> float:
        return self.size.height - BOTTOM - self.size.inner_height * self._share(value)

    def ticks(self) -> list[float]:
        """Round values, far enough apart that their labels do not touch."""
        kept: list[float] = []
        for value in self._round_values():
            if not kept or self.y(kept[-1]) - self.y(value) >= 1.5 * self.size.letters:
                kept.append(value)
        return kept

    def _share(self, value: float) -> float:
        return value / self.highest

    def _round_values(self) -> list[float]:
        # The top is 1, 2, 4 or 5: choose the number of steps that gives round values.
        steps = 4 if f"{self.highest:e}"[0] in "24" else 5
        return [self.highest * n / steps for n in range(steps + 1)]


class LogScale(Scale):
    """A logarithmic scale for durations in ms. It starts at the round value below the lowest."""

    def __init__(self, lowest: float, highest: float, size: Size = WIDE) -> None:
        self.lowest = float(max((tick for tick in _TICKS_MS if tick < lowest), default=0))
        super().__init__(highest, size)
        self.highest = max(highest, 10 * self.lowest, 10.0)

    def _share(self, value: float) -> float:
        low, high = math.log1p(self.lowest), math.log1p(self.highest)
        return (math.log1p(max(value, self.lowest)) - low) / (high - low)

    def _round_values(self) -> list[float]:
        return [float(tick) for tick in _TICKS_MS if self.lowest <= tick <= self.highest]
