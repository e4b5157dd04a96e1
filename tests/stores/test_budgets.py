"""TENANT-5: budgets cost an enqueue no statement, and no store leaves anything running because of them."""

import asyncio
import uuid

import pytest

from holdfast import Queue, budgets
from holdfast.core.budgets import Budgets
from holdfast.core.errors import QuotaExceeded, StoreBusy
from holdfast.core.job import Duplicate, Envelope, IdempotencyKey, JobKey, NewJob, Queued
from holdfast.opening import open_store
from holdfast.testing.servers import ValkeyServer
from tests.eventually import eventually

JOBS = 50


def scripts(server) -> int:
    """How many scripts the server has run."""
    lines = server.command("INFO", "commandstats").splitlines()
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines if line.startswith("cmdstat_evalsha:"))


def test_an_enqueue_within_its_budgets_runs_the_same_script_as_without_budgets():
    """One script for each single job, one for a batch: with budgets of its own and without. [TENANT-5]"""

    async def count(server, **budgets):
        async with Queue(server.url(), tenant="acme") as queue:
            if budgets:
                await queue.set_tenant(budgets=Budgets(**budgets))
            else:
                await queue.usage()  # So that nothing is read in the background for 10 s.
            await queue.enqueue({})
            before = scripts(server)
            for _ in range(JOBS):
                await queue.enqueue({})
            single = scripts(server) - before
            await queue.enqueue_many([{}] * JOBS)
            return single, scripts(server) - before - single

    with ValkeyServer() as server:
        free = asyncio.run(count(server))
        bound = asyncio.run(count(server, max_jobs=1000, max_bytes=10**9, max_queues=3))
    assert free == bound == (JOBS, 1)


@pytest.fixture(params=["memory", "file", "valkey"])
def kind(request):
    return request.param


@pytest.fixture
def url(plain_url):
    return plain_url


async def test_a_closed_store_reads_nothing_more(url):
    """Not even what it was about to read. [TENANT-5]"""
    mine = asyncio.all_tasks()
    async with Queue(url, tenant="acme") as queue:
        await queue.enqueue({})
        assert any(task.get_name() == "budgets of acme" for task in asyncio.all_tasks())
    assert not [task for task in asyncio.all_tasks() - mine if task.get_name() == "budgets of acme"]


async def test_usage_is_read_in_the_background_and_then_judged(url, monkeypatch):
    """What another process has set and enqueued holds here after the next read, which no enqueue waits for."""
    monkeypatch.setattr(budgets, "REFRESH_S", 0.05)
    monkeypatch.setattr(budgets, "FIRST_READ_DELAY_S", 0.0)
    async with Queue(url, tenant="acme") as queue:
        await queue.enqueue({})
        store = await queue.store.sibling()
        try:
            async with Queue(store=store, tenant="acme") as other:
                await other.set_tenant(budgets=Budgets(max_jobs=2))
            await queue.enqueue({}, id="two")

            async def refusal():
                (ticket,) = await queue.enqueue_many([{}], on_refused="return")
                return ticket.error

            refused = await eventually(refusal)
            assert isinstance(refused, QuotaExceeded)
            assert refused.budget == "max_jobs"
            assert (await queue.enqueue({}, id="two")).status == "duplicate"
        finally:
            if store is not queue.store:
                await store.close()


async def test_a_store_that_cannot_count_still_accepts_jobs(url, monkeypatch):
    """What was known stays in force. [TENANT-5]"""

    async def fail(self, tenant):
        raise StoreBusy("not now")

    monkeypatch.setattr(budgets.BudgetEnforcer, "refresh", fail)
    monkeypatch.setattr(budgets, "REFRESH_S", 0.0)
    monkeypatch.setattr(budgets, "FIRST_READ_DELAY_S", 0.0)
    async with Queue(url, tenant="acme") as queue:
        for _ in range(20):
            assert (await queue.enqueue({})).status == "queued"


async def test_short_lived_schedules_stay_within_the_budget_of_bytes():
    """A removed one is kept for a day, with its payload. [TENANT-5]"""
    async with Queue(f"memory:{uuid.uuid4().hex}", tenant="acme") as queue:
        await queue.set_tenant(budgets=Budgets(max_bytes=250_000))
        for name in ("one", "two"):
            await queue.schedule(name, "x" * 100_000, every=3600)
            await queue.unschedule(name)
        with pytest.raises(QuotaExceeded, match="max_bytes is 250000"):
            await queue.schedule("three", "x" * 100_000, every=3600)
        await queue.set_tenant(budgets=Budgets(max_bytes=0))
        await queue.schedule("three", "x" * 100_000, every=3600)


def test_the_defaults_are_options_of_the_store(tmp_path):
    """[TENANT-5, KEEP-1]"""

    async def look():
        async with Queue(f"file:{tmp_path}/data?max_jobs=1&max_result_ttl_s=0", tenant="acme") as queue:
            await queue.usage()
            await queue.enqueue({}, result_ttl=86400 * 365)
            with pytest.raises(QuotaExceeded, match="max_jobs is 1"):
                await queue.enqueue({})
            await queue.set_tenant(budgets=Budgets(max_jobs=0))
            await queue.enqueue({})

    asyncio.run(look())


async def test_a_key_that_an_existing_id_does_not_take_admits_no_other_job():
    """[TENANT-5, ENQ-3] The item before it has the same key, but its id exists: it binds nothing."""
    store = await open_store("memory:keys-to-come?max_bytes=2000")
    try:
        await store.enqueue([NewJob(JobKey("acme", "mail", "e1"), Envelope("send", b"1", request_id="r0"))])
        await store.usage("acme")
        key = IdempotencyKey("k1")
        small = NewJob(JobKey("acme", "mail", "e1"), Envelope("send", b"1", request_id="r1", idempotency=key))
        large = NewJob(JobKey("acme", "mail", "n1"), Envelope("send", b"1" * 200_000, request_id="r2", idempotency=key))
        first, second = await store.enqueue([small, large])
        assert isinstance(first, Duplicate)
        assert isinstance(second, QuotaExceeded)
        fresh = NewJob(JobKey("acme", "mail", "n2"), Envelope("send", b"1", request_id="r3", idempotency=key))
        first, second = await store.enqueue([fresh, large])
        assert isinstance(first, Queued)
        assert isinstance(second, Duplicate)
    finally:
        await store.close()
