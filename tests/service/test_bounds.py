"""What a tenant must not see of others, what cannot be shown is not taken in, and answers have an end."""

import asyncio
from datetime import datetime

import pytest

from holdfast import InvalidOption, Queue, Worker
from holdfast.core.errors import QuotaExceeded, StoreBusy, StoreUnavailable
from holdfast.core.job import Claimed, ClaimRequest
from holdfast.service import answer_size, errors, event_cache
from holdfast.service.routes import events
from holdfast.stores.http import handoff, notifications
from tests.service.support import PATIENCE_S, problem, serving, token

FAR = "9999-12-31T23:59:59.999999Z"


@pytest.fixture
def files(tmp_path):
    """The stored blobs."""
    return lambda: [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]


async def test_a_claim_reveals_nothing_about_the_leases_of_other_tenants():
    async with serving("memory:others-leases") as service:
        alice, bob = await service.client("alice"), await service.client("bob")
        await alice.enqueue(id="x")
        assert await alice.claim(lease_s=77)
        answer = await bob.post("/v1/claims", json={"queues": ["default"]})
        assert "next_at" not in answer.json()


async def test_a_stream_skips_the_events_of_other_queues_only_with_its_beat(monkeypatch):
    """[TENANT-2, EVENT-2]"""
    monkeypatch.setattr(event_cache, "IDLE_S", 0.0)
    async with serving("memory:others-events") as service:
        alice, bob = await service.client("alice"), await service.client("bob")
        async with asyncio.timeout(PATIENCE_S), alice.stream("GET", "/v1/events") as answer:
            lines = answer.aiter_lines()
            assert [await anext(lines), await anext(lines)] == [": ", ""]
            for _ in range(3):
                await bob.enqueue()
                await asyncio.sleep(0.05)  # Time for a stream that would tell it.
            await alice.enqueue(id="mine")
            offset = await anext(lines)
            assert await anext(lines) == "event: enqueued"
            assert (await anext(lines)).startswith("data: ")
            assert [offset, await anext(lines)] == [f"id: {await service.context.store.last_offset()}", ""]
        monkeypatch.setattr(events, "BEAT_S", 0.05)
        async with asyncio.timeout(PATIENCE_S), alice.stream("GET", "/v1/events", params={"after": offset[4:]}) as it:
            await bob.enqueue()
            end = f"id: {await service.context.store.last_offset()}"
            async for line in it.aiter_lines():
                if line == end:
                    break


async def test_streams_of_a_quiet_tenant_read_at_long_intervals(monkeypatch):
    async with serving("memory:quiet-followers") as service:
        alice, bob = await service.client("alice"), await service.client("bob")
        looks = []
        monkeypatch.setattr(event_cache, "IDLE_S", 1000.0)
        store = service.context.store
        look = store.events
        monkeypatch.setattr(store, "events", lambda *args: looks.append(1) or look(*args))
        async with asyncio.timeout(PATIENCE_S), alice.stream("GET", "/v1/events") as answer:
            await anext(answer.aiter_lines())
            for _ in range(20):
                await bob.enqueue()
        assert len(looks) <= 3  # Before the answer begins, as it begins, and at the first hint.


async def test_only_a_token_to_read_sees_the_end_of_the_log():
    async with serving("memory:log-end") as service:
        for scopes, reported in ((["work"], False), (["read"], True)):
            session = await (await service.client("acme", scopes)).get("/v1/session")
            assert ("offset" in session.json()) is reported


@pytest.mark.parametrize("at", [FAR, "9999-12-31T23:59:59-14:00"])
async def test_a_time_that_cannot_be_shown_is_refused(at):
    async with serving("memory:far") as service:
        client = await service.client()
        problem(await client.post("/v1/jobs", json={"run_at": at}), 400, "invalid_option")
        await client.enqueue(id="x", run_at="9999-12-31T23:59:59.999Z")
        assert (await client.get("/v1/queues/default/jobs")).status_code == 200
    async with Queue("memory:far", tenant="acme") as queue:
        with pytest.raises(InvalidOption, match="run_at"):
            await queue.enqueue(1, run_at=datetime.fromisoformat(at))


async def test_a_timeout_of_zero_is_refused():
    async with serving("memory:no-time") as service:
        client = await service.client()
        problem(await client.post("/v1/jobs", json={"timeout_s": 1e-300}), 400, "invalid_request")


async def test_a_finish_that_is_refused_changes_no_result_and_leaves_no_blob(tmp_path, files):
    """[LEASE-1, RESULT-1]"""
    async with serving("memory:refused-blobs", blobs=f"file:{tmp_path}/blobs") as service:
        client = await service.client()
        await client.enqueue(id="x")
        (job,) = await client.claim()
        ghost = {**job, "id": "ghost"}
        assert "error" in await client.finish(ghost, result="z" * 300_000)
        assert files() == []
        assert await client.finish(job, result="a" * 300_000) == {"status": "completed"}
        await client.finish(job, result="b" * 300_000)
        assert len(files()) == 1
        assert (await client.get("/v1/queues/default/jobs/x/result")).json()["result"] == "a" * 300_000


async def test_a_page_and_a_claim_end_at_the_size_of_an_answer(monkeypatch):
    monkeypatch.setattr(answer_size, "ANSWER_BYTES", 3500)
    monkeypatch.setattr(answer_size, "MAX_BYTES", {"claim": 1002, "page": 1002})
    async with serving("memory:large-answers") as service:
        client = await service.client()
        await client.post("/v1/jobs:batch", json={"jobs": [{"id": f"{n}", "payload": "x" * 1000} for n in range(10)]})
        found, cursor, pages = [], None, 0
        while pages == 0 or cursor:
            params = {} if cursor is None else {"cursor": cursor}
            page = (await client.get("/v1/queues/default/jobs", params=params)).json()
            assert len(page["jobs"]) <= 3
            found, cursor, pages = found + page["jobs"], page["cursor"], pages + 1
        assert [job["id"] for job in found] == [f"{n}" for n in range(10)]
        assert [len(await client.claim(limit=9)) for _ in range(5)] == [3, 3, 3, 1, 0]


async def test_a_worker_survives_a_token_that_cannot_be_fetched(monkeypatch):
    monkeypatch.setattr(handoff, "WAIT_S", 0.05)
    async with serving("memory:token-away") as service:
        done, often, broken, raised = asyncio.Event(), asyncio.Event(), False, []

        def source():
            if broken:
                raised.append(1)
                if len(raised) == 5:  # By all that wait here, and again by each.
                    often.set()
                raise OSError("the token server is away")
            return token("acme")

        async def handler(_):
            done.set()

        async with Queue(f"http://127.0.0.1:{service.port}", token=source, tenant="acme") as queue:
            worker = Worker(queue, handler=handler)
            running = asyncio.create_task(worker.run())
            client = await service.client("acme")
            async with asyncio.timeout(PATIENCE_S):
                await client.enqueue()
                await done.wait()
                done.clear()
                broken = True
                await often.wait()
                broken = False
                await client.enqueue()
                await done.wait()
                await worker.stop()
                await running


async def test_a_unicode_line_separator_does_not_end_an_event():
    async with serving("memory:lines") as service:
        address = f"http://127.0.0.1:{service.port}"
        async with Queue(address, token=token("acme")) as queue:
            ids = ["a\u2028b", "a\u2029b", "plain"]
            for id in ids:
                await queue.enqueue(1, id=id)
            assert [event.job_id async for event in queue.events(follow=False)] == ids


async def test_a_service_that_ends_every_stream_at_once_is_asked_with_pauses(monkeypatch):
    """Each pause is longer than the one before, up to a bound."""
    pauses = []

    async def follow(_):
        pass

    async def sleep(pause_s):
        pauses.append(pause_s)
        if len(pauses) == 10:
            raise asyncio.CancelledError

    heard = notifications.HttpListener(None)
    monkeypatch.setattr(notifications.HttpListener, "_follow", follow)
    monkeypatch.setattr(notifications.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await heard._read()
    assert pauses[0] >= notifications.FIRST_S / 2
    assert pauses[-1] >= notifications.LAST_S / 2


async def test_a_service_that_ends_every_claim_at_once_is_asked_with_pauses(monkeypatch):
    """Each pause is longer than the one before, up to a bound; a job that arrives is delivered without a pause."""
    pauses, delivered, empty = [], [], Claimed([], 1)

    async def claim(*_):
        return (empty if len(pauses) < 10 else Claimed(["job"], 2)), 0.0

    async def sleep(pause_s):
        pauses.append(pause_s)

    inbox = handoff.HttpInbox(claim, None, lambda claimed, _: delivered.append(claimed.jobs), lambda: None)
    monkeypatch.setattr(handoff.asyncio, "sleep", sleep)
    await inbox._wait(ClaimRequest("acme", ("a", "b"), 1, 1000, "w", 0.5))
    assert delivered == [["job"]]
    assert len(pauses) == 10
    assert all(
        min(handoff.FIRST_S * 2**n, handoff.LAST_S) / 2 <= pause_s <= handoff.LAST_S for n, pause_s in enumerate(pauses)
    )


@pytest.mark.parametrize("code", sorted(errors._RETRYABLE))
def test_a_refusal_with_retry_after_names_at_least_a_second(code):
    ours = [error for error in (QuotaExceeded(None, 1, 1), StoreBusy(""), StoreUnavailable("")) if error.code == code]
    for error in (errors.Refusal(code, "x"), *ours):
        assert int(errors.problem(error)[2]["retry-after"]) >= 1


async def test_a_page_and_a_claim_of_small_jobs_take_two_steps(monkeypatch):
    async with serving("memory:small-answers") as service:
        client = await service.client()
        await client.post("/v1/jobs:batch", json={"jobs": [{"id": f"{n:03}"} for n in range(120)]})
        asked = []
        store = service.context.store
        look, claim = store.list, store.claim
        monkeypatch.setattr(store, "list", lambda query: asked.append(query.limit) or look(query))
        monkeypatch.setattr(store, "claim", lambda request: asked.append(request.limit) or claim(request))
        page = (await client.get("/v1/queues/default/jobs", params={"limit": 116})).json()
        assert [job["id"] for job in page["jobs"]] == [f"{n:03}" for n in range(116)]
        assert asked == [16, 100]
        asked.clear()
        assert len(await client.claim(limit=120)) == 120
        assert asked == [32, 88]
