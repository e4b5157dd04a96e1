"""Why a job is where it is, over HTTP. What it says of each situation is tested with the conformance suite."""

import uuid

import pytest

from holdfast.core.names import FLOWS
from tests.service.support import problem

pytestmark = pytest.mark.asyncio(loop_scope="module")

FLOW = {
    "name": "report",
    "id": "f1",
    "steps": [
        {"name": "extract", "type": "a", "queue": "secret", "payload": 1},
        {"name": "load", "type": "b", "queue": "mine", "after": ["extract"], "payload": 2},
    ],
}


@pytest.fixture(scope="module")
def url():
    """One kind of store is enough here."""
    return f"memory:{uuid.uuid4().hex}?test_clock=1"


async def test_explaining_needs_the_scope_to_read_and_the_queue(service, client, tenant):
    await client.post("/v1/jobs", json={"queue": "mine", "id": "j", "payload": 1})
    path = "/v1/queues/mine/jobs/j/explain"
    answer = (await client.get(path)).json()
    assert (answer["state"], [cause["code"] for cause in answer["causes"]]) == ("ready", ["no_worker"])
    problem(await (await service.client(tenant, ("produce", "work", "admin"))).get(path), 403, "scope_missing")
    problem(await (await service.client(tenant, queues=["other"])).get(path), 403, "queue_forbidden")


async def test_a_foreign_job_answers_as_one_that_is_not_there(service, client, tenant):
    await client.post("/v1/jobs", json={"queue": "mine", "id": "j", "payload": 1})
    stranger = await service.client(f"{tenant}x")
    foreign = await stranger.get("/v1/queues/mine/jobs/j/explain")
    none = await stranger.get("/v1/queues/mine/jobs/k/explain")
    problem(foreign, 404, "job_not_found")
    assert foreign.text == none.text.replace("'k'", "'j'").replace('"k"', '"j"')


async def test_how_many_other_tenants_take_turns_is_not_said(service, client, tenant):
    await client.post("/v1/jobs", json={"queue": "shared", "id": "j", "payload": 1})
    for n in range(3):
        other = await service.client(f"{tenant}-{n}")
        await other.post("/v1/jobs", json={"queue": "shared", "id": "j", "payload": 1})
    causes = (await client.get("/v1/queues/shared/jobs/j/explain")).json()["causes"]
    (cause,) = [cause for cause in causes if cause["code"] == "other_tenants"]
    assert set(cause) == {"code", "text"}
    assert cause["text"].startswith("Other tenants have work")


async def test_a_token_for_some_queues_sees_no_steps_of_flows_in_others(service, client, tenant):
    await client.post("/v1/flows", json=FLOW)
    path = "/v1/queues/mine/jobs/f1%2Fload/explain"
    answer = (await client.get(path)).json()
    assert (answer["state"], answer["causes"][0]["steps"]) == ("blocked", ["extract"])
    problem(await (await service.client(tenant, queues=["mine"])).get(path), 404, "job_not_found")
    both = await service.client(tenant, queues=["mine", "secret"])
    assert (await both.get(path)).json() == answer
    problem(await both.get(f"/v1/queues/{FLOWS}/jobs/f1/explain"), 403, "queue_forbidden")
