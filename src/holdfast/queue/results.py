"""Results: waiting for them, reading them, keeping them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from holdfast.blobs import Blobs
from holdfast.core.budgets import check_kept
from holdfast.core.errors import InvalidOption, JobCanceled, JobFailed, JobNotFound, ResultExpired
from holdfast.core.job import JobKey, JobState, Result, SetResultTtl, TtlStatus
from holdfast.jobs.options import Seconds, duration_ms, timeout_s
from holdfast.queue.connection import Connection
from holdfast.queue.records import decode_result
from holdfast.queue.waiting import Watch


async def wait_for(
    connection: Connection, key: JobKey, timeout: Seconds | None, *, known: bool, result_type: Any
) -> Any:
    """Wait for a job's result. Subscribes first and then reads, so that no completion is missed. [RESULT-2]"""
    connection.check_open()
    with connection.waits.watch(key) as watch:
        watch.seen = watch.seen or known
        watch.look()
        return await outcome(connection, watch, timeout_s(timeout), result_type)


async def outcome(connection: Connection, watch: Watch, timeout: float | None, result_type: Any) -> Any:
    """Wait for a watched job. Return its result, or raise the error for its ending."""
    key = watch.key
    job = await watch.wait(timeout)
    if job is None:
        raise ResultExpired(key.queue, key.id) if watch.seen else JobNotFound(key.queue, key.id)
    if job.state is JobState.CANCELED:
        raise JobCanceled(key.queue, key.id)
    if job.state is JobState.FAILED:
        last = job.errors[-1] if job.errors else None
        kind, text = (last.type, last.message) if last else ("", "")
        raise JobFailed(key.queue, key.id, job.reason, kind, text)
    if job.result is None:
        return None
    return decode_result(job.result, await fetch_blob(connection.blobs, job.result, key), result_type)


async def fetch_blob(blobs: Blobs | None, result: Result | None, key: JobKey) -> bytes | None:
    """The bytes of a result that is in the blob store. None for another result, or if there is no blob store.

    Raises ResultExpired if the blob is gone.
    """
    if result is None or not result.blob or blobs is None:
        return None
    data = await blobs.get(result.blob)
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
        data = await fetch_blob(connection.blobs, job.result, key)
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
