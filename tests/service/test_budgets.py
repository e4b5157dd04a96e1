"""TENANT-5 over HTTP: a tenant that has used up a budget is refused by its name, and no other tenant is."""

import asyncio
from datetime import timedelta

import pytest
from prometheus_client import REGISTRY

from holdfast import Queue
from holdfast.core.budgets import FIELDS, Budgets
from holdfast.core.errors import InvalidOption, QuotaExceeded
from holdfast.core.job import HOUR, ClaimRequest
from holdfast.service import limits
from holdfast.store import TenantSettings
from tests.eventually import eventually
from tests.service.support import problem, serving, token

pytestmark = pytest.mark.asyncio(loop_scope="module")
THIRTY_DAYS_S = 30 * 86400


async def allow(service, tenant, **budgets):
    await service.context.store.set_tenant(tenant, TenantSettings(None, budgets=Budgets(**budgets)))


async def forget_all(store, tenant):
    """Let upkeep prune and count."""
    while (await store.prune(1000)).more:
        pass
    return await store.usage(tenant)


def used_up(answer, budget):
    """Check that this budget is named."""
    answered = problem(answer, 429, "quota_exceeded")
    assert answered["budget"] == budget
    assert budget in answered["detail"]
    assert int(answer.headers["retry-after"]) == 10
    return answered


async def test_jobs_over_max_jobs_are_refused_by_name_but_completions_are_accepted(service, client, tenant):
    """[TENANT-5]"""
    victim = await service.client(f"v{tenant}")
    await allow(service, tenant, max_jobs=2)
    for id in ("a", "b"):
        await client.enqueue(id=id, result_ttl_s=60)
    answered = used_up(await client.post("/v1/jobs", json={"id": "c"}), "max_jobs")
    assert answered["args"] == [None, 2, 2, "max_jobs"]
    batch = (await client.post("/v1/jobs:batch", json={"jobs": [{"id": "a"}, {"id": "c"}]})).json()["items"]
    assert batch[0]["status"] == "duplicate"
    assert (batch[1]["error"]["code"], batch[1]["error"]["budget"]) == ("quota_exceeded", "max_jobs")
    assert (await victim.enqueue(id="c"))["status"] == "queued"
    for job in await client.claim(limit=2):
        assert (await client.finish(job))["status"] == "completed"
    await service.context.store.shift_clock(HOUR)
    assert (await forget_all(service.context.store, tenant)).jobs == 0
    assert (await client.enqueue(id="c"))["status"] == "queued"


async def test_replays_above_max_jobs_are_refused_and_held_keys_are_answered(service, client, tenant):
    """[TENANT-5, ENQ-3]"""
    await client.enqueue(id="dead")
    (job,) = await client.claim()
    await client.finish(job, outcome="fail", error={"type": "E", "message": "no"})
    await client.enqueue(id="a", type="t", idempotency_key="once")
    await service.context.store.shift_clock(10_000)  # Upkeep counts every 10 s.
    await forget_all(service.context.store, tenant)
    await allow(service, tenant, max_jobs=1)
    again = await client.post("/v1/jobs", json={"id": "b", "type": "t", "idempotency_key": "once"})
    assert (again.json()["status"], again.json()["id"]) == ("duplicate", "a")
    replay = {"url": "/v1/queues/default/dead-letters:replay", "json": {"ids": ["dead", "none"]}}
    refused, missing = (await client.post(**replay)).json()["items"]
    assert (refused["error"]["code"], refused["error"]["budget"]) == ("quota_exceeded", "max_jobs")
    assert missing["error"]["code"] == "job_not_found"
    await allow(service, tenant, max_jobs=2)
    assert (await client.post(**replay)).json()["items"][0]["status"] == "replayed"


async def test_bytes_and_queues_have_budgets(service, client, tenant):
    """[TENANT-5]"""
    await allow(service, tenant, max_bytes=10_000, max_queues=2)
    await client.enqueue(queue="one", payload="x" * 4000)
    used_up(await client.post("/v1/jobs", json={"queue": "one", "payload": "x" * 8000}), "max_bytes")
    await client.enqueue(queue="two")
    used_up(await client.post("/v1/jobs", json={"queue": "three"}), "max_queues")
    await client.enqueue(queue="one")


async def test_schedules_and_flows_have_budgets(service, client, tenant):
    """[TENANT-5]"""
    await allow(service, tenant, max_schedules=1, max_flows=1)
    daily = {"cron": "0 3 * * *", "type": "report"}
    assert (await client.put("/v1/schedules/one", json=daily)).status_code == 200
    used_up(await client.put("/v1/schedules/two", json=daily), "max_schedules")
    assert (await client.put("/v1/schedules/one", json={**daily, "cron": "0 4 * * *"})).status_code == 200
    flow = {"name": "f", "steps": [{"name": "a", "type": "report"}]}
    assert (await client.post("/v1/flows", json={"id": "one", **flow})).status_code == 201
    await service.context.usage(tenant)
    used_up(await client.post("/v1/flows", json={"id": "two", **flow}), "max_flows")
    assert (await client.post("/v1/flows", json={"id": "one", **flow})).status_code == 200
    await client.delete("/v1/flows/one")
    await service.context.usage(tenant)
    assert (await client.post("/v1/flows", json={"id": "two", **flow})).status_code == 201


async def test_workers_and_what_they_publish_are_bounded(service, client, tenant):
    """[TENANT-5]"""
    await allow(service, tenant, max_workers=2, max_types=4)

    async def beat(name, *types, ttl_s=30):
        worker = {"worker_id": name, "queues": ["default"], "types": [{"name": one} for one in types], "ttl_s": ttl_s}
        return await client.post("/v1/workers:beat", json=worker)

    assert (await beat("a", "one", "two")).status_code == 200
    used_up(await beat("b", "one", "two"), "max_types")
    assert (await beat("b")).status_code == 200
    used_up(await beat("c"), "max_workers")
    assert (await beat("a", "one")).status_code == 200
    assert (await beat("c", ttl_s=0)).status_code == 200


async def test_a_tenant_sees_what_it_uses(service, client, tenant):
    """[TENANT-5]"""
    await allow(service, tenant, max_jobs=7, requests_per_s=500)
    await client.enqueue(queue="one")
    while (await service.context.store.prune(1000)).more:
        pass
    answer = (await client.get("/v1/usage")).json()
    found = {one["budget"]: one for one in answer["budgets"]}
    assert set(found) == set(FIELDS)
    assert (found["max_jobs"]["used"], found["max_jobs"]["limit"], found["max_jobs"]["is_set"]) == (1, 7, True)
    assert (found["max_queues"]["used"], found["max_queues"]["limit"]) == (1, 10_000)
    assert not found["max_queues"]["is_set"]
    assert found["requests_per_s"]["limit"] == 500
    assert (found["max_connections"]["used"], found["max_connections"]["limit"]) == (1, 1000)
    some = await service.client(tenant, queues=["one"])
    problem(await some.get("/v1/usage"), 403, "queue_forbidden")
    address = f"http://127.0.0.1:{service.port}"
    async with Queue(address, token=token(tenant)) as queue:
        assert (await queue.usage()).of("max_jobs").used == 1
        await allow(service, tenant, max_queues=1)
        with pytest.raises(QuotaExceeded, match="max_queues") as refused:
            await queue.enqueue({}, queue="two")
        assert refused.value.budget == "max_queues"


async def test_no_job_is_kept_beyond_the_retention_ceiling(service, client, tenant):
    """[KEEP-1, RESULT-1]"""
    too_long = THIRTY_DAYS_S + 1

    def refused(answer, option):
        answered = problem(answer, 400, "invalid_option")
        assert answered["args"][0] == option
        assert "30 days" in answered["detail"]

    refused(await client.post("/v1/jobs", json={"result_ttl_s": too_long}), "result_ttl")
    key = {"idempotency_key": "k", "idempotency_ttl_s": too_long}
    refused(await client.post("/v1/jobs", json=key), "idempotency")
    batch = await client.post("/v1/jobs:batch", json={"jobs": [{"result_ttl_s": too_long}, {}]})
    assert [item.get("error", {}).get("code") for item in batch.json()["items"]] == ["invalid_option", None]
    daily = {"cron": "0 3 * * *", "result_ttl_s": too_long}
    refused(await client.put("/v1/schedules/one", json=daily), "result_ttl")
    step = {"name": "a", "result_ttl_s": too_long}
    refused(await client.post("/v1/flows", json={"name": "f", "steps": [step]}), "result_ttl_s")
    flow = {"name": "f", "result_ttl_s": too_long, "steps": [{"name": "a"}]}
    refused(await client.post("/v1/flows", json=flow), "result_ttl")
    item = {"id": "none", "result_ttl_s": too_long}
    answer = await client.post("/v1/queues/default/jobs:set-result-ttl", json={"jobs": [item]})
    assert answer.json()["items"][0]["error"]["code"] == "invalid_option"
    async with Queue(f"http://127.0.0.1:{service.port}", token=token(tenant)) as queue:
        with pytest.raises(InvalidOption, match="30 days"):
            await queue.enqueue({}, result_ttl=timedelta(days=31))
    assert (await client.enqueue(result_ttl_s=THIRTY_DAYS_S))["status"] == "queued"


# Of a process -------------------------------------------------------------------------------------------------


async def test_requests_and_changes_of_a_tenant_are_bounded_whatever_its_tokens():
    """[TENANT-5]"""
    async with serving("memory:tenant-rates", tenant_rate=0) as service:
        await allow(service, "acme", requests_per_s=1)
        one, two = await service.client("acme"), await service.client("acme", subject="another")
        for client in (one, two):
            assert (await client.get("/v1/queues")).status_code == 200
        answered = problem(await one.get("/v1/queues"), 429, "rate_limited")
        assert answered["budget"] == "requests_per_s"
        problem(await two.get("/v1/queues"), 429, "rate_limited")
        victim = await service.client("victim")
        for _ in range(20):
            assert (await victim.get("/v1/queues")).status_code == 200


async def test_a_tenant_waits_after_a_large_batch_but_completions_are_accepted():
    """[TENANT-5]"""
    async with serving("memory:tenant-changes", tenant_changes=1) as service:
        client = await service.client("acme")
        # More than there is room for at once is a debt.
        batch = await client.post("/v1/jobs:batch", json={"jobs": [{} for _ in range(50)]})
        assert batch.status_code == 200
        answer = await client.post("/v1/jobs", json={})
        answered = problem(answer, 429, "rate_limited")
        assert answered["budget"] == "changes_per_s"
        assert 40 < int(answer.headers["retry-after"]) <= 50
        problem(await client.post("/v1/claims", json={"queues": ["default"]}), 429, "rate_limited")
        assert (await client.get("/v1/queues")).status_code == 200
        (job, *_) = (await service.context.claimer.claim(_request("acme"), wait_s=0, gone=_never())).jobs
        proof = service.context.proofs.sign("acme", "default", job.id, job.token)
        done = await client.finish({"queue": "default", "id": job.id, "token": proof})
        assert done["status"] == "completed"
        assert (await (await service.client("victim")).enqueue())["status"] == "queued"


async def test_a_tenant_over_its_request_rate_still_ends_and_keeps_its_leases(service, client, tenant):
    """[TENANT-5] They are still counted, so that the tenant's other requests wait longer."""
    victim = await service.client(f"v{tenant}")
    for number in range(3):
        await client.enqueue(id=str(number))
    jobs = await client.claim(limit=3)
    lease = {name: jobs[0][name] for name in ("queue", "id", "token")}
    await allow(service, tenant, requests_per_s=1)
    while (answer := await client.get("/v1/queues")).status_code == 200:
        pass
    assert problem(answer, 429, "rate_limited")["budget"] == "requests_per_s"
    before = int(answer.headers["retry-after"])
    for _ in range(20):
        extended = await client.post("/v1/leases:extend", json={"leases": [lease]})
        assert extended.json()["items"][0]["status"] == "extended"
    reported = await client.post("/v1/leases:report", json={"leases": [{**lease, "progress": {"fraction": 0.5}}]})
    assert reported.json()["items"] == [{"status": "reported"}]
    finished = await asyncio.gather(*map(client.finish, jobs))
    assert [one["status"] for one in finished] == ["completed"] * 3
    answer = await client.get("/v1/queues")
    problem(answer, 429, "rate_limited")
    assert int(answer.headers["retry-after"]) > before
    assert (await victim.enqueue())["status"] == "queued"


async def test_a_token_over_its_rate_still_ends_its_leases():
    """[TENANT-5]"""
    async with serving("memory:token-rates", rate=0.001) as service:
        client = await service.client("acme")
        await client.post("/v1/jobs", json={"id": "a"})
        problem(await client.get("/v1/queues"), 429, "rate_limited")
        (job,) = (await service.context.claimer.claim(_request("acme"), wait_s=0, gone=_never())).jobs
        proof = service.context.proofs.sign("acme", "default", job.id, job.token)
        done = await client.finish({"queue": "default", "id": job.id, "token": proof})
        assert done["status"] == "completed"


async def test_a_token_without_the_scope_is_not_exempt_from_the_rates():
    """[TENANT-5] Otherwise it could use up its tenant's rate with requests that are refused anyway."""
    async with serving("memory:scope-rates", rate=0.001) as service:
        reader = await service.client("acme", ("read",))
        codes = [(await reader.post("/v1/leases:extend", json={"leases": []})).status_code for _ in range(3)]
        assert codes == [403, 429, 429]


async def test_requests_that_are_never_refused_make_a_debt_of_ten_seconds_at_most():
    now = [0.0]
    rates = limits.TenantRates("requests_per_s", "requests", lambda _: 1000, lambda: now[0])
    for _ in range(60_000):
        rates.take("acme", max_debt_s=limits.DEBT_S)
    assert rates.is_exhausted("acme")
    now[0] = limits.DEBT_S
    assert not rates.is_exhausted("acme")


def _request(tenant):
    return ClaimRequest(tenant, ("default",), 1, 30_000, "w", 0.0)


def _never():
    return asyncio.get_running_loop().create_future()


async def test_streams_and_waiting_claims_have_separate_budgets():
    """[TENANT-5]"""
    async with serving("memory:tenant-streams") as service:
        await allow(service, "acme", max_streams=1, max_waiting_claims=1)
        client = await service.client("acme")

        async def claim():
            return await client.post("/v1/claims", json={"queues": ["default"], "wait_s": 20})

        async with client.stream("GET", "/v1/events?follow=true") as stream:
            assert stream.status_code == 200
            waiting = asyncio.create_task(claim())
            await eventually(lambda: service.context.waits.used_by("acme"), lambda waiting: waiting == 1)
            answered = problem(await claim(), 429, "share_exceeded")
            assert answered["budget"] == "max_waiting_claims"
            more = await client.get("/v1/events?follow=true")
            assert problem(more, 429, "share_exceeded")["budget"] == "max_streams"
            await client.enqueue()
            assert len((await waiting).json()["jobs"]) == 1


async def test_a_tenants_connections_are_its_own_budget():
    """[TENANT-5]"""
    async with serving("memory:tenant-connections") as service:
        await allow(service, "acme", max_connections=2)
        clients = [await service.client("acme") for _ in range(3)]
        answers = [await client.get("/v1/queues") for client in clients]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert problem(answers[2], 429, "share_exceeded")["budget"] == "max_connections"


async def test_refusals_are_counted_by_budget_and_name_no_tenant():
    """[TENANT-5]"""
    from holdfast.telemetry import http as http_metrics

    http_metrics.enable()

    def counted():
        return REGISTRY.get_sample_value("holdfast_http_budget_refusals_total", {"budget": "max_jobs"}) or 0

    before = counted()
    async with serving("memory:refusals") as service:
        await allow(service, "acme", max_jobs=1)
        client = await service.client("acme")
        await client.enqueue()
        batch = {"jobs": [{}, {}]}
        await client.post("/v1/jobs:batch", json=batch)
        problem(await client.post("/v1/jobs", json={}), 429, "quota_exceeded")
        assert counted() == before + 3
        text = (await client.get("/metrics")).text
        assert "holdfast_http_budget_refusals_total" in text
        assert "acme" not in text


async def test_a_debt_is_paid_at_the_rate_of_the_tenant():
    now, rate = [0.0], {"a": 10, "b": 0}
    rates = limits.TenantRates("changes_per_s", "changes", rate.__getitem__, lambda: now[0])
    rates.admit("a", 120)  # 20 are at hand.
    with pytest.raises(limits.Refusal, match="10 changes per second") as refused:
        rates.admit("a")
    assert refused.value.headers["retry-after"] == "11"
    now[0] = 10.1
    rates.admit("a")
    for _ in range(100):
        rates.admit("b", 1000)
