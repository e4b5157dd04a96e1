"""The page docs/reference/metrics.md, for `make_reference.py`: names, types, labels and texts come from the code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from settings_page import table

from holdfast.telemetry.gauges import EVERY_S, FAMILIES, MAX_EXPIRED, MAX_TENANTS
from holdfast.telemetry.http import HttpMetrics
from holdfast.telemetry.metrics import MAX_QUEUE_NAMES, Metrics

INTRODUCTION = f"""\
# Metrics

Made from the code by `scripts/make_reference.py`. How to get them: [Watch jobs](../howto/telemetry.md).
Beside this page: [a Grafana dashboard](grafana.json) and [alert rules for Prometheus](alerts.yml).

At most {MAX_QUEUE_NAMES} queue names are labels: further queues count as `other`. No label has a job's id.
Counters end in `_total`; a histogram has `_bucket`, `_sum` and `_count`.

## The store

Workers for all tenants, `holdfast maintain` and `holdfast serve` export these gauges on `--metrics-port`.
For each store one process does, and the others export none, so `sum` over processes is right. The numbers are
read every {EVERY_S:.0f} s, and less often with thousands of tenants; all are replaced at once.
`holdfast_gauges_age_seconds` says how old they are. Only tenants that `--gauges-by-tenant` names, up to {MAX_TENANTS},
are labels. Expired leases are counted up to {MAX_EXPIRED} in each queue of a tenant.
"""
HEAD = ("name", "type", "labels", "meaning")


def metrics_page() -> str:
    """All metrics, by the process that exports them."""
    lines = [
        *INTRODUCTION.split("\n"),
        *table(HEAD, gauges()),
        "",
        "## Workers and producers",
        "",
        "Every process with `--metrics-port` or `telemetry.metrics.enable()` exports what it did itself.",
        "",
        *table(HEAD, recorded(Metrics)),
        "",
        "## The HTTP service",
        "",
        "`holdfast serve` exports these for all its processes together.",
        "",
        *table(HEAD, recorded(HttpMetrics)),
    ]
    return "\n".join(lines) + "\n"


def gauges() -> Iterator[tuple[str, ...]]:
    """The gauges of a store."""
    for name, (text, labels) in FAMILIES.items():
        yield row(name, "gauge", labels, text)


def recorded(make: Callable[[CollectorRegistry], object]) -> Iterator[tuple[str, ...]]:
    """What an object records in its registry."""
    made: list[Any] = []

    class Recorder(CollectorRegistry):
        def register(self, collector: Any) -> None:
            made.append(collector)

    make(Recorder())
    for one in made:
        (family,) = one.describe()
        suffix = "_total" if family.type == "counter" else ""
        yield row(f"{family.name}{suffix}", family.type, one._labelnames, family.documentation)  # noqa: SLF001


def row(name: str, kind: str, labels: tuple[str, ...], text: str) -> tuple[str, ...]:
    """A row of the table."""
    return f"`{name}`", kind, ", ".join(labels), text
