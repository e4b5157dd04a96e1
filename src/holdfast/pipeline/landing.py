"""Events into Parquet by the tasks that read them: Java sees which files were written, and none of the rows.

A task may fail half-way, run twice, or go on after its driver was killed. So each writes files with names of their
own, apart from the tables, and tells them; what is not told by a task that has ended well is never taken into a table.
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
from holdfast.pipeline.checksums import Checksum, of_batch
from holdfast.pipeline.reader import Wanted, read_stretch
from holdfast.pipeline.schemas import EVENTS

GROUP = 100_000
"""Rows of a row group, about: so many are held in memory."""

# Arrow comes without types.
_arrow, _compute, _parquet = cast("Any", pa), cast("Any", pc), cast("Any", parquet)
_EACH_ITS_OWN = ("position", "offset", "token")
"""Columns without repetitions, which a dictionary makes no smaller."""


def land(url: str, stretch: LogRange, wanted: Wanted, place: str) -> Iterator[tuple[date, str, int, str, str | None]]:
    """Write the events of a piece of the log into files in `place`, one for each day, and tell them as FILES.

    What of single tenants is gone from the piece is told in a row of its own, which names no file.
    """
    folder = Path(place)
    folder.mkdir(parents=True, exist_ok=True)
    gaps: list[Gap] = []
    with _all_or_none() as files:
        for batch in read_stretch(url, stretch, EVENTS, wanted, gaps.append):
            for day, part in _days(batch):
                if day not in files:
                    files[day] = _File(folder, day)
                files[day].add(part)
        told = [(day, *file.close(), None) for day, file in files.items()]
    yield from told
    if gaps:
        yield date(1970, 1, 1), "", 0, Checksum().total, msgspec.json.encode(gaps).decode()


@contextlib.contextmanager
def _all_or_none() -> Generator[dict[date, _File]]:
    """Files by day; none of them is left behind where their making fails."""
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
    """A Parquet file as Spark writes it, so that the files of a table are alike for whoever reads them."""

    def __init__(self, folder: Path, day: date) -> None:
        self.path = folder / f"{uuid.uuid4().hex}.parquet"
        self._day, self._checksum = day, Checksum()
        self._writer: Any = None
        self._batches: list[Any] = []
        self._held = 0

    def add(self, batch: Any) -> None:
        # Of what was read, before it is written.
        self._checksum += of_batch(batch, self._day)
        self._batches.append(batch)
        self._held += batch.num_rows
        if self._held >= GROUP:
            self._write()

    def close(self) -> tuple[str, int, str]:
        """Finish it, and tell its name, how many rows it has and their checksum."""
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
                use_dictionary=[name for name in table.schema.names if name not in _EACH_ITS_OWN],
                use_deprecated_int96_timestamps=True,
                store_schema=False,
            )
        self._writer.write_table(table, row_group_size=len(table))
        self._batches, self._held = [], 0
