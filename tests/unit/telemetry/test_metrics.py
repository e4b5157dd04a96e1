from __future__ import annotations

import sys

import pytest
from prometheus_client import CollectorRegistry

from holdfast import InvalidOption, InvalidPayload, PartlyRefused, StoreBusy
from holdfast.telemetry import metrics
from tests.unit.running import asynchronous, memory_queue


@pytest.fixture
def registry():
    registry = CollectorRegistry()
    metrics.enable(registry)
    yield registry
    metrics.disable()


def test_no_metrics_are_recorded_until_they_are_enabled():
    assert metrics.current is None


def test_enabling_metrics_twice_is_harmless(registry):
    assert metrics.enable(registry) is metrics.enable()


@asynchronous
async def _enqueue_some() -> None:
    async with memory_queue() as queue:
        await queue.enqueue(1, id="x")
        await queue.enqueue(1, id="x")
        with pytest.raises(PartlyRefused):
            await queue.enqueue_many([1, 2, float("nan")])
        with pytest.raises(InvalidPayload):
            await queue.enqueue(float("nan"))


def test_enqueues_are_counted_by_their_answer(registry):
    _enqueue_some()
    counts = {
        status: registry.get_sample_value("holdfast_enqueued_total", {"queue": "default", "status": status})
        for status in ("queued", "duplicate", "refused")
    }
    assert counts == {"queued": 3, "duplicate": 1, "refused": 1}


def test_a_store_that_raises_is_counted_by_operation(registry):
    @asynchronous
    async def fail() -> None:
        async with memory_queue() as queue:

            async def busy(*args: object) -> None:
                raise StoreBusy("later")

            queue.store.get = busy
            with pytest.raises(StoreBusy):
                await queue.get("x")
            del queue.store.get

    fail()
    assert registry.get_sample_value("holdfast_store_errors_total", {"op": "get"}) == 1


def test_runs_are_counted_and_timed(registry):
    recorder = metrics.enable()
    recorder.claimed("emails", 0.2)
    recorder.finished("emails", "complete", 1.5)
    recorder.held(3)
    recorder.held(-1)
    assert registry.get_sample_value("holdfast_claimed_total", {"queue": "emails"}) == 1
    assert registry.get_sample_value("holdfast_finished_total", {"queue": "emails", "outcome": "complete"}) == 1
    assert registry.get_sample_value("holdfast_job_run_seconds_sum", {"queue": "emails"}) == 1.5
    assert registry.get_sample_value("holdfast_job_wait_seconds_sum", {"queue": "emails"}) == 0.2
    assert registry.get_sample_value("holdfast_held") == 2


def test_queue_names_are_bounded(registry):
    recorder = metrics.enable()
    for number in range(150):
        recorder.enqueued(f"q{number}", "queued")
    recorder.enqueued("q99", "queued")
    assert registry.get_sample_value("holdfast_enqueued_total", {"queue": "q99", "status": "queued"}) == 2
    assert registry.get_sample_value("holdfast_enqueued_total", {"queue": "q100", "status": "queued"}) is None
    assert registry.get_sample_value("holdfast_enqueued_total", {"queue": "other", "status": "queued"}) == 50


def test_no_label_contains_a_tenant_or_a_job(registry):
    _enqueue_some()
    labels = {name for family in registry.collect() for sample in family.samples for name in sample.labels}
    assert labels <= {"queue", "status", "outcome", "op", "le"}


def test_without_prometheus_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(InvalidOption, match=r"pip install 'holdfast\[telemetry\]'"):
        metrics.enable()
