"""What a lake has, against what was taken in to it: by batch and day, a count and a checksum."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from holdfast.pipeline.checksums import read_sums
from holdfast.pipeline.lake import Batch, Checksum


class TakenIn(Struct, frozen=True):
    """What was taken in, by the notes of the batches."""

    batches: Sequence[Batch]
    lost_notes: Sequence[int] = ()
    """Batches that were taken in, and whose notes are gone."""
    dropped: dict[str, int] = {}
    """Days that were dropped on purpose, each with the last batch of which that is so."""

    def damages(self, sums: Iterable[Any]) -> list[str]:
        """What differs, in words. `sums` has a row for each batch and day of the table, as `batch_sums` makes them."""
        found: dict[str, dict[int, Checksum]] = {}
        for row in sums:
            found.setdefault(str(row["date"]), {})[row["batch"]] = read_sums(row)
        said = [f"the note of batch {batch} is gone, and its events with it" for batch in self.lost_notes]
        expected = self._expected({day: sorted(batches) for day, batches in found.items()})
        for day in sorted(found.keys() | expected.keys()):
            there, noted = found.get(day, {}), expected.get(day, {})
            for batch in sorted(there.keys() | noted.keys()):
                has, had = there.get(batch, Checksum()), noted.get(batch, Checksum())
                if has != had:
                    said.append(_difference(day, batch, has, had))
        return said

    def _expected(self, written: dict[str, list[int]]) -> dict[str, dict[int, Checksum]]:
        """The checksums of each day by the batch that has its events.

        A compaction writes several batches of a day, one after another, under the number of the last. So what was
        taken in by a batch is in the first one from its number on.
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
        return f"{where} has {has.events:,} events, and {had.events:,} were taken in"
    return f"{where} has as many events as were taken in, {has.events:,}, and not the same: their checksums differ"
