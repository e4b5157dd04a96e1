from __future__ import annotations

import math

import pytest

from bench import stats
from bench.measure import Figures, percentile


def test_equal_ratios_have_an_interval_without_width():
    assert stats.interval([2.0] * 5) == pytest.approx((2.0, 2.0, 2.0))


def test_the_interval_does_not_depend_on_the_direction_of_the_ratio():
    ratios = [0.8, 1.1, 1.3, 0.9, 1.0]
    forth, back = stats.interval(ratios), stats.interval([1 / ratio for ratio in ratios])
    assert forth == pytest.approx((1 / back.middle, 1 / back.high, 1 / back.low))
    assert forth.low < forth.middle < forth.high


def test_the_interval_uses_students_t():
    # Logarithms 0 and 1: their mean is 0.5, their standard error 0.5, and t for one degree of freedom 12.706.
    assert stats.interval([1.0, math.e]) == pytest.approx([math.exp(0.5 + side * 12.706 * 0.5) for side in (0, -1, 1)])


def test_one_round_alone_has_no_bounds():
    assert stats.interval([3.0]) == pytest.approx((3.0, 0.0, math.inf))


def test_more_rounds_make_it_narrower_beyond_the_table_too():
    few, many = (stats.interval([0.9, 1.1] * times) for times in (5, 40))
    assert few.low < many.low < 1 < many.high < few.high


def test_a_round_with_a_missing_value_does_not_count():
    assert stats.pairs([2.0, 4.0, 6.0], [1.0, 2.0]) == [2.0, 2.0]


def test_figures_are_read_as_they_were_written():
    figures = Figures()
    figures.add("drain", "valkey", 3.0, 1.0, 2.0)
    read = Figures.read(figures.as_dict())
    assert read.values("drain", "valkey") == [3.0, 1.0, 2.0]
    assert read.as_dict() == figures.as_dict()
    assert math.isnan(read.median("drain", "nobody"))


def test_a_percentile_is_one_of_the_values():
    assert percentile([5.0, 1.0, 3.0], 50) == 3.0
    assert percentile([5.0, 1.0, 3.0], 99) == 5.0
