"""All job records, with the indexes of queues, deadlines and retention, and the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from holdfast.core import lifecycle
from holdfast.core.budgets import RECORD_BYTES, varying
from holdfast.core.job import WAITING, Job, JobKey, JobState
from holdfast.store import Hint
from holdfast.stores.memory.heaps import LazyHeap
from holdfast.stores.memory.queues import QueueIndex, TenantQueue
from holdfast.tables.notifications import LocalNotifier


class JobTable:
    """The jobs. A job is in the index that fits its state: its queue, the deadlines, or the retention."""

    def __init__(self, notifier: LocalNotifier) -> None:
        self._notifier = notifier
        self.queues: dict[str, QueueIndex] = {}
        self.leases: LazyHeap[tuple[int, int, int, Job]] = LazyHeap(_is_leased)
        """(deadline, seq, token, job) of every lease. [LEASE-3]"""
        self.retention: LazyHeap[tuple[int, int, Job]] = LazyHeap(self._is_kept)
        """(expires_at, seq, job) of every ended job. [KEEP-1]"""
        self.leased = 0
        self.ended = 0
        self.waiting: Counter[str] = Counter()
        """Waiting jobs by tenant."""
        self.bytes: dict[str, int] = {}
        """Bytes of all jobs by tenant; see `core.budgets.Usage`."""

    def find(self, key: JobKey, now: int) -> Job | None:
        """The job; None if it is not there or past its retention. [TENANT-2]"""
        tenant, queue, id_ = key
        index = self.queues.get(queue)
        tenant_queue = index.tenants.get(tenant) if index else None
        job = tenant_queue.jobs.get(id_) if tenant_queue else None
        return None if job is None or lifecycle.forgotten(job, now) else job

    def find_queue(self, tenant: str, queue: str) -> TenantQueue | None:
        """A tenant's queue; None if it has never been used."""
        index = self.queues.get(queue)
        return index.tenants.get(tenant) if index else None

    def tenant_queue(self, tenant: str, queue: str) -> TenantQueue:
        """A tenant's queue, made if it is new."""
        index = self.queues.get(queue)
        if index is None:
            index = self.queues[queue] = QueueIndex()
        tenant_queue = index.tenants.get(tenant)
        if tenant_queue is None:
            tenant_queue = index.tenants[tenant] = TenantQueue(tenant, queue)
        return tenant_queue

    def tenant_queues(self) -> Iterator[TenantQueue]:
        """Every queue of every tenant."""
        return (tenant_queue for index in self.queues.values() for tenant_queue in index.tenants.values())

    def add(self, job: Job, tenant_queue: TenantQueue, now: int) -> None:
        """Add a new job to its tenant's queue."""
        tenant_queue.jobs[job.id] = job
        self.bytes[job.tenant] = self.bytes.get(job.tenant, 0) + RECORD_BYTES + len(job.envelope.payload)
        self.enter(job, now)

    def remove(self, job: Job) -> None:
        """Remove an ended job."""
        del self.queues[job.queue].tenants[job.tenant].jobs[job.id]
        self.leave(job)
        self.bytes[job.tenant] -= RECORD_BYTES + len(job.envelope.payload)

    def enter(self, job: Job, now: int) -> None:
        """Count and index a job by its state, and add the hint."""
        if job.result is not None or job.errors:
            self.bytes[job.tenant] += varying(job)
        if job.state in WAITING:
            index = self.queues[job.queue]
            index.waiting += 1
            index.tenants[job.tenant].waiting += 1
            self.waiting[job.tenant] += 1
            index.put(job, now)
            self._notifier.add(Hint.READY, job.tenant, job.queue)
        elif job.state is JobState.LEASED:
            self.leased += 1
            self.index_lease(job)
        else:
            self.ended += 1
            self.index_retention(job)
            self._notifier.add(Hint.DONE, job.tenant, job.queue, job.id)

    def leave(self, job: Job) -> None:
        """Take a job out of the counts before its state changes. That makes its entry in the index stale."""
        if job.result is not None or job.errors:
            self.bytes[job.tenant] -= varying(job)
        if job.state in WAITING:
            index = self.queues[job.queue]
            index.waiting -= 1
            index.tenants[job.tenant].waiting -= 1
            self.waiting[job.tenant] -= 1
        elif job.state is JobState.LEASED:
            self.leased -= 1
        else:
            self.ended -= 1

    def index_lease(self, job: Job) -> None:
        """Index a lease by its deadline."""
        self.leases.push((job.deadline, job.seq, job.token, job), self.leased)

    def index_retention(self, job: Job) -> None:
        """Index an ended job by the end of its retention."""
        self.retention.push((job.expires_at or 0, job.seq, job), self.ended)

    def _is_kept(self, entry: tuple[int, int, Job]) -> bool:
        expires_at, _, job = entry
        here = self.queues[job.queue].tenants[job.tenant].jobs.get(job.id) is job
        return here and job.expires_at == expires_at


def _is_leased(entry: tuple[int, int, int, Job]) -> bool:
    deadline, _, token, job = entry
    return job.state is JobState.LEASED and job.token == token and job.deadline == deadline
