"""Traces that go on across the queue, by OpenTelemetry where the program uses it.

The producer's trace travels in the envelope's headers (W3C `traceparent`); the worker's span continues it.
OpenTelemetry is never imported from here first: a program that does not use it pays for one dict lookup. One that only
has it installed (redis-py imports it where it is) and has set up no provider pays little more.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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


def active() -> bool:
    """Whether spans would go anywhere: the program has set up a provider. Ask once for many jobs."""
    trace = _trace()
    return trace is not None and not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


@contextmanager
def request_span(method: str, headers: dict[str, str] | None) -> Generator[dict[str, str] | None]:
    """A span for one HTTP request that continues the caller's trace; what is to travel on from it, as headers."""
    if not active():
        yield headers
        return
    from opentelemetry.propagate import extract

    trace = _trace()
    tracer = trace.get_tracer("holdfast")
    with tracer.start_as_current_span(f"HTTP {method}", context=extract(headers or {}), kind=trace.SpanKind.SERVER):
        yield inject()


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
    parent = extract(job.envelope.headers or {})
    with tracer.start_as_current_span(
        name,
        context=parent,
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except Exception as error:
            # By ourselves, because it calls the error's __str__, and one that raises must not take its place.
            with contextlib.suppress(Exception):
                span.set_status(trace.StatusCode.ERROR, type(error).__name__)
                span.record_exception(error)
            raise


def _trace() -> Any:
    return sys.modules.get("opentelemetry.trace")
