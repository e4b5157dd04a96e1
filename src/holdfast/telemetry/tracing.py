"""Traces across the queue, by OpenTelemetry if the program uses it.

The envelope's headers carry the producer's trace (W3C `traceparent`), and the worker's span continues it. This module
never imports OpenTelemetry first: a program without it pays for one dict lookup. A program that imports it without a
provider, for example through redis-py, pays little more.
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
    """The current trace as headers; None if there is none."""
    trace = _trace()
    if trace is None or not trace.get_current_span().get_span_context().is_valid:
        return None
    from opentelemetry.propagate import inject as write

    headers: dict[str, str] = {}
    write(headers)
    return headers or None


def active() -> bool:
    """Whether the program has set up a provider. Call it once for many jobs."""
    trace = _trace()
    return trace is not None and not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


@contextmanager
def request_span(method: str, headers: dict[str, str] | None) -> Generator[dict[str, str] | None]:
    """A span for one HTTP request that continues the caller's trace. Yields the headers for its jobs."""
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
    """A span for one run of a job that continues the producer's trace. It records exceptions."""
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
            # Recording calls the error's __str__. If that raises, the original error must still propagate.
            with contextlib.suppress(Exception):
                span.set_status(trace.StatusCode.ERROR, type(error).__name__)
                span.record_exception(error)
            raise


def _trace() -> Any:
    return sys.modules.get("opentelemetry.trace")
