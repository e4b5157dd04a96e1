"""Claiming jobs, and ending expired leases."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial

from holdfast.core import lifecycle
from holdfast.core.job import Claimed, ClaimRequest, Job, JobKey
from holdfast.core.retry import spread
from holdfast.store import REPAIR_LIMIT, Reaped
from holdfast.stores.memory.tables import Tables


def claim(tables: Tables, request: ClaimRequest, now: int) -> Claimed:
    """Lease visible jobs, in order and in fair turns. [CLAIM-1 to CLAIM-5, TENANT-4]"""
    end_expired_leases(tables, REPAIR_LIMIT, request.random, now)
    pickers: deque[Iterator[Job]] = deque()
    for queue in dict.fromkeys(request.queues):
        index = tables.jobs.queues.get(queue)
        if index is not None:
            index.promote(now)
            pickers.append(index.pick(request.tenant, partial(tables.settings.turn_cost, queue=queue)))
    taken: list[Job] = []
    while pickers and len(taken) < request.limit:
        # One job from each queue in rotation; a queue without visible jobs drops out. [TENANT-4]
        job = next(pickers[0], None)
        if job is None:
            pickers.popleft()
        else:
            taken.append(_lease(tables, job, request, now))
            pickers.rotate(-1)
    return Claimed(taken, now, None if len(taken) == request.limit else _next_at(tables, request))


def _lease(tables: Tables, job: Job, request: ClaimRequest, now: int) -> Job:
    tables.last_token += 1
    tables.jobs.leave(job)
    event = lifecycle.claim(job, tables.last_token, now + request.lease_ms, request.worker_id, now)
    tables.enter(job, event, now)
    return job.snapshot()


def _next_at(tables: Tables, request: ClaimRequest) -> int | None:
    """When the next job of these queues becomes due, or the next lease expires. [CLAIM-3]"""
    indexes = (tables.jobs.queues.get(queue) for queue in request.queues)
    due = (index.later.first() for index in indexes if index is not None)
    soonest = (entry[0] for entry in (*due, tables.jobs.leases.first()) if entry is not None)
    return min(soonest, default=None)


def reap(tables: Tables, limit: int, random: float, now: int) -> Reaped:
    """End up to `limit` expired leases, oldest deadline first. [LEASE-3, RETRY-2]"""
    ended = end_expired_leases(tables, limit, random, now)
    lease = tables.jobs.leases.first()
    return Reaped(ended, now, None if lease is None else lease[0])


def end_expired_leases(tables: Tables, limit: int, random: float, now: int) -> list[JobKey]:
    """End up to `limit` leases whose deadline has passed: their jobs wait for a retry, or have failed."""
    ended: list[JobKey] = []
    while len(ended) < limit and (lease := tables.jobs.leases.first()) is not None and lease[0] <= now:
        tables.jobs.leases.pop()
        job = lease[3]
        tables.jobs.leave(job)
        event = lifecycle.expire(job, spread(random, len(ended)), now, tables.options.retention)
        tables.enter(job, event, now)
        ended.append(job.key)
    return ended
