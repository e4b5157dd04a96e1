"""Gold: the failures of each day, by the fingerprint of the error."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from holdfast.pipeline.schemas import FAILURES
from holdfast.pipeline.transforms.histories import JOB, is_kind


def failures(events: DataFrame) -> DataFrame:
    """Attempts that ended with an error, grouped by its fingerprint; the sample is the last message of the day."""
    errors = events.where(fn.col("fingerprint").isNotNull()).withColumn("date", fn.to_date("at"))
    grouped = errors.groupBy("date", "fingerprint", "type", "error_type").agg(
        fn.max_by("error_message", fn.struct("at", "shard", "position")).alias("sample"),
        fn.min("at").alias("first_seen_at"),
        fn.max("at").alias("last_seen_at"),
        fn.count("*").alias("count"),
        fn.sum(is_kind("failed").cast("long")).alias("dead"),
        fn.count_distinct(*JOB).alias("jobs"),
        fn.count_distinct("tenant").alias("tenants"),
    )
    return grouped.select(*FAILURES.fieldNames())
