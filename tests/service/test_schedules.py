"""Schedules over HTTP: the routes, whom they are for, and the same Queue with a service in place of a store."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace

import pytest
import pytest_asyncio

from holdfast import AccessRefused, InvalidOption, Queue, QuotaExceeded, RetryPolicy, job
from holdfast.core import schedule as core
from holdfast.core.job import JobKey
from holdfast.core.names import FLOWS, SCHEDULES
from holdfast.maintenance import Maintenance
from holdfast.service.app import ROUTES
from holdfast.service.routes import schedules as routes
from tests.eventually import eventually
from tests.service.support import problem, serving, token

pytestmark = pytest.mark.asyncio(loop_scope="module")

NIGHTLY = {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "queue": "emails", "type": "send", "payload": {"n": 1}}
PATH = "/v1/schedules/nightly"


@job(queue="emails", retry=RetryPolicy(base=timedelta(seconds=1)), timeout=9)
async def send_email(to: str) -> None: ...


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(prefix):
    async with serving(f"memory:{prefix}?test_clock=1") as service:
        yield service


async def test_a_schedule_is_put_shown_listed_and_removed(client, tenant):
    put = await client.put(PATH, json=NIGHTLY)
    assert put.status_code == 200, put.text
    shown = put.json()
    assert {name: shown[name] for name in NIGHTLY} == NIGHTLY
    assert (shown["tenant"], shown["name"], shown["state"]) == (tenant, "nightly", "scheduled")
    found = await client.get(PATH)
    assert (found.status_code, found.json()["next_at"]) == (200, shown["next_at"])
    await client.put("/v1/schedules/a%2Fb", json={"every_s": 60})
    listed = (await client.get("/v1/schedules")).json()
    assert (listed["tenant"], listed["cursor"]) == (tenant, None)
    assert {one["name"]: one.get("every_s") for one in listed["schedules"]} == {"nightly": None, "a/b": 60.0}
    page = (await client.get("/v1/schedules", params={"limit": 1})).json()
    assert len(page["schedules"]) == 1
    rest = (await client.get("/v1/schedules", params={"cursor": page["cursor"]})).json()["schedules"]
    assert {one["name"] for one in (*page["schedules"], *rest)} == {"nightly", "a/b"}
    removed = await client.delete(PATH)
    assert (removed.status_code, removed.json()) == (200, {"tenant": tenant, "name": "nightly", "status": "removed"})
    for answer in (await client.delete(PATH), await client.get(PATH)):
        assert problem(answer, 404, "job_not_found")["detail"] == "no schedule 'nightly'"


async def test_putting_the_same_schedule_changes_nothing_and_another_replaces_it(client):
    first = (await client.put(PATH, json=NIGHTLY)).json()
    again = (await client.put(PATH, json=NIGHTLY)).json()
    assert again["next_at"] == first["next_at"]
    events = (await client.get(f"/v1/queues/{SCHEDULES}/jobs/nightly/events")).json()["events"]
    assert [event["kind"] for event in events] == ["enqueued"]
    other = (await client.put(PATH, json={"every_s": 60})).json()
    assert (other["every_s"], other["queue"], "cron" in other) == (60, "default", False)


async def test_a_token_to_read_sees_no_schedules(service, client, tenant):
    await client.put(PATH, json=NIGHTLY)
    reader = await service.client(tenant, ("read",))
    for path in ("jobs/nightly", "jobs/nightly/result", "jobs/nightly/events", "jobs"):
        problem(await reader.get(f"/v1/queues/{SCHEDULES}/{path}"), 403, "scope_missing")


async def test_the_service_fires_schedules(service, client):
    await client.put("/v1/schedules/often", json={"every_s": 60, "payload": "tick"})
    upkeep = asyncio.create_task(Maintenance(service.context.store).run())
    try:
        await service.context.store.shift_clock(60_000)
        (job,) = await eventually(client.claim)
        assert (job["id"].partition("@")[0], job["payload"]) == ("often", "tick")
    finally:
        upkeep.cancel()
        await asyncio.wait([upkeep])


BAD = {
    "nothing": ({}, 400, "invalid_option"),
    "both": ({"cron": "* * * * *", "every_s": 60}, 400, "invalid_option"),
    "no cron": ({"cron": "often"}, 400, "invalid_option"),
    "a day that never comes": ({"cron": "0 0 30 2 *"}, 400, "invalid_option"),
    "no such zone": ({"cron": "* * * * *", "timezone": "../../etc/passwd"}, 400, "invalid_option"),
    "too often": ({"every_s": 0.1}, 400, "invalid_option"),
    "a number beyond": ({"every_s": 1e300}, 400, "invalid_option"),
    "a tenant in the body": ({"every_s": 60, "tenant": "acme"}, 400, "invalid_request"),
    "an id": ({"every_s": 60, "id": "x"}, 400, "invalid_request"),
    "a queue of holdfast's own": ({"every_s": 60, "queue": SCHEDULES}, 400, "invalid_name"),
    "a type that is none": ({"every_s": 60, "type": "a b"}, 400, "invalid_name"),
    "a large payload": ({"every_s": 60, "payload": "x" * 300_000}, 413, "payload_too_large"),
    "a codec that is none": ({"every_s": 60, "codec": "pickle", "payload": ""}, 400, "unknown_codec"),
}


@pytest.mark.parametrize("case", BAD)
async def test_an_invalid_schedule_is_refused_and_not_stored(client, case):
    body, status, code = BAD[case]
    problem(await client.put(PATH, json=body), status, code)
    assert (await client.get("/v1/schedules")).json()["schedules"] == []


async def test_an_invalid_name_is_refused(client):
    for name in ("a%00b", "n" * 171, "a%0Ab"):
        problem(await client.put(f"/v1/schedules/{name}", json={"every_s": 60}), 400, "invalid_name")


async def test_a_tenant_at_its_quota_gets_an_error_for_a_new_schedule(service, client, tenant):
    await Queue(store=service.context.store, tenant=tenant).set_tenant(max_waiting=0)
    answer = await client.put(PATH, json=NIGHTLY)
    problem(answer, 429, "quota_exceeded")
    assert "retry-after" in answer.headers


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_another_tenants_schedule_answers_byte_for_byte_like_a_missing_one(service, client, method):
    """[TENANT-2] And it does not change."""
    await client.put(PATH, json=NIGHTLY)
    stranger = await service.client(f"stranger-{method.lower()}")
    more = {"json": NIGHTLY} if method == "PUT" else {}
    foreign = await stranger.request(method, PATH, **more)
    nothing = await stranger.request(method, "/v1/schedules/nightlx", **more)
    assert foreign.status_code == nothing.status_code == (200 if method == "PUT" else 404)
    if method != "PUT":
        assert foreign.content.replace(b"nightly", b"nightlx") == nothing.content
        assert (await stranger.get("/v1/schedules")).json()["schedules"] == []
    assert (await client.get(PATH)).json()["payload"] == {"n": 1}


async def test_only_operators_may(service, tenant):
    reader = await service.client(tenant, scopes=("produce", "work", "read"))
    routes = [route for route in ROUTES if route.path.startswith("/v1/schedules")]
    assert len(routes) == 4
    for route in routes:
        more = {"json": NIGHTLY} if route.method == "PUT" else {}
        problem(await reader.request(route.method, route.path.format(name="x"), **more), 403, "scope_missing")


async def test_a_token_for_some_queues_is_valid_for_schedules_of_those(service, client, tenant):
    await client.put(PATH, json=NIGHTLY)
    other = await service.client(tenant, queues=["other"])
    assert (await other.get("/v1/schedules")).json()["schedules"] == []
    problem(await other.put(PATH, json=NIGHTLY), 403, "queue_forbidden")
    own = {"every_s": 60, "queue": "other"}
    assert (await other.put("/v1/schedules/own@other", json=own)).status_code == 200
    assert (await other.get("/v1/schedules/own@other")).json()["queue"] == "other"
    assert [one["name"] for one in (await other.get("/v1/schedules")).json()["schedules"]] == ["own@other"]
    await client.put("/v1/schedules/operators", json=own)
    assert (await other.get("/v1/schedules/operators")).status_code == 200
    for name in ("operators", "own@other"):
        assert (await other.delete(f"/v1/schedules/{name}")).json()["status"] == "removed"
    assert (await client.get(PATH)).json()["payload"] == {"n": 1}


async def test_a_token_for_some_queues_cannot_tell_another_queues_schedule_from_a_missing_one(service, client, tenant):
    """Byte for byte. Nor can the token find names by trying them."""
    await client.put(PATH, json=NIGHTLY)
    other = await service.client(tenant, queues=["other", "othe"])
    for method, more in (("GET", {}), ("DELETE", {}), ("PUT", {"json": {"every_s": 60, "queue": "other"}})):
        taken = await other.request(method, PATH, **more)
        free = await other.request(method, PATH.replace("nightly", "nightlx"), **more)
        assert taken.status_code == free.status_code == (400 if method == "PUT" else 404)
        assert taken.content.replace(b"nightly", b"nightlx") == free.content
    for name in ("@other", "other", "x@othe", "x@other@", "x@default"):
        answer = await other.put(f"/v1/schedules/{name}", json={"every_s": 60, "queue": "other"})
        assert "@other" in problem(answer, 400, "invalid_name")["detail"]
    await client.put("/v1/schedules/x@other", json={"every_s": 60, "queue": "default"})
    problem(await other.put("/v1/schedules/x@other", json={"every_s": 60, "queue": "other"}), 403, "queue_forbidden")


async def test_the_pages_of_a_token_for_some_queues_do_not_count_other_schedules(service, client, tenant):
    for n in range(12):
        queue = "other" if n % 4 == 0 else "default"
        await client.put(f"/v1/schedules/s{n:02}", json={"every_s": 60 + n, "queue": queue})
    other = await service.client(tenant, queues=["other"])
    pages, cursor = [], None
    while True:
        query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await other.get("/v1/schedules", params=query)).json()
        cursor = page["cursor"]
        pages.append(([one["name"] for one in page["schedules"]], cursor))
        if cursor is None:
            break
    assert pages == [(["s00", "s04"], "s04"), (["s08"], None)]
    assert len((await client.get("/v1/schedules", params={"limit": 12})).json()["schedules"]) == 12


async def test_answers_about_schedules_to_a_token_for_some_queues_take_even_times(service, client, tenant, monkeypatch):
    """Whatever time the store needed, the answer waits for the next multiple."""
    slept = []

    async def sleep(duration_s):
        slept.append(duration_s)

    ticks = iter([10.0, 10.012, 20.0, 20.061, 30.0, 30.0])
    monkeypatch.setattr(routes, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    monkeypatch.setattr(routes, "asyncio", SimpleNamespace(sleep=sleep))
    other = await service.client(tenant, queues=["other"])
    for path in ("/v1/schedules", PATH, PATH):
        await other.get(path)
    assert slept == pytest.approx([0.038, 0.039, 0.05])


def _calls(queue, proof=""):
    """Every call that would change a reserved queue, and its answer."""
    lot = {"queue": queue, "id": "nightly", "token": proof}
    path = f"/v1/queues/{queue}"
    return {
        "enqueue": ("POST", "/v1/jobs", {"queue": queue, "id": "mine"}),
        "claim": ("POST", "/v1/claims", {"queues": ["default", queue]}),
        "cancel": ("DELETE", f"{path}/jobs/nightly", None),
        "cancel many": ("POST", f"{path}/jobs:cancel", {"jobs": [{"id": "nightly"}]}),
        "purge": ("POST", f"{path}/jobs:purge", {"jobs": [{"id": "nightly"}]}),
        "keep": ("POST", f"{path}/jobs:set-result-ttl", {"jobs": [{"id": "nightly", "result_ttl_s": 1}]}),
        "pause": ("POST", f"{path}/pause", None),
        "resume": ("POST", f"{path}/resume", None),
        "replay": ("POST", f"{path}/dead-letters:replay", {"ids": ["nightly"]}),
        "purge dead letters": ("POST", f"{path}/dead-letters:purge", {}),
        "enqueue many": ("POST", "/v1/jobs:batch", {"jobs": [{"queue": queue, "id": "mine"}]}),
        "finish": ("POST", "/v1/leases:finish", {"leases": [{**lot, "outcome": "complete"}]}),
        "extend": ("POST", "/v1/leases:extend", {"leases": [lot]}),
        "report": ("POST", "/v1/leases:report", {"leases": [{**lot, "progress": {"fraction": 1}}]}),
    }


@pytest.mark.parametrize("call", _calls(SCHEDULES))
async def test_the_routes_of_jobs_change_nothing_in_queues_of_holdfasts_own(service, client, tenant, call):
    await client.put(PATH, json=NIGHTLY)
    before = await service.context.store.get([JobKey(tenant, SCHEDULES, "nightly")])
    for queue in (SCHEDULES, FLOWS, "holdfast:any"):
        method, path, body = _calls(queue, service.context.proofs.sign(tenant, queue, "nightly", 1))[call]
        answer = await client.request(method, path, **({} if body is None else {"json": body}))
        if answer.status_code == 200:
            assert [item["error"]["code"] for item in answer.json()["items"]] == ["invalid_name"]
        else:
            problem(answer, 400, "invalid_name")
    assert await service.context.store.get([JobKey(tenant, SCHEDULES, "nightly")]) == before
    assert (await client.get(f"/v1/queues/{SCHEDULES}/jobs/nightly")).json()["type"] == core.TYPE


async def test_a_queue_over_http_keeps_schedules_like_one_on_a_store(service, tenant):
    address = f"http://127.0.0.1:{service.port}"
    async with Queue(address, tenant=tenant, token=token(tenant)) as queue:
        made = await queue.schedule("nightly", send_email.message("a"), cron="30  2 * * *", timezone="Europe/Berlin")
        here = await Queue(store=service.context.store, tenant=tenant).get_schedule("nightly")
        assert here.as_dict() | {"created_at": 0} == made.as_dict() | {"created_at": 0}
        assert (await queue.get_schedule("nightly")).as_dict() == here.as_dict()
        assert [one.as_dict() for one in await queue.schedules()] == [here.as_dict()]
        assert (await queue.store.get_schedule(tenant, "nightly")).definition.target.envelope.backoff.base_ms == 1000
        (kept,) = await service.context.store.get([JobKey(tenant, SCHEDULES, "nightly")])
        envelope = core.read(kept.envelope.payload).target.envelope
        assert (envelope.backoff.base_ms, envelope.timeout_ms, envelope.payload) == (1000, 9000, b'{"to":"a"}')
        assert await queue.unschedule("nightly") is True
        assert await queue.unschedule("nightly") is False
        assert await queue.get_schedule("nightly") is None
        packed = await queue.schedule("packed", send_email.message("a"), every=1.5, queue="other")
        assert (packed.every, packed.queue) == (timedelta(seconds=1.5), "other")
        with pytest.raises(InvalidOption, match="is not a known time zone"):
            await queue.schedule("bad", {}, cron="* * * * *", timezone="Mars/Base")
        await Queue(store=service.context.store, tenant=tenant).set_tenant(max_waiting=1)
        with pytest.raises(QuotaExceeded):
            await queue.schedule("more", {}, every=60)
    async with Queue(address, tenant=tenant, token=token(tenant, ("produce",))) as queue:
        with pytest.raises(AccessRefused, match="jobs:admin"):
            await queue.schedules()
