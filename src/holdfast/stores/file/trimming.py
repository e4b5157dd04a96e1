"""Trimming: cut the log to its limits, each tenant's events separately. [EVENT-2]

The remaining events of a chunk are written back as one chunk for each run without a gap. Every event keeps its number.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby

from msgspec import Struct

from holdfast.core.trimming import Trimming, excess
from holdfast.store import EVENTS_BOUND, EVENTS_BOUND_MS
from holdfast.stores.file import rows
from holdfast.stores.file.sql import SQL
from holdfast.stores.file.transaction import Transaction

TRIM = 20_000
"""The approximate limit of events that one call scans: this limits how long it holds the lock."""
BATCH = 100
"""Chunks read at a time."""
CHUNK_COST = 10
"""A chunk counts as at least this many scanned events."""


class _Cut(Struct):
    """The trimmed events of a tenant; see the table `cuts`."""

    n: int
    mark: int | None
    seen: int


class _Chunk(Struct, frozen=True):
    """A row of the log."""

    last: int
    first: int
    at: int
    lane: int | None
    mark: int
    packed: bytes | None
    """None: all its events are of one lane."""


def trim(t: Transaction) -> tuple[int, bool]:
    """Trim the log. Returns how many events were dropped, and whether there is more to scan."""
    return _Pass(t).run()


class _Pass:
    """One scan of a part of the log."""

    def __init__(self, t: Transaction) -> None:
        self._t = t
        self._left = TRIM
        self._owners: dict[int, str] = {}
        self._cuts: dict[str, _Cut] = {}
        self._gone: Counter[int] = Counter()
        self._clear()

    def _clear(self) -> None:
        self._dropped: list[tuple[int, int]] = []
        self._joins = False
        self._added: list[rows.Row] = []

    def run(self) -> tuple[int, bool]:
        """Returns how many events were dropped, and whether there is more to scan."""
        self._drop_old()
        if self._left > 0:
            self._drop_excess()
        self._write()
        self._save_counts()
        return self._gone.total(), self._left <= 0

    def _drop_old(self) -> None:
        """Drop the events over the age limit, up to the first younger chunk.

        If the clock was set back, old events may come after younger ones: those stay for now. [TIME-1]
        """
        too_old = self._t.now - EVENTS_BOUND_MS
        at = self._t.trimmed
        while chunks := self._chunks(at):
            for chunk in chunks:
                if chunk.at > too_old or self._left <= 0:
                    return
                self._cut(chunk, lambda _, __, count: count)
                at = chunk.last

    def _drop_excess(self) -> None:
        """Drop each tenant's events above the level, oldest first."""
        t = self._t
        if t.event - t.gone - self._gone.total() <= t.settings.keep_events:
            return
        kept: Counter[str] = Counter(dict(t.db.execute(SQL["kept_events"]).fetchall()))
        for lane, count in self._gone.items():
            kept[self._owner(lane)] -= count
        readers: dict[str, float] = dict(t.db.execute(SQL["slowest_readers"]).fetchall())
        of_all = readers.get("", math.inf)
        above = excess(+kept, t.settings.keep_events, EVENTS_BOUND)
        trimming = Trimming(above, lambda tenant: min(of_all, readers.get(tenant, of_all)))
        while trimming.pending and self._left > 0:
            # The pending tenants have no events before this.
            at = min(self._cut_of(tenant).seen for tenant in trimming.pending)
            chunks = self._chunks(at)
            if not chunks:
                return
            for chunk in chunks:
                self._cut(chunk, trimming.takes)
                at = chunk.last
                if not trimming.pending or self._left <= 0:
                    break
            for tenant in trimming.pending:
                cut = self._cut_of(tenant)
                cut.seen = max(cut.seen, at)

    # Chunk by chunk --------------------------------------------------------------------------------------------

    def _chunks(self, after: int) -> list[_Chunk]:
        self._write()
        return [_Chunk(*row) for row in self._t.db.execute(SQL["log_behind"], (after, BATCH))]

    def _cut(self, chunk: _Chunk, takes: Callable[[str, int, int], int]) -> None:
        """Drop events of a chunk. For each run of one lane's events, `takes` says how many to drop from its start."""
        self._left -= max(chunk.last - chunk.first + 1, CHUNK_COST)
        left: list[tuple[int, int]] = []
        for lane, first, last in _runs(chunk):
            tenant = self._owner(lane)
            gone = first + takes(tenant, first, last - first + 1) - 1
            if gone >= first:
                self._gone[lane] += gone - first + 1
                cut = self._cut_of(tenant)
                cut.n, cut.mark, cut.seen = gone, chunk.mark, max(cut.seen, gone)
            if gone < last:
                joins = bool(left) and left[-1][1] == gone
                left[-1:] = [(left[-1][0], last)] if joins else [*left[-1:], (gone + 1, last)]
        if left == [(chunk.first, chunk.last)]:
            self._joins = False
            return
        self._drop(chunk)
        if left:
            events = rows.unpack_events(chunk.packed or self._t.one("chunk", chunk.last))
            for first, last in left:
                part = events[first - chunk.first : last - chunk.first + 1]
                self._added.append(rows.chunk_row(first, part, chunk.mark))

    def _drop(self, chunk: _Chunk) -> None:
        """Drop a chunk, in one statement with the chunks directly before it."""
        begin = self._dropped.pop()[0] if self._joins else chunk.last
        self._dropped.append((begin, chunk.last))
        self._joins = True

    def _owner(self, lane: int) -> str:
        owner = self._owners.get(lane)
        if owner is None:
            owner = self._owners[lane] = self._t.one("lane_names", lane)
        return owner

    def _cut_of(self, tenant: str) -> _Cut:
        cut = self._cuts.get(tenant)
        if cut is None:
            row = self._t.db.execute(SQL["cut"], (tenant,)).fetchone()
            cut = self._cuts[tenant] = _Cut(0, None, self._t.trimmed) if row is None else _Cut(*row)
        return cut

    def _write(self) -> None:
        self._t.db.executemany(SQL["drop_events"], self._dropped)
        self._t.db.executemany(SQL["add_events"], self._added)
        self._clear()

    def _save_counts(self) -> None:
        t = self._t
        t.db.executemany(SQL["save_cut"], [(tenant, c.n, c.mark, c.seen) for tenant, c in self._cuts.items()])
        if not self._gone:
            return
        for lane, count in self._gone.items():
            t.delta(lane).events -= count
        first: int | None = t.one("first_behind", t.trimmed)
        t.trimmed = t.event if first is None else first - 1
        t.gone += self._gone.total()
        t.db.execute(SQL["set_trimmed"], (t.trimmed, t.gone))


def _runs(chunk: _Chunk) -> Iterator[tuple[int, int, int]]:
    """The runs of events of one lane in a chunk: lane, first and last number."""
    if chunk.lane is not None:
        yield chunk.lane, chunk.first, chunk.last
        return
    first = chunk.first
    for lane, run in groupby(rows.lanes_of(chunk.packed or b"")):
        last = first + sum(1 for _ in run) - 1
        yield lane, first, last
        first = last + 1
