"""How many jobs are enqueued and end in each second, from the log, while a page shows it.

A look reads what was logged since the last one, up to `READ` events. If there was more, it takes these as a sample for
the time since: a drain writes more than a page should read. Where no page looked, there is a gap.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from holdfast.charts import Chart, Series
from holdfast.core.errors import EventsTrimmed
from holdfast.core.events import Event
from holdfast.dashboard.showing import per_second
from holdfast.store import Store

READ = 1000
BUCKET_S = 5
BUCKETS = 120
LATELY_S = 60
"""What a rate is the mean of."""
FIRST_READS = 2
FORGET_S = 30.0
"""A look after this long begins anew: what was logged meanwhile is not read."""
KINDS = ("enqueued", "completed", "failed", "retried")
MAX_KEPT = 100
NEWEST = 8
"""The newest failures that are kept."""


class Rates:
    """The rates of one tenant."""

    def __init__(self, store: Store, tenant: str, sees: Callable[[str], bool]) -> None:
        self.failures: list[Event] = []
        """The newest events of failed attempts, the newest first."""
        self._store, self._tenant, self._sees = store, tenant, sees
        self._counts: dict[int, dict[str, float]] = {}
        self._completed: dict[int, dict[str, float]] = {}
        """By queue, of the last minute alone: a tenant may have many queues."""
        self._offset: str | None = None
        self._read_at = 0.0
        self._lock = asyncio.Lock()

    async def look(self) -> None:
        """Read on. Of concurrent calls one reads at a time."""
        async with self._lock:
            await self._look(time.time())

    async def _look(self, now: float) -> None:
        if self._offset is None or now - self._read_at > FORGET_S:
            await self._begin(now)
        else:
            await self._read_on(self._offset, now)
        self._read_at = now
        oldest = int(now) // BUCKET_S - BUCKETS
        for bucket in [bucket for bucket in self._counts if bucket < oldest]:
            del self._counts[bucket]
        for bucket in [bucket for bucket in self._completed if bucket < int(now - LATELY_S) // BUCKET_S]:
            del self._completed[bucket]

    async def _begin(self, now: float) -> None:
        """A short log is read from its beginning, of a long one only what comes."""
        found: list[Event] = []
        offset = self._offset
        for _ in range(FIRST_READS):
            try:
                page = await self._store.events(self._tenant, offset, READ)
            except EventsTrimmed:
                found, offset = [], await self._store.last_offset()
                break
            found += page.events
            offset = page.next
            if not page.more:
                break
        else:
            found, offset = [], await self._store.last_offset()
        self._offset = offset
        began = found[0].at // 1000 if found else int(now)
        for bucket in range(max(began // BUCKET_S, int(now) // BUCKET_S - BUCKETS), int(now) // BUCKET_S + 1):
            self._touch(bucket)
        self._count(found, 1.0)

    async def _read_on(self, offset: str, now: float) -> None:
        for bucket in range(int(self._read_at) // BUCKET_S, int(now) // BUCKET_S + 1):
            self._touch(bucket)
        try:
            page = await self._store.events(self._tenant, offset, READ)
        except EventsTrimmed:
            self._offset = await self._store.last_offset()
            return
        self._offset = page.next
        if not page.more:
            self._count(page.events, 1.0)
            return
        span_s = max(0.001, (page.events[-1].at - page.events[0].at) / 1000)
        self._count(page.events, max(1.0, (now - self._read_at) / span_s), at=int(now))
        self._offset = await self._store.last_offset()

    def _touch(self, bucket: int) -> None:
        self._counts.setdefault(bucket, dict.fromkeys(KINDS, 0.0))

    def _count(self, events: Sequence[Event], weight: float, at: int | None = None) -> None:
        """Count events where they belong; those of a sample, by their weight, at `at`."""
        for event in events:
            if event.kind not in KINDS or not self._sees(event.queue):
                continue
            bucket = (event.at // 1000 if at is None else at) // BUCKET_S
            self._touch(bucket)
            self._counts[bucket][event.kind] += weight
            if event.kind == "completed":
                by_queue = self._completed.setdefault(bucket, {})
                by_queue[event.queue] = by_queue.get(event.queue, 0.0) + weight
            if event.kind in ("failed", "retried"):
                self.failures.insert(0, event)
                del self.failures[NEWEST:]

    def rate(self, kind: str) -> float | None:
        """Events of a kind a second, lately. None: nothing is known yet."""
        known = self._lately()
        return sum(self._counts[one][kind] for one in known) / (BUCKET_S * len(known)) if known else None

    def completed(self, queue: str) -> float | None:
        """Jobs of a queue that completed a second, lately. None: nothing is known yet."""
        known = self._lately()
        found = sum(self._completed.get(one, {}).get(queue, 0.0) for one in known)
        return found / (BUCKET_S * len(known)) if known else None

    def _lately(self) -> list[int]:
        """The buckets of the last minute that are known, without the current one."""
        now = int(time.time()) // BUCKET_S
        return [one for one in range(now - LATELY_S // BUCKET_S, now) if one in self._counts]

    def chart(self) -> Chart:
        """The last ten minutes, without the current bucket."""
        now = int(time.time()) // BUCKET_S
        buckets = range(now - BUCKETS, now)
        times = [datetime.fromtimestamp(bucket * BUCKET_S, UTC) for bucket in buckets]

        def line(kind: str, color: str, *, filled: bool = False) -> Series:
            known = [self._counts.get(bucket) for bucket in buckets]
            values = [None if counts is None else counts[kind] / BUCKET_S for counts in known]
            return Series(kind, color, values, filled=filled)

        lines = [
            line("enqueued", "s-ready", filled=True),
            line("completed", "s-completed"),
            line("retried", "s-retrying"),
            line("failed", "s-failed"),
        ]
        return Chart(
            "throughput", "Jobs enqueued and ended a second, in the last ten minutes", times, lines, per_second
        )


class AllRates:
    """The rates of the tenants that are being looked at."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rates: dict[object, Rates] = {}

    async def of(self, tenant: str, queues: frozenset[str] | None, sees: Callable[[str], bool]) -> Rates:
        """The rates of the queues that a viewer sees, as of now."""
        rates = self._rates.pop((tenant, queues), None) or Rates(self._store, tenant, sees)
        if len(self._rates) >= MAX_KEPT:
            del self._rates[next(iter(self._rates))]
        self._rates[tenant, queues] = rates
        await rates.look()
        return rates
