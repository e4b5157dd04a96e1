"""Copies the log into the lake, exactly once: to its current end, or following it.

Spark fixes the end of a micro-batch before the batch begins, and records when it is done. Tasks write files and return
their names. The driver moves these files into partitions (date, batch), which hold all events of that batch and day. If
the driver dies in between, the next one repeats the batch and replaces what is there. When a batch is in the lake, the
lake's registered reader in the store advances. Trimming waits for that reader.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from holdfast.core.errors import EventsTrimmed, HoldfastError, InvalidOption
from holdfast.core.events import Gap
from holdfast.core.job import JobKey
from holdfast.core.names import OPERATOR
from holdfast.opening import absolute
from holdfast.pipeline.batches import Batch, batch_of
from holdfast.pipeline.errors import cause
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.origin import Origin, check_known, establish_origin
from holdfast.store import Reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from holdfast.pipeline.connection import OpenStore

Payloads = Literal["none", "hash", "full"]

POLL_S = 0.2
MAX_KEYS = 500
"""The most jobs to look up in one call."""
MAX_STARTS = 3
STOPPED = "the ingest was asked to stop before this batch"

_decode_gaps = msgspec.json.Decoder(list[Gap]).decode
_TRIMMED = re.compile(r"EventsTrimmed: events after '([^']*)' up to '([^']*)' are no longer kept")


class IngestPlan(Struct, frozen=True):
    """What to ingest, and how."""

    store: str
    tenant: str | None = None
    payloads: Payloads = "none"
    follow: bool = False
    interval_s: float = 10.0
    max_events: int = 1_000_000
    per_partition: int = 100_000
    accept_gap: bool = False
    moved: bool = False
    """It is the same store at a new address."""

    def __post_init__(self) -> None:
        force_setattr(self, "store", absolute(self.store))


class Ingested(Struct):
    """What this run has ingested so far."""

    batches: int = 0
    events: int = 0
    payloads: int = 0
    missing_payloads: int = 0
    gaps: int = 0
    """Ranges where events of one tenant were trimmed before they were read. The lake records them."""
    offset: str = ""
    seconds: float = 0.0
    stopped: bool = False
    """The run was stopped before the end of the log."""


OnBatch = Callable[[Ingested], None]


def ingest(
    spark: SparkSession,
    lake: Lake,
    plan: IngestPlan,
    on_batch: OnBatch = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Ingested:
    """Ingest the log, and call `on_batch` after each batch. With `plan.follow` it continues until `stopped()`.

    A stopped ingest finishes the current batch; the next ingest continues after it.

    Raises StoreBusy while another ingest runs on the lake, and StoreMismatch if the lake belongs to another store.
    Raises EventsTrimmed if the log was trimmed before it was read. The lake records that gap; with `accept_gap` the
    ingest continues after it.
    """
    from holdfast.pipeline.connection import OpenStore
    from holdfast.pipeline.session import jvm_pid

    with lake.lock("ingest") as lock, OpenStore(plan.store) as opened:
        if (java := jvm_pid()) is not None:
            lock.record({"java": java})
        lake.stop_mark.unlink(missing_ok=True)
        origin = establish_origin(opened, lake, plan)
        run = _Run(spark, lake, plan, origin, opened, on_batch, stopped)
        accepted: str | None = None
        while True:
            try:
                return run.once(accepted)
            except EventsTrimmed as gap:
                # A store that was restored meanwhile has another log instead of a gap. This raises for it.
                establish_origin(opened, lake, plan)
                lake.record_gap(gap.from_, gap.to)
                if not plan.accept_gap:
                    gap.add_note(
                        "The lake has recorded the gap and has nothing after it. To continue after the gap: "
                        "holdfast pipeline ingest --accept-gap"
                    )
                    raise
                accepted = gap.to


class _Run:
    """One ingest: a streaming query, and its progress."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        plan: IngestPlan,
        origin: Origin,
        opened: OpenStore,
        on_batch: OnBatch,
        stopped: Callable[[], bool],
    ) -> None:
        self._spark, self._lake, self._plan, self._origin = spark, lake, plan, origin
        self._opened, self._on_batch, self._stopped = opened, on_batch, stopped
        self._done = Ingested()
        self._began = time.monotonic()
        self._last = -1

    def once(self, accepted: str | None) -> Ingested:
        """Run the query to its end. Raises EventsTrimmed, or the error that ended it."""
        query = self._start(accepted)
        try:
            while not query.awaitTermination(cast("int", POLL_S)):
                self._advance(query)
                if self._stopped():
                    self._lake.stop_mark.touch()
                    # A batch in progress ends, or sees the mark.
                    if self._plan.follow and not query.status["isTriggerActive"]:
                        break
        except Exception as error:
            if type(error).__name__ != "StreamingQueryException":
                raise
            if STOPPED not in str(error):
                raise _cause(str(error)) from None
            self._done.stopped = not self._plan.follow
        finally:
            try:
                self._advance(query)
            finally:
                query.stop()
        return self._done

    def _start(self, accepted: str | None) -> StreamingQuery:
        plan = self._plan
        reader = self._spark.readStream.format("holdfast").options(
            store=plan.store,
            maxEventsPerBatch=str(plan.max_events),
            eventsPerPartition=str(plan.per_partition),
            into=str(self._lake.landing),
        )
        if plan.tenant is not None:
            reader = reader.option("tenant", plan.tenant)
        if accepted is not None:
            reader = reader.option("acceptGap", accepted)
        writer = reader.load().writeStream.queryName("holdfast-ingest")
        writer = writer.foreachBatch(WriteBatch(str(self._lake.root), plan.store, plan.payloads, self._origin))
        writer = writer.option("checkpointLocation", str(self._lake.checkpoint))
        if plan.follow:
            writer = writer.trigger(processingTime=f"{round(plan.interval_s * 1000)} milliseconds")
        else:
            writer = writer.trigger(availableNow=True)
        return _started(writer)

    def _advance(self, query: StreamingQuery) -> None:
        """Count the batches that have ended since the last call, and advance the reader."""
        for progress in cast("list[Any]", query.recentProgress):
            number = int(progress["batchId"])
            # A trigger that found nothing to do reports too, with the number of the next batch.
            if number <= self._last or "addBatch" not in progress["durationMs"]:
                continue
            if (batch := self._lake.batch(number)) is not None:
                self._last = number
                self._count(batch, json.loads(progress["sources"][0]["endOffset"])["offset"])

    def _count(self, batch: Batch, offset: str) -> None:
        done = self._done
        done.batches += 1
        done.events += batch.events
        done.payloads += batch.payloads
        done.missing_payloads += batch.missing_payloads
        done.gaps += batch.gaps
        done.seconds = time.monotonic() - self._began
        done.offset = offset
        check_known(self._opened, self._origin)
        self._opened.run(self._opened.store.set_reader(Reader(self._origin.tenant, self._origin.reader, offset)))
        self._on_batch(done)


def _started(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query. A Connect server waits ten seconds for its batch process, which may be too short: try again."""
    for _ in range(MAX_STARTS - 1):
        try:
            return writer.start()
        except Exception as error:
            if "failed to connect back" not in str(error):
                raise
    return writer.start()


def _cause(text: str) -> HoldfastError:
    """The error of a query, read from Spark's text."""
    if match := _TRIMMED.search(text):
        return EventsTrimmed(match[1], match[2])
    return cause("ingest", text)


class WriteBatch:
    """Writes a micro-batch. Spark Connect sends it to the server, so it holds names and no open resources."""

    def __init__(self, root: str, store: str, payloads: Payloads, origin: Origin) -> None:
        self._root, self._store, self._payloads, self._origin = root, store, payloads, origin

    def __call__(self, frame: DataFrame, number: int) -> None:
        from holdfast.pipeline.connection import OpenStore
        from holdfast.pipeline.rows import rows

        lake = Lake(self._root)
        if lake.stop_mark.exists():
            # Stopping the query instead would make Java print a trace of the interrupted batch.
            raise InterruptedError(STOPPED)
        if lake.batch(number) is not None:
            # The batch was complete when the driver died. The store may have trimmed parts of it since.
            return
        lake.clear_landing()
        written = rows(frame)
        files = [row for row in written if row["file"]]
        # The store may have been recreated meanwhile, with a log that is as long.
        with OpenStore(self._store) as opened:
            check_known(opened, self._origin)
        lake.take_files("events", number, [(file["date"], file["file"]) for file in files])
        batch = batch_of(number, [(file["date"], file["rows"], file["checksum"]) for file in files])
        missing = [gap for row in written if row["gaps"] for gap in _decode_gaps(row["gaps"])]
        batch = replace(batch, gaps=lake.record_gaps(missing))
        lake.clear_landing()
        if self._payloads != "none":
            batch = self._add_payloads(frame.sparkSession, lake, batch)
        lake.record_batch(batch)

    def _add_payloads(self, spark: SparkSession, lake: Lake, batch: Batch) -> Batch:
        from pyspark.sql import functions as f

        from holdfast.pipeline.schemas import BRONZE_EVENTS, PARTITIONS, PAYLOADS

        events = spark.read.schema(BRONZE_EVENTS).parquet(str(lake.path("events"))) if batch.events else None
        if events is None:
            return batch
        # Leave out the operator's records: they contain keys.
        jobs = events.where(f.col("tenant") != OPERATOR)
        enqueued = jobs.where((f.col("batch") == batch.batch) & (f.col("kind") == "enqueued"))
        columns = enqueued.select("tenant", "queue", "job_id", "at", "date", "batch")
        fetched: DataFrame = cast("Any", columns).mapInArrow(
            FetchPayloads(self._store, full=self._payloads == "full"), PAYLOADS
        )
        lake.overwrite_partitions("payloads", fetched, PARTITIONS)
        found = lake.count_rows("payloads", batch.batch)
        return replace(batch, payloads=found, missing_payloads=enqueued.count() - found)


class FetchPayloads:
    """Reads the jobs of `enqueued` events. A job that was removed or enqueued again since gets no row."""

    def __init__(self, store: str, *, full: bool) -> None:
        self._store, self._full = store, full

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        from holdfast.pipeline.columns import BatchBuilder
        from holdfast.pipeline.connection import OpenStore
        from holdfast.pipeline.job_columns import payload_columns
        from holdfast.pipeline.schemas import PAYLOADS

        builder = BatchBuilder(PAYLOADS, payload_columns(full=self._full))
        with OpenStore(self._store) as opened:
            for batch in batches:
                rows: list[dict[str, Any]] = batch.to_pylist()
                for at in range(0, len(rows), MAX_KEYS):
                    part = rows[at : at + MAX_KEYS]
                    keys = [JobKey(row["tenant"], row["queue"], row["job_id"]) for row in part]
                    jobs = opened.run(opened.store.get(keys))
                    found = [
                        (job, row)
                        for job, row in zip(jobs, part, strict=True)
                        if job is not None and job.enqueued_at == round(row["at"].timestamp() * 1000)
                    ]
                    if found:
                        yield builder.build(found)


def check_payloads(text: str) -> Payloads:
    """Return `text` if it is none, hash or full. Raises InvalidOption."""
    if text not in ("none", "hash", "full"):
        raise InvalidOption("payloads", f"{text!r} is not 'none', 'hash' or 'full'")
    return text
