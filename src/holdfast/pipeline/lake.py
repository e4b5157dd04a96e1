"""A lake: a directory of Parquet tables that any tool can read.

    LAKE/_holdfast.json              which layout this is; another one is refused
    LAKE/_checkpoint/                how far Spark has read
    LAKE/_batches/00000012.json      micro-batch 12 is wholly in the bronze tables, with a checksum for each day
    LAKE/_dropped.json               days whose events were dropped on purpose
    LAKE/_locks/ingest.lock          who writes
    LAKE/_landing/                   what tasks have written of the batch that is being taken in
    LAKE/bronze/events/date=2030-01-31/batch=12/*.parquet
    LAKE/bronze/payloads, gaps       LAKE/silver/job_runs, attempts       LAKE/gold/hourly, failures, slo

The driver and the executors must see it under the same path.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Generator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import DecodeError, Struct
from msgspec import json as msgjson

from holdfast.core import events
from holdfast.core.errors import InvalidOption, StoreBusy, StoreMismatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

FORMAT = 2
LAYER = {
    "events": "bronze", "payloads": "bronze", "gaps": "bronze",
    "job_runs": "silver", "attempts": "silver",
    "hourly": "gold", "failures": "gold", "slo": "gold",
}  # fmt: skip
"""Where each table is."""

POSITION_WIDTH = 20
"""Digits of each number in a position."""

RESTORE = "Bring it back from a backup of the lake, or ingest into a new directory."

_MARK, _DROPPED = "_holdfast.json", "_dropped.json"
_LONG_TAKEN_S = 30.0
_WRITES = {"ingest": ("bronze",), "build": ("silver", "gold")}
"""The layers that who holds a lock may write."""
_SWAP_PAUSES_S = (0.01, 0.1, 0.5)


class Checksum(Struct, frozen=True):
    """Of some events: how many, and the sum of their hashes modulo 2^64. See `holdfast.pipeline.checksums`."""

    events: int = 0
    total: str = f"{0:016x}"
    """In hexadecimal digits: many readers of JSON round large numbers."""

    def __add__(self, other: Checksum) -> Checksum:
        return checksum(self.events + other.events, int(self.total, 16) + int(other.total, 16))


def checksum(events: int, total: int) -> Checksum:
    """Of so many events, with this sum before it is cut to 64 bits."""
    return Checksum(events, f"{total % 2**64:016x}")


class Batch(Struct, frozen=True):
    """A micro-batch that is wholly in the bronze tables."""

    batch: int
    events: int
    payloads: int = 0
    missing_payloads: int = 0
    """Jobs that were gone before their payload could be read."""
    gaps: int = 0
    """Where events of one tenant were missing."""
    days: dict[str, Checksum] = {}
    """What was read of each day, by the tasks that read it."""


def batch_of(number: int, files: Sequence[tuple[date, int, str]]) -> Batch:
    """A batch of files, of each of which its task told the day, the number of rows and their checksum."""
    days: dict[str, Checksum] = {}
    for day, rows, total in files:
        days[str(day)] = days.get(str(day), Checksum()) + Checksum(rows, total)
    return Batch(number, sum(checksum.events for checksum in days.values()), days=days)


class _Origin(Struct, frozen=True):
    """What is said here of where the events come from."""

    store: str


class Gap(Struct, frozen=True, rename={"from_": "from"}):
    """A stretch of the log that was cut before it was read."""

    from_: str
    to: str
    seen_at: datetime
    tenant: str | None = None
    """Of this one alone; None: of all."""


class Lake:
    """The directory, and what is in it."""

    def __init__(self, root: str | Path, *, create: bool = False) -> None:
        """Open a lake. Raises InvalidOption where there is none, StoreMismatch for another format."""
        self.root = Path(root).expanduser().absolute()
        mark = self.root / _MARK
        if not mark.exists():
            if not create:
                reason = f"there is no lake in {self.root}; make one with: holdfast pipeline ingest --lake {root}"
                raise InvalidOption("lake", reason)
            self._make_directory()
            write_json(mark, {"format": FORMAT, "made_by": _version()})
        self._check_format(mark)

    def _make_directory(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = "is a file" if self.root.is_file() else f"cannot be made: {error.strerror}"
            raise InvalidOption("lake", f"{self.root} {what}; name a directory") from None
        if any(self.root.iterdir()):
            raise InvalidOption("lake", f"{self.root} is neither a lake nor empty")

    def _check_format(self, mark: Path) -> None:
        try:
            said: dict[str, Any] = json.loads(mark.read_text())
            found = said["format"]
        except (ValueError, KeyError, TypeError):
            raise StoreMismatch(f"{mark} is damaged; the lake was left as it is") from None
        if found != FORMAT:
            made_by = said.get("made_by", "another version")
            raise StoreMismatch(
                f"the lake in {self.root} has format {found}, made by holdfast {made_by}; this is {_version()} "
                f"and reads format {FORMAT}. It was left as it is: use that version, or ingest into a new directory."
            )

    # Tables -----------------------------------------------------------------------------------------------

    def path(self, table: str) -> Path:
        """The directory of a table."""
        return self.root / LAYER[table] / table

    def has(self, table: str) -> bool:
        """Whether the table has been written."""
        return self.found(table) is not None

    def found(self, table: str) -> Path | None:
        """Where the table is to be read, or None: it has not been written.

        While its writer swaps it, it has another name for a moment, and keeps that if the writer dies right then.
        Readers wait and look; to put it back is for the next writer.
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
        """What the table was before a swap that has not ended."""
        return sorted((self.root / LAYER[table]).glob(f".{table}.old-*"))

    def read(self, spark: SparkSession, table: str) -> DataFrame:
        """A table as a DataFrame, empty where it has not been written. Bronze tables show whole batches alone."""
        from pyspark.sql import functions as f

        from holdfast.pipeline.schemas import GAPS, TABLES

        schema = GAPS if table == "gaps" else TABLES[table]
        # Before the files are listed: of a batch that is noted later, some may be missing in the list.
        noted = self._noted()
        place = self.found(table)
        if table == "gaps" or place is None:
            rows = self._gap_rows() if table == "gaps" else []
            return cast("Any", spark).createDataFrame(rows, schema)
        frame = spark.read.schema(schema).parquet(str(place))
        if LAYER[table] == "bronze" and (half := self._written("events") - noted):
            frame = frame.where(~f.col("batch").isin(sorted(half)))
        if table == "events":
            # Days that are being dropped, or whose dropping was interrupted.
            for day, batch in self.dropped().items():
                if (place / f"date={day}").exists():
                    frame = frame.where(f"date != DATE'{day}' OR batch > {batch}")
        return frame

    def replace(self, table: str, frame: DataFrame, partition_by: Sequence[str] = ()) -> None:
        """Write a table anew. Readers see the old one or the new one, and a crash leaves one of them."""
        place = self.path(table)
        fresh = place.with_name(f".{table}.new-{uuid.uuid4().hex}")
        try:
            frame.write.partitionBy(*partition_by).parquet(str(fresh))
            self.swap(place, fresh)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def overwrite_partitions(self, table: str, frame: DataFrame, partition_by: Sequence[str]) -> None:
        """Replace those partitions of a table that `frame` has rows of; the others stay as they are."""
        writer = frame.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        writer.partitionBy(*partition_by).parquet(str(self.path(table)))

    def swap(self, place: Path, fresh: Path) -> None:
        """Put a directory in a table's place. A crash in between leaves the old table to be put back."""
        old = place.with_name(f".{place.name}.old-{uuid.uuid4().hex}")
        if place.exists():
            # From here on the old table is found under its other name if the next step does not come.
            place.rename(old)
        fresh.rename(place)
        shutil.rmtree(old, ignore_errors=True)

    def _finish_swaps(self, tables: Sequence[str]) -> None:
        """Put tables back that were on their way when their writer died. Only for who is their writer now."""
        for table in tables:
            for old in self._old(table):
                if self.path(table).is_dir():
                    shutil.rmtree(old, ignore_errors=True)
                else:
                    old.rename(self.path(table))

    # Batches ----------------------------------------------------------------------------------------------

    @property
    def checkpoint(self) -> Path:
        """Where Spark notes how far it has read."""
        return self.root / "_checkpoint"

    def _batch_file(self, batch: int) -> Path:
        return self.root / "_batches" / f"{batch:08}.json"

    def mark_batch(self, batch: Batch) -> None:
        """Note that a batch is wholly in the bronze tables."""
        write_json(self._batch_file(batch.batch), batch)

    def batch(self, number: int) -> Batch | None:
        """What was noted of a batch, or None: it is not wholly there."""
        try:
            return read_json(self._batch_file(number), Batch)
        except FileNotFoundError:
            return None

    def batches(self) -> list[Batch]:
        """Every whole batch, in order."""
        return [batch for number in sorted(self._noted()) if (batch := self.batch(number)) is not None]

    def unfinished_batches(self) -> list[int]:
        """Batches of which something is there and not all: their writer died, and the next ingest does them again."""
        return sorted(self._written("events") - self._noted())

    def _written(self, table: str) -> set[int]:
        place = self.found(table) or self.path(table)
        return {int(path.name.partition("=")[2]) for path in place.glob("date=*/batch=*")}

    def _noted(self) -> set[int]:
        return {int(path.stem) for path in self.root.glob("_batches/*.json")}

    def lost_notes(self) -> list[int]:
        """Batches whose note is gone, so that no table shows them: Spark has ended them, or a later one is noted."""
        ended = {int(path.name) for path in self.checkpoint.glob("commits/*") if path.name.isdigit()}
        noted = self._noted()
        return sorted((ended | set(range(max(noted, default=0)))) - noted)

    def dropped(self) -> dict[str, int]:
        """The days whose events were dropped on purpose, each with the last batch of which that is so."""
        try:
            return read_json(self.root / _DROPPED, dict[str, int])
        except FileNotFoundError:
            return {}

    def note_dropped(self, days: Sequence[str]) -> None:
        """From now on these days are dropped, up to the last whole batch; their files may be removed after that."""
        last = max(self._noted(), default=-1)
        write_json(self.root / _DROPPED, self.dropped() | dict.fromkeys(days, last))

    def read_up_to(self) -> str | None:
        """The store's offset where the last whole batch ends, by Spark's checkpoint; None: there is none."""
        last = max((batch.batch for batch in self.batches()), default=None)
        if last is None:
            return None
        noted = self.checkpoint / "offsets" / str(last)
        try:
            return str(json.loads(noted.read_text().splitlines()[-1])["offset"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise StoreMismatch(f"{noted} is damaged: {error!r}. {RESTORE}") from None

    @property
    def landing(self) -> Path:
        """Where tasks write what becomes a batch."""
        return self.root / "_landing"

    def clear_landing(self) -> None:
        """Remove what tasks have written that no batch took."""
        shutil.rmtree(self.landing, ignore_errors=True)

    def take_files(self, table: str, batch: int, files: Sequence[tuple[date, str]]) -> None:
        """Have a batch be these files out of `landing`, whatever was there of it; the files of a day appear at once."""
        for old in self.path(table).glob(f"date=*/batch={batch}"):
            shutil.rmtree(old)
        for day in sorted({day for day, _ in files}):
            fresh = self.landing / f"{day}"
            fresh.mkdir()
            for name in (name for of, name in files if of == day):
                (self.landing / name).rename(fresh / f"part-{name}")
            place = self.path(table) / f"date={day}" / f"batch={batch}"
            place.parent.mkdir(parents=True, exist_ok=True)
            fresh.rename(place)

    def count_rows(self, table: str, batch: int) -> int:
        """How many rows of a batch a bronze table has, by what its files say."""
        from pyarrow import parquet  # pyright: ignore[reportMissingTypeStubs]

        files = self.path(table).glob(f"date=*/batch={batch}/*.parquet")
        return sum(cast("Any", parquet).read_metadata(file).num_rows for file in files)

    # Gaps -------------------------------------------------------------------------------------------------

    def gaps(self) -> list[Gap]:
        """Where the log had been cut before it was read."""
        files = sorted(self.path("gaps").glob("*.json"))
        return sorted((read_json(file, Gap) for file in files), key=lambda gap: gap.seen_at)

    def _gap_rows(self) -> list[tuple[int, str, str, datetime, str | None]]:
        """The gaps in positions of each shard, as events have them."""
        origin = self.root / "_origin.json"
        store = read_json(origin, _Origin).store if origin.exists() else ""
        rows: list[tuple[int, str, str, datetime, str | None]] = []
        for gap in self.gaps():
            ends = positions(store, gap.to)
            starts = positions(store, gap.from_) if gap.from_ else [""] * len(ends)
            pairs = enumerate(zip(starts, ends, strict=True))
            rows += [(shard, start, end, gap.seen_at, gap.tenant) for shard, (start, end) in pairs if start < end]
        return rows

    def note_gap(self, from_: str, to: str, tenant: str | None = None) -> Gap:
        """Record a gap, once; a later look at the same gap may find that it has grown. "" is the log's beginning."""
        known = {(gap.tenant, gap.from_): gap for gap in self.gaps()}
        seen_at = known[tenant, from_].seen_at if (tenant, from_) in known else datetime.now(UTC)
        gap = Gap(from_, to, seen_at, tenant)
        name = uuid.uuid5(uuid.NAMESPACE_URL, from_ if tenant is None else f"{tenant} {from_}").hex
        write_json(self.path("gaps") / f"{name}.json", gap)
        return gap

    def note_gaps(self, found: Sequence[events.Gap]) -> int:
        """Record what pieces of the log lacked of single tenants; those that join up are one. How many there are."""
        pieces = {(gap.tenant, gap.after): gap.to for gap in found}
        inner = {(gap.tenant, gap.to) for gap in found}
        begins = [begin for begin in pieces if begin not in inner]
        for tenant, after in begins:
            to = pieces[tenant, after]
            while (tenant, to) in pieces:
                to = pieces[tenant, to]
            self.note_gap(after, to, tenant)
        return len(begins)

    # One writer at a time ---------------------------------------------------------------------------------

    @property
    def stop_mark(self) -> Path:
        """A file that is there when the ingest that runs is to begin no other batch."""
        return self.root / "_locks" / "ingest.stop"

    def check_free(self, *names: str) -> None:
        """Raise StoreBusy where somebody does one of these: sooner said than after Spark has started."""
        for name in names:
            path = self.root / "_locks" / f"{name}.lock"
            if path.exists():
                with path.open("a+") as file:
                    Lock(file.fileno(), path).look(name)

    @contextlib.contextmanager
    def lock(self, name: str) -> Generator[Lock]:
        """Be the one who does `name` here. Raises StoreBusy with who it is where somebody else does.

        `ingest` is for the writers of bronze, `build` for those of silver and gold, both for who writes in all.
        The lock ends with its process, however that ends; and if that left a Java machine behind, with that.
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
                lock.note({})


def take_lock(descriptor: int) -> bool:
    """Lock an open file for as long as it is open, unless somebody else has."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def release_lock(descriptor: int) -> None:
    """Let others lock it."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


class Lock:
    """A held lock."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor, self._path = descriptor, path

    def look(self, name: str) -> None:
        """Say who has it, if anybody."""
        if not take_lock(self._descriptor):
            raise StoreBusy(f"{name} is already running on this lake: {self._holder()}")

    def take(self, name: str) -> None:
        """Take it, or say who has it."""
        self.look(name)
        said = self._said()
        java = said.get("java")
        if isinstance(java, int) and said.get("host") == socket.gethostname():
            self._wait_for(java, name)
        self.note({"pid": os.getpid()})

    def note(self, facts: dict[str, Any]) -> None:
        """Write down who holds it; nothing for nobody."""
        known = {"host": socket.gethostname(), "since": datetime.now(UTC).isoformat(timespec="seconds")}
        self._path.write_text(json.dumps({**self._said(), **known, **facts} if facts else {}))

    def _said(self) -> dict[str, Any]:
        try:
            return json.loads(self._path.read_text() or "{}")
        except ValueError:
            return {}

    def _holder(self) -> str:
        said = self._said()
        return f"process {said.get('pid', '?')} on {said.get('host', '?')}, since {said.get('since', '?')}"

    def _wait_for(self, pid: int, name: str) -> None:
        """Wait for the Java machine of a killed driver: it may still be writing, and ends on its own."""
        until = time.monotonic() + _LONG_TAKEN_S
        while _runs_java(pid):
            if time.monotonic() > until:
                raise StoreBusy(f"{name} was killed and left its Java process {pid} behind; end that first")
            time.sleep(0.05)


def _runs_java(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    with contextlib.suppress(OSError):
        # Its number may be somebody else's by now.
        return b"java" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return True


def place_in(store: str, shard: int) -> int:
    """Which number of an offset counts the events one by one, in the log of this shard of a store of this name."""
    return -1 if store == "postgres" else shard


def positions(store: str, offset: str) -> list[str]:
    """The position in each shard that an offset stands for, as `reader` makes them of whole columns."""
    parts = [part.zfill(POSITION_WIDTH) for part in offset.split(".")]
    scheme = store.partition(":")[0]
    if scheme == "file":
        return parts[:1]  # The other one is a check value.
    return parts if "redis" in scheme or "valkey" in scheme else [".".join(parts)]


def read_json(path: Path, type_: type[T], cure: str = RESTORE) -> T:
    """What `write_json` wrote. Raises FileNotFoundError, or StoreMismatch with the cure if it is damaged."""
    try:
        return msgjson.decode(path.read_bytes(), type=type_)
    except (DecodeError, UnicodeDecodeError) as error:
        raise StoreMismatch(f"{path} is damaged: {error}. {cure}") from None


def write_json(path: Path, document: Any) -> None:
    """Write a small file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with fresh.open("wb") as file:
        file.write(msgjson.encode(document))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _version() -> str:
    from importlib.metadata import version

    return version("holdfast")
