"""Reading jobs and counts. Every record in an answer is a copy."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.budgets import RECORD_BYTES, Usage
from holdfast.core.explain import Standing
from holdfast.core.job import Job, JobKey
from holdfast.paging import list_page, queue_stats, shown_job
from holdfast.store import ListQuery, Page, QueueStats
from holdfast.stores.memory.tables import Tables


def get(tables: Tables, keys: Sequence[JobKey], now: int) -> list[Job | None]:
    """Jobs by name. [TENANT-2]"""
    found = (tables.jobs.find(key, now) for key in keys)
    return [None if job is None else shown_job(job, now) for job in found]


def standing(tables: Tables, key: JobKey, now: int) -> Standing | None:
    """What a job waits for in its queue. [TENANT-2]"""
    job = tables.jobs.find(key, now)
    return None if job is None else tables.jobs.queues[key.queue].standing(shown_job(job, now), now)


def list_jobs(tables: Tables, query: ListQuery, now: int) -> Page:
    """A page of one queue's jobs, or of all queues."""
    names = [query.queue] if query.queue else queue_names(tables, query.tenant)
    found = (tables.jobs.find_queue(query.tenant, name) for name in names)
    return list_page((job for one in found if one is not None for job in one.jobs.values()), query, now)


def stats(tables: Tables, tenant: str, queues: Sequence[str] | None, now: int) -> list[QueueStats]:
    """Counts of some queues, or of all that the tenant uses."""
    return [_stats(tables, tenant, queue, now) for queue in (queue_names(tables, tenant) if queues is None else queues)]


def _stats(tables: Tables, tenant: str, queue: str, now: int) -> QueueStats:
    found = tables.jobs.find_queue(tenant, queue)
    return queue_stats(queue, found.jobs.values() if found else (), now, paused=bool(found and found.paused))


def queue_names(tables: Tables, tenant: str) -> list[str]:
    """The queues where a tenant has jobs or that are paused."""
    found = ((queue, index.tenants.get(tenant)) for queue, index in tables.jobs.queues.items())
    return sorted(queue for queue, one in found if one is not None and (one.jobs or one.paused))


def usage(tables: Tables, tenant: str) -> Usage:
    """What a tenant keeps. [TENANT-5]"""
    queues = queue_names(tables, tenant)
    jobs = sum(len(tables.jobs.tenant_queue(tenant, queue).jobs) for queue in queues)
    keys = tables.keys.count_lasting(tenant)
    size = tables.jobs.bytes.get(tenant, 0) + keys * RECORD_BYTES
    return Usage(jobs, keys, size, len(queues), tables.log.kept(tenant))
