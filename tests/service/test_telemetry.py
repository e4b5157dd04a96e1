"""What is reported of requests: one JSON line each, bounded metrics, traces in and out; and never a token."""

import json
import logging

import pytest

from holdfast.telemetry import http as http_metrics
from holdfast.telemetry import tracing
from holdfast.telemetry.logging import JsonFormatter
from tests.service.support import serving, token

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Lines(logging.Handler):
    """Collects the log, as JSON text."""

    def __init__(self):
        super().__init__()
        self.texts = []
        self.setFormatter(JsonFormatter())

    def emit(self, record):
        self.texts.append(self.format(record))

    @property
    def requests(self):
        return [line for line in map(json.loads, self.texts) if line["logger"] == "holdfast.access"]


@pytest.fixture
def lines():
    lines = Lines()
    logger = logging.getLogger("holdfast")
    level = logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.DEBUG)
    yield lines
    logger.removeHandler(lines)
    logger.setLevel(level)


async def test_a_request_is_one_line_with_its_tenant_and_no_secret(lines):
    async with serving("memory:log") as service:
        made = token()
        client = await service.bare(made)
        answer = await client.get("/v1/queues/q/jobs/a%0ab?x=secret", headers={"x-request-id": "mine-1"})
        assert answer.headers["x-request-id"] == "mine-1"
        await client.get("/nothing", headers={"authorization": f"Bearer {made}x"})
        await client.post("/v1/jobs", json={"payload": "classified"})
    first, second, third = lines.requests
    assert (first["method"], first["status"], first["tenant"]) == ("GET", 400, "acme")
    assert (first["path"], first["request_id"]) == ("/v1/queues/q/jobs/a%0ab", "mine-1")
    assert first["route"] == "/v1/queues/{queue}/jobs/{id}"
    assert (second["status"], second["route"], second["tenant"]) == (404, "", "")
    assert third["status"] == 201
    assert all(isinstance(line["ms"], float) and line["ms"] > 0 for line in (first, second, third))
    everything = "".join(lines.texts)
    for secret in (made, made.rpartition(".")[2], "secret", "classified", "Bearer"):
        assert secret not in everything


async def test_the_trace_of_an_enqueue_is_in_its_claim(lines, monkeypatch):
    monkeypatch.setattr(tracing, "active", lambda: False)  # Another test of this process may have set up a provider.
    async with serving("memory:trace") as service:
        client = await service.client()
        headers = {"traceparent": PARENT, "tracestate": "a=1"}
        await client.post("/v1/jobs", json={}, headers=headers)
        (job,) = await client.claim()
        assert job["trace"] == headers
        await client.post("/v1/jobs", json={}, headers={"traceparent": "00-" + "0" * 32 + "-b7ad6b7169203331-01"})
        (job,) = await client.claim()
        assert "trace" not in job
    assert lines.requests[0]["trace_id"] == PARENT[3:35]


async def test_metrics_count_requests_by_route_not_by_path():
    http_metrics.enable()
    async with serving("memory:metrics") as service:
        client = await service.client("shy")
        for number in range(3):
            await client.get(f"/v1/queues/q/jobs/private-{number}")
            await client.get(f"/private/{number}")
        await client.enqueue(queue="private-queue")
        text = (await client.get("/metrics")).text
    assert 'holdfast_http_requests_total{method="GET",route="/v1/queues/{queue}/jobs/{id}",status="404"}' in text
    assert 'holdfast_http_requests_total{method="GET",route="",status="404"}' in text
    assert 'holdfast_http_jobs_total{answer="Queued",op="enqueue"}' in text
    assert "shy" not in text
    assert "private" not in text


async def test_an_internal_error_is_logged_and_not_shown_to_the_client(lines, monkeypatch):
    async with serving("memory:wrong") as service:
        client = await service.client()

        async def broken(*_):
            raise RuntimeError("a secret of the house")

        with monkeypatch.context() as patch:
            patch.setattr(service.context.connection("acme"), "gets", broken)
            answer = await client.get("/v1/queues/q/jobs/x")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert "secret" not in answer.text
    (line,) = [line for line in map(json.loads, lines.texts) if line["event"] == "a request failed"]
    assert "a secret of the house" in line["exception"]
    assert line["request_id"] == answer.headers["x-request-id"]
