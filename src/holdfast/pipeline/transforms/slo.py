"""Gold: the share of the error budget that each hour used."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from holdfast.core.errors import InvalidOption
from holdfast.pipeline.schemas import SLO
from holdfast.pipeline.transforms.histories import hour_of


@dataclass(frozen=True)
class Objective:
    """A share of the jobs that must start within some seconds of becoming visible, and must not fail."""

    target: float = 0.99
    start_within_s: float = 30.0

    def __post_init__(self) -> None:
        if not 0 < self.target < 1:
            raise InvalidOption("target", f"{self.target:g} is not between 0 and 1; write 0.99 for 99 %")
        if not self.start_within_s >= 0:
            raise InvalidOption("start_within", f"{self.start_within_s:g} s is negative")

    @property
    def start_within_ms(self) -> int:
        """`start_within_s` in milliseconds."""
        return round(self.start_within_s * 1000)


DEFAULT_OBJECTIVE = Objective()


def slo(job_runs: DataFrame, objective: Objective = DEFAULT_OBJECTIVE) -> DataFrame:
    """Good and bad jobs in the hour they ended. A burn rate of 1 uses exactly the budget. Canceled jobs do not count.

    If the wait of a job is unknown, because the log begins later, only its end counts.
    """
    late = fn.coalesce(fn.col("wait_ms") > objective.start_within_ms, fn.lit(False))
    bad = fn.sum(((fn.col("state") == "failed") | late).cast("long"))
    ended = job_runs.where(fn.col("state").isin("completed", "failed"))
    grouped = ended.groupBy(hour_of(fn.col("ended_at")).alias("hour"), "tenant", "queue").agg(
        fn.count("*").alias("all"), bad.alias("bad")
    )
    columns = grouped.withColumns(
        {
            "target": fn.lit(objective.target),
            "start_within_ms": fn.lit(objective.start_within_ms).cast("long"),
            "good": fn.col("all") - fn.col("bad"),
            "burn_rate": fn.round(fn.col("bad") / fn.col("all") / fn.lit(1 - objective.target), 6),
            "date": fn.to_date("hour"),
        }
    )
    return columns.select(*SLO.fieldNames())
