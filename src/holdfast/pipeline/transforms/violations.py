"""Finds the events of a history that break the contract.

`jobs_to_check` finds the jobs that need all checks, and `census` says whether tokens do; both are cheap. `suspects`
then checks each event against the history of its own job, in one shuffle and one sort. Then suspects with another
cause are removed: `cleared` marks those explained by a gap in the log or by unrecorded extensions, `set_back` finds
those explained by a store clock that was set back. `shared_tokens` finds tokens of two jobs. `unlike_store` compares
the log with the store's jobs. A purged job has no record, so purges are checked by their numbers within the tenant
(`purge_suspects`) and by the store's count of them (`unlike_counts`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from holdfast.core.names import OPERATOR
from holdfast.pipeline.checksums import sums
from holdfast.pipeline.transforms.histories import (
    ENDS,
    JOB,
    JOB_HASH,
    LEASE_UPDATES,
    by_job,
    in_order,
    is_kind,
    job_hash,
    life,
)
from holdfast.pipeline.transforms.rules import CHECKS, FACTS, KIND_NO, KIND_NOS, PLAIN, PRIOR, UNPACKED, one_of

FINDING = ("rule", "explanation", *JOB, "shard", "positions", "offsets", "at")
"""The columns of a finding; `positions` and `offsets` are those of its events, the offending one last."""
_TYPES = {"shard": "int", "positions": "array<string>", "offsets": "array<string>", "at": "timestamp"}
FINDINGS = ", ".join(f"{name} {_TYPES.get(name, 'string')}" for name in FINDING)
"""The columns with their types, in SQL."""

_COLUMNS = (
    "shard", "offset", "kind", "at", "number", "attempt", "token", "worker_id", "priority", "max_attempts",
    "visible_at", "deadline", "reason",
)  # fmt: skip
_CLAIMED = f"kind_no = {KIND_NOS['claimed']}"
_PLACEHOLDER = re.compile(r"\{([a-z_.]+)\}")


def jobs_to_check(events: DataFrame) -> DataFrame:
    """The hashes of jobs with an event that is not plainly correct. Only these jobs need all checks.

    Should two jobs ever have the same hash, their events are read as one job's, which is never plainly correct.
    """
    facts = (fn.expr(sql).alias(name) for name, sql in FACTS.items())
    events = events.withColumn("kind_no", fn.expr(KIND_NO)).select(job_hash(), "position", "max_attempts", *facts)
    in_job = Window.partitionBy(JOB_HASH).orderBy("position")
    before = in_job.rowsBetween(Window.unboundedPreceding, -1)
    known = events.withColumns(
        {f"prior_{name}": fn.lag(name, 1, none).over(in_job) for name, none in PRIOR.items()}
        | {
            "bound": fn.coalesce(fn.last("max_attempts", ignorenulls=True).over(before), fn.lit(-1)),
            "highest": fn.coalesce(fn.max("token").over(before), fn.lit(0)),
        }
    )
    known = known.withColumns({name: fn.expr(sql) for name, sql in UNPACKED.items()})
    return known.where(~fn.expr(PLAIN)).select(JOB_HASH).distinct()


def of_jobs(events: DataFrame, hashes: DataFrame) -> DataFrame:
    """The events of the jobs with these hashes."""
    return events.withColumn(JOB_HASH, job_hash()).join(hashes, JOB_HASH, "left_semi").drop(JOB_HASH)


def suspects(events: DataFrame) -> DataFrame:
    """Events that break a rule, judged by their own job: findings, with what is needed to clear them."""
    events = by_job(events, *_COLUMNS)
    before = in_order().rowsBetween(Window.unboundedPreceding, -1)
    change = fn.struct("position", "offset", "kind", "at", "number", "attempt", "token", "worker_id")
    known = events.withColumns(
        {
            "previous": fn.lag(change).over(in_order()),
            "change": fn.last(fn.when(~is_kind(*LEASE_UPDATES), change), ignorenulls=True).over(before),
            "born": fn.last(fn.when(is_kind("enqueued"), change), ignorenulls=True).over(before),
            "due_at": fn.last("visible_at", ignorenulls=True).over(before),
            "until": fn.last("deadline", ignorenulls=True).over(before),
            "bound": fn.last("max_attempts", ignorenulls=True).over(before),
            "highest": fn.coalesce(fn.max("token").over(before), fn.lit(0)),
        }
    )
    # Compute only the number of the broken check here, and the rest for the few events that break one.
    found = known.withColumn("broken", _first_broken()).where(fn.col("broken").isNotNull())
    return found.withColumn("since", _by_check("since")).select(
        _by_check("rule", _quoted), _by_check("explanation", _filled), *JOB, "shard",
        fn.array_compact(fn.array("since.position", "position")).alias("positions"),
        fn.array_compact(fn.array("since.offset", "offset")).alias("offsets"),
        "at", "position", _by_check("needs", _quoted),
    )  # fmt: skip


def purges(events: DataFrame) -> DataFrame:
    """The purges, each with its number within the tenant (`purge`) and the counter it belongs to (`series`)."""
    numbers = (fn.expr(f"bigint(get_json_object(data, '$.{name}'))").alias(name) for name in ("purge", "series"))
    found = events.where(is_kind("purged")).select(*JOB, "shard", "position", "offset", "at", *numbers)
    return found.where("purge IS NOT NULL AND series IS NOT NULL")


def purge_suspects(purged: DataFrame) -> DataFrame:
    """Purges whose number does not follow the tenant's purge before, with the columns of `suspects`. [EVENT-1]"""
    of_tenant = Window.partitionBy("tenant", "shard").orderBy("position")
    of_count = Window.partitionBy("tenant", "shard", "series").orderBy("position")
    before = of_count.rowsBetween(Window.unboundedPreceding, -1)
    known = purged.withColumns(
        {
            "previous": fn.lag(fn.struct("position", "offset")).over(of_tenant),
            "highest": fn.coalesce(fn.max("purge").over(before), fn.lit(0)),
        }
    )
    pattern = "`purged` is purge {purge} of its tenant and comes after purge {highest}"
    missing = _filled(pattern + ": what is between is missing")
    explanation = f"IF(purge > highest, {missing}, {_filled(pattern)})"
    return known.where("purge != highest + 1").select(
        fn.lit("EVENT-1").alias("rule"), fn.expr(explanation).alias("explanation"), *JOB, "shard",
        fn.array_compact(fn.array("previous.position", "position")).alias("positions"),
        fn.array_compact(fn.array("previous.offset", "offset")).alias("offsets"),
        "at", "position", fn.lit("").alias("needs"),
    )  # fmt: skip


def _first_broken() -> Column:
    cases = " ".join(f"WHEN {check.broken} THEN {number}" for number, check in enumerate(CHECKS))
    return fn.expr(f"CASE {cases} END")


def _by_check(name: str, in_sql: Callable[[str], str] = str) -> Column:
    """A field of the broken check."""
    by_value: dict[str, list[str]] = {}
    for number, check in enumerate(CHECKS):
        by_value.setdefault(getattr(check, name), []).append(str(number))
    cases = (f"WHEN broken IN ({', '.join(numbers)}) THEN {in_sql(text)}" for text, numbers in by_value.items())
    return fn.expr(f"CASE {' '.join(cases)} END").alias(name)


def _quoted(text: str) -> str:
    return f"'{text}'"


def _filled(pattern: str) -> str:
    """SQL that fills a pattern with the values of the columns it names."""
    parts = _PLACEHOLDER.split(pattern)
    pieces = [f"coalesce(string({part}), 'nothing')" if i % 2 else _quoted(part) for i, part in enumerate(parts)]
    return f"concat({', '.join(pieces)})"


def cleared(suspected: DataFrame, events: DataFrame, gaps: DataFrame, *, extensions: bool | None) -> DataFrame:
    """Add `truncated` (a gap in the log explains the suspect) and `unsure` (extensions were not recorded).

    With `extensions` None, leases are judged by their deadline if they are between the first and the last `extended`
    of their shard. Before and after these the store may not have recorded extensions.
    """
    cuts = gaps.groupBy("shard").agg(
        fn.collect_list(fn.struct("from", "to", fn.col("tenant").alias("whose"))).alias("cuts")
    )
    since = fn.when(fn.size("positions") > 1, fn.col("positions")[0]).otherwise("")

    def swallows(cut: Column) -> Column:
        of_all = cut["whose"].isNull() | (cut["whose"] == fn.col("tenant"))
        return of_all & (cut["from"] < fn.col("position")) & (cut["to"] > since)

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
    """Shard and position of suspects that a clock set back explains: earlier events of the log have later times.

    A job that was visible before the clock was set back can still be claimed. [TIME-1]
    """
    in_shard = Window.partitionBy("shard").orderBy("position")
    beside = fn.coalesce(fn.lead("at").over(in_shard), fn.lag("at").over(in_shard))
    latest = fn.max("at").over(in_shard.rowsBetween(Window.unboundedPreceding, -1))
    log = events.select("shard", "position", fn.greatest("at", beside).alias("around"), latest.alias("latest"))
    steps = suspected.where(fn.col("needs") == "clock").select("shard", "position")
    stepped = steps.join(log, ["shard", "position"]).where(fn.col("around") < fn.col("latest"))
    return stepped.select("shard", "position").distinct()


def tally(events: DataFrame, *, summed: bool) -> DataFrame:
    """Events counted by batch, day, kind and 64 tokens of a shard, for `census` and `batch_sums`.

    Tokens have no large gaps, so 64 of them become the bits of one number, which leaves few rows to compare. Kinds are
    numbers too, because grouping by numbers is faster. All unknown kinds share a number.
    """
    word = fn.when(fn.expr(_CLAIMED), fn.shiftright("token", 6)).alias("word")
    bits = fn.bit_or(fn.expr("shiftleft(1L, int(token & 63))"))
    counts = {"bits": bits} | (sums() if summed else {"events": fn.count("*")})
    numbered = events.withColumn("kind_no", fn.expr(KIND_NO))
    groups = numbered.groupBy("date", "batch", "kind_no", "shard", word)
    return groups.agg(*(column.alias(name) for name, column in counts.items()))


def census(tallied: DataFrame) -> DataFrame:
    """The number of events of each `kind`, and for claims whether a token was granted `twice`."""
    words = tallied.groupBy("kind_no", "shard", "word").agg(
        fn.sum("events").alias("count"), fn.bit_or("bits").alias("bits")
    )
    twice = fn.expr(_CLAIMED) & (fn.bit_count("bits") < fn.col("count"))
    counts = words.groupBy("kind_no").agg(fn.sum("count").alias("count"), fn.bool_or(twice).alias("twice"))
    cases = " ".join(f"WHEN {number} THEN {_quoted(kind)}" for kind, number in KIND_NOS.items())
    names = fn.expr(f"CASE kind_no {cases} END")
    return counts.select(names.alias("kind"), "count", "twice")


def batch_sums(tallied: DataFrame) -> DataFrame:
    """The checksum of each batch and day, for `read_sums`."""
    return tallied.groupBy("date", "batch").agg(*(fn.sum(name).alias(name) for name in ("events", "low", "high")))


def shared_tokens(events: DataFrame, candidates: DataFrame) -> DataFrame:
    """Events with a token that was granted to another job, of the same tenant or of another.

    `candidates` must have at least one event of each such token.
    """
    tokens = events.where((fn.col("token") > 0) & ~is_kind("enqueued"))
    suspect_tokens = candidates.select("shard", "token").distinct()
    jobs = tokens.join(suspect_tokens, ["shard", "token"], "left_semi").groupBy("shard", "token")
    jobs = jobs.agg(fn.min(job_hash()).alias("lowest"), fn.max(job_hash()).alias("highest"))
    twice = jobs.where(fn.col("lowest") != fn.col("highest"))
    shared = twice.select("shard", "token")
    by_token = Window.partitionBy("shard", "token").orderBy(fn.col("kind") != "claimed", "position")
    used = tokens.join(fn.broadcast(shared), ["shard", "token"])
    used = used.withColumn("owner", fn.first(fn.struct(*JOB, "position", "offset")).over(by_token))
    foreign = fn.col("tenant") != fn.col("owner.tenant")
    granted = fn.expr(
        _filled("`{kind}` with token {token}, which was granted to job {owner.job_id} of tenant {owner.tenant}")
    )
    return used.where(fn.struct(*JOB) != fn.struct(*(fn.col(f"owner.{name}") for name in JOB))).select(
        fn.when(foreign, "EVENT-3").otherwise("LEASE-5").alias("rule"), granted.alias("explanation"), *JOB, "shard",
        fn.array("owner.position", "position").alias("positions"),
        fn.array("owner.offset", "offset").alias("offsets"), "at", "position",
    )  # fmt: skip


# Conditions under which the store's record of a job and its lives in the log (`read`) disagree, with an explanation.
_DISAGREEMENTS = {
    "lives IS NULL": "the store has it as {store_state}, but the log has no event of it",
    "recorded > 0 AND NOT exists(read, l -> l.number >= recorded)": (
        "the store has counted {recorded} events of it, but the log ends with event {last.number}, `{last.kind}`"
    ),
    "recorded > 0 AND forall(read, l -> l.number_before > recorded)": (
        "the store has counted {recorded} events of it, but the log has event {last.number_before}"
    ),
    f"store_state IN {one_of(*ENDS)} AND NOT exists(read, l -> array_contains(l.ends, store_state))": (
        "the store has it as {store_state}, but the log ends with `{last.kind}`"
    ),
    f"store_state IS NULL AND size(lives) = 1 AND last.before AND last.kind NOT IN {one_of(*ENDS, 'purged')}": (
        "lost: its last event is `{last.kind}`, so it should be live, but the store does not have it"
    ),
}


def unlike_store(events: DataFrame, jobs: DataFrame, before: Sequence[str], gaps: DataFrame) -> DataFrame:
    """Jobs on which the log and the store's records disagree. [EVENT-1, STATE-1]

    `jobs` was read between two ends of the log. `before` is the first end, a position for each shard, and `events` has
    the log up to the second end. So `events` has every event that a job's record counts, and no event up to `before`
    has a higher number. A job that had not ended by the second end has a record. Jobs whose last known event is before
    a gap are not judged, and neither are the operator's records, which the data source does not read.
    """
    lives = _lives(events.where(fn.col("tenant") != OPERATOR), before)
    stored = jobs.select(
        "tenant", "queue", fn.col("id").alias("job_id"), fn.col("state").alias("store_state"),
        fn.col("enqueued_at").alias("stored_at"), fn.col("events").alias("recorded"),
    )  # fmt: skip
    both, no_gap = _with_cuts(lives.join(stored, list(JOB), "full"), gaps)
    # A life that began after `before` may be the one that was read, or a later one.
    both = both.withColumn("read", fn.expr("IF(size(lives) = 1, lives, filter(lives, l -> l.at <=> stored_at))"))
    both = both.withColumn("last", fn.element_at("lives", -1))
    cases = " ".join(f"WHEN {broken} THEN {_filled(text)}" for broken, text in _DISAGREEMENTS.items())
    # A job without events has no position: judge it only if no gap could have had its events.
    judged = both.where("cut IS NULL OR last.position > cut").where(f"lives IS NOT NULL OR {no_gap}")
    found = judged.withColumn("explanation", fn.expr(f"CASE {cases} END"))
    return found.where("explanation IS NOT NULL").select(
        fn.expr("IF(store_state IS NULL, 'STATE-1', 'EVENT-1')").alias("rule"), "explanation", *JOB, "shard",
        fn.array_compact(fn.array("last.position")).alias("positions"),
        fn.array_compact(fn.array("last.offset")).alias("offsets"),
        fn.coalesce("last.seen_at", "stored_at").alias("at"),
    ).distinct()  # fmt: skip


def unlike_counts(events: DataFrame, counts: DataFrame, before: Sequence[str], gaps: DataFrame) -> DataFrame:
    """Tenants on whose purges the log and the store's counts disagree. [EVENT-1]

    `counts` (tenant, series, counted) was read between the same ends of the log as the jobs for `unlike_store`.
    """
    purged = purges(events)
    early = fn.max(fn.when(_early(before), fn.col("purge")))
    seen = purged.groupBy("tenant", "series").agg(fn.max("purge").alias("number"), early.alias("number_before"))
    latest = purged.groupBy("tenant").agg(
        fn.max("shard").alias("shard"),
        fn.max("position").alias("position"),
        fn.max_by("offset", "position").alias("offset"),
        fn.max("at").alias("at"),
    )
    both = counts.join(seen, ["tenant", "series"], "left").join(latest, "tenant", "left")
    both, no_gap = _with_cuts(both, gaps)
    # A tenant without a purge in the log has no position: judge it only if no gap could have had its purges.
    judged = both.where(f"position > cut OR (cut IS NULL AND (position IS NOT NULL OR {no_gap}))")
    counted = "the store has counted {counted} purges of tenant {tenant}, but the log "
    explanation = (
        f"CASE WHEN coalesce(number, 0) < counted THEN {_filled(counted + 'has {number} of them')} "
        f"WHEN number_before > counted THEN {_filled(counted + 'has purge {number_before}')} END"
    )
    found = judged.withColumn("explanation", fn.expr(explanation)).where("explanation IS NOT NULL")
    return found.select(
        fn.lit("EVENT-1").alias("rule"), "explanation", "tenant",
        fn.lit("").alias("queue"), fn.lit("").alias("job_id"), "shard",
        fn.array_compact(fn.array("position")).alias("positions"),
        fn.array_compact(fn.array("offset")).alias("offsets"), "at",
    )  # fmt: skip


def _with_cuts(frame: DataFrame, gaps: DataFrame) -> tuple[DataFrame, str]:
    """Add `cut`: the end of the last gap in the shard's log, or in the tenant's own events there.

    Also returns a condition for rows without events, and so without a shard: no gap could have had their events.
    """
    of_all, of_one = gaps.where("tenant IS NULL"), gaps.where("tenant IS NOT NULL")
    cuts = of_all.groupBy("shard").agg(fn.max("to").alias("cut_of_all"))
    own = of_one.groupBy("shard", "tenant").agg(fn.max("to").alias("own_cut"))
    holed = of_one.select("tenant", fn.lit(True).alias("holed")).distinct()
    frame = frame.join(fn.broadcast(cuts), "shard", "left")
    frame = frame.join(fn.broadcast(own), ["shard", "tenant"], "left").join(fn.broadcast(holed), "tenant", "left")
    return frame.withColumn("cut", fn.greatest("cut_of_all", "own_cut")), f"({of_all.isEmpty()} AND holed IS NULL)"


def _early(before: Sequence[str]) -> Column:
    """Whether an event is in the log up to `before`."""
    ends = " ".join(f"WHEN {shard} THEN {_quoted(end)}" for shard, end in enumerate(before))
    return fn.expr(f"position <= CASE shard {ends} END")


def _lives(events: DataFrame, before: Sequence[str]) -> DataFrame:
    """For each job, the last life that began up to `before` and all later ones, in order, as `lives`."""
    events = by_job(events, "shard", "offset", "kind", "at", "number")
    events = events.withColumns({"life": life(events), "early": _early(before)})
    in_life = events.groupBy(JOB_HASH, *JOB, "shard", "life").agg(
        fn.min(fn.when(is_kind("enqueued"), fn.col("at"))).alias("at"),
        fn.max("number").alias("number"),
        fn.coalesce(fn.max(fn.when(fn.col("early"), fn.col("number"))), fn.lit(0)).alias("number_before"),
        fn.collect_set(fn.when(is_kind(*ENDS), fn.col("kind"))).alias("ends"),
        fn.max_by("kind", fn.when(~is_kind(*LEASE_UPDATES), fn.col("position"))).alias("kind"),
        fn.max("position").alias("position"),
        fn.max_by("offset", "position").alias("offset"),
        fn.max("at").alias("seen_at"),
        fn.min_by("early", "position").alias("before"),
    )  # fmt: skip
    newest = fn.max(fn.when(fn.col("before"), fn.col("life"))).over(Window.partitionBy(JOB_HASH, *JOB))
    later = in_life.withColumn("newest", newest).where("newest IS NULL OR life >= newest")
    facts = fn.struct(
        "life", "at", "number", "number_before", "ends", "kind", "position", "offset", "seen_at", "before"
    )
    return later.groupBy(*JOB, "shard").agg(fn.array_sort(fn.collect_list(facts)).alias("lives"))
