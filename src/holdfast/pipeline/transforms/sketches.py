"""Histograms of durations. Their buckets grow by 4 %, so a percentile from one is right within 2 %.

They can be added up over hours, queues and tenants, and the order does not matter. Spark's own quantile sketches draw
random numbers: a table that is built twice would differ.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as fn

GROWTH = 1.04
ZERO = -1
"""The bucket of 0 ms."""


def bucket_of(ms: Column) -> Column:
    """The bucket of a duration: bucket n holds durations above GROWTH^(n-1) ms, up to GROWTH^n ms."""
    return fn.when(ms <= 0, ZERO).otherwise(fn.ceil(fn.log(ms.cast("double")) / math.log(GROWTH))).cast("int")


def merged(histograms: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Several histograms as one."""
    total: Counter[int] = Counter()
    for histogram in histograms:
        total.update(histogram)
    return dict(total)


def percentile(histogram: Mapping[int, int], percent: float) -> float | None:
    """The duration in ms that `percent` of all durations do not exceed; None if there are none."""
    rank = math.ceil(sum(histogram.values()) * percent / 100)
    for bucket, count in sorted(histogram.items()):
        rank -= count
        if rank <= 0:
            return 0.0 if bucket == ZERO else 2 * GROWTH**bucket / (GROWTH + 1)
    return None
