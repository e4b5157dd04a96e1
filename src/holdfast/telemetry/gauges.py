"""Gauges of a whole store: what its queues hold now. Off until `enable()`.

`maintenance.gauges` reads the numbers. Of all processes that work on a store, the one that holds a lease exports them,
and the others export none: a sum over processes is right. A round is published whole or not at all; the age says how
old the numbers are. Labels are bounded: up to 100 queue names, and only tenants that were asked for.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

from holdfast.core.errors import InvalidOption
from holdfast.core.job import JobState
from holdfast.core.names import check_tenant
from holdfast.telemetry.metrics import OTHER, QueueNames, default_registry

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import GaugeMetricFamily

EVERY_S = 15.0
"""How often the numbers are read."""
MAX_TENANTS = 100
"""The most tenants that can be asked for by name."""
MAX_EXPIRED = 100
"""The most expired leases that are counted in one queue of a tenant."""
MAX_QUEUES = 10_000
"""The most queue names that a round keeps apart while it sums. Further ones count as "other"."""
STATES = (JobState.READY, JobState.SCHEDULED, JobState.LEASED, JobState.RETRYING, JobState.FAILED)
"""The states that are exported. Failed jobs are the dead letters."""

_COUNTS = {
    "jobs": ("Jobs by state; failed ones are dead letters", ("state",)),
    "oldest_ready_seconds": ("How long the oldest ready job has waited; 0: none is ready", ()),
    "expired_leases": ("Leases past their deadline that have not been ended yet", ()),
}
_SCOPES = {"queue": "of all tenants", "tenant": "of the tenants asked for"}
FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    f"holdfast_{scope}_{name}": (f"{text} ({where})", (scope, *labels))
    for scope, where in _SCOPES.items()
    for name, (text, labels) in _COUNTS.items()
} | {
    "holdfast_gauges_age_seconds": ("Age of the oldest of these numbers", ()),
    "holdfast_gauges_round_seconds": ("How long it took to read them", ()),
}
"""The text and the labels of each gauge."""

current: Gauges | None = None
"""The gauges to publish; None: off."""


class QueueCounts(Struct):
    """What one queue of a tenant holds, or a sum of several."""

    jobs: Counter[JobState] = field(default_factory=Counter[JobState])
    expired_leases: int = 0
    oldest_ready_s: float = 0.0
    summed: int = 0
    """How many were added."""

    def add(self, other: QueueCounts) -> None:
        """Add the counts of another queue."""
        self.jobs.update(other.jobs)
        self.expired_leases += other.expired_leases
        self.oldest_ready_s = max(self.oldest_ready_s, other.oldest_ready_s)
        self.summed += 1


class Round(Struct):
    """The numbers of a store, read one tenant after another, by queue name and for some tenants."""

    started_at: float
    """By `time.monotonic`."""
    queues: dict[str, QueueCounts] = {}
    tenants: dict[str, QueueCounts] = {}
    took_s: float = 0.0

    def add(self, tenant: str, queue: str, counts: QueueCounts) -> None:
        """Add a queue of a tenant."""
        if queue not in self.queues and len(self.queues) >= MAX_QUEUES:
            queue = OTHER
        self.queues.setdefault(queue, QueueCounts()).add(counts)
        if tenant in self.tenants:
            self.tenants[tenant].add(counts)


class Gauges:
    """The gauges of this process: those of the last round while it leads, else none. Safe from any thread."""

    def __init__(self, tenants: Iterable[str] = (), every_s: float = EVERY_S) -> None:
        self.tenants = tuple(dict.fromkeys(check_tenant(name) for name in tenants))
        if len(self.tenants) > MAX_TENANTS:
            raise InvalidOption("gauges_by_tenant", f"names {len(self.tenants)} tenants, at most {MAX_TENANTS}")
        self.every_s = every_s
        self._names = QueueNames()
        self.published: Round | None = None
        """The last round, while this process leads."""

    def publish(self, found: Round) -> None:
        """Export these numbers from now on."""
        queues: dict[str, QueueCounts] = {}
        # Names that many tenants share come first: one tenant with many names must not use up the labels.
        for name, counts in sorted(found.queues.items(), key=_by_use):
            queues.setdefault(self._names.label(name), QueueCounts()).add(counts)
        self.published = Round(found.started_at, queues, found.tenants, found.took_s)

    def clear(self) -> None:
        """Export nothing: another process may lead now."""
        self.published = None

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The names, so that registering reads nothing."""
        return _families().values()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The numbers of the last round."""
        found = self.published
        if found is None:
            return ()
        families = _families()
        for scope, named in (("queue", found.queues), ("tenant", found.tenants)):
            _fill(families, scope, named)
        families["holdfast_gauges_age_seconds"].add_metric((), time.monotonic() - found.started_at)
        families["holdfast_gauges_round_seconds"].add_metric((), found.took_s)
        return families.values()


def enable(
    registry: CollectorRegistry | None = None, *, tenants: Iterable[str] = (), every_s: float = EVERY_S
) -> Gauges:
    """Export from now on, in `registry` or the default one. Calling it twice is harmless.

    The gauges of `tenants` are exported one by one too. Enable them before the worker or the maintenance starts.
    """
    global current  # noqa: PLW0603 - one process, one set of gauges
    if current is None:
        made = Gauges(tenants, every_s)
        (registry or default_registry("telemetry")).register(made)
        current = made
    return current


def disable() -> None:
    """Stop exporting. The registry keeps the gauges, without values."""
    global current  # noqa: PLW0603 - one process, one set of gauges
    if current is not None:
        current.clear()
    current = None


def _by_use(item: tuple[str, QueueCounts]) -> tuple[int, int, str]:
    name, counts = item
    return -counts.summed, -counts.jobs.total(), name


def _families() -> dict[str, GaugeMetricFamily]:
    from prometheus_client.core import GaugeMetricFamily

    return {name: GaugeMetricFamily(name, text, labels=labels) for name, (text, labels) in FAMILIES.items()}


def _fill(families: Mapping[str, GaugeMetricFamily], scope: str, named: Mapping[str, QueueCounts]) -> None:
    for name, counts in named.items():
        for state in STATES:
            families[f"holdfast_{scope}_jobs"].add_metric((name, state.value), counts.jobs[state])
        families[f"holdfast_{scope}_oldest_ready_seconds"].add_metric((name,), counts.oldest_ready_s)
        families[f"holdfast_{scope}_expired_leases"].add_metric((name,), counts.expired_leases)
