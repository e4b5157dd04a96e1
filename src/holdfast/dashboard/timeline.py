"""A job's time as SVG: a bar whose parts have the colours of the states.

A wait of hours and a run of milliseconds share one bar, so the length of a part is the logarithm of its duration.
Durations are written below parts with enough room. Hovering over any part shows its duration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from holdfast.dashboard.histories import Span
from holdfast.dashboard.showing import duration, exact

WIDTHS = {"wide": 900, "narrow": 340}
HEIGHT, BAR = 40, 18
MIN_PART = 6.0
LETTER = 6.4
"""The approximate width of a letter in labels."""
MAX_PARTS = 60


def timeline(spans: Sequence[Span]) -> str:
    """The bar for a desktop and for a phone; the style sheet shows one. It has the last MAX_PARTS parts."""
    shown = spans[-MAX_PARTS:]
    return "".join(_drawn(name, width, shown) for name, width in WIDTHS.items()) if shown else ""


def _drawn(name: str, whole: int, shown: Sequence[Span]) -> str:
    weights = [MIN_PART + 10 * math.log1p(max(0, span.end - span.start) / 5) for span in shown]
    scale = whole / sum(weights)
    parts: list[str] = []
    x = 0.0
    for span, weight in zip(shown, weights, strict=True):
        width = weight * scale
        took = duration(max(0, span.end - span.start) / 1000)
        title = f"{span.state} for {took}{', ' + span.note if span.note else ''}, from {exact(span.start)}"
        parts.append(
            f'<g class="s-{span.state}"><rect x="{x:.1f}" width="{max(1.0, width - 1.5):.1f}" height="{BAR}" rx="3">'
            f"<title>{escape(title)}</title></rect>"
        )
        for text in (f"{span.state} {took}", took):
            if LETTER * len(text) <= width:
                parts.append(f'<text x="{x + 1:.1f}" y="{BAR + 16}">{escape(text)}</text>')
                break
        parts.append("</g>")
        x += width
    label = f"The job's time: {', '.join(f'{span.state} {duration((span.end - span.start) / 1000)}' for span in shown)}"
    return (
        f'<svg class="timeline {name}" viewBox="0 0 {whole} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )
