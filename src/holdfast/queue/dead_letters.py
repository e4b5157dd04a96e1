"""Dead letters: replaying and purging them. [DEAD-1, KEEP-1]"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from holdfast.core.errors import InvalidOption
from holdfast.core.job import Job, JobKey, JobState, Purge, PurgeStatus, Replayed
from holdfast.core.names import check_by
from holdfast.jobs.options import duration_ms, instant_ms
from holdfast.queue.connection import Connection
from holdfast.queue.inspect import PAGE_LIMIT
from holdfast.queue.ticket import Owner, Ticket
from holdfast.store import ListQuery, ReplayAnswer

FAILED = frozenset({JobState.FAILED})


async def replay(connection: Connection, owner: Owner | None, key: JobKey, by: str = "") -> Ticket[Any]:
    """Replay one dead letter. `by`: who acts. Concurrent calls without it share a round trip. [STATE-3]"""
    connection.check_open()
    if check_by(by):
        (answer,) = await connection.counted("replay", connection.live.replay([key], by=by))
    else:
        answer = await connection.replays(key)
    ticket = _replay_ticket(owner, key, answer)
    if ticket.error is not None:
        raise ticket.error
    return ticket


async def replay_many(
    connection: Connection,
    owner: Owner | None,
    ids: Iterable[str] | None,
    queue: str | None = None,
    type: str | None = None,
    error: str | None = None,
    by: str = "",
) -> list[Ticket[Any]]:
    """Replay the dead letters of these ids, or all that match."""
    if ids is not None and (type is not None or error is not None):
        raise InvalidOption("ids", "give ids, or type and error to search by, not both")
    check_by(by)
    tickets: list[Ticket[Any]] = []
    async for keys in _named(connection, ids, queue) if ids is not None else _matching(connection, queue, type, error):
        answers = await connection.counted("replay", connection.live.replay(keys, by=by))
        tickets += [_replay_ticket(owner, key, answer) for key, answer in zip(keys, answers, strict=True)]
    return tickets


async def _named(connection: Connection, ids: Iterable[str], queue: str | None) -> AsyncIterator[Sequence[JobKey]]:
    keys = [connection.key(id, queue) for id in ids]
    for start in range(0, len(keys), PAGE_LIMIT):
        yield keys[start : start + PAGE_LIMIT]


async def _matching(
    connection: Connection, queue: str | None, type: str | None, error: str | None
) -> AsyncIterator[Sequence[JobKey]]:
    # A replayed job that fails again ends after this instant, so it is not replayed a second time.
    until = await connection.live.now()
    async for jobs in _failed_until(connection, queue, type, error, until):
        yield [job.key for job in jobs]


async def purge(connection: Connection, key: JobKey, by: str = "") -> PurgeStatus:
    """Remove one finished job. [KEEP-1]"""
    connection.check_open()
    check_by(by)
    job = await connection.gets(key)
    return "not_found" if job is None else (await _purge_as_read(connection, [job], by))[0]


async def purge_matching(
    connection: Connection,
    before: datetime | timedelta | None,
    queue: str | None = None,
    type: str | None = None,
    error: str | None = None,
    by: str = "",
) -> int:
    """Remove the dead letters that match. Returns how many."""
    check_by(by)
    now = await connection.live.now()
    if isinstance(before, timedelta):
        until = now - duration_ms("before", before)
    else:
        until = now if before is None else instant_ms("before", before)
    purged = 0
    async for jobs in _failed_until(connection, queue, type, error, until):
        purged += (await _purge_as_read(connection, jobs, by)).count("purged")
    return purged


async def _failed_until(
    connection: Connection, queue: str | None, type: str | None, error: str | None, until: int
) -> AsyncIterator[Sequence[Job]]:
    """Failed jobs that ended up to `until`, page by page, oldest first."""
    cursor: str | None = None
    while True:
        query = ListQuery(connection.tenant, connection.queue(queue), FAILED, type, error, cursor, PAGE_LIMIT)
        page = await connection.counted("list", connection.live.list(query))
        jobs = [job for job in page.jobs if (job.finished_at or 0) <= until]
        if jobs:
            yield jobs
        cursor = page.cursor
        if cursor is None or len(jobs) < len(page.jobs):
            return


def _replay_ticket(owner: Owner | None, key: JobKey, answer: ReplayAnswer) -> Ticket[Any]:
    if isinstance(answer, Replayed):
        return Ticket(owner, key, "replayed", JobState.READY)
    return Ticket(owner, key, "refused", None, error=answer)


async def _purge_as_read(connection: Connection, jobs: Sequence[Job], by: str) -> Sequence[PurgeStatus]:
    return await purge_jobs(connection, [Purge(job.key, job.finished_at, job.seq, by) for job in jobs], jobs)


async def purge_jobs(
    connection: Connection, items: Sequence[Purge], jobs: Sequence[Job | None] | None = None
) -> Sequence[PurgeStatus]:
    """Remove finished jobs and the blobs of their results. `jobs`: their records, if the caller has them. [KEEP-1]"""
    blobs = connection.blobs
    if jobs is None and blobs is not None:
        jobs = await connection.counted("get", connection.live.get([item.key for item in items]))
    answers = await connection.counted("purge", connection.live.purge(items))
    if jobs is not None and blobs is not None:
        found = zip(jobs, answers, strict=True)
        results = [job.result for job, answer in found if job is not None and answer == "purged"]
        await blobs.delete(result.blob for result in results if result is not None and result.blob)
    return answers
