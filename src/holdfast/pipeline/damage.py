"""Compares what a lake has with what was ingested, by batch and day: a count and a checksum."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from holdfast.pipeline.batches import Batch, Checksum
from holdfast.pipeline.checksums import read_sums


class IngestedBatches(Struct, frozen=True):
    """What was ingested, by the records of the batches."""

    batches: Sequence[Batch]
    lost_records: Sequence[int] = ()
    """Batches that were ingested and whose records are gone."""
    dropped: dict[str, int] = {}
    """Days that were dropped on purpose, each with the last batch that was dropped."""

    def damages(self, sums: Iterable[Any]) -> list[str]:
        """The differences, in words. `sums` has a row for each batch and day of the table, from `batch_sums`."""
        found: dict[str, dict[int, Checksum]] = {}
        for row in sums:
            found.setdefault(str(row["date"]), {})[row["batch"]] = read_sums(row)
        damages = [f"the record of batch {batch} is gone, and its events with it" for batch in self.lost_records]
        expected = self._expected({day: sorted(batches) for day, batches in found.items()})
        for day in sorted(found.keys() | expected.keys()):
            there, recorded = found.get(day, {}), expected.get(day, {})
            for batch in sorted(there.keys() | recorded.keys()):
                has, had = there.get(batch, Checksum()), recorded.get(batch, Checksum())
                if has != had:
                    damages.append(_difference(day, batch, has, had))
        return damages

    def _expected(self, written: dict[str, list[int]]) -> dict[str, dict[int, Checksum]]:
        """The checksums of each day, by the batch that holds the events now.

        A compaction merges consecutive batches of a day under the number of the last one. So the events of a batch
        are in the first batch on disk with its number or a higher one.
        """
        expected: dict[str, dict[int, Checksum]] = {}
        for batch in self.batches:
            for day, checksum in batch.days.items():
                if batch.batch <= self.dropped.get(day, -1):
                    continue
                there = written.get(day, [])
                place = bisect_left(there, batch.batch)
                number = there[place] if place < len(there) else batch.batch
                known = expected.setdefault(day, {})
                known[number] = known.get(number, Checksum()) + checksum
        return expected


def _difference(day: str, batch: int, has: Checksum, had: Checksum) -> str:
    where = f"date={day}/batch={batch}"
    if has.events != had.events:
        return f"{where} has {has.events:,} events, but {had.events:,} were ingested"
    return f"{where} has {has.events:,} events, as many as were ingested, but their checksums differ"
