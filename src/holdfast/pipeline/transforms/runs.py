"""Silver: one row for each life of a job."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from holdfast.pipeline.schemas import JOB_RUNS
from holdfast.pipeline.transforms.histories import (
    ENDS,
    NOTES,
    by_job,
    in_order,
    in_this_life,
    instant,
    is_kind,
    life,
    moment_in_this_life,
    ms_between,
    so_far,
)

_COLUMNS = (
    "shard", "kind", "type", "at", "attempt", "worker_id", "priority", "max_attempts", "visible_at", "reason",
    "error_type", "error_message", "fingerprint",
)  # fmt: skip


def job_runs(events: DataFrame) -> DataFrame:
    """The lives of the jobs that these events are of, each as its last event leaves it.

    One shuffle and one sort: what a life was is carried along from event to event, and its last row is kept.
    `state` is as the log says: a job that became due since still shows as scheduled or retrying.
    """
    events = by_job(events, *_COLUMNS)
    born = is_kind("enqueued")
    error = fn.struct("error_type", "error_message", "fingerprint")
    followed = events.withColumns(
        {
            "life": life(events),
            "before": fn.lag("kind").over(in_order()),
            "before_at": fn.lag("at").over(in_order()),
            "before_reason": fn.lag("reason").over(in_order()),
            "after": fn.lead("kind").over(in_order()),
            "replayed": fn.sum(is_kind("replayed").cast("int")).over(so_far()),
            "born_priority": fn.last("priority", ignorenulls=True).over(so_far()),
            "born_max_attempts": fn.last("max_attempts", ignorenulls=True).over(so_far()),
            "born_at": fn.last(fn.when(born, fn.col("at")), ignorenulls=True).over(so_far()),
            "due_at": fn.last(fn.when(born, fn.col("visible_at")), ignorenulls=True).over(so_far()),
            "claimed": moment_in_this_life(is_kind("claimed")),
            "error": in_this_life(error, fn.col("fingerprint").isNotNull()),
        }
    )
    began = born | fn.col("before").isNull()
    carried = followed.withColumns(
        {
            "first_position": fn.last(fn.when(began, fn.col("position")), ignorenulls=True).over(so_far()),
            "began_at": fn.last(fn.when(began, fn.col("at")), ignorenulls=True).over(so_far()),
            "replayed_before": fn.last(fn.when(began, fn.col("replayed")), ignorenulls=True).over(so_far()),
            "first_claimed": moment_in_this_life(is_kind("claimed") & (fn.col("before") == "enqueued")),
        }
    )
    last = carried.where(fn.col("after").isNull() | (fn.col("after") == "enqueued"))
    # The last transition: a purge comes behind it, and a note is made under a lease.
    purged = is_kind("purged")
    change = fn.when(purged, fn.col("before")).when(is_kind(*NOTES), "claimed").otherwise(fn.col("kind"))
    last = last.withColumns(
        {
            "change": change,
            "changed_at": fn.when(purged, fn.col("before_at")).otherwise(fn.col("at")),
            "why": fn.when(purged, fn.col("before_reason")).otherwise(fn.col("reason")),
        }
    )
    columns = _columns()
    return last.select(*(columns[name].alias(name) for name in JOB_RUNS.fieldNames()))


def _columns() -> dict[str, Column]:
    ended_at = fn.when(fn.col("change").isin(*ENDS), fn.col("changed_at"))
    first_claimed_at, last_claimed_at = instant(fn.col("first_claimed")), instant(fn.col("claimed"))
    straight = ("tenant", "queue", "job_id", "life", "type", "shard", "first_position")
    return {name: fn.col(name) for name in straight} | {
        "priority": fn.col("born_priority"),
        "max_attempts": fn.col("born_max_attempts"),
        "enqueued_at": fn.col("born_at"),
        "first_visible_at": fn.col("due_at"),
        "first_claimed_at": first_claimed_at,
        "ended_at": ended_at,
        "state": _state(),
        "attempts": fn.col("attempt") - is_kind("released").cast("int"),
        "replays": (fn.col("replayed") - fn.col("replayed_before")).cast("int"),
        "wait_ms": ms_between(fn.col("due_at"), first_claimed_at),
        "run_ms": ms_between(last_claimed_at, ended_at),
        "total_ms": ms_between(fn.col("born_at"), ended_at),
        "worker_id": fn.when(fn.col("worker_id") != "", fn.col("worker_id")),
        "reason": fn.when(fn.col("change") == "failed", fn.col("why")),
        "error_type": fn.col("error.error_type"),
        "error_message": fn.col("error.error_message"),
        "fingerprint": fn.col("error.fingerprint"),
        "last_position": fn.col("position"),
        "purged": is_kind("purged"),
        "date": fn.to_date("began_at"),
    }


def _state() -> Column:
    """The state that the last transition led to."""
    kind = fn.col("change")
    later = fn.col("visible_at") > fn.col("at")
    return (
        fn.when(kind.isin(*ENDS), kind)
        .when(kind == "claimed", "leased")
        .when(kind.isin("retried", "expired"), "retrying")
        .when(later, "scheduled")
        .otherwise("ready")
    )
