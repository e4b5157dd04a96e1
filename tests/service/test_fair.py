"""One tenant's calls cannot take all of the store's connections. [TENANT-4]"""

import asyncio

import asyncpg
import pytest

from holdfast.core.errors import StoreBusy
from holdfast.opening import make_store
from holdfast.service.fair import Calls, CallsExhausted, fair
from tests.eventually import eventually
from tests.service.support import problem, serving

HELD = 24


async def test_a_tenant_whose_calls_are_all_blocked_delays_no_other_tenant(postgres, database):
    """By counts: one tenant's calls wait for locked rows, and every request of another is answered. [LEASE-4]"""
    url = postgres.url(database, wait_s=1)  # Shorter than a call waits for a lock: without turns the other is refused.
    async with serving(url) as service:
        calls = service.context.store.calls
        client, other = await service.client("greedy"), await service.client("other")
        await client.post("/v1/jobs:batch", json={"jobs": [{"id": f"held{n}"} for n in range(HELD)] + [{"id": "own"}]})
        *held, own = sorted(await client.claim(limit=100, lease_s=600), key=lambda job: job["id"])
        assert len(held) == HELD
        blocker = await asyncpg.connect(postgres.url(database))
        transaction = blocker.transaction()
        await transaction.start()
        await blocker.execute("SELECT FROM holdfast.jobs WHERE id LIKE 'held%' FOR UPDATE")
        finishing = [asyncio.create_task(_finished(client, job)) for job in held]
        await eventually(lambda: calls.waiting >= HELD - 8)
        assert calls.in_flight == {"greedy": 4}
        for number in range(5):
            answers = [
                await other.post("/v1/jobs", json={"id": f"j{number}"}),
                await other.get(f"/v1/queues/default/jobs/j{number}"),
                await other.get("/v1/queues/default/jobs"),
                await other.get("/v1/queues"),
                await other.get("/v1/events?follow=false"),
                (claimed := await other.post("/v1/claims", json={"queues": ["default"]})),
            ]
            (job,) = claimed.json()["jobs"]
            lease = {"queue": "default", "id": job["id"], "token": job["token"]}
            answers.append(await other.post("/v1/leases:extend", json={"leases": [lease]}))
            answers.append(await other.post("/v1/leases:finish", json={"leases": [{**lease, "outcome": "complete"}]}))
            assert [answer.status_code for answer in answers] == [201, *[200] * 7], [one.text for one in answers]
            assert answers[-1].json()["items"] == [{"status": "completed"}]
            assert calls.in_flight.get("greedy", 0) <= 4
        lease = {"queue": "default", "id": own["id"], "token": own["token"]}
        renewed = await client.post("/v1/leases:extend", json={"leases": [lease]})
        assert renewed.json()["items"][0]["status"] == "extended"
        assert not any(task.done() for task in finishing)
        await transaction.rollback()
        await blocker.close()
        assert await asyncio.gather(*finishing) == ["completed"] * HELD
        assert (calls.in_flight, calls.total, calls.waiting) == ({}, 0, 0)


async def _finished(client, job):
    """Finish, and repeat it if it is refused: a single call waits for a lock for some seconds."""
    lease = {"queue": job["queue"], "id": job["id"], "token": job["token"], "outcome": "complete"}
    while True:
        answer = await client.post("/v1/leases:finish", json={"leases": [lease]})
        if answer.status_code == 200 and "status" in answer.json()["items"][0]:
            return answer.json()["items"][0]["status"]
        code = answer.json()["items"][0]["error"]["code"] if answer.status_code == 200 else answer.json()["code"]
        assert code == "store_busy"


async def test_a_call_without_a_turn_in_time_is_refused_with_retry_after(postgres, database):
    async with serving(postgres.url(database)) as service:
        calls, client = service.context.store.calls, await service.client("late")
        calls._wait_s = 0.0
        holding, end = _hold(calls, "late", 4)
        answer = await client.get("/v1/queues")
        problem(answer, 503, "store_busy")
        assert answer.headers["retry-after"] == "1"
        problem(await client.post("/v1/jobs:batch", json={"jobs": [{}, {}]}), 503, "store_busy")
        end.set_result(None)
        await holding
        assert (await client.get("/v1/queues")).status_code == 200


def _hold(calls, tenant, count):
    """Calls that last until the future is done."""
    end = asyncio.get_running_loop().create_future()

    async def call():
        await asyncio.wait([end])

    return asyncio.gather(*(calls.run(tenant, 0, call) for _ in range(count))), end


@pytest.mark.parametrize("kind, share", [("valkey", 15), ("postgres", 4)])
async def test_a_store_with_a_pool_makes_its_calls_in_turns(plain_url, share):
    assert fair(make_store(plain_url)).calls._share == share


@pytest.mark.parametrize("kind", ["file"])
async def test_a_store_without_a_pool_needs_no_turns(plain_url):
    store = make_store(plain_url)
    assert fair(store) is store


async def test_a_turn_goes_to_the_tenant_with_the_fewest_calls_in_flight():
    calls, order, ends = Calls(4), [], {}

    async def call(name):
        order.append(name)
        ends[name] = asyncio.get_running_loop().create_future()
        await ends[name]

    def start(name):
        return asyncio.create_task(calls.run(name[0], 0, call, name))

    tasks = [start(name) for name in ("a1", "a2", "b1", "b2", "a3", "b3", "c1", "c2")]
    await asyncio.sleep(0)
    assert order == ["a1", "a2", "b1", "b2"]
    assert calls.waiting == 4
    for name in ("a1", "b1", "a2", "b2", "c1", "a3", "b3", "c2"):
        ends[name].set_result(None)
        for _ in range(4):
            await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    # When a1 ends, c has none. When b1 ends, each has one, and a has waited the longest.
    assert order[4:] == ["c1", "a3", "b3", "c2"]


async def test_a_renewal_may_exceed_the_limits_by_one():
    calls = Calls(2)
    holding, end = _hold(calls, "a", 1)
    await asyncio.sleep(0)
    assert await calls.run("a", 1, asyncio.sleep, 0, "renewed") == "renewed"
    end.set_result(None)
    await holding


async def test_a_call_that_timed_out_leaves_no_count_behind():
    calls = Calls(2, wait_s=0.0)
    holding, end = _hold(calls, "a", 1)
    await asyncio.sleep(0)
    with pytest.raises(CallsExhausted) as late:
        await calls.run("a", 0, asyncio.sleep, 0)
    assert isinstance(late.value, StoreBusy)
    end.set_result(None)
    await holding
    assert (calls.in_flight, calls.total, calls.waiting) == ({}, 0, 0)


@pytest.mark.parametrize("steps", range(6))
async def test_a_canceled_call_passes_its_turn_on(steps):
    calls = Calls(2)
    holding, end = _hold(calls, "a", 1)
    waiting = [asyncio.create_task(calls.run("a", 0, asyncio.sleep, 0)) for _ in range(3)]
    await asyncio.sleep(0)
    assert calls.waiting == 3
    end.set_result(None)
    for _ in range(steps):
        await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.gather(holding, *waiting, return_exceptions=True)
    assert [task.cancelled() for task in waiting[1:]] == [False, False]
    assert (calls.in_flight, calls.total, calls.waiting) == ({}, 0, 0)
