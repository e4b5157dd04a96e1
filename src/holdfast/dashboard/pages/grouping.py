"""Dead letters in groups, by the fingerprint of their last error. A look is bounded, however many there are."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.core.events import fingerprint
from holdfast.core.job import AttemptError, Job, JobState
from holdfast.dashboard.pages.queues import queue_page
from holdfast.dashboard.view import View
from holdfast.queue.dead_letters import FAILED
from holdfast.store import ListQuery

READ, FIRST = 100, 10
"""The most dead letters that are read at a time, and how many at first: each can have half a MiB."""
READ_BYTES = 4 * 1024 * 1024
"""About the most bytes of payloads and errors that are read at a time."""
LOOK, LOOK_S = 2000, 0.15
"""The most dead letters of one look, and the longest time it takes."""

SHORT_PAGE = 20
"""Up to this many queues, all are read, even those whose count of dead letters is 0."""


class Choice(Struct, frozen=True):
    """Which dead letters. An empty field means any."""

    queue: str = ""
    error: str = ""
    """A fingerprint; a type or a part of a message works too."""
    until: int = 0
    """Only those that failed up to this instant."""

    def options(self) -> dict[str, str]:
        """As options of a command, and as parameters of a page."""
        return {name: text for name, text in (("queue", self.queue), ("error", self.error)) if text}


class ErrorGroup(Struct):
    """Dead letters with the same fingerprint."""

    fingerprint: str
    since: int
    newest: int
    sample: Job
    """The newest of them."""
    count: int = 0
    queues: Counter[str] = field(default_factory=Counter[str])
    types: Counter[str] = field(default_factory=Counter[str])

    @property
    def error(self) -> AttemptError | None:
        """The last error of the sample."""
        return self.sample.errors[-1] if self.sample.errors else None

    def add(self, job: Job) -> None:
        """Count one more."""
        at = job.finished_at or 0
        self.since = min(self.since, at)
        if at >= self.newest:
            self.newest, self.sample = at, job
        self.count += 1
        self.queues[job.queue] += 1
        self.types[job.envelope.type] += 1


class Look(Struct):
    """What one look found of the dead letters that match."""

    looked: int = 0
    groups: dict[str, ErrorGroup] = field(default_factory=dict[str, ErrorGroup])
    jobs: list[Job] = field(default_factory=list[Job])
    """The first ones, as many as the caller keeps."""
    rest: str = ""
    """Where the next look begins; "" if this one saw them all."""

    @property
    def largest_first(self) -> list[ErrorGroup]:
        """The groups, the largest first."""
        return sorted(self.groups.values(), key=lambda group: (-group.count, -group.newest))


async def look(
    view: View, choice: Choice, at: str = "", *, most: int | None = None, seconds: float | None = None, keep: int = 0
) -> Look:
    """Group the dead letters that match, beginning at the place `at`."""
    found, began = Look(), time.monotonic()
    most, seconds = LOOK if most is None else most, LOOK_S if seconds is None else seconds
    async with aclosing(pages(view, choice, at, min(READ, most))) as parts:
        async for jobs, rest in parts:
            for job in jobs:
                # Drop the payload: no page shows it here, and a look keeps jobs of many reads.
                job.envelope = replace(job.envelope, payload=b"")
                _add(found.groups, job)
            found.jobs += jobs[: max(0, keep - len(found.jobs))]
            found.looked += len(jobs)
            found.rest = rest
            if found.looked >= most or time.monotonic() - began > seconds:
                break
    return found


async def pages(view: View, choice: Choice, at: str, size: int) -> AsyncGenerator[tuple[Sequence[Job], str]]:
    """The dead letters that match, page by page, and where the next page begins ("" after the last one).

    One queue after another, each from the oldest on. If there are many queues, those whose count is 0 are not read,
    although counts of finished jobs can be 10 s old.
    """
    table, first, cursor = [*at.split(",", 2), "", ""][:3]
    step = min(size, FIRST)
    while True:
        names, following = await _queues(view, choice, table, first)
        behind = f"{following},," if following else ""
        if not names:
            yield [], behind
        for n, name in enumerate(names):
            after = f"{table},{names[n + 1]}," if n + 1 < len(names) else behind
            cursor = cursor if name == first else ""
            while True:
                query = ListQuery(view.tenant, name, FAILED, None, choice.error or None, cursor or None, step)
                page = await view.store.list(query)
                step = min(size, max(1, READ_BYTES // max(map(_bytes_of, page.jobs), default=1)))
                await asyncio.sleep(0)  # A memory store never yields to the loop by itself.
                jobs = [job for job in page.jobs if not choice.until or (job.finished_at or 0) <= choice.until]
                # The oldest come first: if one failed after `until`, so did all that follow.
                cursor = page.cursor or "" if len(jobs) == len(page.jobs) else ""
                yield jobs, f"{table},{name},{cursor}" if cursor else after
                if not cursor:
                    break
        if not following:
            return
        table, first, cursor = following, "", ""


async def _queues(view: View, choice: Choice, table: str, first: str) -> tuple[list[str], str]:
    if choice.queue:
        return [choice.queue], ""
    page = await queue_page(view, table or None)
    is_short = len(page.queues) <= SHORT_PAGE
    names = [
        one.queue
        for one in page.queues
        if one.queue >= first and view.sees(one.queue) and (is_short or one.counts.get(JobState.FAILED))
    ]
    return names, page.cursor or ""


def _bytes_of(job: Job) -> int:
    return 500 + len(job.envelope.payload) + sum(len(error.message) + len(error.traceback) for error in job.errors)


def _add(groups: dict[str, ErrorGroup], job: Job) -> None:
    name = fingerprint(job.errors[-1]) if job.errors else ""
    if name not in groups:
        at = job.finished_at or 0
        groups[name] = ErrorGroup(name, at, at, job)
    groups[name].add(job)
