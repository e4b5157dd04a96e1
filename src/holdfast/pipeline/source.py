"""The Spark data source `holdfast`: events and jobs of a store as DataFrames, and DataFrames as jobs.

    spark.read.format("holdfast").option("store", URL).load()                      the log
    spark.read.format("holdfast").option("store", URL).option("table", "jobs")...  the jobs as they are
    spark.readStream.format("holdfast")...                                         the log as it grows
    frame.write.format("holdfast").option("tenant", T).option("queue", Q).mode("append").save()

Options for reading (of the log, unless they say otherwise):

    store               the store's URL; without it, the environment variable HOLDFAST_STORE
    table               events (the default) or jobs
    tenant, queue       only these; separated by commas. Also of jobs
    kind                only events of these kinds
    states              only jobs in these states
    payload             true: jobs with their payload and its size
    startingOffset      earliest (the default), latest, or an offset of the store
    endingOffset        latest (the default) or an offset; not for streams
    eventsPerPartition  how many events one task reads, about (100000)
    maxEventsPerBatch   how many events a micro-batch takes in, about (1000000)
    acceptGap           an offset: if the log was cut up to exactly there, go on from there
    gaps                what to do where events of one tenant are gone from between: warn (the default, in the log of
                        the task) or fail
    into                a directory that all tasks see: they write the events there as Parquet, and the rows are the
                        files (date, file, rows, checksum); see `holdfast.pipeline.landing`

Options for writing are those of `holdfast.pipeline.sink`. This module imports no Arrow: Spark loads it in every
session where the package is installed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast, get_args

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from holdfast.core.errors import EventsTrimmed, InvalidOption
from holdfast.core.events import EventKind, Gap
from holdfast.core.job import JobState
from holdfast.extensions import LogRange
from holdfast.opening import absolute, parse_url
from holdfast.pipeline.schemas import EVENTS, FILES, JOBS, JOBS_WITH_PAYLOAD

if TYPE_CHECKING:
    from holdfast.pipeline.reader import OpenStore, Wanted
    from holdfast.pipeline.sink import Sink, StreamSink

EARLIEST, LATEST = "earliest", "latest"
STORE_VARIABLE = "HOLDFAST_STORE"
_READING = frozenset({
    "store", "table", "tenant", "queue", "kind", "states", "payload", "startingoffset", "endingoffset",
    "eventsperpartition", "maxeventsperbatch", "acceptgap", "gaps", "into", "path",
})  # fmt: skip


class HoldfastSource(DataSource):
    """What `format("holdfast")` stands for."""

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


class ReadOptions:
    """The options of a read, checked."""

    def __init__(self, options: Mapping[str, str]) -> None:
        said = {name.lower(): value for name, value in options.items()}
        for name in said:
            if name not in _READING:
                raise InvalidOption(name, "there is no such option for reading")
        self.store = store_url(said)
        self.table = said.get("table", "events")
        if self.table not in ("events", "jobs"):
            raise InvalidOption("table", f"{self.table!r} is neither 'events' nor 'jobs'")
        self.tenants, self.queues = _words(said.get("tenant")), _words(said.get("queue"))
        self.kinds = _known("kind", _words(said.get("kind")), get_args(EventKind))
        states = _known("states", _words(said.get("states")), list(JobState))
        self.states = frozenset(JobState(state) for state in states) if states else frozenset(JobState)
        self.payload = _flag("payload", said.get("payload", "false"))
        self.start, self.end = said.get("startingoffset", EARLIEST), said.get("endingoffset", LATEST)
        self.per_partition = number("eventsPerPartition", said.get("eventsperpartition", "100000"))
        self.per_batch = number("maxEventsPerBatch", said.get("maxeventsperbatch", "1000000"))
        self.accept_gap = said.get("acceptgap")
        self.gaps = said.get("gaps", "warn")
        if self.gaps not in ("warn", "fail"):
            raise InvalidOption("gaps", f"{self.gaps!r} is neither 'warn' nor 'fail'")
        self.into = said.get("into")

    def wanted(self) -> Wanted:
        """Which events are asked for by options."""
        from holdfast.pipeline.reader import Wanted

        return Wanted(self.tenants, self.queues, self.kinds)


def store_url(options: Mapping[str, str]) -> str:
    """The URL of the store, the same wherever it is used.

    Raises InvalidOption, without repeating the URL: it may have a password in it.
    """
    url = options.get("store") or options.get("path") or os.environ.get(STORE_VARIABLE)
    if not url:
        raise InvalidOption("store", f"not given; use .option('store', URL) or set {STORE_VARIABLE}")
    parse_url(url)
    return absolute(url)


def number(option: str, text: str) -> int:
    """A whole number of at least one. Raises InvalidOption."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise InvalidOption(option, f"{text!r} is not a whole number from 1 on")
    return int(text)


def _words(text: str | None) -> frozenset[str] | None:
    return None if text is None else frozenset(word.strip() for word in text.split(",") if word.strip())


def _known(option: str, words: frozenset[str] | None, known: Sequence[str]) -> frozenset[str] | None:
    if words is not None and (unknown := words - set(known)):
        raise InvalidOption(option, f"{min(unknown)!r} is none; there are {', '.join(known)}")
    return words


def _flag(option: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidOption(option, f"{text!r} is neither 'true' nor 'false'")
    return text.lower() == "true"


# Reading the log -----------------------------------------------------------------------------------------------


class Piece(InputPartition):
    """A piece of the log, for one task."""

    def __init__(self, stretch: LogRange) -> None:
        super().__init__(None)
        self.stretch = stretch


def _pieces(opened: OpenStore, options: ReadOptions, after: str, end: str) -> list[Piece]:
    try:
        stretches = opened.run(_split(opened, after, end, options.per_partition))
    except EventsTrimmed as gap:
        if not _passes(opened, options, gap):
            raise
        stretches = opened.run(_split(opened, gap.to, end, options.per_partition))
    return [Piece(stretch) for stretch in stretches]


def _passes(opened: OpenStore, options: ReadOptions, gap: EventsTrimmed) -> bool:
    """Whether to go on behind a gap: it is the one to accept, or the tenants asked for lost nothing in it."""
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


async def _reach(
    opened: OpenStore, after: str | None, most: int | None = None, end: str | None = None
) -> tuple[str, str]:
    return await opened.log.bounds(after, most, end)


class EventsReader(DataSourceReader):
    """The log between two offsets."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._wanted = options.wanted()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take over what can be decided before a row is built. Comparisons of `at` stay with Spark as well."""
        for filter_ in filters:
            narrowed = _narrow(self._wanted, filter_)
            if narrowed is not None:
                self._wanted = narrowed
            if narrowed is None or _column_of(filter_) == "at":
                yield filter_

    def partitions(self) -> Sequence[InputPartition]:
        from holdfast.pipeline.reader import OpenStore

        options = self._options
        with OpenStore(options.store) as opened:
            oldest, last = opened.run(_reach(opened, None))
            start = {EARLIEST: oldest, LATEST: last}.get(options.start, options.start)
            end = last if options.end == LATEST else options.end
            return _pieces(opened, options, start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, self._schema, self._wanted, partition)


class EventsStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The log as it grows. An offset of the stream is one of the store, which knows its shards: {"offset": "..."}."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._opened: OpenStore | None = None
        self._target: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        # It travels to the tasks, which open the store for themselves.
        return {**self.__dict__, "_opened": None}

    @property
    def _store(self) -> OpenStore:
        if self._opened is None:
            from holdfast.pipeline.reader import OpenStore

            self._opened = OpenStore(self._options.store)
        return self._opened

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        start = self._options.start
        if start in (EARLIEST, LATEST):
            oldest, last = self._store.run(_reach(self._store, None))
            start = oldest if start == EARLIEST else last
        return {"offset": start}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._options.per_batch)

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: N802 - Spark's name
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if most is None and not isinstance(limit, ReadAllAvailable):
            most = self._options.per_batch
        try:
            _, end = self._store.run(_reach(self._store, start["offset"], most, self._target))
        except EventsTrimmed as gap:
            if not _passes(self._store, self._options, gap):
                raise
            _, end = self._store.run(_reach(self._store, gap.to, most, self._target))
        return {"offset": end}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        _, self._target = self._store.run(_reach(self._store, None))

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        if start == end:
            return []
        return _pieces(self._store, self._options, start["offset"], end["offset"])

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, self._schema, self._options.wanted(), partition)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def _read(options: ReadOptions, schema: StructType, wanted: Wanted, partition: InputPartition) -> Iterator[Any]:
    # Spark makes a partition of its own where there is nothing to read.
    if not isinstance(partition, Piece):
        return
    from holdfast.pipeline.reader import read_stretch, settle

    fails = options.gaps == "fail"
    if options.into is None:
        yield from read_stretch(options.store, partition.stretch, schema, wanted, _fail if fails else _warn)
    else:
        from holdfast.pipeline.landing import land

        yield from land(options.store, partition.stretch, wanted, options.into)
    settle()


def _warn(gap: Gap) -> None:
    text = "events of tenant %s after %r up to %r are no longer kept"
    logging.getLogger(__name__).warning(text, gap.tenant, gap.after, gap.to)


def _fail(gap: Gap) -> None:
    raise EventsTrimmed(gap.after, gap.to)


# Filters --------------------------------------------------------------------------------------------------------

_NAMES = ("tenant", "queue", "kind", "type", "job_id")


def _column_of(filter_: Filter) -> str:
    return ".".join(getattr(filter_, "attribute", ()))


def _narrow(wanted: Wanted, filter_: Filter) -> Wanted | None:
    """`wanted` and a filter; None: that is Spark's to do."""
    from msgspec.structs import replace

    column = _column_of(filter_)
    if column in _NAMES and isinstance(filter_, (EqualTo, EqualNullSafe, In)):
        values = cast("Iterable[Any]", filter_.value if isinstance(filter_, In) else (filter_.value,))
        chosen = frozenset(value for value in values if isinstance(value, str))
        known: frozenset[str] | None = getattr(wanted, column)
        return replace(wanted, **{column: chosen if known is None else chosen & known})
    value: Any = getattr(filter_, "value", None)
    if column == "at" and isinstance(value, datetime):
        ms = int(value.timestamp() * 1000)
        if isinstance(filter_, (GreaterThan, GreaterThanOrEqual)):
            return replace(wanted, since=ms if wanted.since is None else max(ms, wanted.since))
        if isinstance(filter_, (LessThan, LessThanOrEqual)):
            return replace(wanted, until=ms + 1 if wanted.until is None else min(ms + 1, wanted.until))
    return None


# Reading jobs ---------------------------------------------------------------------------------------------------


class Lane(InputPartition):
    """One queue of one tenant, for one task."""

    def __init__(self, tenant: str, queue: str) -> None:
        super().__init__(None)
        self.tenant, self.queue = tenant, queue


class JobsReader(DataSourceReader):
    """The jobs as they are."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._tenants, self._queues, self._states = options.tenants, options.queues, options.states

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Look only at the tenants, queues and states asked for. Spark checks the states again: jobs move."""
        for filter_ in filters:
            column = _column_of(filter_)
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
        from holdfast.pipeline.reader import OpenStore

        with OpenStore(self._options.store) as opened:
            tenants = opened.run(opened.store.tenants())
            lanes: list[InputPartition] = []
            for tenant in tenants:
                if self._tenants is not None and tenant not in self._tenants:
                    continue
                names = [stats.queue for stats in opened.run(opened.store.stats(tenant))]
                lanes += [Lane(tenant, name) for name in names if self._queues is None or name in self._queues]
            return lanes

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from holdfast.pipeline.reader import read_jobs

        if isinstance(partition, Lane):
            lane = (partition.tenant, partition.queue)
            yield from read_jobs(self._options.store, *lane, self._states, self._schema)
