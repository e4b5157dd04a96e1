"""Changes of many jobs by filter, one bounded step at a time. [CANCEL-1, DEAD-1]"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Unpack

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.errors import InvalidOption
from holdfast.core.job import WAITING, Cancel, Job, JobKey, JobState, Purge, Replayed
from holdfast.core.names import check_by
from holdfast.jobs.options import check_own_queue
from holdfast.queue.connection import Connection
from holdfast.queue.dead_letters import FAILED, purge_jobs
from holdfast.queue.filters import JobFilter, query_of
from holdfast.queue.inspect import PAGE_LIMIT
from holdfast.store import ListQuery, Page

Action = Literal["cancel", "replay", "purge"]
DONE = {"cancel": "canceled", "replay": "replayed", "purge": "purged"}
SAMPLE = 10
"""The most jobs that a step names."""
MAX_PAGES = 10
"""The most pages that a dry run reads."""


class BulkOptions(JobFilter, total=False):
    """Which jobs to change, and how much of it in one step."""

    dry_run: bool
    """Change nothing: only count."""
    cursor: str | None
    """Continue after an earlier step."""
    limit: int
    """The most jobs of the step: 1 to 1000."""
    by: str
    """The operator who acts, for the events."""


class BulkStep(Struct, frozen=True):
    """What one step did, or with `dry_run` would do. Call again with its `cursor` until that is None.

    A step reads a bounded number of jobs: it may change none and still have a cursor.
    """

    count: int
    """How many jobs were changed. In a dry run, how many match: at least this many, if there is a cursor."""
    sample: tuple[JobKey, ...]
    """Some of the jobs that match."""
    refused: dict[str, int] = {}
    """How many were not changed, by reason: they had changed in between, or are over the quota."""
    cursor: str | None = None
    dry_run: bool = False

    @property
    def more(self) -> bool:
        """Whether there may be more jobs that match."""
        return self.cursor is not None


async def change_where(
    connection: Connection,
    action: Action,
    *,
    running: bool = False,
    dry_run: bool = False,
    cursor: str | None = None,
    limit: int = PAGE_LIMIT,
    by: str = "",
    **chosen: Unpack[JobFilter],
) -> BulkStep:
    """One step of a change by filter."""
    query = await query_of(connection, chosen, newest=True, cursor=cursor, limit=limit)

    async def read(part: ListQuery) -> Page:
        return await connection.counted("list", connection.live.list(part))

    return await step(connection, action, restricted(query, action, running=running), read, dry_run=dry_run, by=by)


def restricted(query: ListQuery, action: Action, *, running: bool = False) -> ListQuery:
    """The same list of only those jobs that the action can change. Raises InvalidOption if there can be none."""
    if query.queue:
        check_own_queue(query.queue)
    possible = FAILED if action != "cancel" else WAITING | {JobState.LEASED} if running else WAITING
    states = query.states & possible
    if not states:
        hint = "; running jobs only if you say so" if action == "cancel" else ""
        raise InvalidOption("state", f"can be {', '.join(sorted(possible))}{hint}")
    return replace(query, states=states)


async def step(
    connection: Connection,
    action: Action,
    query: ListQuery,
    read: Callable[[ListQuery], Awaitable[Page]],
    *,
    dry_run: bool,
    by: str = "",
) -> BulkStep:
    """Change the jobs of one page of `query`, or count those of a few pages."""
    # The latest come first: what becomes due, fails or ends meanwhile is before the cursor, and no step meets it again.
    check_by(by)
    page = await read(query)
    if not dry_run:
        done = await _change(connection, action, page.jobs, by, running=JobState.LEASED in query.states)
        count = done.pop(DONE[action], 0)
        return BulkStep(count, _sample(page.jobs), dict(done), page.cursor)
    jobs, read_pages = list(page.jobs), 1
    while page.cursor is not None and len(jobs) < query.limit and read_pages < MAX_PAGES:
        page = await read(replace(query, cursor=page.cursor, limit=query.limit - len(jobs)))
        jobs += page.jobs
        read_pages += 1
    return BulkStep(len(jobs), _sample(jobs), {}, page.cursor, dry_run=True)


async def _change(
    connection: Connection, action: Action, jobs: Sequence[Job], by: str, *, running: bool
) -> Counter[str]:
    """Change these jobs. Returns how many were answered how."""
    if not jobs:
        return Counter()
    if action == "cancel":
        items = [Cancel(job.key, not running, job.seq, by) for job in jobs]
        return Counter(await connection.counted("cancel", connection.live.cancel(items)))
    if action == "purge":
        gone = [Purge(job.key, job.finished_at, job.seq, by) for job in jobs]
        return Counter(await purge_jobs(connection, gone, jobs))
    answers = await connection.counted("replay", connection.live.replay([job.key for job in jobs], by=by))
    return Counter("replayed" if isinstance(answer, Replayed) else answer.code for answer in answers)


def _sample(jobs: Sequence[Job]) -> tuple[JobKey, ...]:
    return tuple(job.key for job in jobs[:SAMPLE])
