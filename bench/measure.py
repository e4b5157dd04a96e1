"""Figures: gathered over rounds, shown as a median with its spread. And what can be measured of a server."""

from __future__ import annotations

import os
import random
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

CORES = os.cpu_count() or 1
ALL_CORES = "drain on all cores"
COMMIT = "one SQLite commit"
MOVED, SETTLED = "raw: ids moved", "raw: ids moved and removed"
WAITING, FINISHED = "bytes of a waiting job", "bytes of a finished job"
IMPORT, HELP = "import holdfast", "holdfast --help"
OURS = "Holdfast"
WARM_UP = 200
TEXT = 100
"""Characters that a job has with it where its memory is measured."""
RECOVERED = "ms to recover 10,000 expired leases"
SMALL = "small tenants beside a big one"
NAPS = 2_000
CROWD = 50
RESAMPLED = 4_000
EVERY = 0.02
"""NAPS jobs of 10 ms of the big tenant, then CROWD jobs of the small ones, one every EVERY seconds."""


class Place(Protocol):
    """Where a queue is, emptied in between."""

    @property
    def url(self) -> str: ...

    def memory(self) -> int:
        """Bytes that it holds."""
        ...

    def empty(self) -> None:
        """As new."""


class Server(Place, Protocol):
    """A server for all."""

    @property
    def client(self) -> Any:
        """A connection to look at it."""

    @property
    def version(self) -> str: ...

    def cpu(self) -> float:
        """Seconds of processor time so far."""
        ...


class Figures:
    """What was measured, by the name of the measure and of who was measured."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def add(self, measure: str, subject: str, *values: float) -> None:
        self._values[measure][subject] += values

    def values(self, measure: str, subject: str) -> list[float]:
        return self._values.get(measure, {}).get(subject, [])

    def median(self, measure: str, subject: str) -> float:
        values = self.values(measure, subject)
        return statistics.median(values) if values else float("nan")

    @classmethod
    def read(cls, data: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Self:
        """What `as_dict` gave."""
        figures = cls()
        for measure, subjects in data.items():
            for subject, values in subjects.items():
                figures.add(measure, subject, *values["all"])
        return figures

    def as_dict(self) -> dict[str, dict[str, dict[str, float | list[float]]]]:
        return {
            measure: {
                subject: {"median": statistics.median(values), "least": min(values), "most": max(values), "all": values}
                for subject, values in subjects.items()
            }
            for measure, subjects in self._values.items()
        }


def percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def add_crowd(figures: Figures, subject: str, values: Sequence[float]) -> None:
    for percent in (50, 99):
        figures.add(f"{SMALL} p{percent}", subject, percentile(values, percent))


def cpu_of(pid: int, *, ended_children: bool = False) -> float:
    """Seconds of processor time of a process, all its threads; NaN where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return sum(map(int, fields[11 : 15 if ended_children else 13])) / os.sysconf("SC_CLK_TCK")


def ratio(new: list[float], old: list[float]) -> tuple[float, float, float]:
    """The median of the rounds' ratios, and the interval that 95 % of resampled medians are in."""
    ratios = [one / other for one, other in zip(new, old, strict=True)]
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(RESAMPLED))
    return statistics.median(ratios), medians[RESAMPLED // 40], medians[-RESAMPLED // 40]
