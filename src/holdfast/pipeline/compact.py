"""Compaction and retention: merges the small bronze files of a day, and drops old days.

An ingest that polls every few seconds leaves thousands of small files a day. `compact` merges those of a day under the
number of their last batch. It keeps built and unbuilt batches apart, so that a build still finds what is new. It
replaces files only after the new ones have the same rows, by count and checksum. Then it swaps the table as a whole,
with hard links to the unchanged files.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from holdfast.core.errors import InvalidOption, StoreMismatch
from holdfast.pipeline.build import progress
from holdfast.pipeline.lake import LAYER, Lake
from holdfast.pipeline.schemas import PARTITIONS, TABLES

FILE_BYTES = 128 * 1024 * 1024
MIN_FILES = 2
SOURCES = ("events", "payloads")
_ORDER = {"events": ("shard", "position"), "payloads": ("tenant", "queue", "job_id")}
_NO_MARK = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


class Compacted(Struct, frozen=True):
    """The result of a compaction."""

    days: int
    files_before: int
    files_after: int
    rows: int


class Dropped(Struct, frozen=True):
    """What `retain` drops, or would drop."""

    before: str
    """Days before this one."""
    days: dict[str, list[str]]
    """The days by table."""
    bytes: int
    unbuilt: list[str]
    """Old days that stay, because no build has read all of them."""
    open_jobs: int
    """Jobs of those days that had not ended. Their later events will have no beginning."""


class _Group(Struct, frozen=True):
    """Batches of one day that are merged into one."""

    day: str
    batches: tuple[Path, ...]
    files: tuple[Path, ...]
    count: int
    """The number of files after the merge."""

    @property
    def target(self) -> str:
        """The directory of the merged files, relative to the table."""
        return f"{self.day}/batch={max(_batch(path) for path in self.batches)}"


def compact(spark: SparkSession, lake: Lake, *, file_bytes: int = FILE_BYTES, min_files: int = MIN_FILES) -> Compacted:
    """Merge the small files of each day. Raises StoreBusy while an ingest or a build runs on the lake.

    Days with fewer files than `min_files` are skipped.
    """
    if file_bytes < 1 or min_files < MIN_FILES:
        raise InvalidOption("compact", "file_bytes must be at least 1, and min_files at least 2")
    done = Compacted(0, 0, 0, 0)
    with lake.lock("ingest"), lake.lock("build"):
        for table in SOURCES:
            if not lake.has(table):
                continue
            groups = list(_groups(lake, table, file_bytes, min_files))
            if groups:
                rows, files = _rewrite(spark, lake, table, groups)
                done = Compacted(
                    done.days + len({group.day for group in groups}),
                    done.files_before + sum(len(group.files) for group in groups),
                    done.files_after + files,
                    done.rows + rows,
                )
    return done


def _groups(lake: Lake, table: str, file_bytes: int, min_files: int) -> Iterator[_Group]:
    built = progress(lake)
    unfinished = set(lake.unfinished_batches())
    for day in sorted(lake.path(table).glob("date=*")):
        complete = [path for path in sorted(day.glob("batch=*")) if _batch(path) not in unfinished]
        for is_built in (True, False):
            batches = [path for path in complete if (built is not None and _batch(path) <= built.batch) is is_built]
            files = [file for path in batches for file in sorted(path.glob("*.parquet"))]
            count = max(1, -(-sum(file.stat().st_size for file in files) // file_bytes))
            if len(files) >= min_files and len(files) > count:
                yield _Group(day.name, tuple(batches), tuple(files), count)


def _rewrite(spark: SparkSession, lake: Lake, table: str, groups: Sequence[_Group]) -> tuple[int, int]:
    """Swap in a table in which these groups are merged. Returns their rows and files."""
    place = lake.path(table)
    fresh = place.with_name(f".{table}.new-{uuid.uuid4().hex}")
    schema = StructType([field for field in TABLES[table].fields if field.name not in PARTITIONS])
    rows = 0
    try:
        for group in groups:
            old = spark.read.schema(schema).parquet(*map(str, group.files))
            target = str(fresh / group.target)
            ordered = old.coalesce(group.count).sortWithinPartitions(*_ORDER[table])
            ordered.write.options(**_NO_MARK).parquet(target)
            before, after = digest(old), digest(spark.read.schema(schema).parquet(target))
            if before != after:
                raise StoreMismatch(f"{group.day} of {table} differs after the merge; the lake was not changed")
            rows += before[0]
        files = len(list(fresh.rglob("*.parquet")))
        replaced = {path for group in groups for path in group.batches}
        for batch in place.glob("date=*/batch=*"):
            if batch not in replaced:
                shutil.copytree(batch, fresh / batch.relative_to(place), copy_function=os.link)
        lake.swap(place, fresh)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return rows, files


def digest(frame: DataFrame) -> tuple[int, str]:
    """The number of rows, and a checksum that does not depend on their order."""
    # The hash skips nulls, so it needs an extra value for each column that says whether it is null.
    columns = [fn.col(f"`{name}`") for name in sorted(frame.columns)]
    row_hash = fn.xxhash64(*columns, *(column.isNull() for column in columns))
    total = fn.coalesce(fn.sum(row_hash.cast("decimal(38,0)")), fn.lit(0))
    row: Any = frame.agg(fn.count("*").alias("count"), total.cast("string").alias("sum")).collect()[0]
    return int(row["count"]), str(row["sum"])


def _batch(path: Path) -> int:
    return int(path.name.partition("=")[2])


# Retention --------------------------------------------------------------------------------------------------------


def retain(spark: SparkSession, lake: Lake, days: int, *, dry_run: bool = True, today: date | None = None) -> Dropped:
    """Drop what is older than `days` from all tables, or with `dry_run` only report it.

    Days with events that no build has read stay. Raises StoreBusy while an ingest, a build or a compaction runs.
    """
    if days < 1:
        raise InvalidOption("days", f"{days} is not a whole number above 0; today is never dropped")
    today = today or datetime.now(UTC).date()
    try:
        before = today - timedelta(days=days)
    except OverflowError:
        raise InvalidOption("days", f"{days} days is before the first date of the calendar") from None
    with lake.lock("ingest"), lake.lock("build"):
        _clear(lake)
        unbuilt = _unbuilt(lake, before)
        old = {table: [day for day in _old(lake, table, before) if day not in unbuilt] for table in LAYER}
        old = {table: found for table, found in old.items() if found}
        paths = [lake.path(table) / f"date={day}" for table, found in old.items() for day in found]
        size = sum(file.stat().st_size for path in paths for file in path.rglob("*.parquet"))
        dropped = Dropped(before.isoformat(), old, size, sorted(unbuilt), _open_jobs(spark, lake, old))
        if not dry_run:
            _drop(spark, lake, old)
    return dropped


def _old(lake: Lake, table: str, before: date) -> list[str]:
    days = (path.name.partition("=")[2] for path in sorted(lake.path(table).glob("date=*")))
    return [day for day in days if date.fromisoformat(day) < before]


def _unbuilt(lake: Lake, before: date) -> set[str]:
    built = progress(lake)
    return {
        day
        for day in _old(lake, "events", before)
        for path in lake.path("events").glob(f"date={day}/batch=*")
        if built is None or _batch(path) > built.batch
    }


def _open_jobs(spark: SparkSession, lake: Lake, old: dict[str, list[str]]) -> int:
    if "job_runs" not in old:
        return 0
    runs = lake.read(spark, "job_runs").where(fn.col("date").isin([date.fromisoformat(day) for day in old["job_runs"]]))
    return runs.where(fn.col("ended_at").isNull() & ~fn.col("purged")).count()


def _drop(spark: SparkSession, lake: Lake, old: dict[str, list[str]]) -> None:
    """Drop gold first and events last. After a crash in between, the rest can be built from the events."""
    if "events" in old:
        # Record the gap, or the audit would report these events as lost.
        lake.record_gap("", _last_offset(spark, lake, old["events"]))
        lake.record_dropped(old["events"])
    for table in reversed(LAYER):
        for day in old.get(table, ()):
            # Move the day out of the table in one step, then delete it.
            gone = lake.path(table).with_name(f".dropped-{uuid.uuid4().hex}")
            (lake.path(table) / f"date={day}").rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


def _last_offset(spark: SparkSession, lake: Lake, days: list[str]) -> str:
    """The last offset of these days."""
    events = lake.read(spark, "events").where(fn.col("date").isin([date.fromisoformat(day) for day in days]))
    rows = events.groupBy("shard").agg(fn.max_by("offset", "position").alias("offset")).orderBy("shard").collect()
    offsets: dict[int, str] = {row["shard"]: row["offset"] for row in rows}
    parts = offsets[max(offsets)].split(".")
    if len(offsets) == 1 and 0 in offsets:
        return offsets[0]
    # An offset of several shards has a number for each. Take each shard's number from its own last event.
    own = {shard: offset.split(".")[shard] for shard, offset in offsets.items()}
    return ".".join(own.get(shard, "0") for shard in range(len(parts)))


def _clear(lake: Lake) -> None:
    """Remove what a killed `retain` left behind."""
    for layer in set(LAYER.values()):
        for gone in cast("Any", (lake.root / layer).glob(".dropped-*")):
            shutil.rmtree(gone, ignore_errors=True)
