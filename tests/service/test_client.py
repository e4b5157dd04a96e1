"""The same Queue and the same Worker, with a service in place of a store."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from holdfast import (
    InvalidName,
    InvalidOption,
    JobFailed,
    Permanent,
    Queue,
    QuotaExceeded,
    StoreUnavailable,
    Unsupported,
    Worker,
    current_job,
    job,
)
from holdfast.core.job import ClaimRequest, Finish, Finished, JobState, Result
from holdfast.testing.processes import free_port
from tests.service.support import token

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


async def test_a_worker_over_http_runs_jobs_and_whoever_waits_gets_the_result(address, tenant):
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


async def test_a_result_in_a_blob_store_of_the_workers_own_is_a_failure_that_is_told(address, tenant):
    """[RESULT-1] The service knows nothing of that blob store."""
    async with connected(address, tenant) as queue:
        await queue.enqueue(1, id="x")
        (held,) = (await queue.store.claim(ClaimRequest(tenant, ("default",), 1, 30_000, "w"))).jobs
        finish = Finish(held.key, held.token, "complete", Result(b"", "json", "somewhere"))
        assert await queue.store.finish([finish]) == [Finished(JobState.FAILED)]
        assert (await queue.get("x")).errors[0].type == "ResultTooLarge"


async def test_a_batch_over_http_has_the_errors_of_its_items(address, tenant, service):
    await service.hub.queue(tenant).set_tenant(max_waiting=2)
    async with connected(address, tenant) as queue:
        tickets = await queue.enqueue_many([1, 2, 3])
        assert [ticket.status for ticket in tickets] == ["queued", "queued", "refused"]
        assert isinstance(tickets[2].error, QuotaExceeded)
        assert tickets[2].error.limit == 2
        with pytest.raises(InvalidName):
            await queue.get("a\0b")


async def test_a_token_of_another_tenant_is_refused_before_anything_is_sent(address, tenant):
    async with Queue(address, tenant=tenant, token=token("somebody-else")) as queue:
        with pytest.raises(InvalidOption, match="the token is for 'somebody-else'"):
            await queue.enqueue(1)


async def test_a_token_that_is_not_good_is_told(address, tenant):
    with pytest.raises(InvalidOption, match="token"):
        await Queue(address, tenant=tenant, token="nonsense").open()
    with pytest.raises(InvalidOption, match="HOLDFAST_TOKEN"):
        await Queue(address, tenant=tenant).open()
    with pytest.raises(InvalidOption, match="no use for one"):
        Queue("memory:", tenant=tenant, token=token())


async def test_a_service_that_is_not_there_is_a_store_that_is_not_there(tenant):
    with pytest.raises(StoreUnavailable, match="no answer from"):
        await Queue(f"http://127.0.0.1:{free_port()}", tenant=tenant, token=token(tenant)).open()


async def test_what_http_does_not_carry_says_so(address, tenant):
    async with connected(address, tenant) as queue:
        assert not queue.capabilities.transactional_enqueue
        with pytest.raises(Unsupported, match="over HTTP"):
            await queue.set_tenant(weight=2)
