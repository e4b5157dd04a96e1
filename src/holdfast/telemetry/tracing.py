"""Traces that go on across the queue, by OpenTelemetry where the program uses it.

The producer's trace travels in the envelope's headers (W3C `traceparent`); the worker's span continues it.
OpenTelemetry is never imported from here first: a program that does not use it pays for one dict lookup.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from holdfast.core.job import Job


def inject() -> dict[str, str] | None:
    """The current trace as headers, or None where there is none."""
    trace = _trace()
    if trace is None or not trace.get_current_span().get_span_context().is_valid:
        return None
    from opentelemetry.propagate import inject as write

    headers: dict[str, str] = {}
    write(headers)
    return headers or None


@contextmanager
def job_span(job: Job) -> Generator[None]:
    """A span for one run of a job, continuing the producer's trace. Exceptions are recorded and go on."""
    trace = _trace()
    if trace is None:
        yield
        return
    from opentelemetry.propagate import extract

    tracer = trace.get_tracer("holdfast")
    attributes = {
        "messaging.system": "holdfast",
        "messaging.operation.type": "process",
        "messaging.destination.name": job.queue,
        "messaging.message.id": job.id,
        "holdfast.job.type": job.envelope.type,
        "holdfast.job.attempt": job.attempts,
    }
    name = f"process {job.envelope.type or job.queue}"
    with tracer.start_as_current_span(
        name, context=extract(job.envelope.headers or {}), kind=trace.SpanKind.CONSUMER, attributes=attributes
    ):
        yield


def _trace() -> Any:
    return cast("Any", sys.modules.get("opentelemetry.trace"))
