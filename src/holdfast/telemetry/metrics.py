"""Prometheus metrics, off until `enable()`. Needs prometheus-client: `pip install 'holdfast[telemetry]'`.

Labels are bounded: no tenants, no ids, and up to 100 queue names. Further queues count as "other". `gauges` has the
numbers of the whole store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.errors import InvalidOption

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

MAX_QUEUE_NAMES = 100
OTHER = "other"
_RUN_SECONDS = (0.005, 0.025, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600)

current: Metrics | None = None
"""The metrics to record into; None: off. Check it before computing values."""


class QueueNames:
    """The queue names that labels may have: the first ones, up to MAX_QUEUE_NAMES."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def label(self, name: str) -> str:
        """The name, or "other" if there are too many."""
        if name in self._names:
            return name
        if len(self._names) >= MAX_QUEUE_NAMES:
            return OTHER
        self._names.add(name)
        return name


class Metrics:
    """The metrics of this process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, namespace="holdfast", registry=registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(name, text, ["queue"], namespace="holdfast", registry=registry, buckets=_RUN_SECONDS)

        self._queue = QueueNames().label
        self._enqueued = counter("enqueued", "Enqueues by answer", "queue", "status")
        self._claimed = counter("claimed", "Leases granted to this process", "queue")
        self._finished = counter("finished", "Runs that ended here by outcome", "queue", "outcome")
        self._released = counter("released", "Leases released uncounted, by reason", "queue", "reason")
        self._store_errors = counter("store_errors", "Calls to the store that failed", "op")
        self._run = histogram("job_run_seconds", "Duration of a run")
        self._wait = histogram("job_wait_seconds", "Time from visible to claimed")
        self._held = Gauge("held", "Jobs that this process has leased", namespace="holdfast", registry=registry)

    def enqueued(self, queue: str, status: str) -> None:
        """Count one answered item of an enqueue."""
        self._enqueued.labels(self._queue(queue), status).inc()

    def claimed(self, queue: str, wait_s: float) -> None:
        """Count one leased job, `wait_s` after it became visible."""
        queue = self._queue(queue)
        self._claimed.labels(queue).inc()
        self._wait.labels(queue).observe(wait_s)

    def finished(self, queue: str, outcome: str, run_s: float) -> None:
        """Count one finished run."""
        queue = self._queue(queue)
        self._finished.labels(queue, outcome).inc()
        self._run.labels(queue).observe(run_s)

    def released(self, queue: str, reason: str) -> None:
        """Count one released lease. `reason` is one of the few reasons of the worker itself."""
        self._released.labels(self._queue(queue), reason).inc()

    def held(self, change: int) -> None:
        """Change the number of held jobs."""
        self._held.inc(change)

    def store_error(self, op: str) -> None:
        """Count a failed call to the store."""
        self._store_errors.labels(op).inc()


def default_registry(extra: str) -> CollectorRegistry:
    """The registry of prometheus-client. Raises InvalidOption if that is not installed; `extra` installs it."""
    try:
        from prometheus_client import REGISTRY
    except ModuleNotFoundError as error:
        reason = f"needs prometheus-client; install it with: pip install 'holdfast[{extra}]'"
        raise InvalidOption("metrics", reason) from error
    return REGISTRY


def enable(registry: CollectorRegistry | None = None) -> Metrics:
    """Record from now on, into `registry` or the default one. Calling it twice is harmless."""
    global current  # noqa: PLW0603 - one process, one set of metrics
    if current is None:
        current = Metrics(registry or default_registry("telemetry"))
    return current


def disable() -> None:
    """Stop recording."""
    global current  # noqa: PLW0603 - one process, one set of metrics
    current = None
