"""Results: waiting for them, reading them, keeping them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from holdfast.blobs import Blobs
from holdfast.core.budgets import check_kept
from holdfast.core.errors import InvalidOption, JobCanceled, JobFailed, JobNotFound, ResultExpired
from holdfast.core.job import Job, JobKey, JobState, Result, SetResultTtl, TtlStatus
from holdfast.jobs.options import Seconds, duration_ms, timeout_s
from holdfast.queue.connection import Connection
from holdfast.queue.records import decode_result
from holdfast.queue.waiting import Watch


async def wait_for(
    connection: Connection, key: JobKey, timeout: Seconds | None, *, known: bool, result_type: Any
) -> Any:
    """Wait for a job's result. [RESULT-2]"""
    return await outcome(connection, await ended(connection, key, timeout_s(timeout), known=known), result_type)


async def ended(
    connection: Connection,
    key: JobKey,
    timeout: float | None,
    *,
    known: bool = False,
    gone: asyncio.Future[None] | None = None,
) -> Job:
    """Wait for a job's end. Subscribes first and then looks, so that no end is missed. [RESULT-2]"""
    connection.check_open()
    with connection.waits.watch(key) as watch:
        watch.seen = watch.seen or known
        watch.look()
        return await end_of(watch, timeout, gone)


async def end_of(watch: Watch, timeout: float | None, gone: asyncio.Future[None] | None = None) -> Job:
    """The watched job as it ended. Raises WaitTimeout (also when `gone` is done), JobNotFound or ResultExpired."""
    key = watch.key
    job = await watch.wait(timeout, gone)
    if job is None:
        raise ResultExpired(key.queue, key.id) if watch.seen else JobNotFound(key.queue, key.id)
    return job


async def outcome(connection: Connection, job: Job, result_type: Any) -> Any:
    """Return or raise how a job ended."""
    key = job.key
    if job.state is JobState.CANCELED:
        raise JobCanceled(key.queue, key.id)
    if job.state is JobState.FAILED:
        last = job.errors[-1] if job.errors else None
        kind, text = (last.type, last.message) if last else ("", "")
        raise JobFailed(key.queue, key.id, job.reason, kind, text)
    if job.result is None:
        return None
    return decode_result(job.result, await fetch_blob(connection, job.result, key), result_type)


async def fetch_blob(connection: Connection, result: Result | None, key: JobKey) -> bytes | None:
    """The bytes of a result that is in the blob store. None for any other result, or without a blob store here.

    Raises ResultExpired if the blob is gone.
    """
    if result is None or not result.blob or connection.blobs is None:
        return None
    data = await connection.blobs.get(result.blob)
    if data is None:
        raise ResultExpired(key.queue, key.id)
    return data


async def results_of(connection: Connection, keys: Mapping[str, JobKey]) -> dict[str, Any]:
    """The results of completed jobs, in one read."""
    connection.check_open()
    found: dict[str, Any] = {}
    jobs = await connection.live.get(list(keys.values())) if keys else ()
    for (name, key), job in zip(keys.items(), jobs, strict=True):
        if job is None or job.state is not JobState.COMPLETED:
            raise ResultExpired(key.queue, key.id)
        data = await fetch_blob(connection, job.result, key)
        found[name] = None if job.result is None else decode_result(job.result, data, Any)
    return found


async def set_ttl(connection: Connection, key: JobKey, ttl: timedelta | float) -> TtlStatus:
    """Change how long a finished job is kept."""
    kept_ms = check_kept("result_ttl", duration_ms("result_ttl", ttl), connection.ceiling_ms)
    item = SetResultTtl(key, kept_ms)
    return (await connection.counted("set_result_ttl", connection.live.set_result_ttl([item])))[0]


def blob_store(connection: Connection) -> Blobs:
    """The blob store. Raises InvalidOption if there is none."""
    if connection.blobs is None:
        raise InvalidOption("blobs", "this queue has no blob store; open it with blobs=URL")
    return connection.blobs
