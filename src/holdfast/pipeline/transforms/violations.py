"""What in a history breaks the contract.

`suspects` judges every event by what its own job's history says, in one shuffle and one sort; `doubtful` says first,
for much less, which jobs are worth it, and `census` whether tokens are. What a job's history cannot tell comes after:
`cleared` marks what a gap in the log or unrecorded extensions explain, `set_back` what the store's clock does;
`shared_tokens` looks for leases in two hands, and `unlike_store` compares the log with the store's jobs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from holdfast.pipeline.transforms.histories import ENDS, JOB, MARK, NOTES, by_job, in_order, is_kind, mark
from holdfast.pipeline.transforms.rules import CHECKS, FACTS, NUMBER, NUMBERS, PLAIN, PRIOR, UNPACKED

FINDING = ("rule", "explanation", *JOB, "shard", "positions", "offsets", "at")
"""The columns of a finding; `positions` and `offsets` are those of its events, the offending one last."""
_TYPES = {"shard": "int", "positions": "array<string>", "offsets": "array<string>", "at": "timestamp"}
FINDINGS = ", ".join(f"{name} {_TYPES.get(name, 'string')}" for name in FINDING)
"""Their types too, in SQL."""
SETTLED = timedelta(seconds=60)
"""A change has to be so much older than the end of the log before the store and the log must agree on it."""

_COLUMNS = (
    "shard", "offset", "kind", "at", "attempt", "token", "worker_id", "priority", "max_attempts", "visible_at",
    "deadline", "reason",
)  # fmt: skip
_PLACEHOLDER = re.compile(r"\{([a-z_.]+)\}")


def doubtful(events: DataFrame) -> DataFrame:
    """The marks of jobs of which some event is not plainly right: only these need be looked at by every check.

    Two jobs with one mark, should that ever be, are taken for one, which is no less doubtful than they are.
    """
    facts = (fn.expr(sql).alias(name) for name, sql in FACTS.items())
    events = events.withColumn("number", fn.expr(NUMBER)).select(mark(), "position", "max_attempts", *facts)
    in_mark = Window.partitionBy(MARK).orderBy("position")
    before = in_mark.rowsBetween(Window.unboundedPreceding, -1)
    known = events.withColumns(
        {f"prior_{name}": fn.lag(name, 1, none).over(in_mark) for name, none in PRIOR.items()}
        | {
            "bound": fn.coalesce(fn.last("max_attempts", ignorenulls=True).over(before), fn.lit(-1)),
            "highest": fn.coalesce(fn.max("token").over(before), fn.lit(0)),
        }
    )
    known = known.withColumns({name: fn.expr(sql) for name, sql in UNPACKED.items()})
    return known.where(~fn.expr(PLAIN)).select(MARK).distinct()


def of_jobs(events: DataFrame, marks: DataFrame) -> DataFrame:
    """The events of the jobs with these marks."""
    return events.withColumn(MARK, mark()).join(marks, MARK, "left_semi").drop(MARK)


def suspects(events: DataFrame) -> DataFrame:
    """Events that break a rule as far as their own job shows: findings, with what is needed to clear them."""
    events = by_job(events, *_COLUMNS)
    before = in_order().rowsBetween(Window.unboundedPreceding, -1)
    change = fn.struct("position", "offset", "kind", "at", "attempt", "token", "worker_id")
    known = events.withColumns(
        {
            "previous": fn.lag(change).over(in_order()),
            "change": fn.last(fn.when(~is_kind(*NOTES), change), ignorenulls=True).over(before),
            "born": fn.last(fn.when(is_kind("enqueued"), change), ignorenulls=True).over(before),
            "due_at": fn.last("visible_at", ignorenulls=True).over(before),
            "until": fn.last("deadline", ignorenulls=True).over(before),
            "bound": fn.last("max_attempts", ignorenulls=True).over(before),
            "highest": fn.coalesce(fn.max("token").over(before), fn.lit(0)),
        }
    )
    # First only the number of the check: the rest is made for the few events that break one.
    found = known.withColumn("broken", _first_broken()).where(fn.col("broken").isNotNull())
    return found.withColumn("since", _by_check("since")).select(
        _by_check("rule", _quoted), _by_check("explanation", _told), *JOB, "shard",
        fn.array_compact(fn.array("since.position", "position")).alias("positions"),
        fn.array_compact(fn.array("since.offset", "offset")).alias("offsets"),
        "at", "position", _by_check("needs", _quoted),
    )  # fmt: skip


def _first_broken() -> Column:
    cases = " ".join(f"WHEN {check.broken} THEN {number}" for number, check in enumerate(CHECKS))
    return fn.expr(f"CASE {cases} END")


def _by_check(name: str, in_sql: Callable[[str], str] = str) -> Column:
    """What the check that was broken says."""
    said: dict[str, list[str]] = {}
    for number, check in enumerate(CHECKS):
        said.setdefault(getattr(check, name), []).append(str(number))
    cases = (f"WHEN broken IN ({', '.join(numbers)}) THEN {in_sql(text)}" for text, numbers in said.items())
    return fn.expr(f"CASE {' '.join(cases)} END").alias(name)


def _quoted(text: str) -> str:
    return f"'{text}'"


def _told(pattern: str) -> str:
    """SQL for the pattern with the values of the columns that it names."""
    parts = _PLACEHOLDER.split(pattern)
    pieces = [f"coalesce(string({part}), 'nothing')" if i % 2 else _quoted(part) for i, part in enumerate(parts)]
    return f"concat({', '.join(pieces)})"


def cleared(suspected: DataFrame, events: DataFrame, gaps: DataFrame, *, extensions: bool | None) -> DataFrame:
    """The same with `truncated` (a gap in the log explains it) and `unsure` (extensions were not recorded).

    With `extensions` None, those leases are judged by their deadline that lie between the first and the last
    `extended` of their shard: before and after these the store may not have recorded them.
    """
    cuts = gaps.groupBy("shard").agg(fn.collect_list(fn.struct("from", "to")).alias("cuts"))
    since = fn.when(fn.size("positions") > 1, fn.col("positions")[0]).otherwise("")

    def swallows(cut: Column) -> Column:
        return (cut["from"] < fn.col("position")) & (cut["to"] > since)

    marked = suspected.join(fn.broadcast(cuts), "shard", "left")
    marked = marked.withColumn("truncated", fn.coalesce(fn.exists("cuts", swallows), fn.lit(False)))
    needed = fn.col("needs") == "extensions"
    if extensions is not None:
        return marked.withColumn("unsure", needed & fn.lit(not extensions))
    recorded = events.where(is_kind("extended")).groupBy("shard")
    bounds = recorded.agg(fn.min("position").alias("first"), fn.max("position").alias("last"))
    inside = (since >= fn.col("first")) & (fn.col("position") <= fn.col("last"))
    marked = marked.join(fn.broadcast(bounds), "shard", "left")
    return marked.withColumn("unsure", needed & ~fn.coalesce(inside, fn.lit(False)))


def set_back(suspected: DataFrame, events: DataFrame) -> DataFrame:
    """Shard and position of suspects that are the clock's: it had been later before, and the log went on as it was.

    A clock that was set back is survived, and stated: what had become visible by then can still be claimed. [TIME-1]
    """
    in_shard = Window.partitionBy("shard").orderBy("position")
    beside = fn.coalesce(fn.lead("at").over(in_shard), fn.lag("at").over(in_shard))
    latest = fn.max("at").over(in_shard.rowsBetween(Window.unboundedPreceding, -1))
    log = events.select("shard", "position", fn.greatest("at", beside).alias("around"), latest.alias("latest"))
    steps = suspected.where(fn.col("needs") == "clock").select("shard", "position")
    stepped = steps.join(log, ["shard", "position"]).where(fn.col("around") < fn.col("latest"))
    return stepped.select("shard", "position").distinct()


def census(events: DataFrame) -> DataFrame:
    """How many events there are of each `kind`, and for claims whether a token was granted `twice`.

    Tokens are numbers without large gaps: 64 of them are the bits of one, so that few rows are left to compare. Kinds
    are numbers too, since groups of numbers alone are found quicker; those that there should not be are one.
    """
    claimed = fn.col("number") == NUMBERS["claimed"]
    word, bit = fn.when(claimed, fn.shiftright("token", 6)), fn.expr("shiftleft(1L, int(token & 63))")
    numbered = events.select("shard", "token", fn.expr(NUMBER).alias("number"))
    words = numbered.groupBy("number", "shard", word.alias("word")).agg(
        fn.count("*").alias("count"), fn.bit_or(bit).alias("bits")
    )
    twice = claimed & (fn.bit_count("bits") < fn.col("count"))
    counts = words.groupBy("number").agg(fn.sum("count").alias("count"), fn.bool_or(twice).alias("twice"))
    cases = " ".join(f"WHEN {number} THEN {_quoted(kind)}" for kind, number in NUMBERS.items())
    names = fn.expr(f"CASE number {cases} END")
    return counts.select(names.alias("kind"), "count", "twice")


def shared_tokens(events: DataFrame, bearers: DataFrame) -> DataFrame:
    """Events that bear a token which was granted to another job: of the same tenant, or of another.

    Of each such token, one of its events at least must be among `bearers`.
    """
    tokens = events.where((fn.col("token") > 0) & ~is_kind("enqueued"))
    borne = bearers.select("shard", "token").distinct()
    jobs = tokens.join(borne, ["shard", "token"], "left_semi").groupBy("shard", "token")
    jobs = jobs.agg(fn.min(mark()).alias("least"), fn.max(mark()).alias("most"))
    twice = jobs.where(fn.col("least") != fn.col("most"))
    shared = twice.select("shard", "token")
    by_token = Window.partitionBy("shard", "token").orderBy(fn.col("kind") != "claimed", "position")
    used = tokens.join(fn.broadcast(shared), ["shard", "token"])
    used = used.withColumn("owner", fn.first(fn.struct(*JOB, "position", "offset")).over(by_token))
    foreign = fn.col("tenant") != fn.col("owner.tenant")
    granted = fn.expr(
        _told("`{kind}` with token {token}, which was granted to job {owner.job_id} of tenant {owner.tenant}")
    )
    return used.where(fn.struct(*JOB) != fn.struct(*(fn.col(f"owner.{name}") for name in JOB))).select(
        fn.when(foreign, "EVENT-3").otherwise("LEASE-5").alias("rule"), granted.alias("explanation"), *JOB, "shard",
        fn.array("owner.position", "position").alias("positions"),
        fn.array("owner.offset", "offset").alias("offsets"), "at", "position",
    )  # fmt: skip


def unlike_store(job_runs: DataFrame, jobs: DataFrame, taken_at: datetime, *, whole: bool) -> DataFrame:
    """Jobs that the log and the store do not agree on. `jobs` was read at `taken_at`, and the log after that.

    A job that lives by the log, and that the store does not have, is lost. [STATE-1] One that ended in the store and
    not in the log, or that has no event at all although the log is whole, changed without an event. [EVENT-1]
    """
    newest = Window.partitionBy(*JOB).orderBy(fn.col("life").desc())
    logged = job_runs.withColumn("age", fn.row_number().over(newest)).where(fn.col("age") == 1)
    seen = fn.greatest("enqueued_at", "first_claimed_at", "ended_at")
    ends = job_runs.groupBy("tenant").agg(fn.max("shard").alias("shard"))
    log_ends = job_runs.groupBy("shard").agg((fn.max(seen) - fn.lit(SETTLED)).alias("settled_at"))
    stored = jobs.select(
        "tenant", "queue", fn.col("id").alias("job_id"), fn.col("state").alias("store_state"),
        fn.col("enqueued_at").alias("stored_at"), "finished_at",
    )  # fmt: skip
    both = logged.drop("shard").join(stored, list(JOB), "full")
    both = both.join(ends, "tenant", "left").join(log_ends, "shard", "left")
    old = fn.coalesce(fn.col("enqueued_at") < fn.lit(taken_at - SETTLED), fn.lit(True))
    lost = ~fn.col("state").isin(*ENDS) & ~fn.col("purged") & fn.col("store_state").isNull() & old
    ended = fn.col("store_state").isin(*ENDS) & (fn.col("finished_at") < fn.col("settled_at"))
    changed = ended & (fn.col("store_state") != fn.col("state")) & (fn.col("stored_at") == fn.col("enqueued_at"))
    unknown = fn.col("state").isNull() & (fn.col("stored_at") < fn.col("settled_at")) & fn.lit(whole)
    explanation = (
        fn.when(lost, fn.expr(_told("lost: by the log it is {state}, and the store does not have it")))
        .when(changed, fn.expr(_told("the store says {store_state}, the log says {state}")))
        .when(unknown, fn.expr(_told("the store has it as {store_state}, and there is no event of it")))
    )
    found = both.withColumn("explanation", explanation).where(fn.col("explanation").isNotNull())
    return found.select(
        fn.when(lost, "STATE-1").otherwise("EVENT-1").alias("rule"), "explanation", *JOB, "shard",
        fn.array_compact(fn.array("last_position")).alias("positions"),
        fn.array().cast("array<string>").alias("offsets"), fn.coalesce("ended_at", seen, "stored_at").alias("at"),
    )  # fmt: skip
