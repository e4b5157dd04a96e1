"""Builds the silver and gold tables from the bronze events: only what new batches touched, or everything.

Silver is partitioned by the day on which a job's life began. That day never changes, and new events mostly belong to
young jobs, so a build rewrites the last day or two, and the days of the few old jobs that moved. (With a hash of the
job's name, every build would touch every partition.) Gold is partitioned by the day of its hours. A build recomputes a
job from the beginning of its last known life, and an hour from all of its events. It adds nothing up, so building twice
changes nothing.

Each table is swapped as a whole, with hard links to its unchanged partitions: a reader sees the old table or the new
one. `job_runs`, which says where to continue, is written last, and then the record of the build. After a crash the next
build does the same again.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from functools import reduce
from pathlib import Path
from typing import Any, cast

from msgspec import Struct
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from holdfast.pipeline.json_files import read_json, write_json
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.transforms.attempts import attempts
from holdfast.pipeline.transforms.failures import failures
from holdfast.pipeline.transforms.histories import JOB, LIVES_BEFORE, hour_of
from holdfast.pipeline.transforms.hourly import hourly
from holdfast.pipeline.transforms.runs import job_runs
from holdfast.pipeline.transforms.slo import DEFAULT_OBJECTIVE, Objective, slo

TABLES = ("attempts", "hourly", "failures", "slo", "job_runs")
"""The tables in the order of writing."""
LIFE = (*JOB, "life")
# If the clock is set back by less than this, an event may be on a day before its job began.
_SLACK = timedelta(days=1)


class BuildRecord(Struct, frozen=True):
    """The last batch that the tables are built from, and their objective."""

    batch: int
    target: float
    start_within_s: float


class Built(Struct, frozen=True):
    """What a build did."""

    full: bool
    batches: int
    """The number of new batches."""
    days: list[str]
    """The days of silver and gold that were rewritten; empty with `full`."""


def build(
    spark: SparkSession,
    lake: Lake,
    *,
    full: bool = False,
    objective: Objective = DEFAULT_OBJECTIVE,
    on_step: Callable[[str], None] = lambda _: None,
) -> Built:
    """Bring silver and gold up to the last complete batch of bronze. Calls `on_step` before each table.

    Raises StoreBusy while another build runs.
    """
    with lake.lock("build"):
        numbers = [batch.batch for batch in lake.batches()]
        if not numbers:
            return Built(full, 0, [])
        before = None if full else progress(lake)
        now = BuildRecord(max(numbers), objective.target, objective.start_within_s)
        events = lake.read(spark, "events").where(fn.col("batch") <= now.batch)
        if before is None or not all(lake.has(table) for table in TABLES):
            _build_all(spark, lake, events, objective, on_step)
            write_json(_record_file(lake), now)
            return Built(full=True, batches=len(numbers), days=[])
        fresh = [number for number in numbers if number > before.batch]
        days = _Update(spark, lake, events, before.batch, objective, on_step).run() if fresh else set[date]()
        if (now.target, now.start_within_s) != (before.target, before.start_within_s):
            lake.replace("slo", slo(lake.read(spark, "job_runs"), objective), ["date"])
        write_json(_record_file(lake), now)
        return Built(full=False, batches=len(fresh), days=sorted(day.isoformat() for day in days))


def progress(lake: Lake) -> BuildRecord | None:
    """The record of the last build, or None. Raises StoreMismatch if it is damaged."""
    try:
        return read_json(_record_file(lake), BuildRecord, "Build again with --full.")
    except FileNotFoundError:
        return None


def _record_file(lake: Lake) -> Path:
    return lake.root / "_build.json"


def _build_all(
    spark: SparkSession, lake: Lake, events: DataFrame, objective: Objective, on_step: Callable[[str], None]
) -> None:
    def put(table: str, frame: DataFrame) -> None:
        on_step(_step(table))
        lake.replace(table, frame, ["date"])

    put("attempts", attempts(events))
    put("hourly", hourly(events, lake.read(spark, "attempts")))
    put("failures", failures(events))
    runs = job_runs(events).persist()
    put("slo", slo(runs, objective))
    put("job_runs", runs)
    runs.unpersist()


def _step(table: str) -> str:
    return f"{TABLES.index(table) + 1} of {len(TABLES)}: {table}"


class _Update:
    """One incremental build."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        events: DataFrame,
        built: int,
        objective: Objective,
        on_step: Callable[[str], None],
    ) -> None:
        self.spark, self.lake, self.objective, self.on_step = spark, lake, objective, on_step
        self.events = events
        self.fresh = events.where(fn.col("batch") > built)
        self.days: set[date] = set()
        self.held: list[DataFrame] = []

    def run(self) -> set[date]:
        """Rewrite what the new batches touched. Returns the days that were rewritten."""
        try:
            self._run()
        finally:
            for frame in self.held:
                frame.unpersist()
        return self.days

    def _run(self) -> None:
        old_runs = self.lake.read(self.spark, "job_runs")
        history = self._hold(self._history(old_runs))
        runs = self._hold(job_runs(history))
        lives = runs.select(*LIFE)
        life_days = _days(runs)
        self._write("attempts", attempts(history), lives, LIFE, life_days)

        hours = self._hold(self.fresh.select(hour_of(fn.col("at")).alias("hour")).distinct())
        hour_days = _days(hours.select(fn.to_date("hour").alias("date")))
        self._write("hourly", self._hourly(hours, hour_days), hours, ("hour",), hour_days)

        error_days = _days(self.fresh.where(fn.col("fingerprint").isNotNull()))
        of_days = self.events.where(_among("date", error_days))
        self._write("failures", failures(of_days), None, ("date",), error_days)

        # A replayed job ended in an earlier hour before: recompute that hour too.
        replaced = old_runs.where(_among("date", life_days)).join(lives, list(LIFE), "left_semi")
        ended = runs.select("ended_at").unionByName(replaced.select("ended_at")).where("ended_at IS NOT NULL")
        ended_hours = self._hold(ended.select(hour_of(fn.col("ended_at")).alias("hour")).distinct())
        slo_days = _days(ended_hours.select(fn.to_date("hour").alias("date")))
        all_runs = old_runs.where(_on("ended_at", slo_days)).join(lives, list(LIFE), "left_anti").unionByName(runs)
        judged = slo(_in_hours(all_runs, "ended_at", ended_hours), self.objective)
        self._write("slo", judged, ended_hours, ("hour",), slo_days)

        self._write("job_runs", runs, lives, LIFE, life_days)

    def _history(self, old_runs: DataFrame) -> DataFrame:
        """The events of every touched job, from the beginning of its last known life."""
        touched = self.fresh.select(*JOB).distinct()
        newest = Window.partitionBy(*JOB).orderBy(fn.col("life").desc())
        known = old_runs.join(touched, list(JOB), "left_semi").withColumn("age", fn.row_number().over(newest))
        known = known.where("age = 1").select(*JOB, "life", "first_position", fn.col("date").alias("first_day"))
        starts = self._hold(touched.join(known, list(JOB), "left"))
        first = starts.agg(fn.min("first_day")).collect()[0][0]
        days = [day for day in (first, min(_days(self.fresh), default=None)) if day is not None]
        events = self.events.where(fn.col("date") >= fn.lit(min(days) - _SLACK))
        lives_before = fn.greatest(fn.coalesce("life", fn.lit(0)) - 1, fn.lit(0)).alias(LIVES_BEFORE)
        starts = starts.select(*JOB, lives_before, fn.coalesce("first_position", fn.lit("")).alias("start"))
        return events.join(starts, list(JOB)).where(fn.col("position") >= fn.col("start"))

    def _hourly(self, hours: DataFrame, days: Iterable[date]) -> DataFrame:
        events = _in_hours(self.events.where(_among("date", days)), "at", hours)
        all_attempts = self.lake.read(self.spark, "attempts")
        near = all_attempts.where(_on("claimed_at", days) | _on("ended_at", days))
        return hourly(events, near).join(fn.broadcast(hours), "hour", "left_semi")

    def _write(
        self, table: str, rows: DataFrame, keys: DataFrame | None, names: Sequence[str], days: Iterable[date]
    ) -> None:
        """Replace the rows with these keys by `rows`. All of them are in the partitions of these days."""
        self.on_step(_step(table))
        kept = self.lake.read(self.spark, table).where(_among("date", days))
        whole = rows if keys is None else kept.join(keys, list(names), "left_anti").unionByName(rows)
        replace_days(self.lake, table, whole, days)
        self.days.update(days)

    def _hold(self, frame: DataFrame) -> DataFrame:
        self.held.append(frame.persist())
        return frame


def replace_days(lake: Lake, table: str, frame: DataFrame, days: Iterable[date]) -> None:
    """Rewrite the partitions of these days alone. Readers see the old table or the new one."""
    place = lake.path(table)
    fresh = place.with_name(f".{table}.new-{uuid.uuid4().hex}")
    try:
        frame.write.partitionBy("date").parquet(str(fresh))
        rewritten = {f"date={day.isoformat()}" for day in days}
        for partition in place.glob("date=*"):
            if partition.name not in rewritten:
                shutil.copytree(partition, fresh / partition.name, copy_function=os.link)
        lake.swap(place, fresh)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _days(frame: DataFrame) -> list[date]:
    return sorted(cast("Any", row)["date"] for row in frame.select("date").distinct().collect())


def _among(name: str, days: Iterable[date]) -> Column:
    """Whether a date is one of these. In this form Spark does not read other partitions."""
    return fn.col(name).isin(list(days))


def _on(name: str, days: Iterable[date]) -> Column:
    """Whether an instant is on one of these days. In this form Spark skips other files by their statistics."""
    spans = [(fn.col(name) >= fn.lit(day)) & (fn.col(name) < fn.lit(day + timedelta(days=1))) for day in days]
    return reduce(Column.__or__, spans, fn.lit(False))


def _in_hours(frame: DataFrame, instant: str, hours: DataFrame) -> DataFrame:
    with_hour = frame.withColumn("hour", hour_of(fn.col(instant)))
    return with_hour.join(fn.broadcast(hours), "hour", "left_semi").drop("hour")
