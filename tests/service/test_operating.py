"""For operators without a browser: lists across queues, cancel by filter, workers, tenants and their settings."""

from __future__ import annotations

import uuid

import pytest

from holdfast.service.revoked import Revocation, RevokedTokens
from holdfast.store import WorkerInfo
from tests.service.support import problem, serving, signed

OPERATOR = {"tid": None, "scope": "jobs:operator"}


@pytest.fixture
async def service():
    async with serving(f"memory:{uuid.uuid4().hex}") as service:
        yield service


async def ids(client, **query):
    """The ids of all pages."""
    found, cursor = [], None
    while True:
        answer = await client.get("/v1/jobs", params=query | ({"cursor": cursor} if cursor else {}))
        assert answer.status_code == 200, answer.text
        found += [job["id"] for job in answer.json()["jobs"]]
        cursor = answer.json()["cursor"]
        if cursor is None:
            return found


async def filled(client):
    """A dead letter, and waiting jobs of three queues."""
    await client.enqueue(queue="b", id="dead", type="mail", max_attempts=1)
    (job,) = await client.claim("b")
    await client.finish(job, "fail", error={"type": "Boom", "message": "it broke"})
    for number, queue in enumerate(("c", "a", "b")):
        await client.enqueue(queue=queue, id=f"job-{number}", type="mail" if number else "", delay_s=100 + number)


async def test_jobs_of_all_queues_are_listed_the_latest_first(service):
    client, stranger = await service.client(), await service.client("rival")
    await filled(client)
    for limit in (1, 2, 100):
        assert await ids(client, limit=limit) == ["job-2", "job-1", "job-0", "dead"]
        assert await ids(client, limit=limit, type="mail") == ["job-2", "job-1", "dead"]
    assert await ids(client, queue="b") == ["job-2", "dead"]
    assert await ids(client, state="failed,ready") == ["dead"]
    assert await ids(client, error="Boom") == ["dead"]
    assert await ids(client, id="job-") == ["job-2", "job-1", "job-0"]
    (dead,) = (await client.get("/v1/jobs", params={"error": "it broke"})).json()["jobs"]
    assert await ids(client, since=dead["finished_at"], until=dead["finished_at"]) == []
    assert await ids(client, until="2001-01-01T00:00:00Z") == []
    assert await ids(stranger) == []
    problem(await client.get("/v1/jobs", params={"cursor": "x"}), 400, "invalid_option")
    problem(await client.get("/v1/jobs", params={"since": "yesterday"}), 400, "invalid_request")
    problem(await (await service.client(scopes=("produce",))).get("/v1/jobs"), 403, "scope_missing")


async def test_a_token_for_some_queues_lists_and_cancels_only_there(service):
    await filled(await service.client())
    some = await service.client(queues=["a", "c"])
    assert await ids(some, limit=1) == ["job-1", "job-0"]
    problem(await some.get("/v1/jobs", params={"queue": "b"}), 403, "queue_forbidden")
    problem(await some.post("/v1/jobs:cancel", json={"where": {"queue": "b"}}), 403, "queue_forbidden")
    done = (await some.post("/v1/jobs:cancel", json={"where": {}})).json()
    assert done["count"] == 2
    assert await ids(await service.client(), state="scheduled") == ["job-2"]


async def test_jobs_are_canceled_by_filter_after_a_dry_run(service):
    client = await service.client()
    await filled(client)
    await client.enqueue(queue="a", id="running")
    await client.claim("a")
    wanted = {"where": {"type": "mail"}, "dry_run": True}
    dry = (await client.post("/v1/jobs:cancel", json=wanted)).json()
    sample = [{"queue": "b", "id": "job-2"}, {"queue": "a", "id": "job-1"}]
    assert dry == {"tenant": "acme", "count": 2, "sample": sample, "refused": {}, "cursor": None, "dry_run": True}
    assert await ids(client, state="canceled") == []
    steps, cursor = [], None
    while not steps or cursor:
        step = (
            await client.post("/v1/jobs:cancel", json={**wanted, "dry_run": False, "limit": 1, "cursor": cursor})
        ).json()
        cursor = step["cursor"]
        steps.append(step["count"])
    assert sum(steps) == 2
    assert max(steps) == 1
    assert await ids(client, state="canceled", type="mail") == ["job-1", "job-2"]
    both = (await client.post("/v1/jobs:cancel", json={"where": {}, "running": True})).json()
    assert both["count"] == 2
    assert set(await ids(client, state="canceled")) == {"job-0", "job-1", "job-2", "running"}
    problem(await client.post("/v1/jobs:cancel", json={}), 400, "invalid_request")
    problem(await client.post("/v1/jobs:cancel", json={"where": {"tenant": "rival"}}), 400, "invalid_request")
    refused = await client.post("/v1/jobs:cancel", json={"where": {"queue": "holdfast:schedules"}})
    problem(refused, 400, "invalid_name")
    writer = await service.client(scopes=("produce", "read"))
    problem(await writer.post("/v1/jobs:cancel", json={"where": {}}), 403, "scope_missing")


async def test_dead_letters_are_counted_before_they_are_replayed_or_purged(service):
    client = await service.client()
    for number in range(3):
        await client.enqueue(queue="b", id=f"dead-{number}", max_attempts=1)
        (job,) = await client.claim("b")
        await client.finish(job, "fail", error={"type": "Boom", "message": "it broke"})
    path = "/v1/queues/b/dead-letters"
    for verb, body in (("replay", {"where": {"error": "Boom"}}), ("purge", {"error": "Boom"})):
        dry = (await client.post(f"{path}:{verb}", json={**body, "dry_run": True})).json()
        assert (dry["matching"], dry["more"], dry["sample"]) == (3, False, ["dead-2", "dead-1", "dead-0"])
        assert (dry.get("items"), dry.get("purged")) == (([], None) if verb == "replay" else (None, 0))
    assert len((await client.get(path)).json()["jobs"]) == 3
    problem(await client.post(f"{path}:replay", json={"ids": ["dead-0"], "dry_run": True}), 400, "invalid_option")
    replayed = (await client.post(f"{path}:replay", json={"ids": ["dead-0"]})).json()
    assert (replayed["items"], replayed["more"]) == ([{"id": "dead-0", "status": "replayed"}], False)
    purged = (await client.post(f"{path}:purge", json={})).json()
    assert (purged["purged"], purged["more"], purged["cursor"]) == (2, False, None)


# Workers, tenants, settings -----------------------------------------------------------------------------------------


async def test_workers_are_those_that_serve_the_tenant_and_all_for_an_operator(service):
    store = service.context.store
    for id, tenant in (("mine", "acme"), ("shared", None), ("theirs", "rival")):
        await store.beat(WorkerInfo(id, tenant, "host", 7, ("mail", "secret"), 10, 3), 60_000)
    client, boss = await service.client(), await service.bare(signed(**OPERATOR))
    mine, shared = (await client.get("/v1/workers")).json()["workers"]
    assert (mine["id"], mine["tenant"], mine["host"], mine["pid"], mine["held"]) == ("mine", "acme", "host", 7, 3)
    assert shared["id"] == "shared"
    assert not shared.keys() & {"tenant", "host", "pid", "held"}
    some = await service.client(queues=["mail"])
    assert [worker["queues"] for worker in (await some.get("/v1/workers")).json()["workers"]] == [["mail"]] * 2
    page = (await boss.get("/v1/workers", params={"limit": 2})).json()
    rest = (await boss.get("/v1/workers", params={"limit": 2, "cursor": page["cursor"]})).json()
    assert [one["id"] for one in page["workers"] + rest["workers"]] == ["mine", "shared", "theirs"]
    assert page["workers"][1]["held"] == 3


async def test_an_operator_lists_tenants_and_changes_their_settings(service):
    client, boss = await service.client(), await service.bare(signed(**OPERATOR))
    await client.enqueue(queue="mail")
    assert (await boss.get("/v1/tenants")).json() == {"tenants": ["acme"], "cursor": None}
    path = "/v1/tenants/rival/settings"
    assert (await boss.get(path)).json() == {"tenant": "rival", "settings": []}
    answer = await boss.put(path, json={"weight": 2.5, "budgets": {"max_jobs": 5}})
    assert answer.json() == {"tenant": "rival", "settings": [{"weight": 2.5, "budgets": {"max_jobs": 5}}]}
    await boss.put(path, json={"queue": "mail", "max_waiting": 7})
    found = (await boss.get(path)).json()["settings"]
    assert [(one.get("queue"), one.get("weight"), one.get("max_waiting")) for one in found] == [
        (None, 2.5, None), ("mail", None, 7),
    ]  # fmt: skip
    assert (await boss.get("/v1/tenants")).json()["tenants"] == ["acme", "rival"]
    assert (await service.context.store.tenant_settings("acme")) == []
    problem(await boss.put(path, json={"tenant": "acme", "weight": 1.0}), 400, "invalid_request")
    problem(await boss.put(path, json={"weight": -1}), 400, "invalid_request")
    problem(await boss.put("/v1/tenants/-holdfast/settings", json={"weight": 1.0}), 400, "invalid_name")


async def test_an_operators_token_can_be_revoked(service, monkeypatch):
    boss = await service.bare(signed(**OPERATOR, jti="lost"))
    assert (await boss.get("/v1/tenants")).status_code == 200
    monkeypatch.setattr("holdfast.service.revoked.MAX_AGE_S", 0)
    monkeypatch.setattr("holdfast.service.revoked.RENEW_S", 0)
    await RevokedTokens(service.context.store).add(Revocation("", "jti", "lost"))
    problem(await boss.get("/v1/tenants"), 401, "token_invalid")
    assert (await (await service.client()).get("/v1/queues")).status_code == 200


@pytest.mark.parametrize("method, path", [
    ("GET", "/v1/tenants"), ("GET", "/v1/tenants/acme/settings"), ("PUT", "/v1/tenants/acme/settings"),
])  # fmt: skip
async def test_a_tenants_token_is_no_operators(service, method, path):
    body = {"json": {"weight": 9.0}} if method == "PUT" else {}
    for bearer in (signed(), signed(scope="jobs:operator jobs:admin jobs:read")):
        problem(await (await service.bare(bearer)).request(method, path, **body), 403, "scope_missing")
    problem(await (await service.bare()).request(method, path, **body), 401, "token_missing")
    assert await service.context.store.tenant_settings("acme") == []


async def test_an_operators_token_reads_and_changes_no_jobs(service):
    boss = await service.bare(signed(tid=None, scope="jobs:operator jobs:read jobs:admin jobs:produce"))
    for method, path in (("GET", "/v1/jobs"), ("POST", "/v1/jobs:cancel"), ("GET", "/v1/queues"), ("POST", "/v1/jobs")):
        body = {"json": {"where": {}}} if method == "POST" else {}
        problem(await boss.request(method, path, **body), 401, "token_invalid")
