"""Everything the store keeps, and the steps that change it: `add`, `change`, `forget`.

Each step keeps the tables in line with each other: records, indexes, counts, keys, events and hints.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from msgspec.structs import replace

from holdfast.core import dedup
from holdfast.core.errors import QuotaExceeded
from holdfast.core.events import Event
from holdfast.core.job import PURGE_COUNT_MS, PURGE_COUNTS_DROPPED, WAITING, Job, JobState, PurgeCount
from holdfast.opening import CommonOptions
from holdfast.store import Hint
from holdfast.stores.memory.jobs import JobTable
from holdfast.stores.memory.keys import KeyTable
from holdfast.stores.memory.log import EventLog
from holdfast.stores.memory.notifications import Notifier
from holdfast.stores.memory.queues import TenantQueue
from holdfast.stores.memory.settings import SettingsTable
from holdfast.stores.memory.workers import WorkerTable


class Tables:
    """The tables. Use them only under the store's lock."""

    def __init__(self, options: CommonOptions) -> None:
        self.options = options
        self.jobs = JobTable()
        self.keys = KeyTable()
        self.log = EventLog()
        self.settings = SettingsTable()
        self.workers = WorkerTable()
        self.notifier = Notifier()
        self.last_seq = 0
        self.last_token = 0
        """One counter for all leases: no token is granted twice. [LEASE-5]"""
        self.purges: dict[str, tuple[PurgeCount, int]] = {}
        """By tenant: the count of its purges and the instant of the last one. The oldest is first."""
        self.dropped_blobs: list[str] = []
        """Blobs of results of forgotten jobs; `prune` hands out their names."""

    def add(self, job: Job, event: Event, now: int) -> None:
        """Add a new job."""
        self.jobs.tenant_queue(job.tenant, job.queue).jobs[job.id] = job
        self.jobs.count(job, +1)
        self._index(job, now)
        self.append(event)

    def change(self, job: Job, transition: Callable[[], Event], now: int) -> None:
        """Make a transition of `core.lifecycle`, with all that follows from it. [EVENT-1]"""
        self.jobs.count(job, -1)
        event = transition()
        self.jobs.count(job, +1)
        if job.envelope.idempotency is not None and dedup.is_released(job):
            self.keys.release(job)
        self._index(job, now)
        self.append(event)

    def _index(self, job: Job, now: int) -> None:
        """Put a job into the index of its state, and note the hint. Its entry in the old index is stale from now on."""
        if job.state in WAITING:
            self.jobs.queues[job.queue].put(job, now)
            self.notifier.add(Hint.READY, job.tenant, job.queue)
        elif job.state is JobState.LEASED:
            self.jobs.index_lease(job)
        else:
            self.jobs.index_retention(job)
            self.notifier.add(Hint.DONE, job.tenant, job.queue, job.id)

    def append(self, event: Event) -> None:
        """Log an event."""
        self.log.append(event)
        self.notifier.add(Hint.EVENTS)

    def forget(self, job: Job) -> None:
        """Remove an ended job. [KEEP-1]"""
        self.jobs.remove(job)
        if job.result is not None and job.result.blob:
            self.dropped_blobs.append(job.result.blob)

    def over_quota(self, tenant_queue: TenantQueue) -> QuotaExceeded | None:
        """The refusal if a queue, or its tenant as a whole, has all the waiting jobs that it may. [TENANT-5]"""
        tenant, queue = tenant_queue.tenant, tenant_queue.queue
        for scope, waiting in ((queue, tenant_queue.waiting), (None, self.jobs.waiting.get(tenant, 0))):
            limit = self.settings.max_waiting(tenant, scope)
            if limit is not None and waiting >= limit:
                return QuotaExceeded(scope, waiting, limit)
        return None

    def count_purge(self, job: Job, now: int) -> PurgeCount:
        """Count a purge of the job's tenant, and drop old counts. [EVENT-1]"""
        before, _ = self.purges.pop(job.tenant, (PurgeCount(job.tenant, job.seq, 0), now))
        counted = replace(before, count=before.count + 1)
        self.purges[job.tenant] = counted, now  # At the end: the dict stays in order of age.
        for tenant, (_, at) in list(islice(self.purges.items(), PURGE_COUNTS_DROPPED)):
            if at >= now - PURGE_COUNT_MS:
                break
            del self.purges[tenant]
        return counted
