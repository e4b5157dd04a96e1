"""Reads of jobs, queues, flows and workers. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import convert

from holdfast.core.errors import InvalidOption
from holdfast.core.job import JobKey
from holdfast.extensions import FlowReader
from holdfast.flows.flow import FlowRecord, flow_record
from holdfast.queue.connection import Connection
from holdfast.queue.records import JobPage, JobRecord, Stats, WorkerRecord, stats_of, worker_of
from holdfast.queue.results import fetch_blob
from holdfast.store import ListQuery

PAGE_LIMIT = 1000
"""The most jobs or events in a page."""


async def get(connection: Connection, key: JobKey) -> JobRecord | None:
    """A job with its result. [TENANT-2]"""
    connection.check_open()
    job = await connection.gets(key)
    return None if job is None else JobRecord(job, await fetch_blob(connection, job.result, key))


async def page(connection: Connection, query: ListQuery) -> JobPage:
    """A page of jobs. Results in a blob store are left out."""
    check_page(query.cursor, query.limit)
    found = await connection.counted("list", connection.live.list(query))
    return JobPage(map(JobRecord, found.jobs), found.cursor)


def check_page(cursor: str | None, limit: int) -> None:
    """Raise InvalidOption unless a cursor and a limit can be those of a page."""
    if not isinstance(limit, int) or not 1 <= limit <= PAGE_LIMIT:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption("limit", f"{limit!r} is not a whole number from 1 to {PAGE_LIMIT}")
    check_text("cursor", cursor)


async def stats(connection: Connection, queues: Sequence[str] | None) -> list[Stats]:
    """Counts of these queues, or of all queues of the tenant."""
    return [
        stats_of(one) for one in await connection.counted("stats", connection.live.stats(connection.tenant, queues))
    ]


async def workers(connection: Connection) -> list[WorkerRecord]:
    """The live workers of the tenant."""
    return [worker_of(one) for one in await connection.counted("workers", connection.live.workers(connection.tenant))]


async def flow(connection: Connection, key: JobKey) -> FlowRecord | None:
    """A flow with its steps."""
    store = connection.live
    if isinstance(store, FlowReader):
        shown = await connection.counted("flow", store.flow(connection.tenant, key.id))
        return None if shown is None else convert(shown, FlowRecord, from_attributes=True)
    job = await connection.gets(key)
    return None if job is None else await flow_record(store, job)


def check_text(option: str, value: str | None) -> None:
    """Raise InvalidOption unless an offset or cursor is a string, or None."""
    if value is not None and not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(option, f"{value!r} is not a string from this queue")
