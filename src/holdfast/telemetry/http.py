"""Metrics of the HTTP service, off until `enable()`. Labels are bounded: routes, never tenants."""

from __future__ import annotations

import os
from collections import Counter as Counts
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from holdfast.core.errors import InvalidOption
from holdfast.telemetry import gauges
from holdfast.telemetry.metrics import default_registry

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"})
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 30, 60)

PEAKS = {
    "bytes": "The most bytes of bodies and answers in flight, in one process",
    "connections": "The most open connections, in one process",
    "waits": "The most waiting requests, including event streams, in one process",
    "turn_work": "The most work on bodies in one turn of the event loop, in one process",
}

current: HttpMetrics | None = None
"""The metrics to record into; None: off."""


class HttpMetrics:
    """The requests of this process, or of all processes of one service."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        self._registry = registry
        labels = ("method", "route")
        self._requests = Counter(
            "requests", "Requests by status", (*labels, "status"), namespace="holdfast_http",
            registry=registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "request_seconds", "Duration of a request, including waits", labels, namespace="holdfast_http",
            registry=registry, buckets=_SECONDS,
        )  # fmt: skip

        self._jobs = Counter(
            "jobs", "Items of operations by answer", ("op", "answer"), namespace="holdfast_http",
            registry=registry,
        )  # fmt: skip

        self._refusals = Counter(
            "budget_refusals", "Requests and items refused because of a budget of their tenant", ("budget",),
            namespace="holdfast_http", registry=registry,
        )  # fmt: skip

        self._answers: dict[tuple[str, type], Callable[[float], None]] = {}
        self._children: dict[tuple[str, str, int], tuple[Callable[[], None], Callable[[float], None]]] = {}
        self._peaks = [
            Gauge(f"most_{name}", text, namespace="holdfast_http", registry=registry, multiprocess_mode="livemax")
            for name, text in PEAKS.items()
        ]

    def refused(self, budget: str) -> None:
        """Count a refusal by a budget, without the tenant."""
        self._refusals.labels(budget).inc()

    def set_peaks(self, *values: int) -> None:
        """Set the values of `PEAKS`, in their order."""
        for gauge, value in zip(self._peaks, values, strict=True):
            gauge.set(value)

    def answered(self, method: str, route: str, status: int, took_s: float) -> None:
        """Count a finished request. `route` is "" if none matched, `status` 0 if the client disconnected."""
        method = method if method in METHODS else "other"
        labels = method, route, status
        children = self._children.get(labels)
        if children is None:
            # Cached: looking up a child takes ten times as long as counting. Labels are bounded, so this is too.
            seconds = self._seconds.labels(method, route)
            children = self._children[labels] = self._requests.labels(method, route, str(status)).inc, seconds.observe
        children[0]()
        children[1](took_s)

    def jobs(self, op: str, answers: Sequence[object]) -> None:
        """Count the answers of an operation by type, without the queue, whose name belongs to a tenant."""
        for kind, count in Counts(map(type, answers)).items():
            add = self._answers.get((op, kind))
            if add is None:
                add = self._answers[op, kind] = self._jobs.labels(op, kind.__name__).inc
            add(count)

    def text(self) -> bytes:
        """The metrics in Prometheus' text format."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry())

    def registry(self) -> CollectorRegistry:
        """The metrics of this process, or of all processes that share a directory."""
        from prometheus_client import CollectorRegistry
        from prometheus_client.multiprocess import MultiProcessCollector

        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return self._registry
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        if gauges.current is not None:
            registry.register(gauges.current)
        return registry


def enable() -> HttpMetrics:
    """Record from now on. Calling it twice is harmless."""
    global current  # noqa: PLW0603 - one process, one set of metrics
    if current is None:
        current = HttpMetrics(default_registry("service"))
    return current


def serve_at(host: str, port: int) -> int:
    """Serve the metrics on a separate address. Returns the port. Raises InvalidOption."""
    from holdfast.telemetry import exposition

    try:
        return exposition.serve(host, port, enable().text, CONTENT_TYPE.decode())
    except OSError as error:
        raise InvalidOption("metrics_port", f"cannot listen on {host}:{port}: {error.strerror}") from None
