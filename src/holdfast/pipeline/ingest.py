"""The log into the lake, exactly once: to its end as it is now, or following it.

Spark fixes the ends of a micro-batch before it begins and notes when it has ended. Its tasks write files, and the
driver moves those that they tell into the partitions (date, batch), which have all events of that batch and day. A
driver that dies in between does the same batch again, and what is moved there then replaces what was there. The reader
registered in the store is moved on when a batch is in the lake, and trimming waits for it.
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
from holdfast.pipeline.errors import cause
from holdfast.pipeline.lake import Batch, Lake, batch_of
from holdfast.pipeline.origin import Origin, check_known, settle
from holdfast.store import Reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from holdfast.pipeline.reader import OpenStore

Payloads = Literal["none", "hash", "full"]

POLL_S = 0.2
KEYS_AT_ONCE = 500
STARTS = 3
STOPPED = "the ingest was asked to stop before this batch"

_decode_gaps = msgspec.json.Decoder(list[Gap]).decode
_TRIMMED = re.compile(r"EventsTrimmed: events after '([^']*)' up to '([^']*)' are no longer kept")


class Plan(Struct, frozen=True):
    """What an ingest is to do."""

    store: str
    tenant: str | None = None
    payloads: Payloads = "none"
    follow: bool = False
    interval_s: float = 10.0
    max_events: int = 1_000_000
    per_partition: int = 100_000
    accept_gap: bool = False
    moved: bool = False
    """The store has a new address."""

    def __post_init__(self) -> None:
        force_setattr(self, "store", absolute(self.store))


class Ingested(Struct):
    """What has been taken in so far by this run."""

    batches: int = 0
    events: int = 0
    payloads: int = 0
    missing_payloads: int = 0
    gaps: int = 0
    """Where events of one tenant had been trimmed before they were read. They are noted in the lake."""
    offset: str = ""
    seconds: float = 0.0
    stopped: bool = False
    """Asked to end before it had come to the log's end."""


Tell = Callable[[Ingested], None]


def ingest(
    spark: SparkSession,
    lake: Lake,
    plan: Plan,
    tell: Tell = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Ingested:
    """Take in the log, and tell after each batch. With `plan.follow` it goes on until `stopped` says so.

    Whoever is stopped finishes the batch under way; the next ingest goes on behind it.

    Raises StoreBusy while another ingest runs on the lake, EventsTrimmed where the log was cut before it was read (it
    is noted in the lake; `accept_gap` goes on behind it), StoreMismatch where the lake is of another store.
    """
    from holdfast.pipeline.reader import OpenStore
    from holdfast.pipeline.session import jvm_pid

    with lake.lock("ingest") as lock, OpenStore(plan.store) as opened:
        if (java := jvm_pid()) is not None:
            lock.note({"java": java})
        lake.stop_mark.unlink(missing_ok=True)
        origin = settle(opened, lake, plan)
        run = _Run(spark, lake, plan, origin, opened, tell, stopped)
        accepted: str | None = None
        while True:
            try:
                return run.once(accepted)
            except EventsTrimmed as gap:
                settle(opened, lake, plan)  # A store that was restored meanwhile has no gap but another log.
                lake.note_gap(gap.from_, gap.to)
                if not plan.accept_gap:
                    gap.add_note(
                        "The gap is noted in the lake, and nothing behind it was taken in. To go on behind it: "
                        "holdfast pipeline ingest --accept-gap"
                    )
                    raise
                accepted = gap.to


class _Run:
    """One ingest: the query that does it, and who watches it."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        plan: Plan,
        origin: Origin,
        opened: OpenStore,
        tell: Tell,
        stopped: Callable[[], bool],
    ) -> None:
        self._spark, self._lake, self._plan, self._origin = spark, lake, plan, origin
        self._opened, self._tell, self._stopped = opened, tell, stopped
        self._done = Ingested()
        self._began = time.monotonic()
        self._last = -1

    def once(self, accepted: str | None) -> Ingested:
        """Run the query to its end. Raises EventsTrimmed, or what else stopped it."""
        query = self._start(accepted)
        try:
            while not query.awaitTermination(cast("int", POLL_S)):
                self._look(query)
                if self._stopped():
                    self._lake.stop_mark.touch()
                    # Else a batch is under way, which ends, or finds the mark.
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
                self._look(query)
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

    def _look(self, query: StreamingQuery) -> None:
        """Take note of the batches that have ended since the last look."""
        for progress in cast("list[Any]", query.recentProgress):
            number = int(progress["batchId"])
            # A trigger that found nothing to do reports too, under the number of the batch that is still to come.
            if number <= self._last or "addBatch" not in progress["durationMs"]:
                continue
            if (batch := self._lake.batch(number)) is not None:
                self._last = number
                self._note(batch, json.loads(progress["sources"][0]["endOffset"])["offset"])

    def _note(self, batch: Batch, offset: str) -> None:
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
        self._tell(done)


def _started(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query. A Connect server gives the process for its batches ten seconds to come up, which may be short."""
    for _ in range(STARTS - 1):
        try:
            return writer.start()
        except Exception as error:
            if "failed to connect back" not in str(error):
                raise
    return writer.start()


def _cause(text: str) -> HoldfastError:
    """What went wrong inside a query, out of what Spark says about it."""
    if match := _TRIMMED.search(text):
        return EventsTrimmed(match[1], match[2])
    return cause("ingest", text)


class WriteBatch:
    """Writes a micro-batch. With Spark Connect it travels to the server, so it holds names and nothing open."""

    def __init__(self, root: str, store: str, payloads: Payloads, origin: Origin) -> None:
        self._root, self._store, self._payloads, self._origin = root, store, payloads, origin

    def __call__(self, frame: DataFrame, number: int) -> None:
        from holdfast.pipeline.reader import OpenStore
        from holdfast.pipeline.rows import rows

        lake = Lake(self._root)
        if lake.stop_mark.exists():
            # To stop the query instead would have Java print a trace of the batch that is interrupted.
            raise InterruptedError(STOPPED)
        if lake.batch(number) is not None:
            # It was all there when the driver died: by now the store may not have all of it any more.
            return
        lake.clear_landing()
        told = rows(frame)
        files = [row for row in told if row["file"]]
        # A store that was made anew meanwhile may have had a log that goes as far.
        with OpenStore(self._store) as opened:
            check_known(opened, self._origin)
        lake.take_files("events", number, [(file["date"], file["file"]) for file in files])
        batch = batch_of(number, [(file["date"], file["rows"], file["checksum"]) for file in files])
        missing = [gap for row in told if row["gaps"] for gap in _decode_gaps(row["gaps"])]
        batch = replace(batch, gaps=lake.note_gaps(missing))
        lake.clear_landing()
        if self._payloads != "none":
            batch = self._add_payloads(frame.sparkSession, lake, batch)
        lake.mark_batch(batch)

    def _add_payloads(self, spark: SparkSession, lake: Lake, batch: Batch) -> Batch:
        from pyspark.sql import functions as f

        from holdfast.pipeline.schemas import BRONZE_EVENTS, PARTITIONS, PAYLOADS

        events = spark.read.schema(BRONZE_EVENTS).parquet(str(lake.path("events"))) if batch.events else None
        if events is None:
            return batch
        # Not the operator's records: keys are among them.
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
    """Looks up the jobs of `enqueued` events. Those that are gone, or have a new life by now, have no row."""

    def __init__(self, store: str, *, full: bool) -> None:
        self._store, self._full = store, full

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        from holdfast.pipeline.reader import Batches, OpenStore, payload_columns
        from holdfast.pipeline.schemas import PAYLOADS

        make = Batches(PAYLOADS, payload_columns(full=self._full))
        with OpenStore(self._store) as opened:
            for batch in batches:
                rows: list[dict[str, Any]] = batch.to_pylist()
                for at in range(0, len(rows), KEYS_AT_ONCE):
                    part = rows[at : at + KEYS_AT_ONCE]
                    keys = [JobKey(row["tenant"], row["queue"], row["job_id"]) for row in part]
                    jobs = opened.run(opened.store.get(keys))
                    found = [
                        (job, row)
                        for job, row in zip(jobs, part, strict=True)
                        if job is not None and job.enqueued_at == round(row["at"].timestamp() * 1000)
                    ]
                    if found:
                        yield make.make(found)


def check_payloads(text: str) -> Payloads:
    """Return `text` if it says what to do with payloads. Raises InvalidOption."""
    if text not in ("none", "hash", "full"):
        raise InvalidOption("payloads", f"{text!r} is not 'none', 'hash' or 'full'")
    return text
