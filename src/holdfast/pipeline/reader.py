"""Reads the log and the jobs of a store as Arrow record batches, page by page."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec.structs import replace

from holdfast.core.events import EventColumns, Gap
from holdfast.core.job import Job, JobState
from holdfast.extensions import LogRange
from holdfast.kinds import kind_of
from holdfast.pipeline.columns import EVENT_COLUMNS, BatchBuilder, EventSource, position_maker
from holdfast.pipeline.connection import OpenStore
from holdfast.pipeline.job_columns import JOB_COLUMNS
from holdfast.store import ListQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

PAGE = 10_000
"""The approximate number of events that are read and passed on at a time."""
JOBS_PAGE = 1000


class EventFilter(msgspec.Struct, frozen=True):
    """Which events to read. None: all. Instants are in milliseconds; `until` is not included."""

    tenant: frozenset[str] | None = None
    queue: frozenset[str] | None = None
    kind: frozenset[str] | None = None
    type: frozenset[str] | None = None
    job_id: frozenset[str] | None = None
    since: int | None = None
    until: int | None = None

    def apply(self, parts: list[EventColumns]) -> list[EventColumns]:
        """The events that pass the filter."""
        for name in ("tenant", "queue", "kind", "type", "job_id"):
            values: frozenset[str] | None = getattr(self, name)
            if values is not None:
                parts = _keep(parts, name, values.__contains__)
        if (since := self.since) is not None:
            parts = _keep(parts, "at", lambda at: at >= since)
        if (until := self.until) is not None:
            parts = _keep(parts, "at", lambda at: at < until)
        return parts


def _keep(parts: list[EventColumns], name: str, passes: Callable[[Any], bool]) -> list[EventColumns]:
    found: list[EventColumns] = []
    for part in parts:
        which = [passes(value) for value in getattr(part, name)]
        if all(which):
            found.append(part)
        elif any(which):
            found.append(part.chosen(which))
    return found


def read_range(
    url: str, log_range: LogRange, schema: StructType, event_filter: EventFilter, on_gap: Callable[[Gap], None]
) -> Iterator[Any]:
    """The events of a range of the log as record batches. Calls `on_gap` for what is missing. Raises EventsTrimmed."""
    builder = BatchBuilder(schema, EVENT_COLUMNS)
    with OpenStore(url) as opened, _gc_disabled():
        position = position_maker(kind_of(url).offsets)
        page = opened.run(opened.log.read(log_range, PAGE))
        while True:
            following = None
            if page.more:
                # Fetch the next page while this one is built and consumed.
                log_range = replace(log_range, after=page.next)
                following = opened.start(opened.log.read(log_range, PAGE))
            for gap in page.gaps:
                if event_filter.tenant is None or gap.tenant in event_filter.tenant:
                    on_gap(gap)
            if parts := event_filter.apply(page.parts):
                yield builder.build(EventSource(parts, log_range.shard, position))
            if following is None:
                return
            page = following.result()


@contextlib.contextmanager
def _gc_disabled() -> Generator[None]:
    """Turn the cycle collector off: pages have no cycles, and collecting took longer than everything else."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@cache
def freeze_imports() -> None:
    """Exempt everything that is imported by now from garbage collection. Does so once per process.

    Spark runs a full collection after each task, mostly over the objects of libraries. That took 60 ms, where a task of
    50,000 events takes 200 ms.
    """
    gc.collect()
    gc.freeze()


def read_jobs(url: str, tenant: str, queue: str, states: frozenset[JobState], schema: StructType) -> Iterator[Any]:
    """The jobs of one queue as record batches, page by page. A job that moves meanwhile may appear twice, or not."""
    builder = BatchBuilder(schema, JOB_COLUMNS)
    with OpenStore(url) as opened:
        cursor: str | None = None
        while True:
            query = ListQuery(tenant, queue, states, cursor=cursor, limit=JOBS_PAGE)
            page = opened.run(opened.store.list(query))
            jobs: Sequence[Job] = page.jobs
            if "payload" in schema.fieldNames():
                # Lists leave out large payloads.
                found = opened.run(opened.store.get([job.key for job in jobs])) if jobs else []
                jobs = [job for job in found if job is not None]
            if jobs:
                yield builder.build(jobs)
            cursor = page.cursor
            if cursor is None:
                return


def jobs_frame(spark: SparkSession, jobs: Sequence[Job]) -> DataFrame:
    """Jobs as a DataFrame with the columns of the data source."""
    from holdfast.pipeline.schemas import JOBS

    rows = BatchBuilder(JOBS, JOB_COLUMNS).build(jobs).to_pylist()
    return cast("Any", spark).createDataFrame([tuple(row.values()) for row in rows], JOBS)
