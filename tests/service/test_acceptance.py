"""The routes of the public face, over HTTP, on each kind of store."""

import asyncio
import json

import pytest

from holdfast import Queue
from tests.eventually import eventually
from tests.service.support import problem

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_job_is_enqueued_read_claimed_and_completed(client):
    job = {"queue": "emails", "type": "send_email", "payload": {"to": "a@example.com"}, "id": "email-123"}
    first = await client.post("/v1/jobs", json=job)
    assert first.status_code == 201
    answer = first.json()
    assert "no live worker serves the queue 'emails'" in answer.pop("warnings")[0]
    assert answer == {"status": "queued", "id": "email-123", "queue": "emails", "state": "ready"}
    again = await client.post("/v1/jobs", json=job)
    assert (again.status_code, again.json()["status"], again.json()["state"]) == (200, "duplicate", "ready")
    seen = (await client.get("/v1/queues/emails/jobs/email-123")).json()
    assert (seen["state"], seen["payload"], seen["attempts"]) == ("ready", {"to": "a@example.com"}, 0)
    (claimed,) = await client.claim("emails", lease_s=60)
    assert claimed["payload"] == {"to": "a@example.com"}
    assert (claimed["type"], claimed["attempt"], claimed["max_attempts"], claimed["priority"]) == (
        "send_email",
        1,
        4,
        5,
    )
    assert await client.finish(claimed, result={"sent": True}) == {"status": "completed"}
    assert await client.finish(claimed, result={"sent": True}) == {"status": "completed"}
    result = await client.get("/v1/queues/emails/jobs/email-123/result")
    assert (result.status_code, result.json()) == (200, {"state": "completed", "result": {"sent": True}})
    third = await client.post("/v1/jobs", json=job)
    assert (third.status_code, third.json()["status"], third.json()["result"]) == (200, "completed", {"sent": True})


async def test_a_batch_is_answered_item_by_item(client):
    jobs = [{"id": "a"}, {"id": ""}, {"id": "a"}, {"payload": {"n": 2**70}}, {"nonsense": 1}, {"priority": 10}]
    answer = await client.post("/v1/jobs:batch", json={"jobs": jobs})
    items = answer.json()["items"]
    assert [item.get("status") or item["error"]["code"] for item in items] == [
        "queued", "invalid_name", "duplicate", "invalid_payload", "invalid_request", "invalid_option",
    ]  # fmt: skip
    assert (await client.get("/v1/queues/default/stats")).json()["counts"]["ready"] == 1


async def test_a_repeated_request_gets_the_same_answer(client):
    """[ENQ-8]"""
    job = {"request_id": "r-1", "id": "x"}
    assert (await client.enqueue(**job))["status"] == "queued"
    assert (await client.enqueue(**job))["status"] == "queued"
    assert (await client.enqueue(id="x"))["status"] == "duplicate"


async def test_an_idempotency_key_gives_the_first_job(client):
    first = await client.enqueue(idempotency_key="k", type="t")
    second = await client.enqueue(idempotency_key="k", type="t")
    assert (second["status"], second["id"]) == ("duplicate", first["id"])


async def test_a_delayed_job_is_scheduled_and_an_invalid_option_is_refused(client):
    assert (await client.enqueue(delay_s=3600))["state"] == "scheduled"
    assert (await client.enqueue(run_at="2099-01-01T00:00:00Z"))["state"] == "scheduled"
    both = await client.post("/v1/jobs", json={"delay_s": 1, "run_at": "2099-01-01T00:00:00Z"})
    problem(both, 400, "invalid_option")
    naive = await client.post("/v1/jobs", json={"run_at": "2099-01-01T00:00:00"})
    problem(naive, 400, "invalid_request")


@pytest.mark.parametrize(
    "outcome, more, status",
    [
        ("complete", {"result": 1}, "completed"),
        ("fail", {"error": {"type": "ValueError", "message": "no"}}, "failed"),
        ("retry", {"error": {"type": "ValueError", "message": "no"}, "delay_s": 60}, "retrying"),
        ("release", {}, "ready"),
        ("release", {"delay_s": 60}, "scheduled"),
    ],
)
async def test_an_attempt_ends_in_one_of_four_ways(client, outcome, more, status):
    await client.enqueue(id="x")
    (job,) = await client.claim()
    assert await client.finish(job, outcome, **more) == {"status": status}
    assert (await client.get("/v1/queues/default/jobs/x")).json()["state"] == status


async def test_a_result_that_cannot_be_kept_fails_the_job_at_once(client):
    """[RESULT-1] A refusal would make the job run again, although its handler has had its effect."""
    await client.enqueue(id="x")
    (job,) = await client.claim()
    assert await client.finish(job, result={"a": "b\0"}) == {"status": "failed"}
    assert await client.finish(job, result={"a": "b\0"}) == {"status": "failed"}
    found = (await client.get("/v1/queues/default/jobs/x")).json()
    assert (found["reason"], found["errors"][0]["type"]) == ("permanent", "InvalidPayload")
    assert found["errors"][0]["message"] == "the result cannot be stored: NUL characters cannot be stored (at $.a)"


async def test_a_release_can_say_why(client):
    """The next claim has the reason and since when; a reason is a name, and only a release has one. [RETRY-6]"""
    await client.enqueue(id="x")
    (job,) = await client.claim()
    assert (await client.finish(job, "retry", reason="busy"))["error"]["code"] == "invalid_option"
    assert (await client.finish(job, "release", reason="not a name"))["error"]["code"] == "invalid_name"
    assert await client.finish(job, "release", reason="unknown_type") == {"status": "ready"}
    released = (await client.get("/v1/queues/default/jobs/x")).json()["released"]
    assert released["reason"] == "unknown_type"
    (job,) = await client.claim()
    assert job["released"] == released


async def test_a_stale_acknowledgement_gets_the_error_of_its_case(client, service, tenant):
    """[LEASE-1]"""
    await client.enqueue(id="x")
    (job,) = await client.claim()
    older = service.context.proofs.sign(tenant, "default", "x", job["fence"] - 1)
    assert (await client.finish({**job, "token": older}))["error"]["code"] == "lease_lost"
    assert (await client.finish({**job, "id": "y"}))["error"]["code"] == "lease_lost"
    gone = service.context.proofs.sign(tenant, "default", "y", job["fence"])
    assert (await client.finish({**job, "id": "y", "token": gone}))["error"]["code"] == "job_not_found"
    await service.context.store.shift_clock(31_000)
    assert (await client.finish(job))["error"]["code"] == "lease_expired"


async def test_a_lease_is_extended_and_progress_is_seen(client):
    await client.enqueue(id="x")
    (job,) = await client.claim(lease_s=10)
    lease = {"queue": "default", "id": "x", "token": job["token"]}
    answer = await client.post("/v1/leases:extend", json={"leases": [{**lease, "lease_s": 600}]})
    (item,) = answer.json()["items"]
    assert item["status"] == "extended"
    assert item["deadline"] > job["deadline"]
    progress = {**lease, "progress": {"fraction": 0.5, "message": "half"}}
    assert (await client.post("/v1/leases:report", json={"leases": [progress]})).json()["items"] == [
        {"status": "reported"}
    ]
    assert (await client.get("/v1/queues/default/jobs/x")).json()["progress"] == {"fraction": 0.5, "message": "half"}


async def test_cancel_wins_and_the_worker_learns_of_it_at_its_next_extend(client):
    """[CANCEL-1, CANCEL-2]"""
    await client.enqueue(id="x")
    (job,) = await client.claim()
    careful = await client.delete("/v1/queues/default/jobs/x", params={"only_waiting": "true"})
    assert careful.json() == {"status": "processing"}
    assert (await client.delete("/v1/queues/default/jobs/x")).json() == {"status": "canceled"}
    lease = {"queue": "default", "id": "x", "token": job["token"]}
    answer = await client.post("/v1/leases:extend", json={"leases": [lease]})
    assert answer.json()["items"][0]["error"]["code"] == "job_canceled"
    assert (await client.get("/v1/queues/default/jobs/x/result")).json() == {"state": "canceled"}
    problem(await client.delete("/v1/queues/default/jobs/nothing"), 404, "job_not_found")


async def test_jobs_of_a_queue_are_canceled_kept_and_forgotten_in_batches(client):
    await client.post("/v1/jobs:batch", json={"jobs": [{"id": id} for id in "abcd"]})
    (held,) = await client.claim()

    async def statuses(what, *items):
        answer = await client.post(f"/v1/queues/default/jobs:{what}", json={"jobs": list(items)})
        return [item.get("status") or item["error"]["code"] for item in answer.json()["items"]]

    careful = {"id": held["id"], "only_waiting": True}
    assert await statuses("cancel", careful, {"id": "nothing"}, {"id": ""}, {"id": "c"}, {"id": held["id"]}) == [
        "processing", "not_found", "invalid_name", "canceled", "canceled",
    ]  # fmt: skip
    assert await statuses("set-result-ttl", {"id": "c", "result_ttl_s": 60}, {"id": "d", "result_ttl_s": 60}) == [
        "updated", "not_terminal",
    ]  # fmt: skip
    assert await statuses("purge", {"id": "c"}, {"id": "c"}, {"id": "d"}) == ["purged", "not_found", "not_terminal"]


async def test_a_result_is_waited_for(client):
    await client.enqueue(id="x")
    early = await client.get("/v1/queues/default/jobs/x/result")
    assert (early.status_code, early.json()) == (202, {"state": "ready"})
    waiting = asyncio.create_task(client.get("/v1/queues/default/jobs/x/result", params={"wait_s": 30}))
    (job,) = await client.claim()
    await client.finish(job, result="done")
    answer = await waiting
    assert (answer.status_code, answer.json()["result"]) == (200, "done")
    problem(await client.get("/v1/queues/default/jobs/nothing/result"), 404, "job_not_found")


async def test_a_result_forgotten_during_the_wait_has_expired(client, service, tenant):
    """[RESULT-1]"""
    await client.enqueue(id="x", result_ttl_s=0)
    path = "/v1/queues/default/jobs/x/result"
    waiting = asyncio.create_task(client.get(path, params={"wait_s": 30}))
    (job,) = await client.claim()
    watches = service.context.connection(tenant).waits._watches
    await eventually(lambda: [watch for lives in watches.values() for watch in lives.values() if watch.seen])
    await client.finish(job, result="done")
    problem(await waiting, 404, "result_expired")
    problem(await client.get(path), 404, "job_not_found")


async def test_a_failed_job_says_why(client):
    await client.enqueue(id="x")
    (job,) = await client.claim()
    await client.finish(job, "fail", error={"type": "ValueError", "message": "no"})
    answer = await client.get("/v1/queues/default/jobs/x/result")
    error = {"reason": "permanent", "type": "ValueError", "message": "no"}
    assert (answer.status_code, answer.json()) == (200, {"state": "failed", "error": error})


async def test_a_claim_waits_for_a_job(client):
    """[CLAIM-3]"""
    waiting = asyncio.create_task(client.claim(wait_s=30))
    await asyncio.sleep(0)
    await client.enqueue(id="x")
    assert [job["id"] for job in await waiting] == ["x"]
    assert await client.claim(wait_s=0.05) == []


async def test_a_list_is_paged_by_its_cursor(client):
    jobs = [{"id": f"j{number}", "type": "a" if number % 2 else "b"} for number in range(7)]
    await client.post("/v1/jobs:batch", json={"jobs": jobs})
    seen, cursor = [], None
    while True:
        params = {"limit": 3, **({"cursor": cursor} if cursor else {})}
        page = (await client.get("/v1/queues/default/jobs", params=params)).json()
        seen += [job["id"] for job in page["jobs"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert seen == [job["id"] for job in jobs]
    first = (await client.get("/v1/queues/default/jobs?state=&cursor=&limit=3")).json()
    assert [job["id"] for job in first["jobs"]] == seen[:3]
    odd = (await client.get("/v1/queues/default/jobs", params={"type": "a", "state": "ready"})).json()
    assert {job["id"] for job in odd["jobs"]} == {"j1", "j3", "j5"}
    problem(await client.get("/v1/queues/default/jobs", params={"cursor": "nonsense"}), 400, "invalid_option")


async def pages_of_queues(client, limit):
    """The names on each page."""
    found, cursor = [], ""
    while cursor is not None:
        answer = (await client.get("/v1/queues", params={"limit": limit, "cursor": cursor})).json()
        found.append([one["queue"] for one in answer["queues"]])
        cursor = answer["cursor"]
    return found


async def test_queues_are_listed_in_pages(service, client, tenant):
    """A token for some queues gets pages with only those."""
    names = [f"q{number}" for number in range(5)]
    await client.post("/v1/jobs:batch", json={"jobs": [{"queue": name, "type": "t"} for name in names]})
    found = await pages_of_queues(client, 2)
    assert [name for page in found for name in page] == names
    assert max(map(len, found)) == 2
    some = await service.client(tenant, queues=["q1", "q3", "q4", "unused"])
    assert await pages_of_queues(some, 2) == [["q1", "q3"], ["q4"]]
    problem(await client.get("/v1/queues", params={"cursor": "no queue"}), 400, "invalid_option")


async def test_queues_are_counted_paused_and_resumed(client, tenant):
    await client.enqueue(queue="q")
    (stats,) = (await client.get("/v1/queues")).json()["queues"]
    assert (stats["queue"], stats["counts"]["ready"], stats["paused"]) == ("q", 1, False)
    paused = await client.post("/v1/queues/q/pause")
    assert paused.json() == {"tenant": tenant, "queue": "q", "paused": True}
    assert await client.claim("q") == []
    assert (await client.post("/v1/queues/q/resume")).json()["paused"] is False
    assert len(await client.claim("q")) == 1


async def test_dead_letters_are_listed_replayed_and_purged(client, tenant):
    """[DEAD-1]"""
    await client.post("/v1/jobs:batch", json={"jobs": [{"id": id} for id in "abc"]})
    for job in await client.claim(limit=3):
        await client.finish(job, "fail", error={"type": "ValueError", "message": f"no {job['id']}"})
    path = "/v1/queues/default/dead-letters"
    found = (await client.get(path, params={"error": "no b"})).json()
    assert (found["tenant"], [job["id"] for job in found["jobs"]]) == (tenant, ["b"])
    assert found["jobs"][0]["errors"][0]["message"] == "no b"
    some = (await client.post(f"{path}:replay", json={"ids": ["a", "nothing"]})).json()
    assert some["items"][0] == {"id": "a", "status": "replayed"}
    assert some["items"][1]["error"]["code"] == "job_not_found"
    matching = (await client.post(f"{path}:replay", json={"where": {"error": "no b"}})).json()
    assert (matching["items"], matching["more"]) == ([{"id": "b", "status": "replayed"}], False)
    purged = (await client.post(f"{path}:purge", json={})).json()
    assert purged == {"tenant": tenant, "purged": 1, "more": False, "cursor": None}
    problem(await client.post(f"{path}:replay", json={}), 400, "invalid_option")


async def test_reading_dead_letters_needs_the_scope_read_on_both_routes(service, tenant):
    """Changing them needs the scope of operators."""
    paths = ("/v1/queues/default/dead-letters", "/v1/queues/default/jobs?state=failed")
    reader, operator = await service.client(tenant, ["read"]), await service.client(tenant, ["admin"])
    for path in paths:
        assert (await reader.get(path)).status_code == 200
        problem(await operator.get(path), 403, "scope_missing")
    for change in ("replay", "purge"):
        problem(await reader.post(f"{paths[0]}:{change}", json={}), 403, "scope_missing")


async def test_events_of_a_job_are_listed(client):
    await client.enqueue(id="other")
    await client.enqueue(id="x")
    for job in await client.claim(limit=2):
        await client.finish(job)
    page = (await client.get("/v1/queues/default/jobs/x/events")).json()
    assert [event["kind"] for event in page["events"]] == ["enqueued", "claimed", "completed"]
    assert page["cursor"] is None
    first = (await client.get("/v1/queues/default/jobs/x/events", params={"limit": 1})).json()
    rest = await client.get("/v1/queues/default/jobs/x/events", params={"after": first["cursor"]})
    assert [event["kind"] for event in rest.json()["events"]] == ["claimed", "completed"]


async def read_events(client, count, **options):
    """The first events of the stream, as (id, kind, data)."""
    found, event = [], {}
    async with client.stream("GET", "/v1/events", **options) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream"
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if line and name:
                event[name] = value
            elif not line and event.get("id"):
                found.append((event["id"], event["event"], json.loads(event["data"])))
                event = {}
                if len(found) == count:
                    return found
    return found


async def test_a_stream_of_events_resumes_where_it_ended(client):
    """[EVENT-2]"""
    await client.enqueue(id="a")
    first = await read_events(client, 1)
    assert [(kind, data["job_id"]) for _, kind, data in first] == [("enqueued", "a")]
    assert first[0][2]["offset"] == first[0][0]
    following = asyncio.create_task(read_events(client, 2, headers={"last-event-id": first[0][0]}))
    await asyncio.sleep(0)
    await client.post("/v1/jobs:batch", json={"jobs": [{"id": "b"}, {"id": "c"}]})
    assert [data["job_id"] for _, _, data in await following] == ["b", "c"]
    whole = await read_events(client, 10, params={"follow": "false"})
    assert [data["job_id"] for _, _, data in whole] == ["a", "b", "c"]
    problem(await client.get("/v1/events", params={"after": "nonsense"}), 400, "invalid_option")


async def test_an_id_may_have_slashes_and_anything_else(client):
    """[TENANT-3]"""
    for id in ("a/b", "ü ?#%", "a%2Fb", "..", "x" * 200):
        await client.enqueue(id=id, queue="some/queue:x")
        quoted = "".join(f"%{byte:02X}" for byte in id.encode())
        found = await client.get(f"/v1/queues/some%2Fqueue%3Ax/jobs/{quoted}")
        assert found.json()["id"] == id


async def test_a_payload_of_another_codec_is_sent_as_base64(client):
    await client.enqueue(id="x", codec="msgpack", payload="gaFhAQ==")
    (job,) = await client.claim()
    assert (job["codec"], job["payload"]) == ("msgpack", "gaFhAQ==")
    answer = await client.post("/v1/jobs", json={"codec": "nonsense", "payload": ""})
    problem(answer, 400, "unknown_codec")


async def test_a_full_quota_is_answered_429_with_retry_after(client, service, tenant):
    """[TENANT-5]"""
    await Queue(store=service.context.store, tenant=tenant).set_tenant(max_waiting=1)
    await client.enqueue()
    answer = await client.post("/v1/jobs", json={})
    problem(answer, 429, "quota_exceeded")
    assert int(answer.headers["retry-after"]) > 0


async def test_the_session_shows_the_tenant_of_a_token(client, service, tenant):
    session = (await client.get("/v1/session")).json()
    assert (session["tenant"], len(session["scopes"]), "queues" in session) == (tenant, 4, False)
    assert session["store"]["name"]
    some = (await (await service.client(tenant, ["read"], queues=["q"])).get("/v1/session")).json()
    assert (some["scopes"], some["queues"]) == (["jobs:read"], ["q"])
    problem(await (await service.bare()).get("/v1/session"), 401, "token_missing")


async def test_health_needs_no_token(service):
    bare = await service.bare()
    for path in ("/healthz", "/readyz"):
        assert (await bare.get(path)).json() == {"status": "ok"}
