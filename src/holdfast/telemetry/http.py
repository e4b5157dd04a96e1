"""Metrics of the HTTP service, off until `enable()`. Labels are bounded: routes of the table, never tenants."""

from __future__ import annotations

import os
from collections import Counter as Counts
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from holdfast.core.errors import InvalidOption

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"})
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 30, 60)

MOST = {
    "bytes": "The most bytes of bodies and answers that were in flight at once, in one process",
    "connections": "The most connections that were open at once, in one process",
    "waits": "The most requests that waited at once, event streams included, in one process",
    "turn_work": "The most work on bodies in one turn of the event loop, in one process",
}

current: HttpMetrics | None = None
"""Where to record, or None."""


class HttpMetrics:
    """The requests of this process, or of all processes of one service."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        self._registry = registry
        labels = ("method", "route")
        self._requests = Counter(
            "requests", "Requests, by what they were answered", (*labels, "status"), namespace="holdfast_http",
            registry=registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "request_seconds", "How long a request took, waits included", labels, namespace="holdfast_http",
            registry=registry, buckets=_SECONDS,
        )  # fmt: skip

        self._jobs = Counter(
            "jobs", "Items of operations, by what they were answered", ("op", "answer"), namespace="holdfast_http",
            registry=registry,
        )  # fmt: skip

        self._refusals = Counter(
            "budget_refusals", "Requests and items that were over a budget of their tenant", ("budget",),
            namespace="holdfast_http", registry=registry,
        )  # fmt: skip

        self._children: dict[tuple[str, str, int], tuple[Callable[[], None], Callable[[float], None]]] = {}
        self._most = [
            Gauge(f"most_{name}", text, namespace="holdfast_http", registry=registry, multiprocess_mode="livemax")
            for name, text in MOST.items()
        ]

    def refused(self, budget: str) -> None:
        """Something was over a budget. Without the tenant."""
        self._refusals.labels(budget).inc()

    def most(self, *values: int) -> None:
        """The most so far of each thing in `MOST`, in this process."""
        for gauge, value in zip(self._most, values, strict=True):
            gauge.set(value)

    def answered(self, method: str, route: str, status: int, took_s: float) -> None:
        """One request is over; `route` is "" where none fitted, `status` 0 where the client left."""
        method = method if method in METHODS else "other"
        labels = method, route, status
        children = self._children.get(labels)
        if children is None:
            # Kept: to look up a child takes ten times as long as to count in it. As bounded as the labels are.
            seconds = self._seconds.labels(method, route)
            children = self._children[labels] = self._requests.labels(method, route, str(status)).inc, seconds.observe
        children[0]()
        children[1](took_s)

    def jobs(self, op: str, answers: Sequence[object]) -> None:
        """So many items of an operation were answered, each by what it was. Without the queue: it is a tenant's."""
        for name, count in Counts(type(answer).__name__ for answer in answers).items():
            self._jobs.labels(op, name).inc(count)

    def text(self) -> bytes:
        """What Prometheus reads."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry())

    def registry(self) -> CollectorRegistry:
        """The metrics of this process, or of all that share a directory."""
        from prometheus_client import CollectorRegistry
        from prometheus_client.multiprocess import MultiProcessCollector

        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return self._registry
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        return registry


def enable() -> HttpMetrics:
    """Record from now on. Twice is harmless."""
    global current  # noqa: PLW0603 - one process, one set of metrics
    if current is None:
        try:
            from prometheus_client import REGISTRY
        except ModuleNotFoundError as error:
            reason = "needs prometheus-client; install it with: pip install 'holdfast[service]'"
            raise InvalidOption("metrics", reason) from error
        current = HttpMetrics(REGISTRY)
    return current


def serve_at(host: str, port: int) -> int:
    """Show the metrics on an address of their own; the port. Raises InvalidOption."""
    from holdfast.telemetry import exposition

    try:
        return exposition.serve(host, port, enable().text, CONTENT_TYPE.decode())
    except OSError as error:
        raise InvalidOption("metrics_port", f"cannot listen on {host}:{port}: {error.strerror}") from None
