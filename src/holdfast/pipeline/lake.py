"""A lake: a directory of Parquet tables that any tool can read.

    LAKE/_holdfast.json              the layout's number; a lake with another number is refused
    LAKE/_checkpoint/                how far Spark has read
    LAKE/_batches/00000012.json      micro-batch 12 is complete in the bronze tables, with a checksum for each day
    LAKE/_dropped.json               days whose events were dropped on purpose
    LAKE/_locks/ingest.lock          the process that writes
    LAKE/_landing/                   files that tasks have written for the current batch
    LAKE/bronze/events/date=2030-01-31/batch=12/*.parquet
    LAKE/bronze/payloads, gaps       LAKE/silver/job_runs, attempts       LAKE/gold/hourly, failures, slo

The driver and the executors must see it under the same path.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
import uuid
from collections.abc import Generator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from holdfast.core import events
from holdfast.core.errors import InvalidOption, StoreMismatch
from holdfast.pipeline.batches import Batch, LakeGap
from holdfast.pipeline.json_files import RESTORE, read_json, write_json
from holdfast.pipeline.locks import Lock
from holdfast.pipeline.positions import positions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = 2
LAYER = {
    "events": "bronze", "payloads": "bronze", "gaps": "bronze",
    "job_runs": "silver", "attempts": "silver",
    "hourly": "gold", "failures": "gold", "slo": "gold",
}  # fmt: skip
"""The layer of each table."""

_MARK, _DROPPED = "_holdfast.json", "_dropped.json"
_WRITES = {"ingest": ("bronze",), "build": ("silver", "gold")}
"""The layers that the holder of each lock may write."""
_SWAP_PAUSES_S = (0.01, 0.1, 0.5)


class _Origin(Struct, frozen=True):
    """The part of `_origin.json` that a lake needs itself."""

    store: str


class Lake:
    """The directory and its tables."""

    def __init__(self, root: str | Path, *, create: bool = False) -> None:
        """Open a lake. Raises InvalidOption if there is none, StoreMismatch if it has another format."""
        self.root = Path(root).expanduser().absolute()
        mark = self.root / _MARK
        if not mark.exists():
            if not create:
                reason = f"there is no lake in {self.root}; create one with: holdfast pipeline ingest --lake {root}"
                raise InvalidOption("lake", reason)
            self._make_directory()
            write_json(mark, {"format": FORMAT, "made_by": _version()})
        self._check_format(mark)

    def _make_directory(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = "is a file" if self.root.is_file() else f"cannot be created: {error.strerror}"
            raise InvalidOption("lake", f"{self.root} {what}; name a directory") from None
        if any(self.root.iterdir()):
            raise InvalidOption("lake", f"{self.root} is neither a lake nor empty")

    def _check_format(self, mark: Path) -> None:
        try:
            content: dict[str, Any] = json.loads(mark.read_text())
            found = content["format"]
        except (ValueError, KeyError, TypeError):
            raise StoreMismatch(f"{mark} is damaged; the lake was not changed") from None
        if found != FORMAT:
            made_by = content.get("made_by", "another version")
            raise StoreMismatch(
                f"the lake in {self.root} has format {found}, made by holdfast {made_by}; this is {_version()} "
                f"and reads format {FORMAT}. It was not changed: use that version, or ingest into a new directory."
            )

    # Tables -----------------------------------------------------------------------------------------------

    def path(self, table: str) -> Path:
        """The directory of a table."""
        return self.root / LAYER[table] / table

    def has(self, table: str) -> bool:
        """Whether the table has been written."""
        return self.found(table) is not None

    def found(self, table: str) -> Path | None:
        """The directory to read a table from, or None if the table has not been written.

        While a writer swaps a table, its directory has another name for a moment. If the writer dies then, it keeps
        that name until the next writer puts it back. Readers wait and read again.
        """
        for pause_s in _SWAP_PAUSES_S:
            old = self._old(table)
            if self.path(table).is_dir():
                return self.path(table)
            if not old:
                return None
            time.sleep(pause_s)
        return self.path(table) if self.path(table).is_dir() else next(iter(self._old(table)), None)

    def _old(self, table: str) -> list[Path]:
        """The old directories of a table whose swap has not ended."""
        return sorted((self.root / LAYER[table]).glob(f".{table}.old-*"))

    def read(self, spark: SparkSession, table: str) -> DataFrame:
        """A table as a DataFrame, empty if it has not been written. Bronze tables show complete batches only."""
        from pyspark.sql import functions as f

        from holdfast.pipeline.schemas import GAPS, TABLES

        schema = GAPS if table == "gaps" else TABLES[table]
        # Read the records before the files: a batch that is recorded later may have files that the list lacks.
        recorded = self._recorded()
        place = self.found(table)
        if table == "gaps" or place is None:
            rows = self._gap_rows() if table == "gaps" else []
            return cast("Any", spark).createDataFrame(rows, schema)
        frame = spark.read.schema(schema).parquet(str(place))
        if LAYER[table] == "bronze" and (half := self._written("events") - recorded):
            frame = frame.where(~f.col("batch").isin(sorted(half)))
        if table == "events":
            # Skip days that are being dropped, or whose dropping was interrupted.
            for day, batch in self.dropped().items():
                if (place / f"date={day}").exists():
                    frame = frame.where(f"date != DATE'{day}' OR batch > {batch}")
        return frame

    def replace(self, table: str, frame: DataFrame, partition_by: Sequence[str] = ()) -> None:
        """Replace a whole table. Readers see the old one or the new one, and a crash leaves one of them."""
        place = self.path(table)
        fresh = place.with_name(f".{table}.new-{uuid.uuid4().hex}")
        try:
            frame.write.partitionBy(*partition_by).parquet(str(fresh))
            self.swap(place, fresh)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def overwrite_partitions(self, table: str, frame: DataFrame, partition_by: Sequence[str]) -> None:
        """Replace the partitions of a table that `frame` has rows for. The others do not change."""
        writer = frame.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        writer.partitionBy(*partition_by).parquet(str(self.path(table)))

    def swap(self, place: Path, fresh: Path) -> None:
        """Put a directory in the place of a table. After a crash in between, the next writer puts the old one back."""
        old = place.with_name(f".{place.name}.old-{uuid.uuid4().hex}")
        if place.exists():
            # If the process dies here, `found` finds the old table under its other name.
            place.rename(old)
        fresh.rename(place)
        shutil.rmtree(old, ignore_errors=True)

    def _finish_swaps(self, tables: Sequence[str]) -> None:
        """Put back tables whose writer died during a swap. Only the current writer may call this."""
        for table in tables:
            for old in self._old(table):
                if self.path(table).is_dir():
                    shutil.rmtree(old, ignore_errors=True)
                else:
                    old.rename(self.path(table))

    # Batches ----------------------------------------------------------------------------------------------

    @property
    def checkpoint(self) -> Path:
        """Spark's record of how far it has read."""
        return self.root / "_checkpoint"

    def _batch_file(self, batch: int) -> Path:
        return self.root / "_batches" / f"{batch:08}.json"

    def record_batch(self, batch: Batch) -> None:
        """Record that a batch is complete in the bronze tables."""
        write_json(self._batch_file(batch.batch), batch)

    def batch(self, number: int) -> Batch | None:
        """The record of a batch, or None if the batch is not complete."""
        try:
            return read_json(self._batch_file(number), Batch)
        except FileNotFoundError:
            return None

    def batches(self) -> list[Batch]:
        """Every complete batch, in order."""
        return [batch for number in sorted(self._recorded()) if (batch := self.batch(number)) is not None]

    def unfinished_batches(self) -> list[int]:
        """Incomplete batches. Their writer died; the next ingest writes them again."""
        return sorted(self._written("events") - self._recorded())

    def _written(self, table: str) -> set[int]:
        place = self.found(table) or self.path(table)
        return {int(path.name.partition("=")[2]) for path in place.glob("date=*/batch=*")}

    def _recorded(self) -> set[int]:
        return {int(path.stem) for path in self.root.glob("_batches/*.json")}

    def lost_records(self) -> list[int]:
        """Batches whose record is gone, so that no table shows them: Spark finished them, or a later one has one."""
        ended = {int(path.name) for path in self.checkpoint.glob("commits/*") if path.name.isdigit()}
        recorded = self._recorded()
        return sorted((ended | set(range(max(recorded, default=0)))) - recorded)

    def dropped(self) -> dict[str, int]:
        """The days whose events were dropped on purpose, each with the last batch that was dropped."""
        try:
            return read_json(self.root / _DROPPED, dict[str, int])
        except FileNotFoundError:
            return {}

    def record_dropped(self, days: Sequence[str]) -> None:
        """Record that these days are dropped, up to the last complete batch. After that their files may be removed."""
        last = max(self._recorded(), default=-1)
        write_json(self.root / _DROPPED, self.dropped() | dict.fromkeys(days, last))

    def read_up_to(self) -> str | None:
        """The store's offset at the end of the last complete batch, from Spark's checkpoint. None without a batch."""
        last = max((batch.batch for batch in self.batches()), default=None)
        if last is None:
            return None
        file = self.checkpoint / "offsets" / str(last)
        try:
            return str(json.loads(file.read_text().splitlines()[-1])["offset"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise StoreMismatch(f"{file} is damaged: {error!r}. {RESTORE}") from None

    @property
    def landing(self) -> Path:
        """Where tasks write the files of the next batch."""
        return self.root / "_landing"

    def clear_landing(self) -> None:
        """Remove files that tasks have written and that no batch has taken."""
        shutil.rmtree(self.landing, ignore_errors=True)

    def take_files(self, table: str, batch: int, files: Sequence[tuple[date, str]]) -> None:
        """Make a batch of these files in `landing`, replacing what it had. The files of a day appear at once."""
        for old in self.path(table).glob(f"date=*/batch={batch}"):
            shutil.rmtree(old)
        for day in sorted({day for day, _ in files}):
            fresh = self.landing / f"{day}"
            fresh.mkdir()
            for name in (name for other, name in files if other == day):
                (self.landing / name).rename(fresh / f"part-{name}")
            place = self.path(table) / f"date={day}" / f"batch={batch}"
            place.parent.mkdir(parents=True, exist_ok=True)
            fresh.rename(place)

    def count_rows(self, table: str, batch: int) -> int:
        """The rows of a batch in a bronze table, counted from the metadata of its files."""
        from pyarrow import parquet  # pyright: ignore[reportMissingTypeStubs]

        files = self.path(table).glob(f"date=*/batch={batch}/*.parquet")
        return sum(cast("Any", parquet).read_metadata(file).num_rows for file in files)

    # Gaps -------------------------------------------------------------------------------------------------

    def gaps(self) -> list[LakeGap]:
        """The ranges of the log that were trimmed before they were read."""
        files = sorted(self.path("gaps").glob("*.json"))
        return sorted((read_json(file, LakeGap) for file in files), key=lambda gap: gap.seen_at)

    def _gap_rows(self) -> list[tuple[int, str, str, datetime, str | None]]:
        """The gaps as positions in each shard, like those of events."""
        origin = self.root / "_origin.json"
        store = read_json(origin, _Origin).store if origin.exists() else ""
        rows: list[tuple[int, str, str, datetime, str | None]] = []
        for gap in self.gaps():
            ends = positions(store, gap.to)
            starts = positions(store, gap.from_) if gap.from_ else [""] * len(ends)
            pairs = enumerate(zip(starts, ends, strict=True))
            rows += [(shard, start, end, gap.seen_at, gap.tenant) for shard, (start, end) in pairs if start < end]
        return rows

    def record_gap(self, from_: str, to: str, tenant: str | None = None) -> LakeGap:
        """Record a gap, or its new end if it has grown. The offset "" is the beginning of the log."""
        known = {(gap.tenant, gap.from_): gap for gap in self.gaps()}
        seen_at = known[tenant, from_].seen_at if (tenant, from_) in known else datetime.now(UTC)
        gap = LakeGap(from_, to, seen_at, tenant)
        name = uuid.uuid5(uuid.NAMESPACE_URL, from_ if tenant is None else f"{tenant} {from_}").hex
        write_json(self.path("gaps") / f"{name}.json", gap)
        return gap

    def record_gaps(self, found: Sequence[events.Gap]) -> int:
        """Record the gaps of single tenants. Adjoining gaps become one. Returns how many gaps there are."""
        ends = {(gap.tenant, gap.after): gap.to for gap in found}
        inner = {(gap.tenant, gap.to) for gap in found}
        starts = [start for start in ends if start not in inner]
        for tenant, after in starts:
            to = ends[tenant, after]
            while (tenant, to) in ends:
                to = ends[tenant, to]
            self.record_gap(after, to, tenant)
        return len(starts)

    # One writer at a time ---------------------------------------------------------------------------------

    @property
    def stop_mark(self) -> Path:
        """While this file exists, the running ingest begins no other batch."""
        return self.root / "_locks" / "ingest.stop"

    def check_free(self, *names: str) -> None:
        """Raise StoreBusy if one of these is running. Checked early, because Spark takes seconds to start."""
        for name in names:
            path = self.root / "_locks" / f"{name}.lock"
            if path.exists():
                with path.open("a+") as file:
                    Lock(file.fileno(), path).check(name)

    @contextlib.contextmanager
    def lock(self, name: str) -> Generator[Lock]:
        """Hold the lock `name`. Raises StoreBusy, with the holder, if another process has it.

        Writers of bronze take `ingest`, writers of silver and gold take `build`. Those that write everywhere take both.
        The lock ends with its process, or with the Java process that a killed driver left behind.
        """
        path = self.root / "_locks" / f"{name}.lock"
        path.parent.mkdir(exist_ok=True)
        with path.open("a+") as file:
            lock = Lock(file.fileno(), path)
            lock.take(name)
            try:
                self._finish_swaps([table for table, layer in LAYER.items() if layer in _WRITES[name]])
                yield lock
            finally:
                lock.record({})


def _version() -> str:
    from importlib.metadata import version

    return version("holdfast")
