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
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct, convert
from msgspec.structs import force_setattr, replace

from holdfast.core.errors import EventsTrimmed, HoldfastError, InvalidOption, StoreMismatch
from holdfast.core.job import JobKey
from holdfast.pipeline.lake import Batch, Lake, write_json
from holdfast.pipeline.trouble import cause
from holdfast.store import Reader, absolute, parse_url, shown_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from holdfast.pipeline.reader import OpenStore

Payloads = Literal["none", "hash", "full"]

POLL_S = 0.2
KEYS_AT_ONCE = 500
STARTS = 3
ORIGIN = "_origin.json"

_TRIMMED = re.compile(r"EventsTrimmed: events after '([^']*)' up to '([^']*)' are no longer kept")


class Origin(Struct, frozen=True):
    """Where a lake's events come from. It is settled by the first ingest."""

    store: str
    """Without password and options."""
    tenant: str | None
    reader: str


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
    offset: str = ""
    seconds: float = 0.0


Tell = Callable[[Ingested], None]


def ingest(
    spark: SparkSession,
    lake: Lake,
    plan: Plan,
    tell: Tell = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Ingested:
    """Take in the log, and tell after each batch. With `plan.follow` it goes on until `stopped` says so.

    Raises StoreBusy while another ingest runs on the lake, EventsTrimmed where the log was cut before it was read (it
    is noted in the lake; `accept_gap` goes on behind it), StoreMismatch where the lake is of another store.
    """
    from holdfast.pipeline.reader import OpenStore
    from holdfast.pipeline.session import jvm_pid

    with lake.lock("ingest") as lock, OpenStore(plan.store) as opened:
        if (java := jvm_pid()) is not None:
            lock.note({"java": java})
        origin = _origin(lake, plan)
        _check_checkpoint(lake)
        _register(opened, lake, origin)
        run = _Run(spark, lake, plan, origin, opened, tell, stopped)
        accepted: str | None = None
        while True:
            try:
                return run.once(accepted)
            except EventsTrimmed as gap:
                lake.note_gap(gap.from_, gap.to)
                if not plan.accept_gap:
                    gap.add_note(
                        "The gap is noted in the lake, and nothing behind it was taken in. To go on behind it: "
                        "holdfast pipeline ingest --accept-gap"
                    )
                    raise
                accepted = gap.to


def read_origin(lake: Lake) -> Origin:
    """Where the lake's events come from. Raises InvalidOption where it has none yet."""
    try:
        return convert(json.loads((lake.root / ORIGIN).read_text()), Origin)
    except FileNotFoundError:
        raise InvalidOption("lake", f"nothing has been taken in to {lake.root} yet") from None


def _origin(lake: Lake, plan: Plan) -> Origin:
    """Where the lake's events come from. Raises StoreMismatch if that is not the store of this plan."""
    path = lake.root / ORIGIN
    parsed = parse_url(plan.store)
    store = shown_url(f"{parsed.scheme}:{parsed.rest}")
    if not path.exists():
        origin = Origin(store, plan.tenant, f"lake-{uuid.uuid4().hex[:12]}")
        write_json(path, origin)
        return origin
    origin = read_origin(lake)
    if origin.tenant != plan.tenant:
        whose = "all tenants" if origin.tenant is None else f"tenant {origin.tenant}"
        raise StoreMismatch(f"the lake in {lake.root} holds the events of {whose}; use another --lake for others")
    if origin.store != store:
        if not plan.moved:
            raise StoreMismatch(
                f"the lake in {lake.root} holds the log of {origin.store}, not of {store}; use another --lake for that "
                "one, or --moved if it is the same store under a new address"
            )
        origin = replace(origin, store=store)
        write_json(path, origin)
    return origin


def _check_checkpoint(lake: Lake) -> None:
    """Spark counts batches in its checkpoint; without it they would be counted from 0 again."""
    if lake.batches() and not (lake.checkpoint / "offsets").is_dir():
        raise StoreMismatch(
            f"{lake.checkpoint} is gone: how far the lake in {lake.root} has read is not known any more. "
            "Bring it back from a backup, or ingest into a new directory."
        )


def _register(opened: OpenStore, lake: Lake, origin: Origin) -> None:
    """Have trimming wait from the very first, and note what was trimmed before."""

    async def register() -> None:
        known = await opened.store.readers(origin.tenant)
        if all(reader.name != origin.reader for reader in known):
            start, _ = await opened.log.reach(None)
            if start.strip("0.") and not lake.batches():
                lake.note_gap("", start)
            await opened.store.set_reader(Reader(origin.tenant, origin.reader, start))

    opened.run(register())


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
                if self._plan.follow and self._stopped():
                    break
        except Exception as error:
            if type(error).__name__ != "StreamingQueryException":
                raise
            raise _cause(str(error)) from None
        finally:
            self._look(query)
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
        writer = writer.foreachBatch(WriteBatch(str(self._lake.root), plan.store, plan.payloads))
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
        done.seconds = time.monotonic() - self._began
        done.offset = offset
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

    def __init__(self, root: str, store: str, payloads: Payloads) -> None:
        self._root, self._store, self._payloads = root, store, payloads

    def __call__(self, frame: DataFrame, number: int) -> None:
        from holdfast.pipeline.rows import rows

        lake = Lake(self._root)
        if lake.batch(number) is not None:
            # It was all there when the driver died: by now the store may not have all of it any more.
            return
        lake.clear_landing()
        files = rows(frame)
        lake.take_files("events", number, [(file["date"], file["file"]) for file in files])
        batch = Batch(number, sum(file["rows"] for file in files))
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
        enqueued = events.where((f.col("batch") == batch.batch) & (f.col("kind") == "enqueued"))
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
