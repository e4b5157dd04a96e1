"""Small records of an operator in the store, such as keys. They work on every store, by the `Store` contract alone.

A record is a job in a reserved queue of the tenant `-holdfast`, which no token and no Queue can name. It is scheduled a
thousand years ahead, so it is never claimed and never forgotten. [ENQ-5]
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.core.errors import QuotaExceeded, StoreBusy
from holdfast.core.job import DAY, Cancel, Envelope, JobKey, JobState, NewJob, Purge, Queued
from holdfast.core.names import OPERATOR
from holdfast.ids import new_id
from holdfast.store import ListQuery, Store

_KEPT = frozenset({JobState.SCHEDULED, JobState.READY})
_NEVER_MS = 1000 * 365 * DAY
_PAGE = 1000


class ServiceRecord(Struct, frozen=True):
    """One record, with its age by the store's clock."""

    id: str
    data: bytes
    age_ms: int


class Records:
    """The records of one kind."""

    def __init__(self, store: Store, queue: str) -> None:
        self._store = store
        self._queue = queue

    async def all(self) -> list[ServiceRecord]:
        """All records, the oldest first."""
        found: list[ServiceRecord] = []
        cursor: str | None = None
        while True:
            page = await self._store.list(ListQuery(OPERATOR, self._queue, _KEPT, cursor=cursor, limit=_PAGE))
            found += [ServiceRecord(job.id, job.envelope.payload, page.now - job.enqueued_at) for job in page.jobs]
            cursor = page.cursor
            if cursor is None:
                return sorted(found, key=lambda record: -record.age_ms)

    async def add(self, id: str, data: bytes) -> bool:
        """Add a record. False if its id exists. Of concurrent adds of one id, one returns True. [ENQ-2]"""
        new = NewJob(JobKey(OPERATOR, self._queue, id), Envelope("", data, request_id=new_id()), delay_ms=_NEVER_MS)
        (answer,) = await self._store.enqueue([new])
        if isinstance(answer, QuotaExceeded):
            raise StoreBusy(f"tenant {OPERATOR!r} must not have a quota")
        return isinstance(answer, Queued)

    async def remove(self, id: str) -> bool:
        """Remove a record with its data. Returns whether it existed."""
        key = JobKey(OPERATOR, self._queue, id)
        (job,) = await self._store.get([key])
        await self._store.cancel([Cancel(key)])
        await self._store.purge([Purge(key)])
        return job is not None and job.state in _KEPT
