"""Figures: gathered over rounds, shown as a median with its spread. And what can be measured of a server."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol


class Server(Protocol):
    """A server for all, emptied in between."""

    url: str

    @property
    def client(self) -> Any:
        """A connection to look at it."""

    @property
    def version(self) -> str: ...

    def cpu(self) -> float:
        """Seconds of processor time so far."""
        ...

    def empty(self) -> None:
        """As new."""


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


def cpu_of(pid: int, *, ended_children: bool = False) -> float:
    """Seconds of processor time of a process, all its threads; NaN where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return sum(map(int, fields[11 : 15 if ended_children else 13])) / os.sysconf("SC_CLK_TCK")
