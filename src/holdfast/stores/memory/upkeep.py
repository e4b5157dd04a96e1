"""Pausing queues, and forgetting jobs past their retention."""

from __future__ import annotations

from holdfast.store import Hint, Pruned
from holdfast.stores.memory.tables import Tables


def pause(tables: Tables, tenant: str, queue: str, *, paused: bool) -> None:
    """Stop or resume handing out a queue's jobs. [CLAIM-5]"""
    tables.jobs.tenant_queue(tenant, queue)
    index = tables.jobs.queues[queue]
    if paused:
        index.pause(tenant)
    else:
        index.resume(tenant)
        tables.notifier.add(Hint.READY, tenant, queue)


def prune(tables: Tables, limit: int, now: int, *, blobs: bool) -> Pruned:
    """Forget up to `limit` ended jobs past their retention, and trim the log. [KEEP-1, EVENT-2]"""
    jobs = 0
    while (entry := tables.jobs.retention.first()) is not None and entry[0] <= now and jobs < limit:
        tables.jobs.retention.pop()
        tables.forget(entry[2])
        jobs += 1
    more = entry is not None and entry[0] <= now
    tables.keys.drop_expired(now)
    names: list[str] = []
    if blobs:
        names, tables.dropped_blobs = tables.dropped_blobs, []
    return Pruned(jobs, tables.log.trim(tables.options.keep_events, now), names, more)
