"""What a worker records, where a program asks for it."""

import prometheus_client
import pytest
from opentelemetry import trace

from holdfast import RetryLater, job
from holdfast.core.errors import StoreUnavailable
from holdfast.core.job import JobState
from holdfast.jobs.definition import Message
from holdfast.telemetry import metrics
from tests.unit.spans import record_spans
from tests.unit.worker.serving import heard, serving, until


@pytest.fixture
def registry():
    registry = prometheus_client.CollectorRegistry()
    metrics.disable()
    metrics.enable(registry)
    yield registry
    metrics.disable()


async def test_claims_runs_and_errors_are_counted(queue, store, registry):
    @job(max_attempts=1)
    async def fine(*, ok: bool) -> None:
        if not ok:
            raise ValueError

    store.fail("claim", StoreUnavailable("gone"))
    async with serving(queue, fine) as worker:
        heard(worker)
        await until(queue, await queue.enqueue(fine.message(ok=True)))
        await until(queue, await queue.enqueue(fine.message(ok=False)))

    def value(name, **labels):
        return registry.get_sample_value(f"holdfast_{name}", labels)

    assert value("claimed_total", queue="default") == 2
    assert value("finished_total", queue="default", outcome="complete") == 1
    assert value("finished_total", queue="default", outcome="retry") == 1
    assert value("store_errors_total", op="claim") == 1
    assert value("job_run_seconds_count", queue="default") == 2
    assert value("held") == 0


async def test_releases_are_counted_by_their_reason(queue, registry):
    @job
    async def later() -> None:
        raise RetryLater(delay=60)

    async with serving(queue, later) as worker:
        heard(worker)
        await until(queue, await queue.enqueue(later.message()), JobState.SCHEDULED)
        await until(queue, await queue.enqueue(Message.raw({}, "unknown")), JobState.SCHEDULED)
        await until(queue, await queue.enqueue(Message.raw({}, "later", version=2)), JobState.SCHEDULED)
    reasons = ("retry_later", "unknown_type", "unknown_version")
    labels = [{"queue": "default", "reason": reason} for reason in reasons]
    assert [registry.get_sample_value("holdfast_released_total", one) for one in labels] == [1, 1, 1]


async def test_a_run_is_a_span_of_the_producers_trace(queue):
    exporter = record_spans()

    @job
    async def inner() -> str:
        return format(trace.get_current_span().get_span_context().trace_id, "032x")

    @job
    def inner_in_thread() -> str:
        return format(trace.get_current_span().get_span_context().trace_id, "032x")

    async with serving(queue, inner, inner_in_thread):
        for message in (inner.message(), inner_in_thread.message()):
            with trace.get_tracer("test").start_as_current_span("producer") as span:
                ticket = await queue.enqueue(message)
                wanted = format(span.get_span_context().trace_id, "032x")
            assert await ticket.wait(timeout=60) == wanted
    assert {span.name for span in exporter.get_finished_spans()} >= {"process inner", "process inner_in_thread"}
