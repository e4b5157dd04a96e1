"""SQL queries on the tables of a lake. Each table is a view with its name.

`hourly` also has percentiles (`wait_p50_ms`, `run_p99_ms`, ...), and two functions roll its histograms up:

    SELECT queue, percentile_ms(merged(collect_list(run_histogram)), 95) FROM hourly GROUP BY queue

The functions are Python: Spark's own SQL functions cannot be nested around a lambda. A column that a query does not use
costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from msgspec import Struct
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from holdfast.core.errors import InvalidOption
from holdfast.pipeline import judge
from holdfast.pipeline.errors import plainly
from holdfast.pipeline.lake import LAYER, Lake
from holdfast.pipeline.schemas import DOUBLE, HISTOGRAM
from holdfast.pipeline.transforms.sketches import merged, percentile

LIMIT = 1000
PERCENTS = (50, 95, 99)


class QueryResult(Struct, frozen=True):
    """The rows of a query under their column names."""

    columns: list[str]
    rows: list[list[Any]]
    more: bool
    """There are more rows than were asked for."""


def query(spark: SparkSession, lake: Lake, sql: str, limit: int | None = LIMIT) -> QueryResult:
    """The rows of a SELECT. Raises InvalidOption for any other statement, and for an invalid one."""
    if limit is not None and limit < 1:
        raise InvalidOption("limit", f"{limit} is not a whole number above 0")
    judge.statement(sql)  # Check before the views are made: that takes seconds.
    make_views(spark, lake)
    with plainly("answer"):
        frame = select(spark, sql)
        rows = (frame if limit is None else frame.limit(limit + 1)).collect()
    cut = rows if limit is None else rows[:limit]
    return QueryResult(frame.columns, [list(cast("Any", row)) for row in cut], len(cut) < len(rows))


def select(spark: SparkSession, sql: str) -> DataFrame:
    """A SELECT as a DataFrame, not run yet. Spark gets the text that `judge` has written."""
    text = judge.statement(sql)
    try:
        frame = spark.sql(text)
        _ = frame.schema
    except (AnalysisException, ParseException) as error:
        raise InvalidOption("query", _first(error)) from None
    return frame


def make_views(spark: SparkSession, lake: Lake) -> None:
    """Create a view for each table of the lake, and the functions on histograms."""
    register: Any = spark.udf.register
    register("percentile_ms", _percentile, DOUBLE)
    register("merged", _merged, HISTOGRAM)
    for table in LAYER:
        frame = lake.read(spark, table)
        if table == "hourly":
            frame = frame.select(*frame.columns, *(_named(kind, p) for kind in ("wait", "run") for p in PERCENTS))
        frame.createOrReplaceTempView(table)


def _percentile(histogram: Mapping[int, int] | None, percent: float) -> float | None:
    return None if histogram is None else percentile(histogram, float(percent))


def _merged(histograms: Iterable[Mapping[int, int]] | None) -> dict[int, int] | None:
    return None if histograms is None else merged(histograms)


def _named(kind: str, percent: int) -> Column:
    return fn.call_function("percentile_ms", fn.col(f"{kind}_histogram"), fn.lit(percent)).alias(
        f"{kind}_p{percent}_ms"
    )


def _first(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
