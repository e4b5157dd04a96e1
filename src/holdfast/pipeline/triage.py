"""Dead letters by cause: their number, tenants, times, a sample, and the condition that selects exactly them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from holdfast.core.errors import InvalidOption
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.rows import rows

LIMIT = 50
MAX_NAMES = 10
"""The most tenants and queues that a cause lists."""


@dataclass(frozen=True)
class FailureCause:
    """Dead letters of one job type with one fingerprint."""

    fingerprint: str | None
    type: str
    error_type: str | None
    count: int
    tenants: int
    some_tenants: list[str]
    queues: list[str]
    first_at: datetime
    last_at: datetime
    sample: str | None
    """The last error message."""
    sample_job: str
    where: str
    """The condition for `pipeline replay --where`."""


@dataclass(frozen=True)
class Triage:
    """The causes of dead letters, the most frequent first."""

    total: int
    causes: list[FailureCause]

    def document(self) -> dict[str, Any]:
        """The causes as a document for programs."""
        return {"total": self.total, "causes": [asdict(cause) for cause in self.causes]}


def triage(spark: SparkSession, lake: Lake, *, where: str | None = None, limit: int = LIMIT) -> Triage:
    """The dead letters in the built tables, without those that were replayed or purged since.

    Jobs that the store has forgotten after their retention still count: forgetting makes no event. [KEEP-1]

    `where` is an SQL condition on the columns of `job_runs`. Raises InvalidOption if it is invalid.
    """
    runs = lake.read(spark, "job_runs")
    dead = runs.where((fn.col("state") == "failed") & ~fn.col("purged"))
    return triage_jobs(chosen(dead, where), limit=limit)


def triage_jobs(dead: DataFrame, *, limit: int = LIMIT) -> Triage:
    """The causes of failed jobs in any table with the columns of `job_runs`."""
    grouped = dead.groupBy("fingerprint", "type", "error_type").agg(
        fn.count("*").alias("count"),
        fn.count_distinct("tenant").alias("tenants"),
        fn.slice(fn.sort_array(fn.collect_set("tenant")), 1, MAX_NAMES).alias("some_tenants"),
        fn.slice(fn.sort_array(fn.collect_set("queue")), 1, MAX_NAMES).alias("queues"),
        fn.min("ended_at").alias("first_at"),
        fn.max("ended_at").alias("last_at"),
        fn.max_by("error_message", "ended_at").alias("sample"),
        fn.max_by("job_id", "ended_at").alias("sample_job"),
    )
    facts = rows(grouped.orderBy(fn.desc("count"), "fingerprint", "type").limit(limit))
    total = sum(fact["count"] for fact in facts) if len(facts) < limit else dead.count()
    return Triage(total, [FailureCause(**fact, where=condition(fact["fingerprint"], fact["type"])) for fact in facts])


def chosen(frame: DataFrame, where: str | None) -> DataFrame:
    """The rows that a user's condition selects. Raises InvalidOption if it is no valid condition on them."""
    if where is None:
        return frame
    from holdfast.pipeline import judge  # Imported here: executors load this module and need no parser.

    text = judge.condition(where)
    try:
        found = frame.where(text)
        _ = found.schema  # A remote session checks the condition only now.
    except (AnalysisException, ParseException) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidOption("where", f"{reason} The columns are: {', '.join(frame.columns)}.") from None
    return found


def condition(fingerprint: str | None, type: str) -> str:
    """SQL that is true for dead letters with this cause."""
    cause = "fingerprint IS NULL" if fingerprint is None else f"fingerprint = {quoted(fingerprint)}"
    return f"{cause} AND type = {quoted(type)}"


def quoted(text: str) -> str:
    """A text as an SQL literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
