"""The history of one job: its events if the log is short enough to find them, else what its record still says."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct, field

from holdfast.core.errors import EventsTrimmed
from holdfast.core.events import Event
from holdfast.core.job import TERMINAL, Job, JobState
from holdfast.store import Store

SCAN_LIMIT = 1000
"""The events that are read at a time."""
FIRST_READS = 2
"""How often the log is read for a job that is looked at for the first time. If that does not reach the end of the log,
the record has to do; else later looks continue there."""
MAX_KEPT = 200


class _Found(Struct):
    """The events of a job that were found, up to an offset."""

    offset: str | None = None
    is_hopeless: bool = False
    """The log is too long."""
    events: list[Event] = field(default_factory=list[Event])
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Of concurrent looks one reads on at a time: else an event would be found twice."""


class HistoryEntry(Struct, frozen=True):
    """One thing that happened to the job. `error` and `detail` say more."""

    at: int
    kind: str
    detail: str = ""
    worker: str = ""
    error: str = ""


class Span(Struct, frozen=True):
    """The job was in a state from `start` to `end`. `note` says more about it."""

    state: JobState
    start: int
    end: int
    note: str = ""


class JobHistory(Struct, frozen=True):
    """What happened, and how long the job was in each state."""

    entries: list[HistoryEntry]
    spans: list[Span]
    is_complete: bool
    """Whether every event of this life of the job is here."""


class Histories:
    """Reads the log for single jobs, from where the last look ended."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._found: dict[tuple[object, ...], _Found] = {}

    async def of(self, job: Job, now: int) -> JobHistory:
        """The history of a job as it is now."""
        key = (*job.key, job.seq)
        found = self._found.pop(key, None) or _Found()
        if len(self._found) >= MAX_KEPT:
            del self._found[next(iter(self._found))]
        self._found[key] = found
        async with found.lock:
            await self._read(job, found)
        events = [event for event in found.events if event.number <= job.events or not job.events]
        numbers = [event.number for event in events]
        if numbers and numbers[0] == 1 and numbers == [*range(1, len(numbers) + 1)] and len(numbers) == job.events:
            return JobHistory([entry_of(event) for event in events], spans(events, now), is_complete=True)
        return JobHistory(_from_record(job), _spans_of(job, now), is_complete=False)

    async def _read(self, job: Job, found: _Found) -> None:
        """Look for events of the job that are missing."""
        for _ in range(FIRST_READS):
            if found.is_hopeless or (found.events and found.events[-1].number >= job.events):
                return
            try:
                page = await self._store.events(job.tenant, found.offset, SCAN_LIMIT)
            except EventsTrimmed:
                found.is_hopeless = True
                return
            found.offset = page.next
            for event in page.events:
                if event.job_id == job.id and event.queue == job.queue:
                    if event.number == 1:
                        found.events.clear()  # An earlier life of the id.
                    found.events.append(event)
            if not page.more:
                return
        found.is_hopeless = True


_ENDS = {"completed": JobState.COMPLETED, "failed": JobState.FAILED, "canceled": JobState.CANCELED}
_WAITS = {"enqueued": JobState.SCHEDULED, "released": JobState.SCHEDULED, "replayed": JobState.READY}
_SILENT = ("extended", "progressed")


def spans(events: list[Event], now: int) -> list[Span]:
    """How long the job was in each state, from its events."""
    found: list[Span] = []
    for n, event in enumerate(events):
        if event.kind in _SILENT or event.kind in _ENDS or event.kind == "purged":
            continue
        end = next((later.at for later in events[n + 1 :] if later.kind not in _SILENT), now)
        if event.kind == "claimed":
            found.append(Span(JobState.LEASED, event.at, end, f"attempt {event.attempt} on {event.worker_id}"))
            continue
        due = min(max(event.at, int(event.data.get("visible_at", event.at))), max(end, event.at))
        delayed = _WAITS.get(event.kind, JobState.RETRYING)
        if due > event.at:
            found.append(Span(delayed, event.at, due))
        if end > due or due == event.at:
            found.append(Span(JobState.READY, due, max(end, due)))
    return found


def entry_of(event: Event) -> HistoryEntry:
    """What an event says."""
    error: dict[str, Any] = event.data.get("error") or {}
    text = f"{error.get('type', '')}: {error.get('message', '')}" if error else ""
    return HistoryEntry(event.at, event.kind, _detail(event), event.worker_id if event.kind == "claimed" else "", text)


def _detail(event: Event) -> str:
    data = event.data
    match event.kind:
        case "claimed":
            return f"attempt {event.attempt}"
        case "failed" | "released":
            return str(data.get("reason", "")).replace("_", " ")
        case "progressed":
            return f"{100 * float(data.get('fraction', 0)):.0f} % {data.get('message', '')}".strip()
        case _:
            by = data.get("by")
            return f"by {by}" if by else ""


def _from_record(job: Job) -> list[HistoryEntry]:
    """What the record keeps: the beginning, the errors, the last claim and the end."""
    entries = [HistoryEntry(job.enqueued_at, "enqueued")]
    entries += [
        HistoryEntry(error.at, "attempt failed", f"attempt {error.attempt}", error=f"{error.type}: {error.message}")
        for error in job.errors
    ]
    if job.claimed_at is not None and job.claimed_at >= max([error.at for error in job.errors], default=0):
        entries.append(HistoryEntry(job.claimed_at, "claimed", f"attempt {job.attempts}", job.worker_id))
    elif job.claimed_at is not None and job.errors:
        entries.insert(-1, HistoryEntry(job.claimed_at, "claimed", f"attempt {job.attempts}", job.worker_id))
    if job.finished_at is not None:
        entries.append(HistoryEntry(job.finished_at, str(job.state), job.reason.replace("_", " ")))
    return entries


def _spans_of(job: Job, now: int) -> list[Span]:
    """The last run and what came after it. Of an earlier time the record only knows when it began."""
    end = now if job.finished_at is None else job.finished_at
    if job.claimed_at is None:
        due = min(max(job.visible_at, job.enqueued_at), end)
        first = [Span(JobState.SCHEDULED, job.enqueued_at, due)] if due > job.enqueued_at else []
        return [*first, Span(JobState.READY, due, end)] if end > due or not first else first
    found = [Span(JobState.READY, job.enqueued_at, job.claimed_at, "before the last run")]
    if job.state is JobState.LEASED or job.state in TERMINAL:
        return [*found, Span(JobState.LEASED, job.claimed_at, end, f"attempt {job.attempts} on {job.worker_id}")]
    ended = min(max([error.at for error in job.errors], default=job.claimed_at), now)
    found.append(Span(JobState.LEASED, job.claimed_at, max(ended, job.claimed_at)))
    return [*found, Span(job.state, max(ended, job.claimed_at), now)]
