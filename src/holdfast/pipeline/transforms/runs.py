"""Silver: one row for each life of a job."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from holdfast.pipeline.schemas import JOB_RUNS
from holdfast.pipeline.transforms.histories import (
    ENDS,
    LEASE_UPDATES,
    LIVES_BEFORE,
    by_job,
    in_order,
    instant,
    moment_in_this_life,
    ms_between,
    so_far,
)
from holdfast.pipeline.transforms.rules import KIND_NO, KIND_NOS

_COLUMNS = (
    "shard", "type", "at", "attempt", "worker_id", "priority", "max_attempts", "visible_at", "reason", "error_type",
    "error_message", "fingerprint",
)  # fmt: skip
_FIRST_EVENT = ("kind", "at", "position", "priority", "max_attempts", "visible_at", "replayed", "after", "after_at")
"""Columns that come from the first event of a life."""


def job_runs(events: DataFrame) -> DataFrame:
    """The lives of the jobs of these events, each in the state after its last event.

    This takes one shuffle and one sort. Few values are carried from event to event. Columns of the first event are
    fetched when only the first and the last event of each life are left. Kinds are numbers, which are fast to compare.
    `state` is that of the log: a job that became due since then still shows as scheduled or retrying.
    """
    events = by_job(events.withColumn("kind_no", fn.expr(KIND_NO)), *_COLUMNS, "kind_no").withColumnRenamed(
        "kind_no", "kind"
    )
    born, failed = _is("enqueued"), fn.col("fingerprint").isNotNull()
    lives = fn.sum(born.cast("int")).over(so_far())
    if LIVES_BEFORE in events.columns:
        lives += fn.col(LIVES_BEFORE)
    error = fn.when(failed, fn.struct("error_type", "error_message", "fingerprint"))
    followed = events.withColumns(
        {
            "life": lives.cast("int"),
            "before": fn.lag("kind").over(in_order()),
            "before_at": fn.lag("at").over(in_order()),
            "before_reason": fn.lag("reason").over(in_order()),
            "after": fn.lead("kind").over(in_order()),
            "after_at": fn.lead("at").over(in_order()),
            "replayed": fn.sum(_is("replayed").cast("int")).over(so_far()),
            "claimed": moment_in_this_life(_is("claimed"), born),
            "failed": moment_in_this_life(failed, born),
            "error": fn.last(error, ignorenulls=True).over(so_far()),
        }
    )
    first = born | fn.col("before").isNull()
    last = fn.col("after").isNull() | (fn.col("after") == KIND_NOS["enqueued"])
    # The first and the last event of each life, next to each other, or one event that is both.
    edges = followed.where(first | last)
    first_values = (fn.when(first, fn.col(name)).otherwise(fn.lag(name).over(in_order())) for name in _FIRST_EVENT)
    edges = edges.withColumns(dict(zip((f"birth_{name}" for name in _FIRST_EVENT), first_values, strict=True)))
    # The last transition: a purge comes after it, and `extended` and `progressed` happen under a lease.
    purged = _is("purged")
    change = fn.when(purged, fn.col("before")).when(_is(*LEASE_UPDATES), KIND_NOS["claimed"]).otherwise(fn.col("kind"))
    ended = edges.where(last).withColumns(
        {
            "change": change,
            "changed_at": fn.when(purged, fn.col("before_at")).otherwise(fn.col("at")),
            "why": fn.when(purged, fn.col("before_reason")).otherwise(fn.col("reason")),
        }
    )
    columns = _columns()
    return ended.select(*(columns[name].alias(name) for name in JOB_RUNS.fieldNames()))


def _is(*kinds: str, of: str = "kind") -> Column:
    """Whether the kind, in the column `of`, is one of these."""
    return fn.col(of).isin(*(KIND_NOS[kind] for kind in kinds))


def _columns() -> dict[str, Column]:
    is_end = _is(*ENDS, of="change")
    ended_at = fn.when(is_end, fn.col("changed_at"))
    has_start = _is("enqueued", of="birth_kind")
    enqueued_at, due_at = (fn.when(has_start, fn.col(name)) for name in ("birth_at", "birth_visible_at"))
    first_claimed_at = fn.when(has_start & _is("claimed", of="birth_after"), fn.col("birth_after_at"))
    unchanged = ("tenant", "queue", "job_id", "life", "type", "shard")
    error = fn.when(fn.col("failed") >= 0, fn.col("error"))
    return {name: fn.col(name) for name in unchanged} | {
        "priority": fn.col("birth_priority"),
        "max_attempts": fn.col("birth_max_attempts"),
        "enqueued_at": enqueued_at,
        "first_visible_at": due_at,
        "first_claimed_at": first_claimed_at,
        "ended_at": ended_at,
        "state": _state(),
        "attempts": fn.col("attempt") - _is("released").cast("int"),
        "replays": (fn.col("replayed") - fn.col("birth_replayed")).cast("int"),
        "wait_ms": ms_between(due_at, first_claimed_at),
        "run_ms": ms_between(instant(fn.col("claimed")), ended_at),
        "total_ms": ms_between(enqueued_at, ended_at),
        "worker_id": fn.when(fn.col("worker_id") != "", fn.col("worker_id")),
        "reason": fn.when(_is("failed", of="change"), fn.col("why")),
        "error_type": error["error_type"],
        "error_message": error["error_message"],
        "fingerprint": error["fingerprint"],
        "first_position": fn.col("birth_position"),
        "last_position": fn.col("position"),
        "purged": _is("purged"),
        "date": fn.to_date("birth_at"),
    }


def _state() -> Column:
    """The state that the last transition led to."""
    ends = fn.when(_is(ENDS[0], of="change"), ENDS[0])
    for kind in ENDS[1:]:
        ends = ends.when(_is(kind, of="change"), kind)
    return (
        ends.when(_is("claimed", of="change"), "leased")
        .when(_is("retried", "expired", of="change"), "retrying")
        .when(fn.col("visible_at") > fn.col("at"), "scheduled")
        .otherwise("ready")
    )
