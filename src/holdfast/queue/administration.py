"""What operators and dashboards ask of a tenant's queues: lists, counts, dead letters, events, settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from holdfast.budgets import TenantUsage, usage_of
from holdfast.core.budgets import Budgets, check_kept
from holdfast.core.errors import InvalidOption
from holdfast.core.fairness import check_weight
from holdfast.core.job import Job, JobKey, JobState, Purge, PurgeStatus, Replayed, SetResultTtl, TtlStatus
from holdfast.core.names import check_id
from holdfast.jobs.options import check_queue, duration_ms, instant_ms
from holdfast.queue.connection import Binding
from holdfast.queue.records import (
    Event,
    JobPage,
    JobRecord,
    Schedule,
    Stats,
    WorkerRecord,
    event_of,
    stats_of,
    worker_of,
)
from holdfast.queue.ticket import Ticket
from holdfast.queue.waiting import FALLBACK_S
from holdfast.schedules.schedules import scheduling
from holdfast.schedules.ticks import check_name
from holdfast.store import Hint, ListQuery, Reader, ReplayAnswer, TenantSettings

PAGE_LIMIT = 1000
_EVENTS = frozenset({Hint.EVENTS})
_FAILED = frozenset({JobState.FAILED})


class Administration(Binding):
    """The rarer half of a Queue."""

    async def stats(self, queue: str | None = None) -> Stats:
        """Counts per state, and the age of the oldest ready job, of one queue."""
        found = await self._counted("stats", self._live.stats(self.tenant, [self._queue(queue)]))
        return stats_of(found[0])

    async def queues(self) -> Sequence[Stats]:
        """The stats of every queue the tenant has, by name."""
        return [stats_of(stats) for stats in await self._counted("stats", self._live.stats(self.tenant))]

    async def list(
        self,
        *,
        queue: str | None = None,
        state: JobState | str | Iterable[JobState | str] | None = None,
        type: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> JobPage:
        """A page of a queue's jobs: waiting ones in claim order, then leased, then finished.

        `type` filters while paging: a page may be empty and still have a cursor.
        """
        states = _states(state)
        return await self._page(ListQuery(self.tenant, self._queue(queue), states, type, cursor=cursor, limit=limit))

    # Dead letters -----------------------------------------------------------------------------------------

    async def dead_letters(
        self,
        *,
        queue: str | None = None,
        type: str | None = None,
        error: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> JobPage:
        """A page of failed jobs, oldest first. [DEAD-1]

        `error` is the last error's type or fingerprint, or a part of its message.
        """
        return await self._page(ListQuery(self.tenant, self._queue(queue), _FAILED, type, error, cursor, limit))

    async def replay(self, id: str, *, queue: str | None = None) -> Ticket[Any]:
        """Start a dead letter again: same id, attempts from 0, recorded. [STATE-3]

        Raises JobNotFound, NotReplayable (also to those who lose a race) or QuotaExceeded.
        """
        self._check_open()
        key = self._key(id, queue)
        ticket = self._replay_ticket(key, await self._replays(key))
        if ticket.error is not None:
            raise ticket.error
        return ticket

    async def replay_many(
        self,
        ids: Iterable[str] | None = None,
        *,
        queue: str | None = None,
        type: str | None = None,
        error: str | None = None,
    ) -> Sequence[Ticket[Any]]:
        """Start the named dead letters again, or all that match. [DEAD-1]

        Answers item by item: a ticket is "replayed", or "refused" with its `error`. Jobs that fail again in the
        meantime are not taken a second time.
        """
        tickets: list[Ticket[Any]] = []
        if ids is not None:
            if type is not None or error is not None:
                raise InvalidOption("ids", "give ids, or type and error to search by, not both")
            keys = [self._key(id, queue) for id in ids]
            for start in range(0, len(keys), PAGE_LIMIT):
                await self._replay_all(keys[start : start + PAGE_LIMIT], tickets)
            return tickets
        async for page in self._dead(queue, type, error, await self._live.now()):
            await self._replay_all([job.key for job in page], tickets)
        return tickets

    async def purge(self, id: str, *, queue: str | None = None) -> PurgeStatus:
        """Forget a finished job now: "purged", "not_terminal" or "not_found". Recorded as an event. [KEEP-1]"""
        self._check_open()
        key = self._key(id, queue)
        job = await self._gets(key)
        return (await self._purge([] if job is None else [job]) or ["not_found"])[0]

    async def purge_dead_letters(
        self,
        *,
        before: datetime | timedelta | None = None,
        queue: str | None = None,
        type: str | None = None,
        error: str | None = None,
    ) -> int:
        """Forget failed jobs that ended before an instant, or longer ago than a duration; how many. [DEAD-1]"""
        now = await self._live.now()
        if isinstance(before, timedelta):
            until = now - duration_ms("before", before)
        else:
            until = now if before is None else instant_ms("before", before)
        purged = 0
        async for page in self._dead(queue, type, error, until):
            purged += (await self._purge(page)).count("purged")
        return purged

    async def set_result_ttl(self, id: str, ttl: timedelta | float, *, queue: str | None = None) -> TtlStatus:
        """Keep a finished job for `ttl` from now: "updated", "not_terminal" or "not_found". [RESULT-1]

        Raises InvalidOption over the store's ceiling, 30 days unless its operator has raised it.
        """
        kept_ms = check_kept("result_ttl", duration_ms("result_ttl", ttl), self._ceiling_ms)
        item = SetResultTtl(self._key(id, queue), kept_ms)
        return (await self._counted("set_result_ttl", self._live.set_result_ttl([item])))[0]

    # Schedules --------------------------------------------------------------------------------------------

    async def schedules(self) -> Sequence[Schedule]:
        """The tenant's schedules, by name."""
        found = await self._counted("schedules", scheduling(self._live).list_schedules(self.tenant))
        return [Schedule(one) for one in found]

    async def get_schedule(self, name: str) -> Schedule | None:
        """A schedule as it is now, or None. Another tenant's answers exactly like none. [TENANT-2]"""
        found = await self._counted("schedules", scheduling(self._live).get_schedule(self.tenant, check_name(name)))
        return None if found is None else Schedule(found)

    async def unschedule(self, name: str) -> bool:
        """End a schedule; whether there was one. Jobs that it has enqueued stay as they are."""
        return await self._counted("schedule", scheduling(self._live).remove_schedule(self.tenant, check_name(name)))

    # Events -----------------------------------------------------------------------------------------------

    async def events(self, after: str | None = None, *, follow: bool = False) -> AsyncGenerator[Event]:
        """The tenant's events in order, after an offset (None: the oldest kept). [EVENT-2, EVENT-3]

        With `follow` it goes on with what comes, woken by the store and not by polling. Raises EventsTrimmed
        where events in between are gone, InvalidOption where `after` is no offset of this store.
        """
        _text("after", after)
        grown = asyncio.Event()
        stop: Callable[[], None] | None = None
        try:
            while True:
                if follow and stop is None:
                    stop = self._live.listen(lambda _: grown.set(), _EVENTS)
                grown.clear()
                page = await self._counted("events", self._live.events(self.tenant, after, PAGE_LIMIT))
                after = page.next
                for event in page.events:
                    yield event_of(event)
                if page.more:
                    continue
                if not follow:
                    return
                # A hint can be lost with the process that should have sent it.
                with suppress(TimeoutError):
                    await asyncio.wait_for(grown.wait(), FALLBACK_S)
        finally:
            if stop is not None:
                stop()

    async def last_offset(self) -> str:
        """The end of the log as it is now: `events(after=...)` from here shows only what is still to come."""
        return await self._counted("last_offset", self._live.last_offset())

    async def register_reader(self, name: str, after: str | None = None) -> str:
        """Have trimming wait for a reader of that name; where it starts: `after`, or the end of the log."""
        offset = await self.last_offset() if after is None else after
        await self.advance_reader(name, offset)
        return offset

    async def advance_reader(self, name: str, offset: str) -> None:
        """The reader has dealt with everything up to `offset`; it never goes back. [EVENT-2]"""
        reader = Reader(self.tenant, check_id(name, "reader"), _text("offset", offset) or "")
        await self._counted("set_reader", self._live.set_reader(reader))

    async def drop_reader(self, name: str) -> bool:
        """Forget a reader; whether there was one."""
        return await self._counted("drop_reader", self._live.drop_reader(self.tenant, name))

    async def readers(self) -> Sequence[Reader]:
        """The tenant's registered readers."""
        return await self._counted("readers", self._live.readers(self.tenant))

    # Settings and workers ---------------------------------------------------------------------------------

    async def pause(self, queue: str | None = None) -> None:
        """Hand out no more jobs of a queue; it still takes new ones. [CLAIM-5]"""
        await self._counted("pause", self._live.pause(self.tenant, self._queue(queue), paused=True))

    async def resume(self, queue: str | None = None) -> None:
        """Go on handing out a paused queue's jobs."""
        await self._counted("pause", self._live.pause(self.tenant, self._queue(queue), paused=False))

    async def set_tenant(
        self,
        *,
        weight: float | None = None,
        max_waiting: int | None = None,
        queue: str | None = None,
        budgets: Budgets | None = None,
    ) -> None:
        """Set the tenant's weight and quota, for one queue or, without, for all together. [TENANT-4, TENANT-5]

        `budgets` are the tenant's as a whole; in them 0 is no limit. What is None stays as it is. Raises InvalidOption.
        """
        if budgets is not None and queue is not None:
            raise InvalidOption("budgets", "are a tenant's as a whole, not one queue's")
        if weight is not None:
            check_weight(weight)
        if max_waiting is not None and (not isinstance(max_waiting, int) or not 0 <= max_waiting <= 2**53):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption("max_waiting", f"{max_waiting!r} is not a whole number from 0 to 2^53")
        checked = None if budgets is None else budgets.check()
        settings = TenantSettings(None if queue is None else check_queue(queue), weight, max_waiting, checked)
        await self._counted("set_tenant", self._live.set_tenant(self.tenant, settings))

    async def tenant_settings(self) -> Sequence[TenantSettings]:
        """The tenant's own settings, then those of its queues by name."""
        return await self._counted("tenant_settings", self._live.tenant_settings(self.tenant))

    async def usage(self) -> TenantUsage:
        """What the tenant keeps and may keep, budget by budget: counts that are at most 10 s old. [TENANT-5]"""
        return await self._counted("usage", usage_of(self._live, self.tenant))

    async def workers(self) -> Sequence[WorkerRecord]:
        """The living workers that serve this tenant."""
        return [worker_of(w) for w in await self._counted("workers", self._live.workers(self.tenant))]

    # The small steps --------------------------------------------------------------------------------------

    async def _page(self, query: ListQuery) -> JobPage:
        if not isinstance(query.limit, int) or not 1 <= query.limit <= PAGE_LIMIT:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption("limit", f"{query.limit!r} is not a whole number from 1 to {PAGE_LIMIT}")
        _text("cursor", query.cursor)
        page = await self._counted("list", self._live.list(query))
        return JobPage(map(JobRecord, page.jobs), page.cursor)

    async def _dead(
        self, queue: str | None, type: str | None, error: str | None, until: int
    ) -> AsyncIterator[Sequence[Job]]:
        """Failed jobs that ended up to `until`, page by page, oldest first."""
        cursor: str | None = None
        while True:
            query = ListQuery(self.tenant, self._queue(queue), _FAILED, type, error, cursor, PAGE_LIMIT)
            page = await self._counted("list", self._live.list(query))
            jobs = [job for job in page.jobs if (job.finished_at or 0) <= until]
            if jobs:
                yield jobs
            cursor = page.cursor
            if cursor is None or len(jobs) < len(page.jobs):
                return

    async def _replay_all(self, keys: Sequence[JobKey], tickets: Any) -> None:
        for key, answer in zip(keys, await self._replay_batch(keys), strict=True):
            tickets.append(self._replay_ticket(key, answer))

    def _replay_ticket(self, key: JobKey, answer: ReplayAnswer) -> Ticket[Any]:
        if isinstance(answer, Replayed):
            return Ticket(self, key, "replayed", JobState.READY)
        return Ticket(self, key, "refused", None, error=answer)

    async def _purge(self, jobs: Sequence[Job]) -> Sequence[PurgeStatus]:
        items = [Purge(job.key, job.finished_at) for job in jobs]
        answers = await self._counted("purge", self._live.purge(items))
        blobs = [
            job.result.blob
            for job, answer in zip(jobs, answers, strict=True)
            if answer == "purged" and job.result is not None and job.result.blob
        ]
        if blobs and self.blobs is not None:
            await self.blobs.delete(blobs)
        return answers


def _text(option: str, value: str | None) -> str | None:
    if value is not None and not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(option, f"{value!r} is not a string that came from this queue")
    return value


def _states(state: JobState | str | Iterable[JobState | str] | None) -> frozenset[JobState]:
    if state is None:
        return frozenset(JobState)
    wanted = [state] if isinstance(state, str) else list(state)
    try:
        return frozenset(JobState(one) for one in wanted)
    except ValueError as error:
        known = ", ".join(JobState)
        raise InvalidOption("state", f"{error}; there are {known}") from None
