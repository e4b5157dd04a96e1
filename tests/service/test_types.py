"""Producers that have no `@job` at hand get what workers say of their types: over HTTP, and with the command."""

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager

import pytest

from holdfast import Queue, RetryPolicy, Worker, job
from holdfast.core.budgets import Budgets
from holdfast.core.job import DAY, Backoff, JobKey
from holdfast.core.policy import TypeInfo
from holdfast.extensions import known_types
from holdfast.opening import open_store
from holdfast.service import types
from holdfast.store import TenantSettings, WorkerInfo
from tests.eventually import eventually
from tests.service.support import token

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHOP = """
from holdfast import job

@job(queue="bills", max_attempts=1)
def charge(path: str) -> None:
    with open(path, "a") as ran:
        ran.write("ran\\n")
    raise ValueError("no money")
"""


@pytest.fixture(autouse=True)
def fresh(monkeypatch, service):
    """Nothing is cached from one test to the next, or from one read to the next."""
    monkeypatch.setattr(types, "FRESH_S", 0.0)
    monkeypatch.setattr(service.context.types, "_read_at", 0.0)


@asynccontextmanager
async def process(*arguments, **environment):
    """The command, as a process of its own."""
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "holdfast", *arguments, env={**os.environ, **environment},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield started
    finally:
        if started.returncode is None:
            started.terminate()
            await started.communicate()


async def command(*arguments, **environment):
    async with process(*arguments, **environment) as started:
        out, err = await started.communicate()
    assert started.returncode == 0, err.decode()
    return json.loads(out), err.decode()


@asynccontextmanager
async def said(url, tenant, *types, queues=("bills",), worker_id="w"):
    """A worker that reports its types, until the end of the block."""
    store = await open_store(url)
    worker = WorkerInfo(f"{worker_id}-{tenant}", tenant, "host", 1, queues, 1, 0, types=types)
    await store.beat(worker, DAY)
    yield store
    await store.beat(worker, 0)
    await store.close()


async def test_a_job_type_with_one_attempt_runs_once_when_the_command_enqueues_it(url, service, tenant, tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    ran = tmp_path / "ran"
    payload = json.dumps({"path": str(ran)})
    address = f"http://127.0.0.1:{service.port}"
    async with (
        Queue(url, tenant=tenant) as queue,
        process("worker", "shop", "--store", url, "--tenant", tenant, PYTHONPATH=str(tmp_path)),
    ):
        await eventually(queue.workers, patience_s=60)
        for number, store in enumerate((url, address), 1):
            options = ("--store", store, "--tenant", tenant, "--payload", payload, "--json")
            answer, err = await command("enqueue", "charge", *options, HOLDFAST_TOKEN=token(tenant))
            assert (answer["queue"], answer.get("warnings"), err) == ("bills", None, "")

            async def failed(id=answer["id"]):
                found = await queue.get(id, queue="bills")
                return found is not None and found.state.value == "failed" and found

            found = await eventually(failed, patience_s=60)
            assert (found.max_attempts, found.attempts, found.reason) == (1, 1, "max_attempts")
            assert ran.read_text() == number * "ran\n"


async def test_the_producers_options_win_and_the_newest_worker_sets_the_rest(url, client, tenant):
    old = TypeInfo("charge", "elsewhere", 2)
    new = TypeInfo("charge", "bills", 7, Backoff(1000, 3.0, 9000, "none"), 2500, 8, 60_000)
    async with said(url, tenant, old, worker_id="z") as store:
        await store.shift_clock(1000)
        async with said(url, tenant, new, worker_id="a"):
            assert [worker.types for worker in await store.workers(tenant)] == [(new,), (old,)]
            made = await client.enqueue(type="charge")
            (found,) = await store.get([JobKey(tenant, "bills", made["id"])])
            envelope = found.envelope
            assert (envelope.max_attempts, envelope.backoff) == (7, new.backoff)
            assert (envelope.timeout_ms, envelope.priority, found.result_ttl_ms) == (2500, 8, 60_000)
            batch = {"jobs": [{"type": "charge", "queue": "q", "max_attempts": 4, "priority": 5, "timeout_s": 1}]}
            (item,) = (await client.post("/v1/jobs:batch", json=batch)).json()["items"]
            (found,) = await store.get([JobKey(tenant, "q", item["id"])])
            assert (found.envelope.max_attempts, found.envelope.priority) == (4, 5)
            assert (found.envelope.timeout_ms, found.envelope.backoff) == (1000, new.backoff)


async def test_a_job_that_no_live_worker_runs_is_accepted_with_a_warning(url, service, client, tenant):
    answer = await client.enqueue(type="charge")
    assert answer["warnings"] == ["no live worker serves the queue 'default': the job waits until one does"]
    async with said(url, tenant, TypeInfo("charge", "bills")):
        assert "warnings" not in await client.enqueue(type="charge")
        answer = await client.enqueue(type="refund", queue="bills")
        assert answer["warnings"] == ["no live worker of the queue 'bills' knows the type 'refund'"]
        async with said(url, tenant, TypeInfo("refund", "others"), queues=("others",), worker_id="o"):
            answer = await client.enqueue(type="refund", queue="bills")
            assert answer["warnings"][0].endswith("knows the type 'refund', but those of 'others' do")
            where = ("--store", f"http://127.0.0.1:{service.port}", "--tenant", tenant)
            options = ("-q", "bills", *where, "--payload", "{}", "--json")
            answer, err = await command("enqueue", "refund", *options, HOLDFAST_TOKEN=token(tenant))
            assert answer["status"] == "queued"
            assert err == f"Warning: {answer['warnings'][0]}.\n"
        # A worker that does not say what it runs may run anything.
        async with said(url, tenant, worker_id="silent"):
            assert "warnings" not in await client.enqueue(type="refund", queue="bills")


async def test_a_tenant_sees_no_workers_that_do_not_serve_it(url, service, client, tenant):
    other = f"other-{tenant}"
    secret = TypeInfo("secret", "hidden", 9)
    async with said(url, other, secret, queues=("hidden",)) as store:
        answer = await client.enqueue(type="secret")
        assert (answer["queue"], len(answer["warnings"])) == ("default", 1)
        known = (await client.get("/v1/types")).json()
        assert "secret" not in json.dumps(known)
        assert "hidden" not in json.dumps(known)
        theirs = (await (await service.client(other)).get("/v1/types")).json()
        assert [one["name"] for one in theirs["types"]] == ["secret"]
        narrow = await service.client(other, queues=["mail"])
        assert (await narrow.get("/v1/types")).json() == {"types": [], "queues": [], "cursor": None}
        # Nor can one take the place of another's worker by its name.
        beat = {"worker_id": f"w-{other}", "queues": ["mail"], "ttl_s": 0}
        assert (await client.post("/v1/workers:beat", json=beat)).status_code == 200
        assert [worker.types for worker in await store.workers(other)] == [(secret,)]


async def test_a_worker_over_http_reports_its_job_types(service, tenant):
    @job(name="over-http", queue="bills", max_attempts=2, timeout=5, retry=RetryPolicy(factor=3.0))
    async def charge() -> None: ...

    async with Queue(f"http://127.0.0.1:{service.port}", tenant=tenant, token=token(tenant)) as queue:
        worker = Worker(queue, [charge], handler=lambda payload: payload)
        running = asyncio.create_task(worker.run(signals=False))
        known = await eventually(lambda: known_types(queue.store, tenant), lambda known: known.types)
        assert known.types["over-http"] == TypeInfo("over-http", "bills", 2, Backoff(factor=3.0), 5000)
        assert known.queues == {"bills": frozenset({"over-http", ""}), "default": frozenset({"over-http", ""})}
        await worker.stop()
        await running
        assert not (await known_types(queue.store, tenant)).types


async def test_enqueues_share_one_read_of_the_job_types(service, client, monkeypatch):
    monkeypatch.setattr(types, "FRESH_S", 60.0)
    store, asked = service.context.store, []
    workers = store.workers

    async def counted(tenant):
        asked.append(tenant)
        return await workers(tenant)

    monkeypatch.setattr(store, "workers", counted, raising=False)
    monkeypatch.setattr(service.context.types, "_read_at", -1e9)
    for _ in range(20):
        await client.enqueue(type="charge")
    assert asked == [None]


async def test_types_come_in_pages(service, client, tenant):
    """Each once, with any size of pages; another list's cursor is refused."""
    for number in range(3):
        said = {"worker_id": f"w{number}", "queues": [f"q{number}"]}
        said["types"] = [{"name": f"t{number}.{n}"} for n in range(4)]
        assert (await client.post("/v1/workers:beat", json=said)).status_code == 200
    found, cursor, pages = [], "", 0
    while cursor is not None:
        page = (await client.get("/v1/types", params={"limit": 2, "cursor": cursor})).json()
        found += [one["queue"] for one in page["queues"]] + [one["name"] for one in page["types"]]
        cursor, pages = page["cursor"], pages + 1
    assert [name for name in found if name[0] == "q"] == ["q0", "q1", "q2"]
    assert [name for name in found if name[0] == "t"] == [f"t{number}.{n}" for number in range(3) for n in range(4)]
    assert pages == 9
    answer = await client.get("/v1/types", params={"cursor": "elsewhere"})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_option")
    async with Queue(f"http://127.0.0.1:{service.port}", token=token(tenant)) as queue:
        known = await known_types(queue.store, tenant)
    assert (len(known.types), sorted(known.queues)) == (12, ["q0", "q1", "q2"])


async def test_the_workers_of_a_tenant_are_limited(service, client, tenant):
    """Over the limit a beat is refused; the others stay, and one that signs off makes room. [TENANT-5]"""
    await service.context.store.set_tenant(tenant, TenantSettings(None, budgets=Budgets(max_workers=3, max_types=10)))

    async def beat(name, **more):
        return (await client.post("/v1/workers:beat", json={"worker_id": name, "queues": ["q"], **more})).status_code

    assert [await beat(f"w{number}") for number in range(5)] == [200, 200, 200, 429, 429]
    assert [await beat("w0"), await beat("w0", ttl_s=0), await beat("w3")] == [200, 200, 200]
    assert await beat("w3", types=[{"name": f"t{number}"} for number in range(20)]) == 429
    assert await beat("w3", types=[{"name": f"t{number}"} for number in range(5)]) == 200
