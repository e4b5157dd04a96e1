"""Attacks by a hostile reader, on each kind of store: each is refused, and nothing of the victim has changed."""

import asyncio
from types import SimpleNamespace

import pytest
import pytest_asyncio

from holdfast.core.job import JobState
from holdfast.store import ListQuery
from tests.eventually import eventually
from tests.service import hostile
from tests.service.support import problem, read_to_the_end, token

pytestmark = pytest.mark.asyncio(loop_scope="module")

VICTIM = "hostile-victim"
QUEUES = ("default", "held", "mail", "holdfast:schedules", "holdfast:flows")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(service):
    victim = await service.client(VICTIM)
    await victim.enqueue(id="secret", payload={"card": 4111}, priority=1)
    await victim.enqueue(id="dead", max_attempts=1)
    (dead,) = await victim.claim(lease_s=60)
    await victim.finish(dead, "fail", error={"type": "E"})
    await victim.enqueue(id="held", queue="held")
    await victim.enqueue(id="other", queue="held")
    held, other = await victim.claim("held", limit=2, lease_s=3600)
    body = {"every_s": 3600, "queue": "default"}
    assert (await victim.put("/v1/schedules/nightly", json=body)).status_code == 200
    flow = {"name": "f", "id": "secret", "steps": [{"name": "a", "queue": "default"}]}
    assert (await victim.post("/v1/flows", json=flow)).status_code == 201
    beat = {"worker_id": "w", "queues": ["default"], "types": [{"name": "bill"}], "ttl_s": 300}
    assert (await victim.post("/v1/workers:beat", json=beat)).status_code == 200
    await eventually(lambda: known(victim), lambda types: types == ["bill"])
    world = SimpleNamespace(
        service=service, victim=victim, held=held, other=other,
        stranger=await service.client("hostile-stranger"),
        narrow=await service.client(VICTIM, queues=["mail"]),
        producer=await service.client(VICTIM, ["produce"]),
    )  # fmt: skip
    before = await snapshot(service.context.store)
    yield world
    assert await snapshot(service.context.store) == before


async def known(client):
    return [one["name"] for one in (await client.get("/v1/types")).json()["types"]]


async def snapshot(store):
    found = [
        (await store.list(ListQuery(VICTIM, queue, frozenset(JobState)))).jobs + [one.paused for one in stats]
        for queue in QUEUES
        for stats in [await store.stats(VICTIM, [queue])]
    ]
    return found, [event.kind for event in (await store.events(VICTIM, None, 1000)).events]


@pytest.mark.parametrize("name", hostile.PROOFS)
async def test_another_leases_proof_is_lost(world, name):
    answer = await hostile.PROOFS[name](world)
    assert answer.status_code == 200, answer.text
    (item,) = answer.json()["items"]
    assert item["error"]["code"] == "lease_lost"


@pytest.mark.parametrize(
    "send, status, code", [pytest.param(*row[2:], id=f"{row[0]}: {row[1]}") for row in hostile.REFUSED]
)
async def test_a_hostile_request_is_refused(world, send, status, code):
    reported = problem(await send(world), status, code)
    assert "4111" not in reported["detail"]


@pytest.mark.parametrize("name", hostile.PACKED)
async def test_invalid_msgpack_is_refused(world, name):
    body = hostile.packed(hostile.PACKED[name])
    headers = {"content-type": "application/json"}
    problem(await world.stranger.post("/v1/jobs", content=body, headers=headers), 400, "invalid_payload")


@pytest.mark.parametrize("name", hostile.RAW)
async def test_an_ambiguous_request_is_refused(world, name):
    reader, writer = await asyncio.open_connection("127.0.0.1", world.service.port)
    # Another one behind it: were it read, there would be a second answer.
    behind = f"GET /v1/session HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token('smuggled')}\r\n\r\n"
    writer.write((hostile.RAW[name].replace("{token}", token("hostile-stranger")) + behind).encode())
    answer = await asyncio.wait_for(read_to_the_end(reader), 30)
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"smuggled" not in answer
    writer.close()


async def test_a_stream_of_some_queues_shows_no_others(world):
    reported = await world.narrow.get("/v1/events", params={"follow": "false"})
    assert reported.status_code == 200
    assert b"event: " not in reported.content


async def test_lists_of_some_queues_show_no_others(world):
    found = [
        (await world.narrow.get("/v1/schedules")).json()["schedules"],
        (await world.narrow.get("/v1/queues")).json()["queues"],
    ]
    assert found == [[], []]


async def test_another_tenant_of_the_same_names_sees_nothing(world):
    assert (await world.stranger.get("/v1/queues/default/jobs")).json()["jobs"] == []
    assert (await world.stranger.get("/v1/queues/default/dead-letters")).json()["jobs"] == []
    assert (await world.stranger.get("/v1/schedules")).json()["schedules"] == []
    cursor = (await world.victim.get("/v1/queues/default/jobs", params={"limit": 1})).json()["cursor"]
    page = await world.stranger.get("/v1/queues/default/jobs", params={"cursor": cursor})
    assert page.status_code == 400 or page.json()["jobs"] == []
    offset = (await world.victim.get("/v1/session")).json()["offset"]
    events = await world.stranger.get("/v1/events", params={"after": offset, "follow": "false"})
    assert events.status_code == 200
    assert b"event: " not in events.content
