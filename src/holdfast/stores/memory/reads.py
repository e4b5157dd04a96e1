"""Reading jobs, counts and pages. Every record in an answer is a copy."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core import dedup
from holdfast.core.budgets import RECORD_BYTES, Usage
from holdfast.core.job import Job, JobKey, NewJob
from holdfast.core.names import OPERATOR, check_id, join_key
from holdfast.paging import list_page, name_cursor, name_page, queue_stats, shown_job, tenant_cursor
from holdfast.store import ListQuery, Page, PurgePage, QueuePage, QueueStats, TenantPage, WorkerPage
from holdfast.stores.memory.tables import Tables


def get(tables: Tables, keys: Sequence[JobKey], now: int) -> list[Job | None]:
    """Jobs by name. [TENANT-2]"""
    found = (tables.jobs.find(key, now) for key in keys)
    return [None if job is None else shown_job(job, now) for job in found]


def key_holders(tables: Tables, items: Sequence[NewJob], now: int) -> list[str | None]:
    """The ids of the jobs that hold the items' idempotency keys. [ENQ-3]"""
    scopes = (dedup.scope_of(item.key.tenant, item.key.queue, item.envelope) for item in items)
    found = (tables.keys.get(scope) for scope in scopes)
    return [None if binding is None or dedup.expired(binding, now) else binding.job_id for binding in found]


def list_jobs(tables: Tables, query: ListQuery, now: int) -> Page:
    """A page of one queue's jobs."""
    tenant_queue = tables.jobs.find_queue(query.tenant, query.queue)
    return list_page(tenant_queue.jobs.values() if tenant_queue else (), query, now)


def stats(tables: Tables, tenant: str, queues: Sequence[str] | None, now: int) -> list[QueueStats]:
    """Counts of some queues, or of all that the tenant uses."""
    return [_stats(tables, tenant, queue, now) for queue in (_queues(tables, tenant) if queues is None else queues)]


def queue_page(tables: Tables, tenant: str, cursor: str | None, limit: int, now: int) -> QueuePage:
    """Counts of some of the queues that the tenant uses, by name."""
    names, following = name_page(_queues(tables, tenant), name_cursor(cursor), limit)
    return QueuePage([_stats(tables, tenant, queue, now) for queue in names], following)


def _stats(tables: Tables, tenant: str, queue: str, now: int) -> QueueStats:
    found = tables.jobs.find_queue(tenant, queue)
    return queue_stats(queue, found.jobs.values() if found else (), now, paused=bool(found and found.paused))


def _queues(tables: Tables, tenant: str) -> list[str]:
    """The queues where a tenant has jobs or that are paused."""
    found = ((queue, index.tenants.get(tenant)) for queue, index in tables.jobs.queues.items())
    return sorted(queue for queue, one in found if one is not None and (one.jobs or one.paused))


def tenants(tables: Tables) -> list[str]:
    """The tenants that have jobs or settings, by name."""
    names = {tenant_queue.tenant for tenant_queue in tables.jobs.tenant_queues() if tenant_queue.jobs}
    return sorted(names.union(tables.settings.tenants()) - {OPERATOR})


def tenant_page(tables: Tables, cursor: str | None, limit: int) -> TenantPage:
    """Some of the tenants, by name."""
    names, following = name_page(tenants(tables), tenant_cursor(cursor)[0], limit)
    return TenantPage(names, following and join_key(following, ""))


def worker_page(tables: Tables, tenant: str | None, cursor: str | None, limit: int, now: int) -> WorkerPage:
    """Some of the living workers, by id."""
    living = {worker.worker_id: worker for worker in tables.workers.serving(tenant, now)}
    names, following = name_page(living, name_cursor(cursor, check_id), limit)
    return WorkerPage([living[name] for name in names], following)


def purge_counts(tables: Tables, tenant: str | None, cursor: str | None, limit: int) -> PurgePage:
    """How many jobs were purged, of one tenant or of some. [EVENT-1]"""
    names, following = name_page((name for name in tables.purges if tenant in (None, name)), cursor or "", limit)
    return PurgePage([tables.purges[name][0] for name in names], following)


def usage(tables: Tables, tenant: str) -> Usage:
    """What a tenant keeps. [TENANT-5]"""
    queues = _queues(tables, tenant)
    jobs = sum(len(tables.jobs.tenant_queue(tenant, queue).jobs) for queue in queues)
    keys = tables.keys.count_lasting(tenant)
    size = tables.jobs.bytes.get(tenant, 0) + keys * RECORD_BYTES
    return Usage(jobs, keys, size, len(queues), tables.log.kept(tenant))
