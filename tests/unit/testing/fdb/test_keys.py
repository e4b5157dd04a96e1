"""Sorted keys and range sets, against plain sets."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from holdfast.testing.fdb.keys import RangeSet, SortedKeys

NUMBERS = st.integers(0, 30)


def key(number: int) -> bytes:
    return b"%05d" % number


def test_sorted_keys_are_a_sorted_set():
    rng = random.Random(1)
    keys, model = SortedKeys(), set[bytes]()
    for limit in (20_000, 5_000, 200):  # Grow, mix, shrink to nothing and grow again.
        for _ in range(6_000):
            each = key(rng.randrange(limit))
            if each in model:
                keys.remove(each)
                model.remove(each)
            else:
                keys.add(each)
                model.add(each)
        for _ in range(50):
            begin, end = key(rng.randrange(limit)), key(rng.randrange(limit))
            want = sorted(each for each in model if begin <= each < end)
            assert list(keys.between(begin, end)) == want
            assert list(keys.between_backwards(begin, end)) == want[::-1]
        for each in sorted(model, key=lambda _: rng.random()) if limit == 5_000 else []:
            keys.remove(each)
            model.remove(each)
        assert list(keys.between(b"", b"\xff")) == sorted(model)
        assert len(keys) == len(model)


@given(st.lists(st.tuples(st.booleans(), NUMBERS, NUMBERS), max_size=30), NUMBERS, NUMBERS)
def test_a_range_set_is_a_set(steps: list[tuple[bool, int, int]], first: int, last: int):
    ranges, model = RangeSet(), set[int]()
    for adding, begin, end in steps:
        if adding:
            ranges.add(key(begin), key(end))
            model |= set(range(begin, end))
        else:
            ranges.subtract(key(begin), key(end))
            model -= set(range(begin, end))
    assert {number for number in range(32) if key(number) in ranges} == model
    parts = list(ranges)
    assert all(begin < end for begin, end in parts)
    assert all(parts[at][1] < parts[at + 1][0] for at in range(len(parts) - 1))
    wanted = model & set(range(first, last))
    assert ranges.meets(key(first), key(last)) is bool(wanted)
    within = RangeSet(ranges.within(key(first), key(last)))
    assert {number for number in range(32) if key(number) in within} == wanted
