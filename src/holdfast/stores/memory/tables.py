"""Everything the store keeps, and the steps that change it: `add`, `change`, `forget`.

Each step keeps the tables in line with each other: records, indexes, counts, keys, events and hints.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.budgets import varying
from holdfast.core.errors import QuotaExceeded
from holdfast.core.events import Event
from holdfast.core.job import WAITING, Job, JobState
from holdfast.opening import CommonOptions
from holdfast.store import Hint
from holdfast.stores.memory.jobs import JobTable
from holdfast.stores.memory.queues import TenantQueue
from holdfast.tables import SideTables


class Tables(SideTables):
    """The tables. Use them only under the store's lock."""

    def __init__(self, options: CommonOptions) -> None:
        super().__init__()
        self.options = options
        self.jobs = JobTable()

    def add(self, job: Job, event: Event, now: int) -> None:
        """Add a new job."""
        self.jobs.add(job)
        self._index(job, now)
        self.append(event)

    def change(self, job: Job, transition: Callable[[], Event], now: int) -> None:
        """Make a transition of `core.lifecycle`, with all that follows from it. [EVENT-1]"""
        before = varying(job)
        self.jobs.count(job, -1)
        event = transition()
        self.jobs.count(job, +1)
        if (grown := varying(job) - before) != 0:
            self.jobs.count_bytes(job, grown)
        if job.envelope.idempotency is not None:
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

    def forget(self, job: Job) -> None:
        """Remove an ended job. [KEEP-1]"""
        self.jobs.remove(job)
        if job.result is not None and job.result.blob:
            self.dropped_blobs.append(job.result.blob)

    def over_quota(self, tenant_queue: TenantQueue) -> QuotaExceeded | None:
        """The refusal if a queue, or its tenant as a whole, has all the waiting jobs that it may. [TENANT-5]"""
        tenant, queue = tenant_queue.tenant, tenant_queue.queue
        return self.settings.over_quota(tenant, queue, tenant_queue.waiting, self.jobs.waiting.get(tenant, 0))
