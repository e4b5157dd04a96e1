"""Replay exactly the dead letters that a condition picks, once, and prove it by the store.

    RECEIPT/receipt.json    what was asked, how far it came, and what the store says about it
    RECEIPT/chosen          the dead letters, each with when it failed and how often it had been replayed by then
    RECEIPT/answers         what became of each
    RECEIPT/.turn           who looks and replays

The set is written first. A job that has been replayed since is not replayed again, by a retried task or by another run
with the same receipt, even if it failed anew: the store counts replays, and a dead letter is recognised by that count
and by when it failed. Looking and replaying are two calls, so tasks take turns at them: an executor that Spark takes
for dead and that still works cannot replay what another one has seen dead a moment before.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeGuard, cast

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
from msgspec import Struct, field
from msgspec.structs import force_setattr, replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from holdfast.core import failpoint
from holdfast.core.errors import (
    InvalidOption,
    JobNotFound,
    NotReplayable,
    QuotaExceeded,
    StoreBusy,
    StoreMismatch,
    StoreUnavailable,
)
from holdfast.core.job import Job, JobKey, JobState, Replayed
from holdfast.opening import absolute, shown_url
from holdfast.pipeline.errors import plainly
from holdfast.pipeline.lake import Lock, read_json, release_lock, take_lock, write_json
from holdfast.pipeline.reader import OpenStore
from holdfast.pipeline.triage import chosen
from holdfast.store import Store

RATE = 1000.0
TASKS = 4
SAMPLE = 10
AT_ONCE = 500
PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
TURN, TURN_S = ".turn", 0.01

_JOB = [StructField(name, StringType(), nullable=False) for name in ("tenant", "queue", "job_id", "type")]
CHOSEN = StructType(
    [
        *_JOB,
        StructField("error_type", StringType()),
        StructField("fingerprint", StringType()),
        StructField("enqueued_at", TimestampType(), nullable=False),
        StructField("finished_at", TimestampType(), nullable=False),
        StructField("attempts", IntegerType(), nullable=False),
        StructField("replays", IntegerType(), nullable=False),
    ]
)
ANSWERS = StructType(
    [
        *CHOSEN.fields,
        # replayed (by this run, or by somebody else since the set was written), gone, refused, quota
        StructField("answer", StringType(), nullable=False),
        StructField("detail", StringType()),
    ]
)
_SEEN = StructType([*ANSWERS.fields, StructField("replays_now", LongType())])

_arrow = cast("Any", pa)


class Plan(Struct, frozen=True):
    """What to replay."""

    store: str
    where: str
    """A condition in SQL on the failed jobs of the store."""
    tenant: str | None = None
    rate: float | None = RATE
    """How many a second, at most, by all tasks together."""
    tasks: int = TASKS
    patience_s: float = 300.0
    """For how long a full quota or a store that is away is waited for."""

    def __post_init__(self) -> None:
        force_setattr(self, "store", absolute(self.store))
        if not self.where.strip():
            raise InvalidOption("where", "is empty; write a condition, or 'true' for all dead letters")
        if self.rate is not None and not 0 < self.rate < 1e9:  # noqa: PLR2004
            raise InvalidOption("rate", f"{self.rate:g} a second is no rate; it must be above 0")
        if self.tasks < 1:
            raise InvalidOption("tasks", f"{self.tasks} is not a whole number from 1 on")


class Check(Struct, frozen=True):
    """What the store says about the jobs whose answer is `replayed`."""

    expected: int
    found: int
    """Replayed exactly once since the set was written."""
    more: int
    """Replayed more than once since then."""
    forgotten: int
    """Replayed, finished and forgotten by now: nothing to compare."""
    expected_digest: str
    found_digest: str

    @property
    def ok(self) -> bool:
        """Whether each of them was replayed exactly once."""
        return self.expected == self.found and self.expected_digest == self.found_digest


class Receipt(Struct, frozen=True):
    """What was asked, and how far it came."""

    store: str
    tenant: str | None
    where: str
    chosen: int
    chosen_digest: str
    written_at: datetime
    state: str = "chosen"
    """chosen; partial: some wait for room in a quota; done"""
    answers: dict[str, int] = field(default_factory=dict[str, int])
    check: Check | None = None
    ended_at: datetime | None = None


class Preview(Struct, frozen=True):
    """Which dead letters a condition picks."""

    total: int
    groups: list[dict[str, Any]]
    """How many of each tenant, queue and type."""
    sample: list[dict[str, Any]]


def dead_letters(spark: SparkSession, store: str, tenant: str | None = None) -> DataFrame:
    """The failed jobs of a store as they are now: the columns of the source's `jobs`, with `id` as `job_id`."""
    reader = spark.read.format("holdfast").options(store=store, table="jobs", states="failed")
    if tenant is not None:
        reader = reader.option("tenant", tenant)
    with plainly("read the dead letters"):
        jobs = reader.load().withColumnRenamed("id", "job_id")
        # A list shows a job twice that moved meanwhile, or one that has moved on.
        return jobs.where((fn.col("state") == "failed") & fn.col("finished_at").isNotNull())


def preview(spark: SparkSession, plan: Plan, sample: int = SAMPLE) -> Preview:
    """What would be replayed. Raises InvalidOption for a condition that makes no sense."""
    return _shown(_choose(spark, plan), sample)


def choose(spark: SparkSession, plan: Plan, place: Path) -> Receipt:
    """Write down the dead letters that are to be replayed, if the receipt does not have them already.

    Raises InvalidOption where the receipt is of another replay.
    """
    place = place.absolute()
    known = read_receipt(place)
    if known is not None:
        asked = (shown_url(plan.store), plan.tenant, plan.where)
        if (known.store, known.tenant, known.where) != asked:
            whose = "" if known.tenant is None else f", tenant {known.tenant}"
            reason = f"{place} is of another replay: --where {known.where!r} on {known.store}{whose}"
            raise InvalidOption("receipt", reason)
        return known
    if place.exists() and not _leftover(place):
        raise InvalidOption("receipt", f"{place} is neither a receipt nor empty")
    fresh = place / f".chosen-{uuid.uuid4().hex}"
    with plainly("write down the dead letters"):
        _choose(spark, plan).write.parquet(str(fresh))
        shutil.rmtree(place / "chosen", ignore_errors=True)
        fresh.rename(place / "chosen")
        count, digest = _digest(_read(spark, place, "chosen", CHOSEN))
    receipt = Receipt(shown_url(plan.store), plan.tenant, plan.where, count, digest, datetime.now(UTC))
    write_json(place / "receipt.json", receipt)
    return receipt


def replay(spark: SparkSession, plan: Plan, place: Path) -> Receipt:
    """Replay the chosen dead letters, or what is left of them, and check the receipt against the store.

    Raises StoreBusy while another replay with this receipt runs, StoreMismatch if its set has been changed.
    """
    place = place.absolute()
    place.mkdir(parents=True, exist_ok=True)
    with (place / ".lock").open("a+") as file:
        Lock(file.fileno(), place / ".lock").take("this replay")
        receipt = choose(spark, plan, place)
        if receipt.state != "done":
            receipt = _go_on(spark, plan, place, receipt)
        with plainly("check the receipt"):
            receipt = replace(receipt, check=_check(spark, plan, place))
        write_json(place / "receipt.json", receipt)
        return receipt


def shown(spark: SparkSession, place: Path, sample: int = SAMPLE) -> Preview:
    """The set that a receipt holds."""
    return _shown(_read(spark, place, "chosen", CHOSEN), sample)


def read_receipt(place: Path) -> Receipt | None:
    """The receipt in a directory, or None. Raises StoreMismatch if it is damaged."""
    try:
        return read_json(place / "receipt.json", Receipt, "Begin with another receipt; what was replayed stays so.")
    except (FileNotFoundError, NotADirectoryError):
        return None


def _choose(spark: SparkSession, plan: Plan) -> DataFrame:
    picked = chosen(dead_letters(spark, plan.store, plan.tenant), plan.where)
    return picked.select(*CHOSEN.fieldNames()).dropDuplicates(["tenant", "queue", "job_id"])


def _shown(picked: DataFrame, sample: int) -> Preview:
    with plainly("read the dead letters"):
        rows = picked.groupBy("tenant", "queue", "type").count().orderBy("tenant", "queue", "type").collect()
        groups = [cast("dict[str, Any]", cast("Any", row).asDict()) for row in rows]
        some = picked.orderBy("finished_at", "tenant", "queue", "job_id").limit(sample).collect()
    return Preview(sum(group["count"] for group in groups), groups, [cast("Any", row).asDict() for row in some])


def _leftover(place: Path) -> bool:
    """Whether there is only what a run left that died before its set was written."""
    return all(path.name.startswith(".") or path.name == "chosen" for path in place.iterdir())


def _read(spark: SparkSession, place: Path, name: str, schema: StructType) -> DataFrame:
    return spark.read.schema(schema).parquet(str(place / name))


def _go_on(spark: SparkSession, plan: Plan, place: Path, receipt: Receipt) -> Receipt:
    set_ = _read(spark, place, "chosen", CHOSEN)
    with plainly("replay"):
        if _digest(set_) != (receipt.chosen, receipt.chosen_digest):
            raise StoreMismatch(f"the set in {place} is not the one that was chosen; nothing was replayed")
        rate = None if plan.rate is None else plan.rate / plan.tasks
        spread = set_.repartition(plan.tasks).sortWithinPartitions("finished_at")
        task = Replay(plan.store, str(place / TURN), rate, plan.patience_s)
        answered: DataFrame = cast("Any", spread).mapInArrow(task, ANSWERS)
        answered.write.mode("overwrite").parquet(str(place / "answers"))
        rows = _read(spark, place, "answers", ANSWERS).groupBy("answer").count().collect()
    counts = {row["answer"]: int(row["count"]) for row in rows}
    state = "partial" if counts.get("quota") else "done"
    return replace(receipt, state=state, answers=counts, ended_at=datetime.now(UTC))


def _check(spark: SparkSession, plan: Plan, place: Path) -> Check:
    """Ask the store about every job that is said to be replayed."""
    said = _read(spark, place, "answers", ANSWERS).where(fn.col("answer") == "replayed")
    seen: DataFrame = cast("Any", said.repartition(plan.tasks)).mapInArrow(Look(plan.store), _SEEN)
    seen = seen.persist()
    try:
        forgotten = seen.where(fn.col("replays_now").isNull()).count()
        there = seen.where(fn.col("replays_now").isNotNull())
        expected = _digest(there.withColumn("replays", fn.col("replays").cast("long") + 1))
        once = there.where(fn.col("replays_now") == fn.col("replays") + 1)
        found = _digest(once.withColumn("replays", fn.col("replays_now")))
        more = there.where(fn.col("replays_now") > fn.col("replays") + 1).count()
    finally:
        seen.unpersist()
    return Check(expected[0], found[0], more, forgotten, expected[1], found[1])


def _digest(frame: DataFrame) -> tuple[int, str]:
    """How many jobs, and a sum that does not depend on their order."""
    facts = ("tenant", "queue", "job_id", fn.unix_millis("enqueued_at"), fn.col("replays").cast("long"))
    total = fn.sum(fn.xxhash64(*facts).cast("decimal(38,0)"))
    row = frame.agg(fn.count("*").alias("count"), fn.coalesce(total, fn.lit(0)).cast("string").alias("sum")).collect()
    return int(row[0]["count"]), str(row[0]["sum"])


# On the executors -----------------------------------------------------------------------------------------------


class Replay:
    """Replays the jobs of one task, and answers for each."""

    def __init__(self, store: str, turn: str, rate: float | None, patience_s: float) -> None:
        self._store, self._turn, self._rate, self._patience_s = store, turn, rate, patience_s
        # A slow replay goes in small steps, so that it is even.
        self._at_once = AT_ONCE if rate is None else max(1, min(AT_ONCE, int(rate / 4)))

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        with Path(self._turn).open("a") as turn, OpenStore(self._store) as opened:
            task = _Task(opened.store, _Turn(turn.fileno()), _Pace(self._rate), self._patience_s)
            for rows in _parts(batches, self._at_once):
                answers = opened.run(task.replay(rows))
                failpoint.hit("replay.after_part")
                answered = [
                    {**row, "answer": answer, "detail": detail}
                    for row, (answer, detail) in zip(rows, answers, strict=True)
                ]
                yield _batch(answered, ANSWERS)


class Look:
    """Asks the store how often each job has been replayed by now."""

    def __init__(self, store: str) -> None:
        self._store = store

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        with OpenStore(self._store) as opened:
            for rows in _parts(batches, AT_ONCE):
                jobs = opened.run(opened.store.get([_key(row) for row in rows]))
                pairs = zip(rows, jobs, strict=True)
                seen = [{**row, "replays_now": job.replays if _is(job, row) else None} for row, job in pairs]
                yield _batch(seen, _SEEN)


class _Turn:
    """Held by one task of a replay at a time. It ends with its process, however that ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @contextlib.asynccontextmanager
    async def held(self, patience_s: float) -> AsyncGenerator[None]:
        """Wait for it, and hold it. Raises StoreBusy when patience is over."""
        until = time.monotonic() + max(patience_s, LONGEST_PAUSE_S)
        while not take_lock(self._descriptor):
            failpoint.hit("replay.not_my_turn")
            if time.monotonic() > until:
                raise StoreBusy("another task of this replay has the turn, and does not go on")
            await asyncio.sleep(TURN_S)
        try:
            yield
        finally:
            release_lock(self._descriptor)


class _Pace:
    """Lets no more through than its rate."""

    def __init__(self, rate: float | None) -> None:
        self._rate, self._next = rate, 0.0

    async def wait(self) -> None:
        if (left := self._next - time.monotonic()) > 0:
            await asyncio.sleep(left)

    def spend(self, count: int) -> None:
        if self._rate is not None:
            self._next = time.monotonic() + count / self._rate


Answer = tuple[str, str | None]


class _Task:
    def __init__(self, store: Store, turn: _Turn, pace: _Pace, patience_s: float) -> None:
        self._store, self._turn, self._pace, self._patience_s = store, turn, pace, patience_s

    async def replay(self, rows: Sequence[dict[str, Any]]) -> list[Answer]:
        """An answer for each row. Waits where the store is away or a quota is full, as long as patience lasts."""
        answers: list[Answer | None] = [None] * len(rows)
        until, pause_s = time.monotonic() + self._patience_s, PAUSE_S
        while True:
            left = [n for n, answer in enumerate(answers) if answer is None]
            try:
                await self._pace.wait()
                async with self._turn.held(self._patience_s):
                    found = await self._step([rows[n] for n in left])
            except (StoreBusy, StoreUnavailable):
                # What it did before it failed is seen by the next look.
                if time.monotonic() >= until:
                    raise
                found = [("quota", None)] * len(left)
            waiting = [n for n, answer in zip(left, found, strict=True) if answer[0] == "quota"]
            if len(waiting) < len(left):
                until, pause_s = time.monotonic() + self._patience_s, PAUSE_S
            late = time.monotonic() >= until
            for n, answer in zip(left, found, strict=True):
                answers[n] = answer if late or answer[0] != "quota" else None
            if all(answer is not None for answer in answers):
                return cast("list[Answer]", answers)
            await asyncio.sleep(pause_s * (0.5 + random.random() / 2))  # noqa: S311 - jitter
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _step(self, rows: Sequence[dict[str, Any]]) -> list[Answer]:
        jobs = await self._store.get([_key(row) for row in rows])
        answers = [_seen(job, row) for job, row in zip(jobs, rows, strict=True)]
        dead = [n for n, answer in enumerate(answers) if answer is None]
        if dead:
            self._pace.spend(len(dead))
            failpoint.hit("replay.before_call")
            replies = await self._store.replay([_key(rows[n]) for n in dead])
            failpoint.hit("replay.after_call")
            for n, reply in zip(dead, replies, strict=True):
                answers[n] = await self._answer(reply, rows[n])
        return cast("list[Answer]", answers)

    async def _answer(self, reply: object, row: dict[str, Any]) -> Answer:
        if isinstance(reply, Replayed):
            return "replayed", None
        if isinstance(reply, QuotaExceeded):
            return "quota", str(reply)
        if isinstance(reply, JobNotFound):
            return "gone", None
        # Somebody else may have been quicker.
        job = (await self._store.get([_key(row)]))[0]
        assert isinstance(reply, NotReplayable)  # noqa: S101 - there is no other answer
        return _seen(job, row) or ("refused", reply.reason)


def _seen(job: Job | None, row: dict[str, Any]) -> Answer | None:
    """What has become of a chosen dead letter; None: it still lies there."""
    if not _is(job, row):
        return "gone", None
    if job.replays > row["replays"]:
        return "replayed", None
    if job.state is JobState.FAILED and job.finished_at == _ms(row["finished_at"]):
        return None
    return "refused", f"it is {job.state.value} by now"


def _is(job: Job | None, row: dict[str, Any]) -> TypeGuard[Job]:
    """Whether it is the same job, and not a later one with its id."""
    return job is not None and job.enqueued_at == _ms(row["enqueued_at"])


def _key(row: dict[str, Any]) -> JobKey:
    return JobKey(row["tenant"], row["queue"], row["job_id"])


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _parts(batches: Iterator[Any], size: int) -> Iterator[list[dict[str, Any]]]:
    for batch in batches:
        rows: list[dict[str, Any]] = batch.to_pylist()
        for at in range(0, len(rows), size):
            yield rows[at : at + size]


def _batch(rows: list[dict[str, Any]], schema: StructType) -> Any:
    from pyspark.sql.pandas import types

    return _arrow.RecordBatch.from_pylist(rows, schema=cast("Any", types).to_arrow_schema(schema, timezone="UTC"))
