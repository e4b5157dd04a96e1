"""What every transform over single jobs needs: their events, job by job, in the order of the log."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as fn

JOB = ("tenant", "queue", "job_id")
"""What names a job."""
LIVES_BEFORE = "lives_before"
"""A column that says how many lives of the job lie before the events given; without it they are all there."""
ENDS = ("completed", "failed", "canceled")
NOTES = ("extended", "progressed")
"""Events that are no transition."""

# One number for a job, which comes first wherever jobs are sorted: names begin alike, and comparing them is slow.
MARK = "job_mark"


def mark() -> Column:
    """That number, of an event."""
    return fn.xxhash64(*JOB).alias(MARK)


def by_job(events: DataFrame, *columns: str) -> DataFrame:
    """Events with these columns alone, and what `in_order` needs beside the names of the job and the position."""
    more = [LIVES_BEFORE] if LIVES_BEFORE in events.columns else []
    return events.select(mark(), *JOB, "position", *columns, *more)


def in_order() -> WindowSpec:
    """Each job's events in the order of the log. Every window over it is made by one sort."""
    return Window.partitionBy(MARK, *JOB).orderBy("position")


def so_far() -> WindowSpec:
    """The same, from the job's first event to this one."""
    return in_order().rowsBetween(Window.unboundedPreceding, Window.currentRow)


def is_kind(*kinds: str) -> Column:
    """Whether the event is one of these."""
    return fn.col("kind").isin(*kinds)


def life(events: DataFrame) -> Column:
    """Which life of its job an event belongs to: 1, 2, ...; 0 before the first `enqueued` that is known."""
    begun = fn.sum(is_kind("enqueued").cast("int")).over(so_far())
    if LIVES_BEFORE in events.columns:
        begun += fn.col(LIVES_BEFORE)
    return begun.cast("int")


def moment_in_this_life(where: Column, born: Column) -> Column:
    """When the last event like `where` was, in the life that an event like `born` began, in ms; null or -1: never.

    A number, since whatever is not copies its value for each event that it is carried past.
    """
    ms = fn.when(where, fn.unix_millis("at")).when(born, -1)
    return fn.last(ms, ignorenulls=True).over(so_far())


def instant(ms: Column) -> Column:
    """The instant that `moment_in_this_life` found, or null."""
    return fn.when(ms >= 0, fn.timestamp_millis(ms))


def ms_between(start: Column, end: Column) -> Column:
    """Whole milliseconds from one instant to another; 0 where a clock was set back between them."""
    ms = fn.unix_millis(end) - fn.unix_millis(start)
    return fn.when(ms < 0, 0).otherwise(ms)


def hour_of(instant: Column) -> Column:
    """The hour that an instant belongs to."""
    return fn.date_trunc("hour", instant)
