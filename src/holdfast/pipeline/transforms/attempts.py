"""Silver: one row for each granted lease."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from holdfast.pipeline.schemas import ATTEMPTS
from holdfast.pipeline.transforms.histories import (
    LEASE_UPDATES,
    by_job,
    in_order,
    instant,
    is_kind,
    life,
    moment_in_this_life,
    ms_between,
)

OUTCOMES = ("completed", "failed", "retried", "released", "expired", "canceled")
_COLUMNS = (
    "kind", "type", "at", "attempt", "token", "worker_id", "visible_at", "error_type", "error_message", "fingerprint",
)  # fmt: skip


def attempts(events: DataFrame) -> DataFrame:
    """Each claim with the transition that ended it; `running` if there is none yet."""
    events = by_job(events.where(~is_kind(*LEASE_UPDATES)), *_COLUMNS)
    end = fn.struct("kind", "at", "error_type", "error_message", "fingerprint")
    began = is_kind("enqueued") | fn.lag("kind").over(in_order()).isNull()
    followed = events.withColumns({"life": life(events), "end": fn.lead(end).over(in_order()), "began": began})
    began_at = moment_in_this_life(fn.col("began"), is_kind("enqueued"))
    followed = followed.withColumn("date", fn.to_date(instant(began_at)))
    ended = fn.col("end.kind").isin(*OUTCOMES)
    ended_at = fn.when(ended, fn.col("end.at"))
    columns = {name: fn.col(name) for name in ATTEMPTS.fieldNames() if name in followed.columns} | {
        "claimed_at": fn.col("at"),
        "ended_at": ended_at,
        "outcome": fn.when(ended, fn.col("end.kind")).otherwise("running"),
        "wait_ms": ms_between(fn.col("visible_at"), fn.col("at")),
        "run_ms": ms_between(fn.col("at"), ended_at),
        "error_type": fn.when(ended, fn.col("end.error_type")),
        "error_message": fn.when(ended, fn.col("end.error_message")),
        "fingerprint": fn.when(ended, fn.col("end.fingerprint")),
    }
    claims = followed.where(is_kind("claimed"))
    return claims.select(*(columns[name].alias(name) for name in ATTEMPTS.fieldNames()))
