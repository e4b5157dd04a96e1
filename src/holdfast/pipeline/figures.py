"""The numbers of a report, read from the gold tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from holdfast.pipeline.lake import Lake
from holdfast.pipeline.rows import rows
from holdfast.pipeline.transforms.hourly import KINDS
from holdfast.pipeline.transforms.sketches import merged, percentile

HOUR = timedelta(hours=1)
PAST = timedelta(days=28)
"""How many days the forecast uses."""
MAX_ROWS = 20
"""The most tenants, queues and failures in a table."""
PERCENTS = (50, 95, 99)

Histogram = Mapping[int, int]


@dataclass(frozen=True)
class Expected:
    """The forecast for one hour."""

    hour: datetime
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Figures:
    """All numbers of a report. `hours` has no gaps; the last hour may be incomplete."""

    hours: list[datetime] = field(default_factory=list[datetime])
    counts: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    waits: list[Histogram] = field(default_factory=list[Histogram])
    runs: list[Histogram] = field(default_factory=list[Histogram])
    good: list[int] = field(default_factory=list[int])
    bad: list[int] = field(default_factory=list[int])
    target: float = 0.0
    start_within_ms: int = 0
    tenants: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    queues: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    failures: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    forecast: list[Expected] = field(default_factory=list[Expected])

    def percentiles(self, measure: Sequence[Histogram], percent: float) -> list[float | None]:
        """One percentile of each hour."""
        return [percentile(histogram, percent) for histogram in measure]

    @property
    def burn_rates(self) -> list[float | None]:
        """The burn rate of the error budget in each hour; 1 uses exactly the budget."""
        pairs = zip(self.good, self.bad, strict=True)
        return [bad / (good + bad) / (1 - self.target) if good + bad else None for good, bad in pairs]


def figures(spark: SparkSession, lake: Lake, days: int) -> Figures:
    """The numbers of the last `days` in the tables. Without hours if nothing has been built."""
    hourly = lake.read(spark, "hourly")
    last: datetime | None = rows(hourly.agg(fn.max("hour").alias("last")))[0]["last"]
    if last is None:
        return Figures()
    first: datetime = last - timedelta(days=days) + HOUR
    known = hourly.where(fn.col("hour") >= fn.lit(min(first, last - PAST)))
    totals = {row["hour"]: row for row in rows(_totals(known, "hour"))}
    hours = _hours(max(first, min(totals)), last)
    recent = hourly.where(fn.col("hour") >= fn.lit(hours[0]))
    objective = {row["hour"]: row for row in rows(_objective(lake.read(spark, "slo"), hours[0]))}
    latest = next(iter(objective.values()), None)
    enqueued = {hour: int(row["enqueued"]) for hour, row in totals.items()}
    return Figures(
        hours=hours,
        counts={kind: [int(totals[hour][kind]) if hour in totals else 0 for hour in hours] for kind in KINDS},
        waits=_by_hour(recent, "wait_histogram", hours),
        runs=_by_hour(recent, "run_histogram", hours),
        good=[int(objective[hour]["good"]) if hour in objective else 0 for hour in hours],
        bad=[int(objective[hour]["bad"]) if hour in objective else 0 for hour in hours],
        target=float(latest["target"]) if latest else 0.0,
        start_within_ms=int(latest["start_within_ms"]) if latest else 0,
        tenants=rows(_totals(recent, "tenant").orderBy(fn.desc("enqueued"), "tenant").limit(MAX_ROWS)),
        queues=_queues(recent),
        failures=rows(_failures(lake.read(spark, "failures"), hours[0])),
        forecast=forecast(enqueued, last),
    )


def forecast(enqueued: Mapping[datetime, int], last: datetime, ahead: int = 24) -> list[Expected]:
    """For each hour of the next day: mean, lowest and highest of the same hour on up to 28 days before.

    The last hour may be incomplete and is left out. Hours without events count as 0. For an hour of the day without
    history, all hours are used.
    """
    past = _hours(max(min(enqueued), last - PAST), last - HOUR)
    counts = {hour: enqueued.get(hour, 0) for hour in past}
    if not counts:
        return []
    expected: list[Expected] = []
    for n in range(1, ahead + 1):
        hour = last + n * HOUR
        same = [count for seen, count in counts.items() if seen.hour == hour.hour] or list(counts.values())
        expected.append(Expected(hour, sum(same) / len(same), min(same), max(same)))
    return expected


def _hours(first: datetime, last: datetime) -> list[datetime]:
    count = int((last - first) / HOUR) + 1
    return [first + n * HOUR for n in range(count)]


def _totals(hourly: DataFrame, *names: str) -> DataFrame:
    return hourly.groupBy(*names).agg(*(fn.sum(kind).alias(kind) for kind in KINDS))


def _objective(slo: DataFrame, first: datetime) -> DataFrame:
    recent = slo.where(fn.col("hour") >= fn.lit(first))
    return recent.groupBy("hour", "target", "start_within_ms").agg(
        fn.sum("good").alias("good"), fn.sum("bad").alias("bad")
    )


def _by_hour(hourly: DataFrame, column: str, hours: Sequence[datetime]) -> list[Histogram]:
    """One histogram for each hour, summed over all tenants and queues."""
    buckets = hourly.select("hour", fn.explode(column).alias("bucket", "count"))
    found: dict[datetime, dict[int, int]] = {}
    for row in rows(buckets.groupBy("hour", "bucket").agg(fn.sum("count").alias("count"))):
        found.setdefault(row["hour"], {})[row["bucket"]] = row["count"]
    return [found.get(hour, {}) for hour in hours]


def _queues(hourly: DataFrame) -> list[dict[str, Any]]:
    """The busiest queues, with percentiles of their wait and run times."""
    busiest = _totals(hourly, "tenant", "queue").orderBy(fn.desc("enqueued"), "tenant", "queue").limit(MAX_ROWS)
    listed = rows(busiest)
    mine = hourly.join(fn.broadcast(busiest.select("tenant", "queue")), ["tenant", "queue"], "left_semi")
    for measure in ("wait", "run"):
        buckets = mine.select("tenant", "queue", fn.explode(f"{measure}_histogram").alias("bucket", "count"))
        found: dict[tuple[str, str], list[Histogram]] = {}
        for row in rows(buckets.groupBy("tenant", "queue", "bucket").agg(fn.sum("count").alias("count"))):
            found.setdefault((row["tenant"], row["queue"]), []).append({row["bucket"]: row["count"]})
        for row in listed:
            histogram = merged(found.get((row["tenant"], row["queue"]), []))
            row |= {f"{measure}_p{percent}": percentile(histogram, percent) for percent in PERCENTS}
    return listed


def _failures(failures: DataFrame, first: datetime) -> DataFrame:
    recent = failures.where(fn.col("date") >= fn.lit(first.date()))
    grouped = recent.groupBy("fingerprint", "type", "error_type").agg(
        fn.sum("count").alias("count"),
        fn.sum("dead").alias("dead"),
        fn.min("first_seen_at").alias("first_seen_at"),
        fn.max("last_seen_at").alias("last_seen_at"),
        fn.max("tenants").alias("tenants"),
        fn.max_by("sample", "last_seen_at").alias("sample"),
    )
    return grouped.orderBy(fn.desc("count"), "fingerprint", "type").limit(MAX_ROWS)
