"""The Spark data source `holdfast`: events and jobs of a store as DataFrames, and DataFrames as jobs.

    spark.read.format("holdfast").option("store", URL).load()                      the log
    spark.read.format("holdfast").option("store", URL).option("table", "jobs")...  the jobs now
    spark.readStream.format("holdfast")...                                         the log as it grows
    frame.write.format("holdfast").option("tenant", T).option("queue", Q).mode("append").save()

Options for reading (they apply to events, unless they say otherwise):

    store               the store's URL; default: the environment variable HOLDFAST_STORE
    table               events (the default) or jobs
    tenant, queue       only these, separated by commas; also for jobs
    kind                only events of these kinds
    states              only jobs in these states
    payload             true: include the payload of each job and its size
    startingOffset      earliest (the default), latest, or an offset of the store
    endingOffset        latest (the default) or an offset; not for streams
    eventsPerPartition  about how many events one task reads (100000)
    maxEventsPerBatch   about how many events a micro-batch has (1000000)
    acceptGap           an offset: if the log was trimmed up to exactly there, continue from there
    gaps                what to do if events of one tenant are missing in between: warn (the default, in the log of
                        the task) or fail
    into                a directory that all tasks see: tasks write the events there as Parquet, and the rows are the
                        files (date, file, rows, checksum); see `holdfast.pipeline.landing`

Options for writing are those of `holdfast.pipeline.sink`. This module imports no Arrow: Spark loads it in every
session where the package is installed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    In,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from holdfast.core.errors import EventsTrimmed, InvalidOption
from holdfast.core.events import Gap
from holdfast.core.job import JobState
from holdfast.extensions import LogRange
from holdfast.pipeline.pushdown import column_of, narrow
from holdfast.pipeline.schemas import EVENTS, FILES, JOBS, JOBS_WITH_PAYLOAD
from holdfast.pipeline.source_options import EARLIEST, LATEST, ReadOptions

if TYPE_CHECKING:
    from holdfast.pipeline.connection import OpenStore
    from holdfast.pipeline.reader import EventFilter
    from holdfast.pipeline.sink import Sink, StreamSink


class HoldfastSource(DataSource):
    """The data source behind `format("holdfast")`."""

    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def schema(self) -> StructType:
        options = ReadOptions(self.options)
        if options.table == "events":
            return EVENTS if options.into is None else FILES
        return JOBS_WITH_PAYLOAD if options.payload else JOBS

    def reader(self, schema: StructType) -> DataSourceReader:
        options = ReadOptions(self.options)
        return EventsReader(options, schema) if options.table == "events" else JobsReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options = ReadOptions(self.options)
        if options.table != "events":
            raise InvalidOption("table", "only events can be read as a stream")
        return EventsStream(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> Sink:  # noqa: FBT001 - Spark's signature
        from holdfast.pipeline.sink import Sink

        return Sink(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # noqa: FBT001, N802
        from holdfast.pipeline.sink import StreamSink

        return StreamSink(self.options, schema, overwrite=overwrite)


# Reading the log -----------------------------------------------------------------------------------------------


class RangePartition(InputPartition):
    """A range of the log, for one task."""

    def __init__(self, log_range: LogRange) -> None:
        super().__init__(None)
        self.log_range = log_range


def _partitions(opened: OpenStore, options: ReadOptions, after: str, end: str) -> list[RangePartition]:
    try:
        ranges = opened.run(_split(opened, after, end, options.per_partition))
    except EventsTrimmed as gap:
        if not _can_skip(opened, options, gap):
            raise
        ranges = opened.run(_split(opened, gap.to, end, options.per_partition))
    return [RangePartition(log_range) for log_range in ranges]


def _can_skip(opened: OpenStore, options: ReadOptions, gap: EventsTrimmed) -> bool:
    """Whether to continue after a gap: `acceptGap` names it, or the wanted tenants lost nothing in it."""
    return gap.to == options.accept_gap or (
        options.tenants is not None and not opened.run(_lost_any(opened, options.tenants, gap.from_))
    )


async def _lost_any(opened: OpenStore, tenants: Iterable[str], after: str) -> bool:
    try:
        for tenant in tenants:
            await opened.store.events(tenant, after, 1)
    except EventsTrimmed:
        return True
    return False


async def _split(opened: OpenStore, after: str, end: str, size: int) -> Sequence[LogRange]:
    return await opened.log.split(after, end, size)


async def _bounds(
    opened: OpenStore, after: str | None, limit: int | None = None, end: str | None = None
) -> tuple[str, str]:
    return await opened.log.bounds(after, limit, end)


class EventsReader(DataSourceReader):
    """The log between two offsets."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._event_filter = options.event_filter()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Apply what can be decided before a row is built. Spark repeats comparisons of `at`."""
        for filter_ in filters:
            narrowed = narrow(self._event_filter, filter_)
            if narrowed is not None:
                self._event_filter = narrowed
            if narrowed is None or column_of(filter_) == "at":
                yield filter_

    def partitions(self) -> Sequence[InputPartition]:
        from holdfast.pipeline.connection import OpenStore

        options = self._options
        with OpenStore(options.store) as opened:
            oldest, last = opened.run(_bounds(opened, None))
            start = {EARLIEST: oldest, LATEST: last}.get(options.start, options.start)
            end = last if options.end == LATEST else options.end
            return _partitions(opened, options, start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, self._schema, self._event_filter, partition)


class EventsStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The log as it grows. Spark's offset holds an offset of the store, which covers all shards: {"offset": "..."}."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._opened: OpenStore | None = None
        self._target: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Spark sends this object to the tasks. They open the store themselves.
        return {**self.__dict__, "_opened": None}

    @property
    def _store(self) -> OpenStore:
        if self._opened is None:
            from holdfast.pipeline.connection import OpenStore

            self._opened = OpenStore(self._options.store)
        return self._opened

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        start = self._options.start
        if start in (EARLIEST, LATEST):
            oldest, last = self._store.run(_bounds(self._store, None))
            start = oldest if start == EARLIEST else last
        return {"offset": start}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._options.per_batch)

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: N802 - Spark's name
        max_events = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if max_events is None and not isinstance(limit, ReadAllAvailable):
            max_events = self._options.per_batch
        try:
            _, end = self._store.run(_bounds(self._store, start["offset"], max_events, self._target))
        except EventsTrimmed as gap:
            if not _can_skip(self._store, self._options, gap):
                raise
            _, end = self._store.run(_bounds(self._store, gap.to, max_events, self._target))
        return {"offset": end}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        _, self._target = self._store.run(_bounds(self._store, None))

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        if start == end:
            return []
        return _partitions(self._store, self._options, start["offset"], end["offset"])

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, self._schema, self._options.event_filter(), partition)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def _read(
    options: ReadOptions, schema: StructType, event_filter: EventFilter, partition: InputPartition
) -> Iterator[Any]:
    # If there is nothing to read, Spark makes a partition of its own.
    if not isinstance(partition, RangePartition):
        return
    from holdfast.pipeline.reader import freeze_imports, read_range

    on_gap = _fail if options.gaps == "fail" else _warn
    if options.into is None:
        yield from read_range(options.store, partition.log_range, schema, event_filter, on_gap)
    else:
        from holdfast.pipeline.landing import land

        yield from land(options.store, partition.log_range, event_filter, options.into)
    freeze_imports()


def _warn(gap: Gap) -> None:
    text = "events of tenant %s after %r up to %r are no longer kept"
    logging.getLogger(__name__).warning(text, gap.tenant, gap.after, gap.to)


def _fail(gap: Gap) -> None:
    raise EventsTrimmed(gap.after, gap.to)


# Reading jobs ---------------------------------------------------------------------------------------------------


class QueuePartition(InputPartition):
    """One queue of one tenant, for one task."""

    def __init__(self, tenant: str, queue: str) -> None:
        super().__init__(None)
        self.tenant, self.queue = tenant, queue


class JobsReader(DataSourceReader):
    """The jobs now."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._tenants, self._queues, self._states = options.tenants, options.queues, options.states

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Read only the wanted tenants, queues and states. Spark checks the states again: jobs move."""
        for filter_ in filters:
            column = column_of(filter_)
            if isinstance(filter_, (EqualTo, In)) and column in ("tenant", "queue", "state"):
                values = filter_.value if isinstance(filter_, In) else (filter_.value,)
                chosen = frozenset(map(str, values))
                if column == "tenant":
                    self._tenants = chosen if self._tenants is None else self._tenants & chosen
                elif column == "queue":
                    self._queues = chosen if self._queues is None else self._queues & chosen
                else:
                    self._states &= frozenset(JobState(state) for state in chosen if state in set(JobState))
            if column not in ("tenant", "queue") or not isinstance(filter_, (EqualTo, In)):
                yield filter_

    def partitions(self) -> Sequence[InputPartition]:
        from holdfast.pipeline.connection import OpenStore

        with OpenStore(self._options.store) as opened:
            tenants = opened.run(opened.store.tenants())
            found: list[InputPartition] = []
            for tenant in tenants:
                if self._tenants is not None and tenant not in self._tenants:
                    continue
                names = [stats.queue for stats in opened.run(opened.store.stats(tenant))]
                found += [
                    QueuePartition(tenant, name) for name in names if self._queues is None or name in self._queues
                ]
            return found

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from holdfast.pipeline.reader import read_jobs

        if isinstance(partition, QueuePartition):
            key = (partition.tenant, partition.queue)
            yield from read_jobs(self._options.store, *key, self._states, self._schema)
