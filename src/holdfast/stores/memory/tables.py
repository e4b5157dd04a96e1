"""Everything the store keeps, and the steps that change it: `add`, `jobs.leave` and `enter`, `forget`.

These steps keep the tables in line with each other: records, indexes, counts, keys, events and hints.
"""

from __future__ import annotations

from holdfast.core.errors import QuotaExceeded
from holdfast.core.events import Event
from holdfast.core.job import Job
from holdfast.opening import CommonOptions
from holdfast.stores.memory.jobs import JobTable
from holdfast.stores.memory.queues import TenantQueue
from holdfast.tables import SideTables


class Tables(SideTables):
    """The tables. Use them only under the store's lock."""

    def __init__(self, options: CommonOptions) -> None:
        super().__init__()
        self.options = options
        self.jobs = JobTable(self.notifier)

    def add(self, job: Job, tenant_queue: TenantQueue, event: Event, now: int) -> None:
        """Add a new job to its tenant's queue."""
        self.jobs.add(job, tenant_queue, now)
        self.log.append(event)

    def enter(self, job: Job, event: Event, now: int) -> None:
        """Record a transition of `core.lifecycle`. Call `jobs.leave` before the transition. [EVENT-1]"""
        self.jobs.enter(job, now)
        if job.envelope.idempotency is not None:
            self.keys.release(job)
        self.log.append(event)

    def forget(self, job: Job) -> None:
        """Remove an ended job. [KEEP-1]"""
        self.jobs.remove(job)
        if job.result is not None and job.result.blob:
            self.dropped_blobs.append(job.result.blob)

    def over_quota(self, tenant_queue: TenantQueue) -> QuotaExceeded | None:
        """The refusal if a queue, or its tenant as a whole, has all the waiting jobs that it may. [TENANT-5]"""
        tenant, queue = tenant_queue.tenant, tenant_queue.queue
        return self.settings.over_quota(tenant, queue, tenant_queue.waiting, self.jobs.waiting.get(tenant, 0))
