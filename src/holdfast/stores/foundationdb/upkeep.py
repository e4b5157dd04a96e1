"""Pauses, settings, workers, and forgetting what is past its retention."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from holdfast.core.budgets import TenantSettings
from holdfast.core.job import JobKey
from holdfast.store import Pruned, WorkerInfo
from holdfast.stores.foundationdb import lanes, reads, settings
from holdfast.stores.foundationdb.database import FdbTransaction
from holdfast.stores.foundationdb.keyspace import BUCKET_MS, Keyspace, after, pack, span
from holdfast.stores.foundationdb.transactions import Transactions
from holdfast.stores.foundationdb.trimming import trim
from holdfast.stores.foundationdb.unit_of_work import Work

PART = 100
"""The most jobs that one transaction forgets."""
BUCKETS = 200
"""The most lanes whose retentions one transaction looks at."""


async def pause(work: Work, tenant: str, queue: str, *, paused: bool) -> None:
    """Stop or resume handing out a queue's jobs. [CLAIM-5]"""
    key = work.keys.lane_paused(tenant, queue)
    was_paused = await work.tr.get(key) is not None
    if paused and not was_paused:
        work.set(key, b"")
    if paused:
        return
    work.notify()
    if was_paused:
        work.clear(key)
        if await lanes.heads(work, tenant, queue, snapshot=False):
            lanes.activate(work, tenant, queue)
        else:
            work.clear(work.keys.active(tenant, queue))


async def set_tenant(work: Work, tenant: str, new: TenantSettings) -> None:
    """Set the fields that are not None."""
    queue = new.queue or ""
    key = work.keys.setting(tenant, queue)
    raw = await work.tr.get(key)
    old = TenantSettings(new.queue) if raw is None else settings.unpack_settings(queue, raw)
    work.set(key, settings.pack_settings(settings.changed(old, new)))
    work.count(work.keys.meta_of("settings"), 1)


async def beat(work: Work, worker: WorkerInfo, ttl_ms: int) -> None:
    """Record that a worker is alive. A `ttl_ms` of 0 or less removes it."""
    key = work.keys.worker(worker.worker_id)
    if ttl_ms <= 0:
        work.clear(key)
        return
    raw = await work.tr.get(key)
    expires_at, known = (0, worker) if raw is None else reads.unpack_worker(raw)
    started_at = known.started_at if expires_at > work.now else work.now
    live = replace(worker, started_at=started_at, seen_at=work.now)
    work.set(key, reads.pack_worker(work.now + ttl_ms, live))


async def prune(transactions: Transactions, limit: int, *, blobs: bool) -> Pruned:
    """Forget up to `limit` ended jobs past their retention, and trim the log. [KEEP-1, EVENT-2]"""
    jobs = 0
    place: bytes | None = b""
    while place is not None and jobs < limit:
        wanted, begin = min(PART, limit - jobs), place
        forgotten, place = await transactions.change(
            lambda work: _forget(work, wanted, begin),  # noqa: B023 - awaited at once
            was_made=partial(_has_forgotten, transactions.keys),
        )
        jobs += len(forgotten)
    for drop in (_drop_keys, _drop_workers):
        while await transactions.change(drop) == PART:
            pass
    names: list[str] = []
    if blobs:
        names = await transactions.change(
            lambda work: _take_blobs(work, limit), was_made=partial(_took_blobs, transactions.keys)
        )
    trimmed, cut = await trim(transactions)
    return Pruned(jobs, trimmed, names, place is not None or cut or len(names) == limit)


async def _forget(work: Work, limit: int, place: bytes) -> tuple[list[JobKey], bytes | None]:
    """Forget up to `limit` jobs. Returns which, and from which mark on there may be more."""
    keys, tr = work.keys, work.tr
    prefix = keys.retentions
    begin, end = span(prefix)[0], prefix + pack(work.now // BUCKET_MS + 1)
    marks = await tr.get_range(max(begin, place), end, limit=BUCKETS, snapshot=True)
    following = after(marks[-1][0]) if len(marks) == BUCKETS else None
    found: dict[JobKey, None] = {}
    for mark, _ in marks:
        bucket, tenant, queue = keys.parts(mark, prefix)
        lane = keys.retained(tenant, queue)
        behind = min((bucket + 1) * BUCKET_MS, work.now + 1)
        rows = await tr.get_range(span(lane)[0], lane + pack(behind), limit=limit + 1, snapshot=True)
        found.update((JobKey(tenant, queue, keys.parts(key, lane)[-1]), None) for key, _ in rows)
        if len(found) > limit:
            following = mark
            break
        if behind == (bucket + 1) * BUCKET_MS:
            # Clear the mark with the last job. A transaction that adds one meanwhile sets the mark, and conflicts.
            tr.add_read_conflict_range(lane + pack(bucket * BUCKET_MS), lane + pack(behind))
            tr.add_read_conflict_key(mark)
            work.clear(mark)
    going = list(found)[:limit]
    await work.load(going)
    for key in going:
        job = work.any(key)
        if job is not None and work.find(key) is None:
            work.forget(job)
    return going, following


async def _has_forgotten(
    keys: Keyspace, transaction: FdbTransaction, answer: tuple[list[JobKey], bytes | None]
) -> bool:
    """Whether these jobs were forgotten."""
    return bool(answer[0]) and await transaction.get(keys.job(answer[0][0])) is None


async def _drop_keys(work: Work) -> int:
    """Free idempotency keys that have expired."""
    prefix = work.keys.expiring_keys
    rows = await work.tr.get_range(span(prefix)[0], prefix + pack(work.now + 1), limit=PART, snapshot=True)
    scopes = [tuple(work.keys.parts(key, prefix)[1:]) for key, _ in rows]
    await work.load_bindings(scopes)
    for (key, _), scope in zip(rows, scopes, strict=True):
        binding = work.binding(scope)
        work.clear(key)
        if binding is not None and binding.expires_at is not None and binding.expires_at <= work.now:
            work.drop_binding(scope)
    return len(rows)


async def _drop_workers(work: Work) -> int:
    """Forget workers whose last beat is over."""
    prefix = work.keys.workers
    begin, end = span(prefix)
    gone = 0
    while rows := await work.tr.get_range(begin, end, limit=reads.READ, snapshot=True):
        for key, value in rows:
            if reads.unpack_worker(value)[0] <= work.now:
                work.tr.add_read_conflict_key(key)
                work.clear(key)
                gone += 1
                if gone == PART:
                    return gone
        begin = after(rows[-1][0])
    return gone


async def _take_blobs(work: Work, limit: int) -> list[str]:
    """The names of blobs of forgotten results, each once."""
    prefix = work.keys.blobs
    rows = await work.tr.get_range(*span(prefix), limit=limit)
    for key, _ in rows:
        work.clear(key)
    return [work.keys.parts(key, prefix)[0] for key, _ in rows]


async def _took_blobs(keys: Keyspace, transaction: FdbTransaction, names: list[str]) -> bool:
    """Whether these names were taken."""
    return not names or await transaction.get(keys.blob(names[0])) is None
