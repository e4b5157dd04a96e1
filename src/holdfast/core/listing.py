"""Lists of jobs: which jobs, and in which order."""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct

from holdfast.core import lifecycle
from holdfast.core.errors import InvalidName, InvalidOption
from holdfast.core.events import fingerprint
from holdfast.core.job import WAITING, Job, JobState
from holdfast.core.names import RESERVED, check_queue

SCAN_LIMIT = 10_000
"""The most jobs that one page of a list reads before it returns what it has found."""

GROWTH = 4
"""How many times more jobs each further read of a page asks for: few of them match."""

Place = tuple[int, int]
"""A position in a list by time: the time of a job's state, and the job's sequence number. No two jobs share one."""
LAST_TIME = 2**49 - 1
"""After every time of a job."""
LAST_SEQ = 2**53
"""After every sequence number."""
_CURSOR = re.compile(r"(?:([0-9]{1,15})\.([0-9]{1,18}))?(?:@(.+))?", re.ASCII)


class ListQuery(Struct, frozen=True):
    """Which jobs to list: waiting ones in claim order, leased ones by deadline, finished ones by time of ending.

    With `newest` all of them by the time of their state, the latest first. The filters apply while paging: a page may
    be empty and still have a cursor.
    """

    tenant: str
    queue: str
    """With `newest`, "" means all queues but Holdfast's own."""
    states: frozenset[JobState] = frozenset(JobState)
    type: str | None = None
    error: str | None = None
    """The last error's exact type or fingerprint, or a part of its message."""
    cursor: str | None = None
    limit: int = 100
    newest: bool = False
    id: str | None = None
    """The beginning of the id."""
    since: int | None = None
    """Only jobs whose time is this or later."""
    until: int | None = None
    """Only jobs whose time is earlier."""
    queues: frozenset[str] | None = None
    """Without a `queue`: only these."""
    scan: int = SCAN_LIMIT
    """The most jobs that the page reads."""
    is_plain: bool = False
    """Whether states are the only filter, in one queue. Found out by the query itself."""

    def __post_init__(self) -> None:
        if not self.queue and not self.newest:
            raise InvalidOption("queue", "name one; only a list by time covers all queues")
        filters = (self.type, self.error, self.id, self.since, self.until)
        msgspec.structs.force_setattr(self, "is_plain", bool(self.queue) and filters == (None,) * len(filters))

    def matches(self, job: Job, now: int) -> bool:
        """Whether a job of this tenant belongs in the list at `now`."""
        if lifecycle.forgotten(job, now) or lifecycle.shown(job, now) not in self.states:
            return False
        return self.is_plain or self._fits(job)

    def _fits(self, job: Job) -> bool:
        if self.type is not None and job.envelope.type != self.type:
            return False
        if self.id is not None and not job.id.startswith(self.id):
            return False
        if not self.queue and not self.includes(job.queue):
            return False
        if self.since is not None and place_of(job)[0] < self.since:
            return False
        if self.until is not None and place_of(job)[0] >= self.until:
            return False
        if self.error is None:
            return True
        last = job.errors[-1] if job.errors else None
        return last is not None and (self.error in (last.type, fingerprint(last)) or self.error in last.message)

    def includes(self, queue: str) -> bool:
        """Whether a list of all queues includes this one."""
        return not queue.startswith(RESERVED) if self.queues is None else queue in self.queues

    def before(self) -> Place:
        """A list by time has the jobs before this place. Raises InvalidOption if the cursor is of another list."""
        place = parse_cursor(self.cursor)[0]
        return place if self.until is None else min(place, (max(0, self.until), 0))


def place_of(job: Job) -> Place:
    """Where a job is in a list by time: when it is due, when its lease ends, or when it ended."""
    if job.state in WAITING:
        return job.visible_at, job.seq
    return (job.deadline if job.state is JobState.LEASED else job.finished_at or 0), job.seq


def cursor_text(place: Place | None, group: str = "") -> str:
    """The cursor of a list by time: after a place, in the queues after `group`."""
    return ("" if place is None else f"{place[0]}.{place[1]}") + (f"@{group}" if group else "")


def parse_cursor(cursor: str | None) -> tuple[Place, str]:
    """The place that a list by time continues before, and the queue that its group of queues follows."""
    found = _CURSOR.fullmatch(cursor or "")
    try:
        group = check_queue(found[3]) if found and found[3] else ""
    except InvalidName:
        found, group = None, ""
    if found is None or cursor == "":
        raise InvalidOption("cursor", f"{cursor!r} did not come from a list")
    place = (LAST_TIME, 0) if found[1] is None else (min(int(found[1]), LAST_TIME), min(int(found[2]), LAST_SEQ))
    return place, group
