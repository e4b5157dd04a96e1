"""Tasks write the events they read as Parquet files. Spark's Java side sees the file names and none of the rows.

A task may fail half-way, run twice, or continue after its driver was killed. So each task writes files with unique
names, outside the tables, and returns the names. Only files that a successful task has returned get into a table.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Generator, Iterator
from datetime import date
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.compute as pc  # pyright: ignore[reportMissingTypeStubs]
from pyarrow import parquet  # pyright: ignore[reportMissingTypeStubs]

from holdfast.core.events import Gap
from holdfast.extensions import LogRange
from holdfast.pipeline.batches import Checksum
from holdfast.pipeline.checksums import of_batch
from holdfast.pipeline.reader import EventFilter, read_range
from holdfast.pipeline.schemas import EVENTS

GROUP_ROWS = 100_000
"""The approximate number of rows in a row group. They are held in memory."""

# Arrow has no type hints.
_arrow, _compute, _parquet = cast("Any", pa), cast("Any", pc), cast("Any", parquet)
_UNIQUE = ("position", "offset", "token")
"""Columns without repetition. A dictionary would not make them smaller."""


def land(
    url: str, log_range: LogRange, event_filter: EventFilter, directory: str
) -> Iterator[tuple[date, str, int, str, str | None]]:
    """Write the events of a range of the log into files in `directory`, one for each day. Returns rows of FILES.

    Gaps in the events of single tenants are returned in a row without a file.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    gaps: list[Gap] = []
    with _all_or_none() as files:
        for batch in read_range(url, log_range, EVENTS, event_filter, gaps.append):
            for day, part in _days(batch):
                if day not in files:
                    files[day] = _File(folder, day)
                files[day].add(part)
        written = [(day, *file.close(), None) for day, file in files.items()]
    yield from written
    if gaps:
        yield date(1970, 1, 1), "", 0, Checksum().total, msgspec.json.encode(gaps).decode()


@contextlib.contextmanager
def _all_or_none() -> Generator[dict[date, _File]]:
    """Files by day. If writing them fails, all are removed."""
    files: dict[date, _File] = {}
    try:
        yield files
    except BaseException:
        for file in files.values():
            file.path.unlink(missing_ok=True)
        raise


def _days(batch: Any) -> Iterator[tuple[date, Any]]:
    """The events of each day."""
    days = batch.column("at").cast(_arrow.date32())
    distinct = _compute.unique(days).to_pylist()
    for day in distinct:
        yield day, batch if len(distinct) == 1 else batch.filter(_compute.equal(days, day))


class _File:
    """A Parquet file in the form that Spark writes, so that all files of a table are alike."""

    def __init__(self, folder: Path, day: date) -> None:
        self.path = folder / f"{uuid.uuid4().hex}.parquet"
        self._day, self._checksum = day, Checksum()
        self._writer: Any = None
        self._batches: list[Any] = []
        self._held = 0

    def add(self, batch: Any) -> None:
        # The checksum covers what was read, before it is written.
        self._checksum += of_batch(batch, self._day)
        self._batches.append(batch)
        self._held += batch.num_rows
        if self._held >= GROUP_ROWS:
            self._write()

    def close(self) -> tuple[str, int, str]:
        """Finish the file. Returns its name, its number of rows and their checksum."""
        if self._batches:
            self._write()
        self._writer.close()
        return self.path.name, self._checksum.events, self._checksum.total

    def _write(self) -> None:
        table = _arrow.Table.from_batches(self._batches)
        if self._writer is None:
            self._writer = _parquet.ParquetWriter(
                self.path,
                table.schema,
                compression="snappy",
                use_dictionary=[name for name in table.schema.names if name not in _UNIQUE],
                use_deprecated_int96_timestamps=True,
                store_schema=False,
            )
        self._writer.write_table(table, row_group_size=len(table))
        self._batches, self._held = [], 0
