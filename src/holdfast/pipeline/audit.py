"""Checks a history against the contract: every rule that events can show, and the events that break one.

Events do not show the order of claims, turns between tenants, or quotas. They show whether a renewed lease ended in
time only if the store records renewals (`events=all`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from holdfast.core.job import JobKey, PurgeCount
from holdfast.core.text import printable
from holdfast.pipeline.damage import IngestedBatches
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.rows import rows
from holdfast.pipeline.transforms.histories import ENDS, JOB
from holdfast.pipeline.transforms.rules import RULES
from holdfast.pipeline.transforms.violations import (
    FINDING,
    FINDINGS,
    batch_sums,
    census,
    cleared,
    jobs_to_check,
    of_jobs,
    purge_suspects,
    purges,
    set_back,
    shared_tokens,
    suspects,
    tally,
    unlike_counts,
    unlike_store,
)

LIMIT = 20
COUNTS = "tenant string, series bigint, counted bigint"


@dataclass(frozen=True)
class Violation:
    """A broken rule, and the events that break it: their positions in the shard's log, the offending one last."""

    rule: str
    explanation: str
    tenant: str
    queue: str
    job_id: str
    shard: int | None
    positions: list[str]
    offsets: list[str]
    at: datetime | None


@dataclass(frozen=True)
class StoreJobs:
    """The jobs of the store, read between two ends of the log.

    The lake has the log up to the second end, so it has every event of these jobs.
    """

    jobs: DataFrame
    before: Sequence[str]
    """The first end: a position for each shard."""
    purges: Sequence[PurgeCount] = ()
    """The counts of purges, read between the same two ends."""
    again: Callable[[Sequence[JobKey]], tuple[DataFrame, StoreJobs]] | None = None
    """Reads single jobs again, with events up to a later end: a list may miss a job that moves meanwhile."""


@dataclass(frozen=True)
class Audit:
    """The result of an audit."""

    events: int
    accepted: int
    waiting: int
    """Accepted jobs that had not ended by the end of the log. Compared with a store, none of them is lost."""
    counts: dict[str, int]
    """The violations of each rule."""
    samples: list[Violation]
    """A few violations of each rule."""
    violations: DataFrame
    """All violations, cached. Call `unpersist()` on them when done."""
    notes: list[str] = field(default_factory=list[str])
    """Findings that break no rule."""

    @property
    def broken(self) -> bool:
        """Whether any rule was broken."""
        return bool(self.counts)

    @property
    def total(self) -> int:
        """The number of violations."""
        return sum(self.counts.values())

    def text(self) -> str:
        """The result as text for people."""
        lines = [f"{self.total:,} violation{'' if self.total == 1 else 's'} over {self.events:,} events"]
        lines.append(f"{self.accepted:,} jobs accepted, {self.waiting:,} of them had not ended")
        lines += self.notes
        for rule, count in self.counts.items():
            shown = [violation for violation in self.samples if violation.rule == rule]
            lines.append(f"{rule}: {count:,}" + (f", the first {len(shown)}:" if len(shown) < count else ""))
            lines += [f"  {printable(_line(violation))}" for violation in shown]
        return "\n".join(lines)

    def document(self) -> dict[str, Any]:
        """The result as a document for programs."""
        return {
            "events": self.events,
            "accepted": self.accepted,
            "waiting": self.waiting,
            "total": self.total,
            "rules": list(RULES),
            "counts": self.counts,
            "violations": self.samples,
            "notes": self.notes,
        }


def audit(
    spark: SparkSession,
    lake: Lake,
    *,
    store: StoreJobs | None = None,
    extensions: bool | None = None,
    limit: int = LIMIT,
    on_step: Callable[[str], None] = lambda _: None,
) -> Audit:
    """Audit all events of a lake. With `store`, also check that the store agrees with them.

    `extensions` says whether the store records renewals (`events=all`); None: decide by the log.
    """
    # Batches that are ingested from here on wait for the next audit.
    batches, lost_records = lake.batches(), lake.lost_records()
    recorded = fn.col("batch") <= max((batch.batch for batch in batches), default=-1)
    events, gaps = lake.read(spark, "events").where(recorded), lake.read(spark, "gaps")
    ingested = IngestedBatches(batches, lost_records, lake.dropped())
    return audit_events(
        events, gaps, store=store, ingested=ingested, extensions=extensions, limit=limit, on_step=on_step
    )


def audit_events(
    events: DataFrame,
    gaps: DataFrame,
    *,
    store: StoreJobs | None = None,
    ingested: IngestedBatches | None = None,
    extensions: bool | None = None,
    limit: int = LIMIT,
    on_step: Callable[[str], None] = lambda _: None,
) -> Audit:
    """Audit events of any table, with the known gaps of their log and the record of what was ingested."""
    on_step("counting the events")
    tallied = tally(events, summed=ingested is not None).persist()
    rows_by_kind = census(tallied).collect()
    damages = [] if ingested is None else ingested.damages(batch_sums(tallied).collect())
    tallied.unpersist()
    kinds = {row["kind"]: int(row["count"]) for row in rows_by_kind}
    notes: list[str] = []
    on_step("clearing the jobs that are plainly correct")
    jobs = jobs_to_check(events).persist()
    held = [jobs]
    plain, twice = jobs.isEmpty(), any(row["twice"] for row in rows_by_kind)
    # Do not run the checks on zero events: Spark would plan these long queries for nothing.
    found: DataFrame = cast("Any", events.sparkSession).createDataFrame(
        [("LAKE-1", damage, "", "", "", None, [], [], None) for damage in damages], FINDINGS
    )
    if twice or not plain:
        on_step("looking closer at the others")
        looked_at = events.limit(0) if plain else of_jobs(events, jobs)
        suspected = suspects(looked_at)
        if kinds.get("purged"):
            suspected = _with_purges(suspected, events)
        suspected = cleared(suspected, events, gaps, extensions=extensions).persist()
        # A job that has a token without a claim is among the jobs that get the closer look.
        shared = shared_tokens(events, events if twice else looked_at).persist()
        held += [suspected, shared]
        left = _left(suspected, events, notes)
        # A violation that a shared token explains counts once.
        left = left.join(shared, ["shard", "position"], "left_anti")
        found = found.unionByName(left.select(*FINDING)).unionByName(shared.select(*FINDING))
    if store is not None:
        on_step("comparing with the store's jobs")
        found = found.unionByName(_unlike(events, gaps, store))
    counts: dict[str, int] = {}
    # If every job is plainly correct, there is nothing to count.
    if damages or twice or not plain or store is not None:
        found = found.persist()
        rules = found.groupBy("rule").count().orderBy("rule").collect()
        counts = {row["rule"]: int(row["count"]) for row in rules}
    for frame in held:
        frame.unpersist()
    return Audit(
        events=sum(kinds.values()),
        accepted=kinds.get("enqueued", 0),
        waiting=_waiting(kinds),
        counts=counts,
        samples=_samples(found, limit) if counts else [],
        violations=found,
        notes=notes,
    )


def _with_purges(suspected: DataFrame, events: DataFrame) -> DataFrame:
    """Add purges that are out of order among their tenant's purges. Those are certain violations.

    Seen from its own job, a purge that was logged twice may only look early, which the clock could explain.
    """
    found = purge_suspects(purges(events))
    if found.isEmpty():
        return suspected
    places = fn.broadcast(found.select("shard", "position"))
    return suspected.join(places, ["shard", "position"], "left_anti").unionByName(found)


def _unlike(events: DataFrame, gaps: DataFrame, store: StoreJobs) -> DataFrame:
    found = _unlike_jobs(events, gaps, store).select(*FINDING)
    if not store.purges:
        return found
    rows = [(counted.tenant, counted.series, counted.count) for counted in store.purges]
    counts: DataFrame = cast("Any", events.sparkSession).createDataFrame(rows, COUNTS)
    return found.unionByName(unlike_counts(events, counts, store.before, gaps).select(*FINDING))


def _unlike_jobs(events: DataFrame, gaps: DataFrame, store: StoreJobs) -> DataFrame:
    found = unlike_store(events, store.jobs, store.before, gaps)
    if store.again is None:
        return found
    found = found.persist()
    lost = found.where("rule = 'STATE-1'").select(*JOB).distinct()
    keys = [JobKey(row["tenant"], row["queue"], row["job_id"]) for row in lost.collect()]
    if not keys:
        return found
    events, known = store.again(keys)
    still = unlike_store(events.join(fn.broadcast(lost), list(JOB), "left_semi"), known.jobs, known.before, gaps)
    return found.where("rule != 'STATE-1'").unionByName(still)


def _left(suspected: DataFrame, events: DataFrame, notes: list[str]) -> DataFrame:
    """The suspects without an explanation. Explanations of the others are added to `notes`."""
    groups = suspected.groupBy("needs", "truncated", "unsure").count().collect()

    def count(**facts: Any) -> int:
        return sum(int(row["count"]) for row in groups if all(row[name] == fact for name, fact in facts.items()))

    if truncated := count(truncated=True):
        notes.append(f"the log was trimmed before it was read: {truncated:,} events follow a gap and are not judged")
    if unsure := count(truncated=False, unsure=True):
        notes.append(f"{unsure:,} leases ended after the deadline of their claim; renewals were not recorded")
    left = suspected.where(~fn.col("truncated") & ~fn.col("unsure"))
    if count(truncated=False, needs="clock"):
        back = set_back(left, events).persist()
        if steps := back.count():
            notes.append(f"the store's clock was set back: {steps:,} events are out of time and are not judged")
        left = left.join(back, ["shard", "position"], "left_anti")
    return left


def _waiting(kinds: dict[str, int]) -> int:
    ended = sum(kinds.get(kind, 0) for kind in ENDS) - kinds.get("replayed", 0)
    return max(0, kinds.get("enqueued", 0) - ended)


def _samples(found: DataFrame, limit: int) -> list[Violation]:
    first = Window.partitionBy("rule").orderBy("at", "shard", "positions")
    shown = found.withColumn("n", fn.row_number().over(first)).where(fn.col("n") <= limit).orderBy("rule", "n")
    return [Violation(**row) for row in rows(shown.select(*FINDING))]


def _line(violation: Violation) -> str:
    if not violation.job_id:
        return violation.explanation
    where = f"{violation.tenant}/{violation.queue} {violation.job_id}"
    places: Sequence[str] = violation.offsets or violation.positions
    return f"{where}: {violation.explanation} (shard {violation.shard}, {', '.join(places) or 'no event'})"
