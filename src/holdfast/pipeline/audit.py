"""Prove a history against the contract: every rule that it can show, and the events that break one.

What it cannot show is not judged: the order of claims, turns between tenants, quotas, and whether a lease that was
renewed ended in time where the store does not record renewals (`events=all` does).
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
from holdfast.pipeline.damage import TakenIn
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
    doubtful,
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
    """A rule that was broken, and by which events: their positions in the log of the shard, the offending one last."""

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
    """The jobs of the store, as the data source reads them: between two ends of the log.

    The lake has the log up to the second one: so it has every event that their records have counted.
    """

    jobs: DataFrame
    before: Sequence[str]
    """The first end: a position for each shard."""
    purges: Sequence[PurgeCount] = ()
    """The counts of purges, read between the same two ends."""
    again: Callable[[Sequence[JobKey]], tuple[DataFrame, StoreJobs]] | None = None
    """Look up single jobs, with the events up to a later end: a list may miss a job that moves meanwhile."""


@dataclass(frozen=True)
class Audit:
    """What an audit found."""

    events: int
    accepted: int
    waiting: int
    """Jobs that had been accepted, and had not ended where the log ends. With a store, none of them is lost."""
    counts: dict[str, int]
    """How often each rule was broken."""
    samples: list[Violation]
    """Up to a few of each rule."""
    violations: DataFrame
    """All of them, cached; `unpersist()` it when done."""
    notes: list[str] = field(default_factory=list[str])
    """What was found and breaks nothing."""

    @property
    def broken(self) -> bool:
        """Whether any rule was."""
        return bool(self.counts)

    @property
    def total(self) -> int:
        """How many violations there are."""
        return sum(self.counts.values())

    def text(self) -> str:
        """For people."""
        lines = [f"{self.total:,} violation{'' if self.total == 1 else 's'} over {self.events:,} events"]
        lines.append(f"{self.accepted:,} jobs accepted, {self.waiting:,} of them had not ended")
        lines += self.notes
        for rule, count in self.counts.items():
            shown = [violation for violation in self.samples if violation.rule == rule]
            lines.append(f"{rule}: {count:,}" + (f", the first {len(shown)}:" if len(shown) < count else ""))
            lines += [f"  {printable(_line(violation))}" for violation in shown]
        return "\n".join(lines)

    def document(self) -> dict[str, Any]:
        """For programs."""
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
    tell: Callable[[str], None] = lambda _: None,
) -> Audit:
    """Audit all events of a lake, and with `store` also that the store agrees with them.

    `extensions` says whether the store records them (`events=all`); None: as far as the log itself shows it.
    """
    # What is taken in from here on is for the next audit.
    batches, lost_notes = lake.batches(), lake.lost_notes()
    noted = fn.col("batch") <= max((batch.batch for batch in batches), default=-1)
    events, gaps = lake.read(spark, "events").where(noted), lake.read(spark, "gaps")
    taken_in = TakenIn(batches, lost_notes, lake.dropped())
    return audit_events(events, gaps, store=store, taken_in=taken_in, extensions=extensions, limit=limit, tell=tell)


def audit_events(
    events: DataFrame,
    gaps: DataFrame,
    *,
    store: StoreJobs | None = None,
    taken_in: TakenIn | None = None,
    extensions: bool | None = None,
    limit: int = LIMIT,
    tell: Callable[[str], None] = lambda _: None,
) -> Audit:
    """The same for events in any table, with the gaps that are known of their log, and what was taken in to it."""
    tell("counting the events")
    tallied = tally(events, summed=taken_in is not None).persist()
    told = census(tallied).collect()
    damages = [] if taken_in is None else taken_in.damages(batch_sums(tallied).collect())
    tallied.unpersist()
    kinds = {row["kind"]: int(row["count"]) for row in told}
    notes: list[str] = []
    tell("clearing the jobs that are plainly right")
    jobs = doubtful(events).persist()
    held = [jobs]
    plain, twice = jobs.isEmpty(), any(row["twice"] for row in told)
    # Not made of the checks on no events: they are long, and Spark would plan them for nothing.
    found: DataFrame = cast("Any", events.sparkSession).createDataFrame(
        [("LAKE-1", damage, "", "", "", None, [], [], None) for damage in damages], FINDINGS
    )
    if twice or not plain:
        tell("looking closer at the others")
        looked_at = events.limit(0) if plain else of_jobs(events, jobs)
        suspected = suspects(looked_at)
        if kinds.get("purged"):
            suspected = _with_purges(suspected, events)
        suspected = cleared(suspected, events, gaps, extensions=extensions).persist()
        # Who bears a token without having claimed it is among the jobs that are looked at.
        shared = shared_tokens(events, events if twice else looked_at).persist()
        held += [suspected, shared]
        left = _left(suspected, events, notes)
        # What another job's token explains is one fault, not two.
        left = left.join(shared, ["shard", "position"], "left_anti")
        found = found.unionByName(left.select(*FINDING)).unionByName(shared.select(*FINDING))
    if store is not None:
        tell("comparing with the store's jobs")
        found = found.unionByName(_unlike(events, gaps, store))
    counts: dict[str, int] = {}
    # Where all is plain, that is known by now.
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
    """The suspects, and purges that are out of place among their tenant's. What these are suspected of is certain.

    By its own job alone, a purge that was logged again may only be early: the clock could explain that.
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
    """The suspects that nothing explains; what explains the others is noted."""
    groups = suspected.groupBy("needs", "truncated", "unsure").count().collect()

    def count(**facts: Any) -> int:
        return sum(int(row["count"]) for row in groups if all(row[name] == fact for name, fact in facts.items()))

    if truncated := count(truncated=True):
        notes.append(
            f"the log was cut before it was read: {truncated:,} events follow on what is missing, and are not judged"
        )
    if unsure := count(truncated=False, unsure=True):
        notes.append(f"{unsure:,} leases ended after the deadline of their claim; renewals were not recorded")
    left = suspected.where(~fn.col("truncated") & ~fn.col("unsure"))
    if count(truncated=False, needs="clock"):
        back = set_back(left, events).persist()
        if steps := back.count():
            notes.append(f"the store's clock was set back: {steps:,} events came before their time, and are not judged")
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
