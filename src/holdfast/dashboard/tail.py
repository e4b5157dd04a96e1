"""The end of a tenant's log, read while a page shows it: the newest events, and how many jobs come and end a second.

Each look reads what was logged since the last one, up to `READ` events. If there is more, these count as a sample of
all events since then, and the newest events begin anew: a drain writes more than a page should read. Logs are read
forward only, so a long log is read from the first look on. While no page looks, the chart has a gap.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
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
"""A rate is the mean of this many seconds."""
FIRST_READS = 4
FORGET_S = 30.0
"""A look after this long starts over: if much was logged meanwhile, it is skipped."""
KINDS = ("enqueued", "completed", "failed", "retried")
KEPT, MAX_TAILS = 1000, 50
"""The events that are kept of one tail, and how many tails."""
NEWEST = 8
"""The newest failures that are kept."""


class LogTail:
    """The end of one tenant's log, of the queues that `sees` names."""

    def __init__(self, store: Store, tenant: str, sees: Callable[[str], bool]) -> None:
        self.events: deque[Event] = deque(maxlen=KEPT)
        """The newest events, the oldest of them first."""
        self.complete_from: int | None = None
        """Events before this time are left out: the log is too long. None: it was read from its beginning."""
        self.failures: list[Event] = []
        """The newest events of failed attempts, the newest first."""
        self._store, self._tenant, self._sees = store, tenant, sees
        self._counts: dict[int, dict[str, float]] = {}
        self._completed: dict[int, dict[str, float]] = {}
        """By queue, of the last minute alone: a tenant may have many queues."""
        self._offset: str | None = None
        self._read_at = self._looked_at = 0.0
        self._lock = asyncio.Lock()

    async def look(self, asked_at: float) -> None:
        """Read what is new, unless a look that began since `asked_at` did. Concurrent calls read one after another."""
        async with self._lock:
            if self._looked_at < asked_at:
                began = time.monotonic()
                await self._look(time.time())
                self._looked_at = began

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
        """Read a short log from its beginning. Skip a long one: later looks read what comes."""
        found: list[Event] = []
        for _ in range(FIRST_READS):
            try:
                page = await self._store.events(self._tenant, self._offset, READ)
            except EventsTrimmed:
                found = await self._skip()
                break
            found += page.events
            self._offset = page.next
            if not page.more:
                break
        else:
            found = await self._skip()
        began = found[0].at // 1000 if found else int(now)
        for bucket in range(max(began // BUCKET_S, int(now) // BUCKET_S - BUCKETS), int(now) // BUCKET_S + 1):
            self._touch(bucket)
        self._count(found, 1.0)
        self._keep(found)

    async def _read_on(self, offset: str, now: float) -> None:
        for bucket in range(int(self._read_at) // BUCKET_S, int(now) // BUCKET_S + 1):
            self._touch(bucket)
        try:
            page = await self._store.events(self._tenant, offset, READ)
        except EventsTrimmed:
            await self._skip()
            return
        self._offset = page.next
        if not page.more:
            self._count(page.events, 1.0)
            self._keep(page.events)
            return
        span_s = max(0.001, (page.events[-1].at - page.events[0].at) / 1000)
        self._count(page.events, max(1.0, (now - self._read_at) / span_s), at=int(now))
        await self._skip()

    async def _skip(self) -> list[Event]:
        """Go to the end of the log. The newest events are those that come."""
        self._offset, self.complete_from = await self._store.last_offset(), await self._store.now()
        self.events.clear()
        return []

    def _keep(self, events: Sequence[Event]) -> None:
        self.events.extend(event for event in events if self._sees(event.queue))

    def _touch(self, bucket: int) -> None:
        self._counts.setdefault(bucket, dict.fromkeys(KINDS, 0.0))

    def _count(self, events: Sequence[Event], weight: float, at: int | None = None) -> None:
        """Count each event `weight` times: at its own time, or at `at` if it is one of a sample."""
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
        """Events of a kind per second, in the last minute. None: not known yet."""
        known = self._lately()
        return sum(self._counts[one][kind] for one in known) / (BUCKET_S * len(known)) if known else None

    def completed(self, queue: str) -> float | None:
        """Completed jobs of a queue per second, in the last minute. None: not known yet."""
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
            "throughput", "Jobs enqueued and ended per second, in the last ten minutes", times, lines, per_second
        )


class LogTails:
    """The tails of the logs that are being looked at."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tails: dict[object, LogTail] = {}

    async def of(
        self, tenant: str, queues: frozenset[str] | None, sees: Callable[[str], bool], asked_at: float
    ) -> LogTail:
        """The tail of the queues that a viewer sees, as of `asked_at` or later."""
        tail = self._tails.pop((tenant, queues), None) or LogTail(self._store, tenant, sees)
        if len(self._tails) >= MAX_TAILS:
            del self._tails[next(iter(self._tails))]
        self._tails[tenant, queues] = tail
        await tail.look(asked_at)
        return tail
