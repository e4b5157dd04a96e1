from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry import trace

from holdfast.core.job import Envelope, Job, JobState
from holdfast.telemetry import tracing
from tests.unit.running import asynchronous, claim, memory_queue
from tests.unit.spans import record_spans


@pytest.fixture(scope="module")
def exporter():
    return record_spans()


@pytest.fixture(autouse=True)
def _empty(exporter):
    exporter.clear()


def a_job(headers: dict[str, str] | None) -> Job:
    envelope = Envelope("send_email", b"{}", headers=headers)
    return Job("acme", "emails", "1", 1, envelope, JobState.LEASED, 0, 0, attempts=2)


def test_without_a_span_a_job_has_no_trace_headers():
    assert tracing.inject() is None


def test_a_program_without_opentelemetry_starts_no_spans():
    program = """
import sys
from holdfast.core.job import Envelope, Job, JobState
from holdfast.telemetry import tracing
assert tracing.inject() is None
with tracing.job_span(Job("t", "q", "1", 1, Envelope("t", b""), JobState.LEASED, 0, 0)):
    pass
assert not any(name.startswith("opentelemetry") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_workers_span_continues_the_producers_trace(exporter):
    with trace.get_tracer("test").start_as_current_span("request") as span:
        headers = tracing.inject()
    assert headers is not None
    assert f"{span.get_span_context().trace_id:032x}" in headers["traceparent"]
    with tracing.job_span(a_job(headers)):
        pass
    worker = exporter.get_finished_spans()[-1]
    assert worker.name == "process send_email"
    assert worker.kind is trace.SpanKind.CONSUMER
    assert worker.context.trace_id == span.get_span_context().trace_id
    assert worker.parent.span_id == span.get_span_context().span_id
    assert worker.attributes["messaging.destination.name"] == "emails"
    assert worker.attributes["holdfast.job.attempt"] == 2


def test_without_headers_a_trace_begins(exporter):
    with tracing.job_span(a_job(None)):
        pass
    assert exporter.get_finished_spans()[-1].parent is None


def test_an_exception_is_recorded_and_raised_again(exporter):
    with pytest.raises(ValueError, match="it broke"), tracing.job_span(a_job(None)):
        raise ValueError("it broke")
    span = exporter.get_finished_spans()[-1]
    assert (span.status.status_code, span.events[0].name) == (trace.StatusCode.ERROR, "exception")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_that_cannot_be_shown_is_raised_again(exporter):
    with pytest.raises(Mute), tracing.job_span(a_job(None)):
        raise Mute
    assert exporter.get_finished_spans()[-1].status.status_code is trace.StatusCode.ERROR


@asynchronous
async def test_an_enqueue_carries_its_own_callers_trace():
    async with memory_queue() as queue:
        with trace.get_tracer("test").start_as_current_span("request") as span:
            await queue.enqueue(1)
        await queue.enqueue(2)
        first, second = await claim(queue, limit=2)
        assert first.envelope.headers is not None
        assert f"{span.get_span_context().trace_id:032x}" in first.envelope.headers["traceparent"]
        assert second.envelope.headers is None
