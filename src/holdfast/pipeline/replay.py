"""Replay exactly the dead letters that a condition selects, once, and check it against the store.

    RECEIPT/receipt.json    the request, its progress, and the check against the store
    RECEIPT/chosen          the dead letters, each with the time it failed and its replays by then
    RECEIPT/answers   the answer for each
    RECEIPT/.turn           a lock: one task at a time reads and replays

The set is written first. A job that has been replayed since then is not replayed again, neither by a retried task nor
by another run with the same receipt, even if it has failed again: the store counts replays, and a dead letter is
recognised by that count and by the time it failed. Reading and replaying are two calls, so tasks take turns. Otherwise
an executor that Spark has given up could replay a job after another one has read it as a dead letter.
"""

from __future__ import annotations

import shutil
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from holdfast.core.errors import InvalidOption, StoreMismatch
from holdfast.core.names import check_by
from holdfast.opening import absolute, shown_url
from holdfast.pipeline.errors import plainly
from holdfast.pipeline.json_files import read_json, write_json
from holdfast.pipeline.locks import Lock
from holdfast.pipeline.replay_tasks import ANSWERS, CHECKED, CHOSEN, CheckTask, ReplayTask
from holdfast.pipeline.triage import chosen

RATE = 1000.0
TASKS = 4
SAMPLE = 10
TURN = ".turn"


class ReplayPlan(Struct, frozen=True):
    """Which dead letters to replay, and how fast."""

    store: str
    where: str
    """A condition in SQL on the failed jobs of the store."""
    tenant: str | None = None
    rate: float | None = RATE
    """The most replays a second, by all tasks together."""
    tasks: int = TASKS
    patience_s: float = 300.0
    """How long to wait for a full quota or an unavailable store."""
    by: str = ""
    """Who acts, for the events of the jobs."""

    def __post_init__(self) -> None:
        force_setattr(self, "store", absolute(self.store))
        check_by(self.by)
        if not self.where.strip():
            raise InvalidOption("where", "it is empty; write a condition, or 'true' for all dead letters")
        if self.rate is not None and not 0 < self.rate < 1e9:  # noqa: PLR2004
            raise InvalidOption("rate", f"{self.rate:g} is not a rate; it must be above 0")
        if self.tasks < 1:
            raise InvalidOption("tasks", f"{self.tasks} is not a whole number from 1 on")


class ReplayCheck(Struct, frozen=True):
    """The jobs whose answer is `replayed`, as the store has them now."""

    expected: int
    found: int
    """Replayed exactly once since the set was written."""
    more: int
    """Replayed more than once since then."""
    forgotten: int
    """Replayed, finished and forgotten since: there is nothing to compare."""
    expected_digest: str
    found_digest: str

    @property
    def ok(self) -> bool:
        """Whether each job was replayed exactly once."""
        return self.expected == self.found and self.expected_digest == self.found_digest


class ReplayReceipt(Struct, frozen=True):
    """A replay: the request and its progress."""

    store: str
    tenant: str | None
    where: str
    chosen: int
    chosen_digest: str
    written_at: datetime
    state: str = "chosen"
    """chosen, partial (some jobs wait for room in a quota) or done"""
    answers: dict[str, int] = field(default_factory=dict[str, int])
    check: ReplayCheck | None = None
    ended_at: datetime | None = None


class ReplayPreview(Struct, frozen=True):
    """The dead letters that a condition selects."""

    total: int
    groups: list[dict[str, Any]]
    """The number of each tenant, queue and type."""
    sample: list[dict[str, Any]]


def dead_letters(spark: SparkSession, store: str, tenant: str | None = None) -> DataFrame:
    """The failed jobs of a store now: the columns of the source's `jobs`, with `id` as `job_id`."""
    reader = spark.read.format("holdfast").options(store=store, table="jobs", states="failed")
    if tenant is not None:
        reader = reader.option("tenant", tenant)
    with plainly("read the dead letters"):
        jobs = reader.load().withColumnRenamed("id", "job_id")
        # The list may show a job twice, or in another state, if it moved meanwhile.
        return jobs.where((fn.col("state") == "failed") & fn.col("finished_at").isNotNull())


def preview(spark: SparkSession, plan: ReplayPlan, sample: int = SAMPLE) -> ReplayPreview:
    """What would be replayed. Raises InvalidOption for an invalid condition."""
    return _shown(_choose(spark, plan), sample)


def choose(spark: SparkSession, plan: ReplayPlan, place: Path) -> ReplayReceipt:
    """Write the dead letters to replay into the receipt, unless it has them already.

    Raises InvalidOption if the receipt belongs to another replay.
    """
    place = place.absolute()
    known = read_receipt(place)
    if known is not None:
        asked = (shown_url(plan.store), plan.tenant, plan.where)
        if (known.store, known.tenant, known.where) != asked:
            whose = "" if known.tenant is None else f", tenant {known.tenant}"
            reason = f"{place} belongs to another replay: --where {known.where!r} on {known.store}{whose}"
            raise InvalidOption("receipt", reason)
        return known
    if place.exists() and not _leftover(place):
        raise InvalidOption("receipt", f"{place} is neither a receipt nor empty")
    fresh = place / f".chosen-{uuid.uuid4().hex}"
    with plainly("write the dead letters"):
        _choose(spark, plan).write.parquet(str(fresh))
        shutil.rmtree(place / "chosen", ignore_errors=True)
        fresh.rename(place / "chosen")
        count, digest = _digest(_read(spark, place, "chosen", CHOSEN))
    receipt = ReplayReceipt(shown_url(plan.store), plan.tenant, plan.where, count, digest, datetime.now(UTC))
    write_json(place / "receipt.json", receipt)
    return receipt


def replay(spark: SparkSession, plan: ReplayPlan, place: Path) -> ReplayReceipt:
    """Replay the chosen dead letters that are left, and check the receipt against the store.

    Raises StoreBusy while another replay uses this receipt, StoreMismatch if its set was changed.
    """
    place = place.absolute()
    place.mkdir(parents=True, exist_ok=True)
    with (place / ".lock").open("a+") as file:
        Lock(file.fileno(), place / ".lock").take("this replay")
        receipt = choose(spark, plan, place)
        if receipt.state != "done":
            receipt = _resume(spark, plan, place, receipt)
        with plainly("check the receipt"):
            receipt = replace(receipt, check=_check(spark, plan, place))
        write_json(place / "receipt.json", receipt)
        return receipt


def shown(spark: SparkSession, place: Path, sample: int = SAMPLE) -> ReplayPreview:
    """The set in a receipt."""
    return _shown(_read(spark, place, "chosen", CHOSEN), sample)


def read_receipt(place: Path) -> ReplayReceipt | None:
    """The receipt in a directory, or None. Raises StoreMismatch if it is damaged."""
    try:
        return read_json(
            place / "receipt.json", ReplayReceipt, "Start with another receipt. Jobs that were replayed stay replayed."
        )
    except (FileNotFoundError, NotADirectoryError):
        return None


def _choose(spark: SparkSession, plan: ReplayPlan) -> DataFrame:
    selected = chosen(dead_letters(spark, plan.store, plan.tenant), plan.where)
    return selected.select(*CHOSEN.fieldNames()).dropDuplicates(["tenant", "queue", "job_id"])


def _shown(selected: DataFrame, sample: int) -> ReplayPreview:
    with plainly("read the dead letters"):
        rows = selected.groupBy("tenant", "queue", "type").count().orderBy("tenant", "queue", "type").collect()
        groups = [cast("dict[str, Any]", cast("Any", row).asDict()) for row in rows]
        some = selected.orderBy("finished_at", "tenant", "queue", "job_id").limit(sample).collect()
    return ReplayPreview(sum(group["count"] for group in groups), groups, [cast("Any", row).asDict() for row in some])


def _leftover(place: Path) -> bool:
    """Whether the directory holds only files of a run that died before it wrote its set."""
    return all(path.name.startswith(".") or path.name == "chosen" for path in place.iterdir())


def _read(spark: SparkSession, place: Path, name: str, schema: StructType) -> DataFrame:
    return spark.read.schema(schema).parquet(str(place / name))


def _resume(spark: SparkSession, plan: ReplayPlan, place: Path, receipt: ReplayReceipt) -> ReplayReceipt:
    set_ = _read(spark, place, "chosen", CHOSEN)
    with plainly("replay"):
        if _digest(set_) != (receipt.chosen, receipt.chosen_digest):
            raise StoreMismatch(f"the set in {place} is not the set that was chosen; nothing was replayed")
        rate = None if plan.rate is None else plan.rate / plan.tasks
        spread = set_.repartition(plan.tasks).sortWithinPartitions("finished_at")
        task = ReplayTask(plan.store, str(place / TURN), rate, plan.patience_s, plan.by)
        answered: DataFrame = cast("Any", spread).mapInArrow(task, ANSWERS)
        answered.write.mode("overwrite").parquet(str(place / "answers"))
        rows = _read(spark, place, "answers", ANSWERS).groupBy("answer").count().collect()
    counts = {row["answer"]: int(row["count"]) for row in rows}
    state = "partial" if counts.get("quota") else "done"
    return replace(receipt, state=state, answers=counts, ended_at=datetime.now(UTC))


def _check(spark: SparkSession, plan: ReplayPlan, place: Path) -> ReplayCheck:
    """Ask the store about every job whose answer is `replayed`."""
    replayed = _read(spark, place, "answers", ANSWERS).where(fn.col("answer") == "replayed")
    seen: DataFrame = cast("Any", replayed.repartition(plan.tasks)).mapInArrow(CheckTask(plan.store), CHECKED)
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
    return ReplayCheck(expected[0], found[0], more, forgotten, expected[1], found[1])


def _digest(frame: DataFrame) -> tuple[int, str]:
    """The number of jobs, and a sum that does not depend on their order."""
    facts = ("tenant", "queue", "job_id", fn.unix_millis("enqueued_at"), fn.col("replays").cast("long"))
    total = fn.sum(fn.xxhash64(*facts).cast("decimal(38,0)"))
    row = frame.agg(fn.count("*").alias("count"), fn.coalesce(total, fn.lit(0)).cast("string").alias("sum")).collect()
    return int(row[0]["count"]), str(row[0]["sum"])
