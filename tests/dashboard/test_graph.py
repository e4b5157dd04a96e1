"""The graph of a flow: layers, what is put together, and what is drawn."""

import re
from html.parser import HTMLParser

import pytest

from holdfast.core.job import JobState
from holdfast.dashboard.graph import MAX_LAYERS, MAX_LINES, MAX_PLAIN, MAX_ROWS, boxes_of, graph
from holdfast.flows.flow import StepRecord


def steps(**after):
    return [
        StepRecord(name, f"f/{name}", "default", name.rstrip("0123456789"), before, JobState.BLOCKED)
        for name, before in after.items()
    ]


def wide(count, *, layers=1):
    """One step, then `count` chains of `layers` steps, then one."""
    found = {"first": []}
    for n in range(count):
        for layer in range(layers):
            found[f"part{'abcdefgh'[layer]}{n}"] = ["first"] if not layer else [f"part{'abcdefgh'[layer - 1]}{n}"]
    last = "abcdefgh"[layers - 1]
    return steps(**found, last=[f"part{last}{n}" for n in range(count)])


def drawn(some):
    return graph(some, lambda place: f"/step?n={place}&x=1", "A flow")


def test_a_small_flow_has_a_box_for_each_step_in_layers():
    boxes = boxes_of(steps(a=[], b=["a"], c=["a"], d=["b", "c"], e=["a"]))
    assert [box.places for box in boxes] == [[0], [1], [2], [3], [4]]
    assert [box.layer for box in boxes] == [0, 1, 1, 2, 1]
    rows = {(box.layer, box.row) for box in boxes}
    assert len(rows) == len(boxes)


def test_many_steps_alike_become_one_box():
    boxes = boxes_of(wide(198))
    assert [len(box.places) for box in boxes] == [1, 198, 1]
    assert [box.layer for box in boxes] == [0, 1, 2]
    svg = drawn(wide(198))
    assert "part \u00d7 198".replace("part", "parta") in svg
    assert "0 of 198 completed" in svg


def test_many_chains_alike_become_one_box():
    boxes = boxes_of(wide(66, layers=3))
    assert [len(box.places) for box in boxes] == [1, 198, 1]


@pytest.mark.parametrize(
    "some",
    [
        wide(998),
        steps(**{f"s{n}": [f"s{n - 1}"] if n else [] for n in range(200)}),
        steps(**{f"s{n}": [f"s{m}" for m in range(max(0, n - 7), n)] for n in range(200)}),
        steps(**{f"s{n}": [f"s{m}" for m in range(n)] for n in range(140)}),
        [*steps(**{f"{chr(97 + n % 26)}{'x' * (n // 26)}": [] for n in range(200)})],
        steps(**{f"{chr(97 + n % 26)}{'x' * (n // 26)}": [chr(97 + n % 13)] if n >= 26 else [] for n in range(700)}),
    ],
    ids=["wide", "chain", "band", "dense", "all-different", "crossed"],
)
def test_a_large_flow_stays_bounded_and_has_every_step_once(some):
    boxes = boxes_of(some)
    assert sorted(place for box in boxes for place in box.places) == list(range(len(some)))
    assert max(box.layer for box in boxes) < MAX_LAYERS
    rows = {}
    for box in boxes:
        rows.setdefault(box.layer, []).append(box.row)
        assert all(boxes[before].layer < box.layer for before in box.after)
    assert all(len(found) == len(set(found)) <= MAX_ROWS for found in rows.values())
    svg = drawn(some)
    assert svg.count('class="edge') <= MAX_LINES
    assert len(svg) < 600_000
    assert boxes_of(some) is not boxes
    assert drawn(some) == svg


def test_a_flow_of_forty_steps_is_drawn_step_by_step():
    some = steps(**{f"s{n}": [f"s{n - 10}"] if n >= 10 else [] for n in range(MAX_PLAIN)})
    assert len(boxes_of(some)) == MAX_PLAIN


def test_a_small_flow_with_a_full_layer_is_grouped_by_type():
    assert [len(box.places) for box in boxes_of(wide(MAX_ROWS))] == [1] * (MAX_ROWS + 2)
    assert [len(box.places) for box in boxes_of(wide(MAX_ROWS + 1))] == [1, MAX_ROWS + 1, 1]


class _Parts(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.texts = set(), [], []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.texts.append(data)


def test_hostile_names_stay_text_and_the_state_is_in_words():
    bad = ['"><script>alert(1)</script>', "<img src=x onerror=alert(1)>", "' onload='alert(1)", "</svg></a>"]
    some = [
        StepRecord(name, f"f/{name}", f"q{name}", name, bad[:n], state, attempts=n)
        for n, (name, state) in enumerate(zip(bad, ("completed", "failed", "leased", "blocked"), strict=True))
    ]
    some = [
        StepRecord(one.name, one.id, one.queue, one.type, one.after, JobState(one.state), one.attempts) for one in some
    ]
    parts = _Parts()
    parts.feed(graph(some, lambda place: f'/job?id="{place}"', '"><b>'))
    assert parts.tags == {"svg", "path", "a", "title", "rect", "text"}
    assert not [name for name, _ in parts.attributes if name.startswith("on") or name == "style"]
    text = " ".join(parts.texts)
    for name in bad:
        assert name in text
    for state in ("completed", "failed", "leased, attempt 2", "blocked"):
        assert state in text
    assert re.search(r"after .*script", text)
