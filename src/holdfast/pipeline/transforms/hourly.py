"""Gold: what happened in each hour, by tenant, queue and type."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from holdfast.pipeline.schemas import HOURLY
from holdfast.pipeline.transforms.histories import hour_of, is_kind
from holdfast.pipeline.transforms.sketches import bucket_of

KINDS = ("enqueued", "claimed", "completed", "failed", "retried", "released", "expired", "canceled")
RAN = ("completed", "failed", "retried")
"""Outcomes of attempts whose handler ran to its end. Only these have a meaningful run time."""
_GROUP = ("hour", "tenant", "queue", "type")


def hourly(events: DataFrame, attempts: DataFrame) -> DataFrame:
    """Events count in the hour they happened, waits in the hour of the claim, run times in the hour of the end.

    Waits and run times are histograms that can be added up (`sketches`), with their sum and count.
    """
    counts = events.where(is_kind(*KINDS)).select(*_point("at"), fn.col("kind").alias("measure"), fn.lit(0).alias("ms"))
    waits = attempts.where(fn.col("wait_ms").isNotNull()).select(
        *_point("claimed_at"), fn.lit("wait").alias("measure"), fn.col("wait_ms").alias("ms")
    )
    ran = fn.col("outcome").isin(*RAN) & ~fn.col("error_type").eqNullSafe("LeaseExpired")
    runs = attempts.where(ran).select(*_point("ended_at"), fn.lit("run").alias("measure"), fn.col("run_ms").alias("ms"))
    points = counts.unionByName(waits).unionByName(runs)
    measured = points.groupBy(*_GROUP, "measure", bucket_of(fn.col("ms")).alias("bucket")).agg(
        fn.count("*").alias("count"), fn.sum("ms").alias("sum_ms")
    )
    table = measured.groupBy(*_GROUP).agg(
        *(_total("count", kind).alias(kind) for kind in KINDS),
        *(column for measure in ("wait", "run") for column in _duration(measure)),
    )
    return table.withColumn("date", fn.to_date("hour")).select(*HOURLY.fieldNames())


def _point(instant: str) -> list[Column]:
    return [hour_of(fn.col(instant)).alias("hour"), fn.col("tenant"), fn.col("queue"), fn.col("type")]


def _total(column: str, measure: str) -> Column:
    return fn.coalesce(fn.sum(fn.when(fn.col("measure") == measure, fn.col(column))), fn.lit(0))


def _duration(measure: str) -> list[Column]:
    buckets = fn.collect_list(fn.when(fn.col("measure") == measure, fn.struct("bucket", "count")))
    return [
        _total("count", measure).alias(f"{measure}_count"),
        _total("sum_ms", measure).alias(f"{measure}_sum_ms"),
        fn.map_from_entries(fn.sort_array(buckets)).alias(f"{measure}_histogram"),
    ]
