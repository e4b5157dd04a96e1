"""The events of each job in log order: what every transform over single jobs needs."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as fn

JOB = ("tenant", "queue", "job_id")
"""The columns that identify a job."""
LIVES_BEFORE = "lives_before"
"""A column with the number of lives before the given events. Without it the events are complete."""
ENDS = ("completed", "failed", "canceled")
LEASE_UPDATES = ("extended", "progressed")
"""Events of a running lease. They are no transitions."""

# A hash of the job, the first sort column everywhere: names often share a prefix, which is slow to compare.
JOB_HASH = "job_hash"


def job_hash() -> Column:
    """The hash of an event's job."""
    return fn.xxhash64(*JOB).alias(JOB_HASH)


def by_job(events: DataFrame, *columns: str) -> DataFrame:
    """Events with these columns alone, and those that `in_order` needs."""
    more = [LIVES_BEFORE] if LIVES_BEFORE in events.columns else []
    return events.select(job_hash(), *JOB, "position", *columns, *more)


def in_order() -> WindowSpec:
    """Each job's events in log order. All windows of this kind share one sort."""
    return Window.partitionBy(JOB_HASH, *JOB).orderBy("position")


def so_far() -> WindowSpec:
    """The events of a job from the first to this one."""
    return in_order().rowsBetween(Window.unboundedPreceding, Window.currentRow)


def is_kind(*kinds: str) -> Column:
    """Whether the event is of one of these kinds."""
    return fn.col("kind").isin(*kinds)


def life(events: DataFrame) -> Column:
    """Which life of its job an event belongs to: 1, 2, ...; 0 before the first known `enqueued`."""
    lives = fn.sum(is_kind("enqueued").cast("int")).over(so_far())
    if LIVES_BEFORE in events.columns:
        lives += fn.col(LIVES_BEFORE)
    return lives.cast("int")


def moment_in_this_life(where: Column, born: Column) -> Column:
    """The time in ms of the last event with `where`, in the life that began with `born`; null or -1 if there is none.

    It is a number: a window copies any other value once for each event.
    """
    ms = fn.when(where, fn.unix_millis("at")).when(born, -1)
    return fn.last(ms, ignorenulls=True).over(so_far())


def instant(ms: Column) -> Column:
    """The instant that `moment_in_this_life` found, or null."""
    return fn.when(ms >= 0, fn.timestamp_millis(ms))


def ms_between(start: Column, end: Column) -> Column:
    """Whole milliseconds from one instant to another; 0 if the clock was set back between them."""
    ms = fn.unix_millis(end) - fn.unix_millis(start)
    return fn.when(ms < 0, 0).otherwise(ms)


def hour_of(instant: Column) -> Column:
    """The hour that an instant belongs to."""
    return fn.date_trunc("hour", instant)
