"""What several rounds say together: ratios by pairs of one round, and how far they can be trusted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t for 95 % on both sides, by degrees of freedom from 1 on. With more, the last one is on the safe side."""


class Interval(NamedTuple):
    """Where the true ratio is, with 95 % confidence."""

    middle: float
    low: float
    high: float


def pairs(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """The ratio in each round; a round that one of them missed says nothing."""
    return [mine / other for mine, other in zip(ours, theirs, strict=False)]


def interval(ratios: Sequence[float]) -> Interval:
    """Of the geometric mean of paired ratios, by Student's t of their logarithms.

    Logarithms, since half as fast and twice as fast are as far from equal. One round alone has no bounds.
    """
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.fmean(logs)
    if len(logs) < 2:
        return Interval(math.exp(middle), 0.0, math.inf)
    student = STUDENT[min(len(logs) - 1, len(STUDENT)) - 1]
    margin = student * statistics.stdev(logs) / math.sqrt(len(logs))
    return Interval(*map(math.exp, (middle, middle - margin, middle + margin)))
