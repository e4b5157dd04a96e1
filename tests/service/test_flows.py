"""Flows over HTTP: by the routes, and by a Queue at the service's address."""

import asyncio
import uuid
from contextlib import asynccontextmanager

import pytest

from holdfast import AccessRefused, Flow, InvalidName, JobCanceled, JobFailed, Message, Permanent, Queue, Worker
from holdfast.core.names import FLOWS
from tests.eventually import eventually
from tests.service.support import problem, token

pytestmark = pytest.mark.asyncio(loop_scope="module")
PATIENCE_S = 20

CHAIN = {
    "name": "report",
    "id": "f1",
    "steps": [
        {"name": "load", "type": "b", "after": ["extract"], "payload": {"n": 2}},
        {"name": "extract", "type": "a", "payload": {"n": 1}, "result_ttl_s": 60},
    ],
}


@pytest.fixture(scope="module")
def url():
    """One kind of store is enough here: flows are tested on each."""
    return f"memory:{uuid.uuid4().hex}?test_clock=1"


@asynccontextmanager
async def working(service, tenant, broken=()):
    """A worker at the store, which also leads the flows."""
    broken = set(broken)

    async def handler(payload):
        if payload in broken:
            broken.discard(payload)
            raise Permanent("it broke")
        return payload

    worker = Worker(Queue(store=service.context.store, tenant=tenant), handler=handler)
    task = asyncio.create_task(worker.run(signals=False))
    try:
        yield
    finally:
        await worker.stop()
        await task


def at(service, tenant, **options):
    return Queue(f"http://127.0.0.1:{service.port}", token=token(tenant, **options))


async def test_a_flow_is_started_shown_and_canceled(client, tenant):
    first = await client.post("/v1/flows", json=CHAIN)
    assert (first.status_code, first.json()) == (
        201,
        {"status": "queued", "id": "f1", "queue": FLOWS, "state": "ready"},
    )
    again = await client.post("/v1/flows", json=CHAIN)
    assert (again.status_code, again.json()["status"]) == (200, "duplicate")
    shown = (await client.get("/v1/flows/f1")).json()
    assert (shown["id"], shown["name"], shown["tenant"], shown["state"]) == ("f1", "report", tenant, "ready")
    assert [(step["name"], step["type"], step["after"], step["state"]) for step in shown["steps"]] == [
        ("extract", "a", [], "ready"),
        ("load", "b", ["extract"], "blocked"),
    ]
    problem(await client.post("/v1/flows/f1/replay"), 409, "not_replayable")
    assert (await client.delete("/v1/flows/f1")).json() == {"status": "canceled"}
    assert (await client.get("/v1/flows/f1")).json()["state"] == "canceled"


@pytest.mark.parametrize(
    "change, code",
    [
        ({"steps": []}, "invalid_request"),
        ({"steps": [{"name": "a"}, {"name": "a"}]}, "invalid_option"),
        ({"steps": [{"name": "a", "after": ["b"]}, {"name": "b", "after": ["a"]}]}, "invalid_option"),
        ({"steps": [{"name": "a", "after": ["a"]}]}, "invalid_option"),
        ({"steps": [{"name": "a", "after": ["nobody"]}]}, "invalid_option"),
        (
            {"steps": [{"name": str(n), "after": [str(m) for m in range(min(n, 101))]} for n in range(210)]},
            "invalid_option",
        ),
        ({"steps": [{"name": "a/b"}]}, "invalid_name"),
        ({"steps": [{"name": "a", "queue": "holdfast:flows"}]}, "invalid_name"),
        ({"steps": [{"name": "a", "id": "mine"}]}, "invalid_request"),
        ({"steps": [{"name": str(n)} for n in range(1001)]}, "invalid_request"),
        ({"steps": [{"name": "a" * 100}], "id": "f" * 150}, "invalid_name"),
        ({"name": "no good"}, "invalid_name"),
    ],
)
async def test_an_invalid_flow_is_refused_with_the_reason(client, change, code):
    problem(await client.post("/v1/flows", json={**CHAIN, **change}), 400, code)
    assert (await client.get("/v1/queues")).json()["queues"] == []


async def test_payloads_that_are_too_large_together_are_refused(client):
    steps = [{"name": str(n), "payload": "x" * 100_000} for n in range(3)]
    problem(await client.post("/v1/flows", json={"name": "large", "steps": steps}), 413, "payload_too_large")


async def test_the_routes_of_jobs_cannot_change_flows(service, client, tenant):
    await client.post("/v1/flows", json=CHAIN)
    proof = service.context.proofs.sign(tenant, FLOWS, "f1", 1)
    lease = {"queue": FLOWS, "id": "f1", "token": proof, "outcome": "complete"}
    for method, path, body in (
        ("POST", "/v1/jobs", {"queue": FLOWS}),
        ("POST", "/v1/claims", {"queues": [FLOWS]}),
        ("DELETE", f"/v1/queues/{FLOWS}/jobs/f1", None),
        ("POST", f"/v1/queues/{FLOWS}/jobs:cancel", {"jobs": [{"id": "f1"}]}),
        ("POST", f"/v1/queues/{FLOWS}/jobs:purge", {"jobs": [{"id": "f1"}]}),
        ("POST", f"/v1/queues/{FLOWS}/jobs:set-result-ttl", {"jobs": [{"id": "f1", "result_ttl_s": 1}]}),
        ("POST", f"/v1/queues/{FLOWS}/pause", None),
        ("POST", f"/v1/queues/{FLOWS}/dead-letters:replay", {"ids": ["f1"]}),
        ("POST", f"/v1/queues/{FLOWS}/dead-letters:purge", {}),
    ):
        more = {} if body is None else {"json": body}
        problem(await client.request(method, path, **more), 400, "invalid_name")
    for path, body in (("/v1/leases:finish", {"leases": [lease]}), ("/v1/jobs:batch", {"jobs": [{"queue": FLOWS}]})):
        (item,) = (await client.post(path, json=body)).json()["items"]
        assert item["error"]["code"] == "invalid_name"
    assert (await client.get(f"/v1/queues/{FLOWS}/jobs/f1")).json()["state"] == "ready"


async def test_another_tenants_flow_answers_byte_for_byte_like_a_missing_one(service, client, tenant):
    """[TENANT-2]"""
    await client.post("/v1/flows", json=CHAIN)
    stranger = await service.client(f"{tenant}-not")
    for method, path in (("GET", ""), ("GET", "/result"), ("DELETE", ""), ("POST", "/replay")):
        foreign = await stranger.request(method, f"/v1/flows/f1{path}")
        nothing = await stranger.request(method, f"/v1/flows/f2{path}")
        problem(foreign, 404, "job_not_found")
        assert foreign.content == nothing.content.replace(b"f2", b"f1")
    assert (await client.get("/v1/flows/f1")).json()["state"] == "ready"


async def test_each_route_needs_its_scope_and_its_queues(service, client, tenant):
    await client.post("/v1/flows", json=CHAIN)
    for scopes, method, path in (
        (("read", "work", "admin"), "POST", "/v1/flows"),
        (("produce", "work", "admin"), "GET", "/v1/flows/f1"),
        (("produce", "work", "admin"), "GET", "/v1/flows/f1/result"),
        (("read", "work", "admin"), "DELETE", "/v1/flows/f1"),
        (("produce", "work", "read"), "POST", "/v1/flows/f1/replay"),
    ):
        weak = await service.client(tenant, scopes)
        more = {"json": CHAIN} if path == "/v1/flows" else {}
        problem(await weak.request(method, path, **more), 403, "scope_missing")
    other = await service.client(tenant, queues=["other"])
    problem(await other.post("/v1/flows", json=CHAIN), 403, "queue_forbidden")
    problem(await other.get("/v1/flows/f1"), 404, "job_not_found")
    problem(await other.get("/v1/flows/f1/result"), 404, "job_not_found")
    problem(await other.delete("/v1/flows/f1"), 404, "job_not_found")
    own = await service.client(tenant, queues=["default"])
    assert (await own.get("/v1/flows/f1")).status_code == 200


async def test_a_token_for_some_queues_learns_nothing_about_a_flow_in_others(service, client, tenant):
    ours = {"name": "report", "id": "f1", "steps": [{"name": "load", "payload": "all"}]}
    await client.post("/v1/flows", json=ours)
    theirs = {"name": "mine", "id": "f1", "steps": [{"name": "a", "queue": "other"}]}
    other = await service.client(tenant, queues=["other", FLOWS])
    hidden = {"status": "duplicate", "id": "f1", "queue": FLOWS, "state": None}
    for _ in range(2):
        answer = await other.post("/v1/flows", json=theirs)
        assert (answer.status_code, answer.json()) == (200, hidden)
        async with working(service, tenant):
            ended = await client.get("/v1/flows/f1/result", params={"wait_s": PATIENCE_S})
            assert (ended.status_code, ended.json()["state"]) == (200, "completed")
    own = await service.client(tenant, queues=["default"])
    again = (await own.post("/v1/flows", json=ours)).json()
    assert (again["status"], again["result"]["load"]["result"]) == ("completed", "all")


async def test_a_token_for_some_queues_reads_no_reserved_queue_even_if_it_names_it(service, client, tenant):
    await client.post("/v1/flows", json=CHAIN)
    other = await service.client(tenant, queues=["other", FLOWS])
    for path in ("jobs/f1", "jobs/f1/result", "jobs/f1/events", "jobs", "stats", "dead-letters"):
        problem(await other.get(f"/v1/queues/{FLOWS}/{path}"), 403, "queue_forbidden")
    assert (await other.get("/v1/queues")).json()["queues"] == []
    events = await other.get("/v1/events", params={"follow": "false"})
    assert (events.status_code, b"f1" in events.content) == (200, False)


async def test_a_queue_with_a_token_for_some_queues_waits_for_its_flows(service, tenant):
    async with at(service, tenant, queues=["default"]) as queue:
        flow = Flow("report")
        flow.add("one", name="one")
        ticket = await queue.start(flow)
        waiting = asyncio.create_task(ticket.wait(PATIENCE_S))
        await asyncio.sleep(0.05)
        async with working(service, tenant):
            assert await waiting == {"one": {"state": "completed", "result": "one"}}


async def test_a_queue_at_the_service_starts_waits_for_and_replays_flows(service, tenant):
    async with at(service, tenant) as queue, working(service, tenant, broken=["left"]):
        flow = Flow("report", "f/1")
        first = flow.add("first", name="first", priority=7, max_attempts=2)
        flow.add("left", name="left", after=[first])
        flow.add(Message.raw("right", codec="msgpack"), name="right", after=[first])
        ticket = await queue.start(flow)
        assert (ticket.status, ticket.queue) == ("queued", FLOWS)
        assert (await queue.start(flow)).status == "duplicate"
        with pytest.raises(JobFailed, match=r"left \(failed: Permanent: it broke\)"):
            await ticket.wait(PATIENCE_S)
        record = await queue.flow("f/1")
        assert {step.name: step.state.value for step in record.steps} == {
            "first": "completed", "left": "failed", "right": "completed"
        }  # fmt: skip
        assert record.step("left").after == ["first"]
        step = await queue.get("f/1/first")
        assert (step.priority, step.max_attempts) == (7, 2)
        await queue.replay("f/1", queue=FLOWS)
        found = await queue.result("f/1", queue=FLOWS, timeout=PATIENCE_S)
        assert found["left"] == {"state": "completed", "result": "left"}
        assert await queue.flow("nothing") is None


async def test_a_ticket_from_the_service_cancels_the_flow_with_its_steps(service, tenant):
    async with at(service, tenant) as queue:
        flow = Flow("report")
        flow.add("later", name="later", delay=3600)
        ticket = await queue.start(flow)
        async with working(service, tenant):
            await eventually(lambda: queue.get(f"{flow.id}/later"))
            assert (await ticket.cancel()).status == "canceled"
            with pytest.raises(JobCanceled):
                await ticket.wait(PATIENCE_S)
        assert (await queue.get(f"{flow.id}/later")).state.value == "canceled"
        assert (await queue.cancel("nothing", queue=FLOWS)).status == "not_found"
    with pytest.raises(InvalidName, match="reserved for schedules and flows"):
        Worker(queue, handler=print, queues=[FLOWS])


async def test_a_flow_outside_the_token_does_not_affect_other_calls(service, tenant):
    async with at(service, tenant, queues=["mine"]) as queue:
        flow = Flow("report")
        flow.add("x", queue="other")
        refused, ticket = await asyncio.gather(
            queue.start(flow), queue.enqueue(1, queue="mine"), return_exceptions=True
        )
    assert isinstance(refused, AccessRefused)
    assert ticket.status == "queued"
