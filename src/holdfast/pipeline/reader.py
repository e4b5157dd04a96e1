"""From a store to Arrow: its log in pieces and its jobs in pages, read in short steps and built column by column.

Only what is asked for is built: a reader with a schema of three columns makes three.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import Future
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import msgspec
import numpy as np
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.compute as pc  # pyright: ignore[reportMissingTypeStubs]
from msgspec.structs import replace

from holdfast.core.errors import InvalidOption, Unsupported
from holdfast.core.events import EventColumns, Gap, fingerprint
from holdfast.core.job import Job, JobState
from holdfast.extensions import LogRange, SplitLog
from holdfast.opening import existing, open_store, parse_url
from holdfast.pipeline.lake import POSITION_WIDTH
from holdfast.store import ListQuery, Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

T = TypeVar("T")

PAGE = 10_000
"""How many events, about, are read and handed on at a time."""
JOBS_PAGE = 1000

# Arrow comes without types.
_arrow, _compute = cast("Any", pa), cast("Any", pc)
_encode_lines = msgspec.json.Encoder().encode_lines


class OpenStore:
    """A store that exists already, for code without an event loop: that runs in a thread of its own."""

    def __init__(self, url: str) -> None:
        if parse_url(url).scheme == "memory":
            reason = "memory: lives in one process and Spark runs in several; use file:, redis: or postgresql:"
            raise InvalidOption("store", reason)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-pipeline", daemon=True)
        self._thread.start()
        try:
            self.store: Store = self.run(open_store(existing(url)))
        except BaseException:
            self._end()
            raise

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin something and go on."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns or raises."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @property
    def log(self) -> SplitLog:
        """The store, as one whose log can be read in pieces. Raises Unsupported."""
        if not isinstance(self.store, SplitLog):
            raise Unsupported("reading its log in pieces, which Spark needs", self.store.capabilities.name)
        return self.store

    def close(self) -> None:
        self.run(self.store.close())
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Wanted(msgspec.Struct, frozen=True):
    """Which events are wanted. None: all. Instants in milliseconds, `until` not included."""

    tenant: frozenset[str] | None = None
    queue: frozenset[str] | None = None
    kind: frozenset[str] | None = None
    type: frozenset[str] | None = None
    job_id: frozenset[str] | None = None
    since: int | None = None
    until: int | None = None

    def of(self, parts: list[EventColumns]) -> list[EventColumns]:
        """Those of the events that are wanted."""
        for name in ("tenant", "queue", "kind", "type", "job_id"):
            values: frozenset[str] | None = getattr(self, name)
            if values is not None:
                parts = _chosen(parts, name, values.__contains__)
        if (since := self.since) is not None:
            parts = _chosen(parts, "at", lambda at: at >= since)
        if (until := self.until) is not None:
            parts = _chosen(parts, "at", lambda at: at < until)
        return parts


def _chosen(parts: list[EventColumns], name: str, wanted: Callable[[Any], bool]) -> list[EventColumns]:
    found: list[EventColumns] = []
    for part in parts:
        which = [wanted(value) for value in getattr(part, name)]
        if all(which):
            found.append(part)
        elif any(which):
            found.append(part.chosen(which))
    return found


def read_stretch(
    url: str, stretch: LogRange, schema: StructType, wanted: Wanted, missing: Callable[[Gap], None]
) -> Iterator[Any]:
    """The events of a piece of the log as record batches; `missing` gets what is gone of it. Raises EventsTrimmed."""
    batches = Batches(schema, _EVENTS)
    with OpenStore(url) as opened, _no_cycles():
        position = _position(opened.store.capabilities.name)
        page = opened.run(opened.log.read(stretch, PAGE))
        while True:
            following = None
            if page.more:
                # The next page is on its way while this one is built and taken.
                stretch = replace(stretch, after=page.next)
                following = opened.start(opened.log.read(stretch, PAGE))
            for gap in page.gaps:
                if wanted.tenant is None or gap.tenant in wanted.tenant:
                    missing(gap)
            if parts := wanted.of(page.parts):
                yield batches.make(_Events(parts, stretch.shard, position))
            if following is None:
                return
            page = following.result()


@contextlib.contextmanager
def _no_cycles() -> Generator[None]:
    """Have Python not look for cycles: pages have none, and looking took longer than all the rest."""
    looked = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looked:
            gc.enable()


@cache
def settle() -> None:
    """Once in a process of Spark's: what was imported until now stays, and is not looked at again.

    After each task Spark has Python look for cycles among all there is, most of which are libraries. That took 60 ms,
    where a task of 50,000 events takes 200.
    """
    gc.collect()
    gc.freeze()


def read_jobs(url: str, tenant: str, queue: str, states: frozenset[JobState], schema: StructType) -> Iterator[Any]:
    """The jobs of one queue as record batches, a page at a time: what moves meanwhile may be seen twice, or not."""
    batches = Batches(schema, _JOBS)
    with OpenStore(url) as opened:
        cursor: str | None = None
        while True:
            query = ListQuery(tenant, queue, states, cursor=cursor, limit=JOBS_PAGE)
            page = opened.run(opened.store.list(query))
            jobs: Sequence[Job] = page.jobs
            if "payload" in schema.fieldNames():
                # A list leaves out large payloads.
                found = opened.run(opened.store.get([job.key for job in jobs])) if jobs else []
                jobs = [job for job in found if job is not None]
            if jobs:
                yield batches.make(jobs)
            cursor = page.cursor
            if cursor is None:
                return


def jobs_frame(spark: SparkSession, jobs: Sequence[Job]) -> DataFrame:
    """Jobs as the data source has them."""
    from holdfast.pipeline.schemas import JOBS

    rows = Batches(JOBS, _JOBS).make(jobs).to_pylist()
    return cast("Any", spark).createDataFrame([tuple(row.values()) for row in rows], JOBS)


class Batches:
    """Makes record batches of a schema: each column by the function of its name."""

    def __init__(self, schema: StructType, columns: dict[str, Callable[[Any], Any]]) -> None:
        from pyspark.sql.pandas import types

        unknown = [name for name in schema.fieldNames() if name not in columns]
        if unknown:
            raise InvalidOption("schema", f"there is no column {unknown[0]!r}; there are {', '.join(columns)}")
        self._schema: Any = cast("Any", types).to_arrow_schema(schema, timezone="UTC")
        self._columns = [columns[name] for name in schema.fieldNames()]

    def make(self, source: Any) -> Any:
        """One record batch."""
        arrays = [_column(make(source), field.type) for make, field in zip(self._columns, self._schema, strict=True)]
        return _arrow.RecordBatch.from_arrays(arrays, schema=self._schema)


def _column(values: Any, type_: Any) -> Any:
    if isinstance(values, _Runs):
        return values.spread(_column(values.values, type_))
    if isinstance(values, list):
        # Milliseconds come as whole numbers.
        values = _arrow.array(values, _arrow.int64() if _arrow.types.is_timestamp(type_) else type_)
    if _arrow.types.is_timestamp(type_) and _arrow.types.is_int64(values.type):
        values = values.view(_arrow.timestamp("ms", "UTC"))
    return values if values.type == type_ else values.cast(type_)


# Positions -----------------------------------------------------------------------------------------------------


def _position(store: str) -> Callable[[Any, int], Any]:
    """How the offsets of a store become positions, which sort byte by byte as the log does within a shard.

    file: one number, and a check value. redis: a number for each shard. postgres: four numbers, of which all count.
    """
    return _of_all if store == "postgres" else _of_shard


def _of_shard(offsets: Any, shard: int) -> Any:
    return _padded(_compute.list_element(_compute.split_pattern(offsets, "."), shard))


def _of_all(offsets: Any, shard: int) -> Any:
    del shard
    parts = _compute.split_pattern(offsets, ".")
    count = len(parts[0])
    padded = [_padded(_compute.list_element(parts, n)) for n in range(count)]
    return _compute.binary_join_element_wise(*padded, ".") if count > 1 else padded[0]


def _padded(numbers: Any) -> Any:
    return _compute.ascii_lpad(numbers, POSITION_WIDTH, "0")


# Columns -------------------------------------------------------------------------------------------------------


class _Events:
    """Events of one shard, and what several columns are made from."""

    def __init__(self, parts: list[EventColumns], shard: int, position: Callable[[Any, int], Any]) -> None:
        self._parts, self.shard, self._position = parts, shard, position
        self.count = sum(part.count for part in parts)

    def column(self, name: str) -> _Runs:
        """The values of a column, as they stand in the parts."""
        values: list[Any] = []
        counts: list[int] = []
        for part in self._parts:
            own: list[Any] = getattr(part, name)
            values += own
            counts += [part.count] if len(own) == 1 else [1] * len(own)
        return _Runs(values, counts, self.count)

    @cached_property
    def offsets(self) -> Any:
        return _joined([_offsets(part) for part in self._parts])

    @cached_property
    def positions(self) -> Any:
        """Of offsets that differ in a number alone, which is the last of a position, one position is worked out."""
        made: list[Any] = []
        for part in self._parts:
            offset = part.offset
            if isinstance(offset, list):
                made.append(self._position(_arrow.array(offset, _arrow.string()), self.shard))
            else:
                first = self._position(_arrow.array(offset.texts(1), _arrow.string()), self.shard)[0].as_py()
                before = first[:-POSITION_WIDTH]
                numbers = _padded_numbers(offset.first, part.count)
                made.append(_compute.binary_join_element_wise(before, numbers, "") if before else numbers)
        return _joined(made)

    @cached_property
    def data(self) -> _Runs:
        return self.column("data")

    @cached_property
    def said(self) -> dict[str, Any]:
        """What only events of some kinds say, each as a column: nothing where an event does not."""
        said = _arrow.array(self.data.values, _SAID)
        error = said.field("error")
        columns = dict(zip(_SAID.names, said.flatten(), strict=True))
        return columns | {f"error_{name}": error.flatten()[n] for n, name in enumerate(_ERROR.names)}


class _Runs:
    """Values, each of which stands for so many events in a row."""

    def __init__(self, values: list[Any], counts: list[int], total: int) -> None:
        self.values = values
        self._places = None if len(values) == total else np.repeat(np.arange(len(values)), counts)

    def spread(self, made: Any) -> Any:
        """What was made of the values, for each of the events."""
        return made if self._places is None else made.take(_arrow.array(self._places))


def _offsets(part: EventColumns) -> Any:
    offset = part.offset
    if isinstance(offset, list):
        return _arrow.array(offset, _arrow.string())
    numbers = _numbers(offset.first, part.count)
    if not offset.before and not offset.behind:
        return numbers
    return _compute.binary_join_element_wise(offset.before, numbers, offset.behind, "")


def _numbers(first: int, count: int) -> Any:
    return _arrow.array(np.arange(first, first + count)).cast(_arrow.string())


def _padded_numbers(first: int, count: int) -> Any:
    """Numbers of POSITION_WIDTH digits, one digit of them all after another: padding texts took twice as long."""
    digits = np.full((count, POSITION_WIDTH), ord("0"), np.uint8)
    left = np.arange(first, first + count)
    for place in range(1, len(str(first + count)) + 1):
        left, digit = np.divmod(left, 10)
        digits[:, -place] += digit.astype(np.uint8)
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(POSITION_WIDTH)
    return _arrow.StringArray.from_buffers(count, _arrow.py_buffer(ends), _arrow.py_buffer(digits))


def _joined(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else _arrow.concat_arrays(arrays)


_ERROR: Any = _arrow.struct([(name, _arrow.string()) for name in ("type", "message", "fingerprint")])
_SAID: Any = _arrow.struct({
    "priority": _arrow.int32(), "max_attempts": _arrow.int32(), "visible_at": _arrow.int64(),
    "deadline": _arrow.int64(), "reason": _arrow.string(), "error": _ERROR,
})  # fmt: skip


def _of_event(name: str) -> Callable[[_Events], _Runs]:
    return lambda source: source.column(name)


def _said(name: str) -> Callable[[_Events], Any]:
    return lambda source: source.data.spread(source.said[name])


def _as_json(source: _Events) -> Any:
    """JSON has its line ends escaped: what is between them are the values."""
    lines = np.frombuffer(_encode_lines(source.data.values), np.uint8)
    ends = np.flatnonzero(lines == _LINE_END)
    count = len(ends)
    places = np.zeros(count + 1, np.int32)
    places[1:] = ends - np.arange(count)
    text = lines[lines != _LINE_END]
    values = _arrow.StringArray.from_buffers(count, _arrow.py_buffer(places), _arrow.py_buffer(text))
    return source.data.spread(values)


_LINE_END = ord("\n")
_EVENTS: dict[str, Callable[[Any], Any]] = {
    "shard": lambda source: _arrow.repeat(source.shard, source.count),
    "position": lambda source: source.positions,
    "offset": lambda source: source.offsets,
    **{
        name: _of_event(name)
        for name in ("kind", "tenant", "queue", "job_id", "type", "at", "number", "attempt", "token", "worker_id")
    },
    "priority": _said("priority"),
    "max_attempts": _said("max_attempts"),
    "visible_at": _said("visible_at"),
    "deadline": _said("deadline"),
    "reason": _said("reason"),
    "error_type": _said("error_type"),
    "error_message": _said("error_message"),
    "fingerprint": _said("error_fingerprint"),
    "data": _as_json,
}


def _of_job(value: Callable[[Job], Any]) -> Callable[[Sequence[Job]], list[Any]]:
    return lambda jobs: [value(job) for job in jobs]


_JOBS: dict[str, Callable[[Any], Any]] = {
    "tenant": _of_job(lambda job: job.tenant),
    "queue": _of_job(lambda job: job.queue),
    "id": _of_job(lambda job: job.id),
    "state": _of_job(lambda job: job.state.value),
    "type": _of_job(lambda job: job.envelope.type),
    "priority": _of_job(lambda job: job.envelope.priority),
    "attempts": _of_job(lambda job: job.attempts),
    "max_attempts": _of_job(lambda job: job.envelope.max_attempts),
    "replays": _of_job(lambda job: job.replays),
    "events": _of_job(lambda job: job.events),
    "token": _of_job(lambda job: job.token),
    "worker_id": _of_job(lambda job: job.worker_id),
    "enqueued_at": _of_job(lambda job: job.enqueued_at),
    "visible_at": _of_job(lambda job: job.visible_at),
    "claimed_at": _of_job(lambda job: job.claimed_at),
    "deadline": _of_job(lambda job: job.deadline or None),
    "finished_at": _of_job(lambda job: job.finished_at),
    "expires_at": _of_job(lambda job: job.expires_at),
    "reason": _of_job(lambda job: job.reason or None),
    "error_type": _of_job(lambda job: job.errors[-1].type if job.errors else None),
    "error_message": _of_job(lambda job: job.errors[-1].message if job.errors else None),
    "fingerprint": _of_job(lambda job: fingerprint(job.errors[-1]) if job.errors else None),
    "idempotency_key": _of_job(lambda job: job.envelope.idempotency.key if job.envelope.idempotency else None),
    "codec": _of_job(lambda job: job.envelope.codec),
    "version": _of_job(lambda job: job.envelope.version),
    "size": _of_job(lambda job: len(job.envelope.payload)),
    "payload": _of_job(lambda job: job.envelope.payload),
}


def payload_columns(*, full: bool) -> dict[str, Callable[[Any], Any]]:
    """The columns of the table `payloads`, made of jobs and the `enqueued` events they come from."""

    def of(value: Callable[[Job], Any]) -> Callable[[Any], Any]:
        return lambda pairs: [value(job) for job, _ in pairs]

    return {
        "tenant": of(lambda job: job.tenant),
        "queue": of(lambda job: job.queue),
        "job_id": of(lambda job: job.id),
        "enqueued_at": of(lambda job: job.enqueued_at),
        "type": of(lambda job: job.envelope.type),
        "codec": of(lambda job: job.envelope.codec),
        "version": of(lambda job: job.envelope.version),
        "payload": of(lambda job: job.envelope.payload if full else None),
        "payload_sha256": of(lambda job: None if full else hashlib.sha256(job.envelope.payload).hexdigest()),
        "size": of(lambda job: len(job.envelope.payload)),
        "date": lambda pairs: [row["date"] for _, row in pairs],
        "batch": lambda pairs: [row["batch"] for _, row in pairs],
    }
