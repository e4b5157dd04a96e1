"""Histograms of durations whose buckets grow by 4 %: a percentile read from one is right to 2 %.

They add up over hours, queues and tenants, and are the same whoever makes them in whatever order, which the quantile
sketches that Spark has are not: those draw random numbers, and a table that was built again would not be equal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as fn

GROWTH = 1.04
NOTHING = -1
"""The bucket of 0 ms."""


def bucket_of(ms: Column) -> Column:
    """The bucket of a duration: n holds what is above GROWTH^(n-1) ms, up to GROWTH^n."""
    return fn.when(ms <= 0, NOTHING).otherwise(fn.ceil(fn.log(ms.cast("double")) / math.log(GROWTH))).cast("int")


def merged(histograms: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Several histograms as one."""
    total: Counter[int] = Counter()
    for histogram in histograms:
        total.update(histogram)
    return dict(total)


def percentile(histogram: Mapping[int, int], percent: float) -> float | None:
    """The duration in ms below which `percent` of them lie; None of none."""
    rank = math.ceil(sum(histogram.values()) * percent / 100)
    for bucket, count in sorted(histogram.items()):
        rank -= count
        if rank <= 0:
            return 0.0 if bucket == NOTHING else 2 * GROWTH**bucket / (GROWTH + 1)
    return None
