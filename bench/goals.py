"""What Holdfast is held to, and whether a run showed it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench import depth, stats
from bench.measure import ALL_CORES, COMMIT, HELP, IMPORT, OURS, SETTLED, Figures
from bench.tables_peers import LESS_IS_BETTER, best

NOT_BELOW = 0.9
"""The lower bound of the paired ratio that counts as not below."""
IDLE, ANSWER = "idle enqueue to start p50", "request/response p50"


class Goal(NamedTuple):
    """One thing to be shown. NaN: not measured in this run."""

    what: str
    wanted: str
    found: float
    reached: bool

    @property
    def verdict(self) -> str:
        return "not measured" if math.isnan(self.found) else "yes" if self.reached else "no"


def on_disk(figures: Figures) -> Iterator[Goal]:
    """The file store, beside huey on SQLite with the same durability, and beside single commits."""
    commit = figures.median(COMMIT, "SQLite")
    yield _least("drain / huey on SQLite", _ratio(figures, "drain", "file", "huey"), 8)
    yield _least("bulk enqueue, jobs per second", figures.median("bulk enqueue", "file"), 40_000)
    yield _most("idle p50 / a single commit", figures.median(IDLE, "file") / commit, 3)
    yield _most("request/response p50 / a single commit", figures.median(ANSWER, "file") / commit, 5)
    yield from _alone(figures, "file")
    yield _most("import holdfast, ms", figures.median(IMPORT, OURS), 80)
    yield _most("holdfast --help, ms", figures.median(HELP, OURS), 200)


def on_valkey(figures: Figures, python: Sequence[str], others: Sequence[str]) -> Iterator[Goal]:
    """Beside the peers in Python, and those in Node."""
    all_peers = [*python, *others]
    first = best(figures, "drain", python)
    yield _least("drain / best in Python", _ratio(figures, "drain", "valkey", first.name if first else ""), 7)
    yield _least("drain / BullMQ", _ratio(figures, "drain", "valkey", "BullMQ"), 3)
    yield _least("drain / ids moved and removed", _of_limit(figures, "Valkey", "valkey"), 0.4)
    yield from (not_below(figures, measure, "valkey", all_peers) for measure in ("bulk enqueue", IDLE, ANSWER))
    yield _cheaper(figures, "valkey", all_peers)
    yield from _alone(figures, "valkey")


def on_postgres(figures: Figures, python: Sequence[str], others: Sequence[str]) -> Iterator[Goal]:
    """Beside PgQueuer, graphile-worker and the rest."""
    all_peers = [*python, *others]
    yield _least("drain / PgQueuer", _ratio(figures, "drain", "postgres", "PgQueuer"), 2.5)
    yield not_below(figures, "drain", "postgres", ["graphile-worker"])
    yield from (not_below(figures, measure, "postgres", all_peers) for measure in ("bulk enqueue", IDLE))
    answering = best(figures, ANSWER, all_peers)
    ratio = _ratio(figures, ANSWER, "postgres", answering.name if answering else "")
    yield _most("request/response p50 / best that has it", ratio, 0.3)
    yield _cheaper(figures, "postgres", ["graphile-worker"])
    yield from _alone(figures, "postgres")


def not_below(figures: Figures, measure: str, subject: str, names: Sequence[str]) -> Goal:
    """Not worse than the best of these: the lower bound of how many times as good we are, by rounds."""
    theirs = best(figures, measure, names)
    ours = figures.values(measure, subject)
    wanted = f"lower bound >= {NOT_BELOW}"
    if not ours or theirs is None:
        return Goal(f"{measure}, not worse than the best", wanted, math.nan, reached=False)
    ratios = stats.pairs(ours, theirs.values)
    if measure in LESS_IS_BETTER:
        ratios = [1 / ratio for ratio in ratios]
    low = stats.interval(ratios).low
    return Goal(f"{measure}, not worse than {theirs.name}", wanted, low, low >= NOT_BELOW)


def _cheaper(figures: Figures, subject: str, names: Sequence[str]) -> Goal:
    """Processor time of worker and server a drained job, beside that of the fastest of these."""
    theirs = best(figures, "drain", names)
    ratio = _spent(figures, "drain", subject) / _spent(figures, "drain", theirs.name if theirs else "")
    return _most(f"processor time a job / {theirs.name if theirs else 'the fastest'}", ratio, 1)


def _alone(figures: Figures, subject: str) -> Iterator[Goal]:
    """More processes, more jobs and more tenants should cost no more."""
    several = _spent(figures, ALL_CORES, subject) / _spent(figures, "drain", subject)
    yield _most("processor time a job, as many processes as cores / one", several, 1.15)
    waiting = [figures.median(depth.measure(100, depth.DEPTHS[end]), subject) for end in (0, -1)]
    yield _most("claim of 100, 1,000,000 waiting / 1,000", waiting[1] / waiting[0], 1.5)
    tenants = [figures.median(depth.measure_tenants(depth.TENANTS[end]), subject) for end in (0, -1)]
    yield _most("claim of 100 over 10,000 tenants / one", tenants[1] / tenants[0], 2)


def _spent(figures: Figures, measure: str, subject: str) -> float:
    """Of worker and server; a file has no server."""
    server = figures.median(f"{measure}, server time", subject)
    return figures.median(f"{measure}, processor time", subject) + (0.0 if math.isnan(server) else server)


def _ratio(figures: Figures, measure: str, ours: str, theirs: str) -> float:
    return figures.median(measure, ours) / figures.median(measure, theirs)


def _of_limit(figures: Figures, server: str, subject: str) -> float:
    return figures.median("drain", subject) / figures.median(SETTLED, server)


def _least(what: str, found: float, bound: float) -> Goal:
    return Goal(what, f">= {bound:,}", found, found >= bound)


def _most(what: str, found: float, bound: float) -> Goal:
    return Goal(what, f"<= {bound:,}", found, found <= bound)
