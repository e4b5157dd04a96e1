"""The same Queue and the same Worker, with a service in place of a store."""

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from holdfast import (
    AccessRefused,
    InvalidName,
    InvalidOption,
    JobFailed,
    PartlyRefused,
    Permanent,
    Queue,
    QuotaExceeded,
    StoreMismatch,
    StoreUnavailable,
    Unsupported,
    Worker,
    current_job,
    job,
)
from holdfast.core.job import Cancel, ClaimRequest, Finish, Finished, JobKey, JobState, Result
from holdfast.opening import open_store
from holdfast.service.settings import TokenSettings
from holdfast.store import WorkerInfo
from holdfast.testing.processes import free_port
from tests.service.support import KEY, PATIENCE_S, token

pytestmark = pytest.mark.asyncio(loop_scope="module")


@job(queue="emails")
async def send_email(to: str) -> str:
    if "@" not in to:
        raise Permanent(f"not an address: {to}")
    current_job().progress(0.5, "half")
    return f"welcome -> {to}"


@pytest.fixture
def address(service):
    return f"http://127.0.0.1:{service.port}"


@asynccontextmanager
async def connected(address, tenant):
    async with Queue(address, tenant=tenant, token=token(tenant)) as queue:
        yield queue


async def test_a_queue_over_http_answers_as_one_on_a_store(address, tenant):
    async with connected(address, tenant) as queue:
        first = await queue.enqueue(send_email.message("a@example.com"), id="x")
        again = await queue.enqueue(send_email.message("a@example.com"), id="x")
        assert (first.status, again.status, again.state) == ("queued", "duplicate", JobState.READY)
        found = await queue.get("x", queue="emails")
        assert (found.tenant, found.type, found.payload) == (tenant, "send_email", {"to": "a@example.com"})
        assert await queue.get("nothing") is None
        assert (await queue.stats("emails")).counts["ready"] == 1
        assert [stats.queue for stats in await queue.queues()] == ["emails"]
        assert [one.id for one in await queue.list(queue="emails", state="ready")] == ["x"]
        assert (await queue.cancel("x", queue="emails")).status == "canceled"
        assert (await queue.cancel("nothing")).status == "not_found"
        assert [event.kind async for event in queue.events()] == ["enqueued", "canceled"]


async def test_a_worker_over_http_runs_jobs_and_a_waiter_gets_the_result(address, tenant):
    async with connected(address, tenant) as queue:
        worker = Worker(queue, jobs=[send_email])
        running = asyncio.create_task(worker.run())
        try:
            assert (
                await queue.enqueue_and_wait(send_email.message("b@example.com"), timeout=30)
                == "welcome -> b@example.com"
            )
            bad = await queue.enqueue(send_email.message("nobody"), id="bad")
            with pytest.raises(JobFailed, match="not an address"):
                await bad.wait(30)
        finally:
            await worker.stop()
            await running
        (dead,) = await queue.dead_letters(queue="emails")
        assert (dead.id, dead.reason) == ("bad", "permanent")
        assert (await queue.replay("bad", queue="emails")).status == "replayed"


async def test_a_result_in_the_workers_own_blob_store_fails_the_job_with_the_reason(address, tenant):
    """[RESULT-1] The service knows nothing of that blob store."""
    async with connected(address, tenant) as queue:
        await queue.enqueue(1, id="x")
        (held,) = (await queue.store.claim(ClaimRequest(tenant, ("default",), 1, 30_000, "w"))).jobs
        finish = Finish(held.key, held.token, "complete", Result(b"", "json", "somewhere"))
        assert await queue.store.finish([finish]) == [Finished(JobState.FAILED)]
        assert (await queue.get("x")).errors[0].type == "ResultTooLarge"


async def test_a_batch_over_http_has_the_errors_of_its_items(address, tenant, service):
    await Queue(store=service.context.store, tenant=tenant).set_tenant(max_waiting=2)
    async with connected(address, tenant) as queue:
        with pytest.raises(PartlyRefused) as caught:
            await queue.enqueue_many([1, 2, 3])
        tickets = caught.value.tickets
        assert [ticket.status for ticket in tickets] == ["queued", "queued", "refused"]
        assert isinstance(tickets[2].error, QuotaExceeded)
        assert tickets[2].error.limit == 2
        with pytest.raises(InvalidName):
            await queue.get("a\0b")


async def test_the_tenant_is_that_of_the_token(address, tenant):
    async with Queue(address, token=token(tenant)) as queue:
        assert queue.tenant == tenant
        assert (await queue.enqueue(1)).status == "queued"
    with pytest.raises(InvalidOption, match="the token is for 'another'"):
        Queue(address, tenant=tenant, token=token("another"))
    with pytest.raises(InvalidOption, match="whose jobs"):
        Queue("memory:")


async def test_the_service_checks_a_tenant_under_another_claim(address, tenant):
    strange = TokenSettings(hs256_key=KEY, tenant_claim="org")
    with pytest.raises(InvalidOption, match="pass tenant="):
        Queue(address, token=token(tenant, settings=strange))
    with pytest.raises(AccessRefused):
        await Queue(address, tenant=tenant, token=token(tenant, settings=strange)).open()


async def test_an_invalid_token_raises_with_the_reason(address, tenant, monkeypatch):
    monkeypatch.delenv("HOLDFAST_TOKEN", raising=False)
    with pytest.raises(InvalidOption, match="not a JSON Web Token"):
        Queue(address, tenant=tenant, token="nonsense\r\nx-tenant: other")
    with pytest.raises(InvalidOption, match="HOLDFAST_TOKEN"):
        Queue(address)
    with pytest.raises(InvalidOption, match="is for a service"):
        Queue("memory:", tenant=tenant, token=token())
    with pytest.raises(AccessRefused) as refused:
        await Queue(address, token=token(tenant, lifetime_s=-60)).open()
    assert refused.value.problem == "token_expired"
    assert "get a new one" in str(refused.value)
    async with Queue(address, token=token(tenant, ["read"])) as queue:
        with pytest.raises(AccessRefused, match="jobs:produce") as refused:
            await queue.enqueue(1)
        assert refused.value.problem == "scope_missing"


async def test_the_token_of_the_environment_is_used(address, tenant, monkeypatch):
    monkeypatch.setenv("HOLDFAST_TOKEN", token(tenant))
    async with Queue(address) as queue:
        assert queue.tenant == tenant


async def test_an_expired_token_is_renewed(address, tenant):
    given = []

    def renew():
        given.append(token(tenant, lifetime_s=-60 if len(given) == 1 else 600, subject=str(len(given))))
        return given[-1]

    async with Queue(address, token=renew) as queue:
        assert (await queue.enqueue(1)).status == "queued"
    assert len(given) > 2


async def test_a_token_is_neither_shown_nor_logged(address, tenant, caplog):
    caplog.set_level("DEBUG")
    secret = token(tenant)
    queue = Queue(address, token=secret)
    async with queue:
        await queue.enqueue(1)
        with pytest.raises(Unsupported) as error:
            await queue.tenant_settings()
        store = queue.store
        client = store._client
        shown = " ".join(map(repr, (queue, store, client, client.bearer, vars(store), vars(client), error.value)))
    part = secret.rpartition(".")[2]
    assert part not in shown
    assert part not in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        "http://jobs.example.com",
        "http://me:secret@localhost",
        "https://",
        "http://localhost:x",
        "http://localhost?nonsense=1",
    ],
)
async def test_an_invalid_address_is_refused_without_showing_it(url):
    with pytest.raises(InvalidOption) as refused:
        Queue(url, token=token())
    assert "secret" not in str(refused.value)


async def test_a_service_that_is_down_is_an_unavailable_store(tenant):
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await Queue(f"http://127.0.0.1:{free_port()}", tenant=tenant, token=token(tenant)).open()


@pytest.mark.parametrize(
    "answer, error",
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", StoreMismatch),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", StoreMismatch),
        (b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n", StoreMismatch),
        (b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n", StoreUnavailable),
        (b"SSH-2.0-OpenSSH\r\n", StoreUnavailable),
        (b"", StoreUnavailable),
    ],
)
async def test_a_server_that_is_not_holdfast_is_named(tenant, answer, error):
    async def reply(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(reply, "127.0.0.1", 0)
    async with server:
        with pytest.raises(error):
            await Queue(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", token=token(tenant)).open()


async def test_a_call_that_http_lacks_says_what_to_do(address, tenant, url):
    async with connected(address, tenant) as queue:
        assert not queue.capabilities.transactional_enqueue
        behind = await open_store(url)
        assert queue.capabilities.durable == behind.capabilities.durable
        await behind.close()
        for_all = ClaimRequest(None, ("default",), 1, 30_000, "w")
        for call in (
            queue.set_tenant(weight=2), queue.store.workers(None), queue.register_reader("r"),
            queue.store.claim(for_all),
        ):  # fmt: skip
            with pytest.raises(Unsupported, match=r"http store does not support .*[:;]"):
                await call
        with pytest.raises(Unsupported, match="commit first"):
            await queue.enqueue(1, connection=object())


async def test_workers_and_lists_by_time_go_over_http(address, tenant):
    async with connected(address, tenant) as queue:
        await queue.store.beat(WorkerInfo("w1", tenant, "host", 7, ("mail",), 3, 2), 60_000)
        (worker,) = await queue.workers()
        seen = (
            worker.id.rpartition("/")[2],
            worker.tenant,
            worker.host,
            worker.pid,
            worker.queues,
            worker.concurrency,
            worker.held,
        )
        assert seen == ("w1", tenant, "host", 7, ("mail",), 3, 2)
        for number, name in enumerate("bab"):
            await queue.enqueue(number, id=str(number), queue=name, delay=100 + number)
        page = await queue.list(newest=True, limit=2)
        assert [job.id for job in page] == ["2", "1"]
        assert [job.id for job in await queue.list(newest=True, cursor=page.cursor)] == ["0"]
        assert [job.id for job in await queue.list(newest=True, queue="b", id="2", since=timedelta(1))] == ["2"]
        dry = await queue.cancel_where(queue="b", dry_run=True)
        assert (dry.count, [key.id for key in dry.sample]) == (2, ["2", "0"])
        assert (await queue.cancel_where(queue="b")).count == 2
        assert [job.id for job in await queue.list(newest=True, state="canceled")] == ["2", "0"]


async def test_operators_calls_work_over_http(address, tenant):
    async with connected(address, tenant) as queue:
        await queue.enqueue(1, id="x")
        await queue.pause()
        assert (await queue.stats()).paused
        await queue.resume()
        (held,) = (await queue.store.claim(ClaimRequest(tenant, ("default",), 1, 30_000, "w"))).jobs
        await queue.store.finish([Finish(held.key, held.token, "complete", Result(b"1"))])
        assert await queue.set_result_ttl("x", 60) == "updated"
        assert [one.id for one in await queue.list(state=["completed", "failed"])] == ["x"]
        assert await queue.purge("x") == "purged"
        assert await queue.purge("x") == "not_found"
        assert [event.kind async for event in queue.events()][-1] == "purged"


async def test_a_batch_of_cancels_is_done_in_its_order(address, tenant):
    """[EVENT-1]"""
    async with connected(address, tenant) as queue:
        ids = [ticket.id for ticket in await queue.enqueue_many([1] * 100)]
        statuses = await queue.store.cancel([Cancel(JobKey(tenant, "default", id)) for id in [*ids, "nothing"]])
        assert statuses == ["canceled"] * len(ids) + ["not_found"]
        assert [event.job_id async for event in queue.events() if event.kind == "canceled"] == ids


async def test_a_large_batch_is_sent_in_parts(address, tenant):
    """[ENQ-4] More bytes than the service accepts in one request."""
    async with connected(address, tenant) as queue:
        tickets = await queue.enqueue_many(["x" * 200_000 for _ in range(40)])
        assert {ticket.status for ticket in tickets} == {"queued"}
        assert (await queue.stats()).counts["ready"] == 40


async def test_a_worker_needs_only_the_scope_work_and_learns_of_a_cancel_at_its_renewal(address, tenant):
    """[CANCEL-2] A job that arrives during the wait, with a lease shorter than the wait, belongs to it. [LEASE-4]"""
    running, reported = asyncio.Event(), asyncio.Event()

    @job(queue="emails")
    async def wait():
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            reported.set()

    workers_own = Queue(address, token=token(tenant, ["work"]))
    async with connected(address, tenant) as queue, workers_own, asyncio.timeout(PATIENCE_S):
        worker = Worker(workers_own, jobs=[wait, send_email], lease=3)
        work = asyncio.create_task(worker.run())
        await queue.enqueue_and_wait(send_email.message("a@example.com"))
        await queue.enqueue(wait.message(), id="x")
        await running.wait()
        assert (await queue.cancel("x", queue="emails")).status == "canceled"
        await reported.wait()
        await worker.stop()
        await work


async def test_a_worker_that_stops_releases_its_jobs(address, tenant):
    """[RETRY-5]"""
    running = asyncio.Event()

    @job(queue="emails")
    async def wait():
        running.set()
        await asyncio.Event().wait()

    async with connected(address, tenant) as queue, asyncio.timeout(PATIENCE_S):
        worker = Worker(queue, jobs=[wait], concurrency=1, shutdown_grace=0)
        work = asyncio.create_task(worker.run())
        await queue.enqueue(wait.message(), id="x")
        await running.wait()
        await worker.stop()
        await work
        found = await queue.get("x", queue="emails")
        assert (found.state, found.attempts) == (JobState.READY, 0)


async def test_a_waiting_claim_that_is_given_up_loses_no_job(address, tenant):
    """[RETRY-5] Whether the job or the end of the wait comes first: it is delivered, or another worker can claim it."""
    async with connected(address, tenant) as queue:
        for number in range(30):
            came = []
            post = queue.store.open_inbox(lambda claimed, _, came=came: came.extend(claimed.jobs))
            assert (await post.claim(ClaimRequest(tenant, ("default",), 1, 3_600_000, "w"))).jobs == []
            await asyncio.gather(queue.enqueue(1, id=str(number)), post.close())
            state = (await queue.get(str(number))).state
            assert state is (JobState.LEASED if came else JobState.READY)
            await queue.cancel(str(number))
