"""A flow as SVG: its steps in layers from left to right, each with the colour of its state.

In a large flow, steps share boxes: first steps of one type that have the same steps before and after them, then chains.
The boxes of a layer beyond `MAX_ROWS` become one box, and so do the layers beyond `MAX_LAYERS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from html import escape
from itertools import groupby

from msgspec import Struct

from holdfast.core.job import JobState
from holdfast.flows.flow import StepRecord

WIDTH, HEIGHT, GAP_X, GAP_Y, EDGE = 176, 46, 52, 14, 12
MAX_PLAIN = 40
"""A flow with more boxes than this, or with more than `MAX_ROWS` in a layer, is grouped."""
MIN_GROUP = 3
MAX_ROWS, MAX_LAYERS, MAX_LINES = 12, 40, 1500
NAME_SHOWN, NAMED = 22, 8
# A box with several steps has the first of these states that any of its steps is in.
_FIRST = (
    JobState.FAILED, JobState.RETRYING, JobState.LEASED, JobState.READY, JobState.SCHEDULED, JobState.CANCELED,
    JobState.BLOCKED, JobState.COMPLETED,
)  # fmt: skip


class Box(Struct, eq=False):
    """One or several steps, by their places in the list of steps."""

    places: list[int]
    after: set[int]
    """The boxes before it, by their places in the list of boxes."""
    layer: int = 0
    row: float = 0.0
    is_rest: bool = False
    """Whether it collects what did not fit."""


def boxes_of(steps: Sequence[StepRecord]) -> list[Box]:
    """The boxes to draw, each after those before it, with layers and rows."""
    places = {step.name: place for place, step in enumerate(steps)}
    boxes = [Box([place], {places[name] for name in step.after}) for place, step in enumerate(steps)]
    _set_layers(boxes)
    before = 0
    while len(boxes) != before and _is_large(boxes):
        before = len(boxes)
        boxes = _alike(boxes, steps)
        if len(boxes) > MAX_PLAIN:
            boxes = _chains(boxes)
        _set_layers(boxes)
    boxes = _bounded(boxes)
    _set_rows(boxes)
    return boxes


def _is_large(boxes: Sequence[Box]) -> bool:
    """Whether there are too many boxes, in all or in a layer."""
    return len(boxes) > MAX_PLAIN or max(Counter(box.layer for box in boxes).values(), default=0) > MAX_ROWS


def _alike(boxes: Sequence[Box], steps: Sequence[StepRecord]) -> list[Box]:
    """Merge boxes of the same types that have the same boxes before and after them."""
    behind = _behind(boxes)
    keys = [
        (frozenset(box.after), frozenset(behind[n]), tuple(sorted({steps[place].type for place in box.places})))
        for n, box in enumerate(boxes)
    ]
    many = {key for key, count in Counter(keys).items() if count >= MIN_GROUP}
    return _merged(boxes, [key if key in many else n for n, key in enumerate(keys)])


def _chains(boxes: Sequence[Box]) -> list[Box]:
    """Merge a box with the one before it, if that is the only one before and has no other after it."""
    behind = _behind(boxes)
    keys: list[Hashable] = []
    for n, box in enumerate(boxes):
        (before, *others) = box.after or {n}
        keys.append(n if before == n or others or len(behind[before]) > 1 else keys[before])
    return _merged(boxes, keys)


def _bounded(boxes: Sequence[Box]) -> list[Box]:
    """Merge what does not fit: the rest of a layer, and the rest of the layers."""
    last = MAX_LAYERS - 1
    cut = max((box.layer for box in boxes), default=0) > last
    rows: Counter[int] = Counter(box.layer for box in boxes)
    used: Counter[int] = Counter()
    keys: list[Hashable] = []
    for n, box in enumerate(boxes):
        used[box.layer] += 1
        if cut and box.layer >= last:
            box.layer = last
            keys.append("later")
        elif rows[box.layer] > MAX_ROWS and used[box.layer] >= MAX_ROWS:
            keys.append(("rest", box.layer))
        else:
            keys.append(n)
    return _merged(boxes, keys)


def _merged(boxes: Sequence[Box], keys: Sequence[Hashable]) -> list[Box]:
    """One box for each key."""
    numbers: dict[Hashable, int] = {}
    made: list[Box] = []
    for box, key in zip(boxes, keys, strict=True):
        if key not in numbers:
            numbers[key] = len(made)
            made.append(Box([], set(), box.layer, is_rest=not isinstance(key, int) and _is_rest(key)))
        made[numbers[key]].places += box.places
    for box, key in zip(boxes, keys, strict=True):
        number = numbers[key]
        made[number].after |= {numbers[keys[before]] for before in box.after} - {number}
    return made


def _is_rest(key: Hashable) -> bool:
    return key == "later" or (isinstance(key, tuple) and key[:1] == ("rest",))


def _behind(boxes: Sequence[Box]) -> list[set[int]]:
    behind: list[set[int]] = [set() for _ in boxes]
    for n, box in enumerate(boxes):
        for before in box.after:
            behind[before].add(n)
    return behind


def _set_layers(boxes: Sequence[Box]) -> None:
    """Put each box one layer after the last box that it waits for."""
    for box in boxes:
        box.layer = 0
    waiting = [len(box.after) for box in boxes]
    behind = _behind(boxes)
    ready = [n for n, count in enumerate(waiting) if not count]
    for n in ready:
        for other in behind[n]:
            boxes[other].layer = max(boxes[other].layer, boxes[n].layer + 1)
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)


def _set_rows(boxes: Sequence[Box]) -> None:
    """Order each layer by the boxes before it, so that fewer lines cross, and centre it."""
    layers = [[*some] for _, some in groupby(sorted(boxes, key=lambda box: box.layer), key=lambda box: box.layer)]
    highest = max(map(len, layers), default=0)
    for layer in layers:
        layer.sort(key=lambda box: (box.is_rest, _middle(boxes[n].row for n in box.after), box.places[0]))
        for row, box in enumerate(layer):
            box.row = row + (highest - len(layer)) / 2


def _middle(rows: Iterable[float]) -> float:
    found = [*rows]
    return sum(found) / len(found) if found else 0.0


def graph(steps: Sequence[StepRecord], link: Callable[[int], str], label: str) -> str:
    """The drawing as SVG. `link` gives the address for the box of a step. All values in it are escaped or numbers."""
    boxes = boxes_of(steps)
    lines = [(boxes[before], box) for box in boxes for before in sorted(box.after)]
    drawn = [_line(one, other, steps) for one, other in lines[:MAX_LINES]]
    drawn += [_box(box, steps, link) for box in boxes]
    width = (max(box.layer for box in boxes) + 1) * (WIDTH + GAP_X) - GAP_X + 2 * EDGE
    height = int((max(box.row for box in boxes) + 1) * (HEIGHT + GAP_Y)) - GAP_Y + 2 * EDGE
    return (
        f'<svg class="flow" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="group" '
        f'aria-label="{escape(label)}">{"".join(drawn)}</svg>'
    )


def _at(box: Box) -> tuple[float, float]:
    return EDGE + box.layer * (WIDTH + GAP_X), EDGE + box.row * (HEIGHT + GAP_Y)


def _line(one: Box, other: Box, steps: Sequence[StepRecord]) -> str:
    (x, y), (to_x, to_y) = _at(one), _at(other)
    x, y, to_y, bend = x + WIDTH, y + HEIGHT / 2, to_y + HEIGHT / 2, GAP_X / 2
    is_done = all(steps[place].state is JobState.COMPLETED for place in one.places)
    # A line bends only in the gaps beside its two boxes. Between these it runs straight, behind other boxes.
    path = f"M{x:.0f} {y:.1f}C{x + bend:.0f} {y:.1f} {to_x - bend:.0f} {to_y:.1f} {to_x:.0f} {to_y:.1f}"
    return f'<path class="edge{" done" if is_done else ""}" d="{path}"/>'


def _box(box: Box, steps: Sequence[StepRecord], link: Callable[[int], str]) -> str:
    own = [steps[place] for place in box.places]
    counts = Counter(step.state for step in own)
    state = next(one for one in _FIRST if counts[one])
    x, y = _at(box)
    if len(own) == 1:
        name, below = own[0].name, _single(own[0])
        title = f"{name}: {state}, of type {own[0].type or 'none'}, in {own[0].queue}{_waits(own[0])}"
    else:
        name, below = _name_of(box, own), _counted(counts, len(own))
        title = f"{name}: {', '.join(f'{count} {one}' for one, count in counts.most_common())}"
    bar = _bar(counts, len(own)) if len(own) > 1 else ""
    return (
        f'<a class="box s-{state}" href="{escape(link(box.places[0]))}">'
        f'<svg x="{x:.0f}" y="{y:.1f}" width="{WIDTH}" height="{HEIGHT}"><title>{escape(title)}</title>'
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="7"/>'
        f'<rect class="mark" x="0.5" y="0.5" width="5" height="{HEIGHT - 1}" rx="2.5"/>'
        f'<text class="name" x="14" y="19">{escape(_short(name))}</text>'
        f'<text class="below" x="14" y="35">{escape(below)}</text>{bar}</svg></a>'
    )


def _single(step: StepRecord) -> str:
    return f"{step.state}, attempt {step.attempts}" if step.attempts > 1 else str(step.state)


def _counted(counts: Counter[JobState], whole: int) -> str:
    done = counts[JobState.COMPLETED]
    bad = counts[JobState.FAILED]
    return f"{done} of {whole} completed{f', {bad} failed' if bad else ''}"


def _name_of(box: Box, own: Sequence[StepRecord]) -> str:
    types = {step.type for step in own}
    if box.is_rest:
        return f"{len(own)} more steps"
    return f"{own[0].type or 'step'} \u00d7 {len(own)}" if len(types) == 1 else f"{len(own)} steps"


def _waits(step: StepRecord) -> str:
    if not step.after:
        return ""
    more = f" and {len(step.after) - NAMED} more" if len(step.after) > NAMED else ""
    return f"; after {', '.join(step.after[:NAMED])}{more}"


def _bar(counts: Counter[JobState], whole: int) -> str:
    """A bar below the text: how many of the steps are in each state."""
    parts: list[str] = []
    x, room = 14.0, WIDTH - 26.0
    for state in reversed(_FIRST):
        if counts[state]:
            width = room * counts[state] / whole
            parts.append(f'<rect class="part s-{state}" x="{x:.1f}" y="{HEIGHT - 6}" width="{width:.1f}" height="3"/>')
            x += width
    return "".join(parts)


def _short(name: str) -> str:
    return name if len(name) <= NAME_SHOWN else f"{name[: NAME_SHOWN - 1]}…"
