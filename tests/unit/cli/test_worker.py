"""The worker command, as real processes with real signals."""

import json
import os
import signal
import time

import pytest

from holdfast.testing.processes import free_port
from holdfast.worker.collecting import YOUNG
from tests.unit.cli.support import JOBS, claim, fail, read_page, read_until


@pytest.fixture(autouse=True)
def shop(place):
    (place / "shop.py").write_text(JOBS)


def test_a_worker_runs_jobs_and_exits_with_0_on_sigterm(cli, processes):
    worker = processes.start("worker", "shop", "--handler", "shop:anything", "--json-logs")
    started = json.loads(worker.wait_for("worker started")[-1])
    assert (started["tenant"], started["queues"]) == ("acme", "emails,default")
    answer = cli("enqueue", "send_email", "-q", "emails", "--payload", '{"to": "a@b.c"}', "--wait", "30s", "--json")
    assert answer.json["result"] == "welcome -> a@b.c"
    assert answer.json["state"] == "completed"
    assert cli("enqueue", "-", "--payload", "[1]", "--wait", "30s").out == '{"got":[1]}\n'
    assert cli("enqueue", "pid", "--wait", "30s", "--json").json["result"] == worker.pid
    assert cli("enqueue", "collector", "--wait", "30s", "--json").json["result"] == [1, YOUNG]
    assert cli("enqueue", "pid_elsewhere", "--wait", "30s", "--json").json["result"] != worker.pid
    answer = cli("enqueue", "send_email", "-q", "emails", "--payload", '{"to": "nobody"}', "--wait", "30s")
    assert answer.code == 1
    assert "Permanent: not an address: nobody" in answer.err
    failed = json.loads(worker.wait_for("job failed")[-1])
    assert (failed["type"], failed["error"]) == ("send_email", "Permanent: not an address: nobody")

    (found,) = cli("workers", "--json").json["workers"]
    assert (found["pid"], found["queues"], found["concurrency"]) == (worker.pid, ["emails", "default"], 10)
    header, line = cli("workers", "--tenant", "acme").out.splitlines()
    assert header.split() == ["ID", "HOST", "PID", "TENANT", "QUEUES", "HELD", "STARTED", "LAST_SEEN"]
    assert line.split()[0] == found["id"]
    assert cli("workers", "--tenant", "other", "--json").json == {"workers": []}

    answer = worker.end()
    assert answer.code == 0
    assert "worker stopped" in answer.err
    assert "No worker is alive" in cli("workers").err


@pytest.mark.parametrize("count", [1, 2])
def test_a_worker_says_that_it_creates_a_store(processes, place, count):
    args = ("worker", "shop", "--store", f"file:{place}/dta", "--json-logs", "--processes", str(count))
    worker = processes.start(*args)
    lines = [json.loads(line) for line in worker.wait_for("worker started", count)]
    assert [line["store"] for line in lines if line["event"].startswith("created a new store")] == [f"file:{place}/dta"]
    assert worker.end().code == 0
    again = processes.start(*args)
    assert not [line for line in again.wait_for("worker started", count) if "created" in line]
    assert again.end().code == 0


def test_a_worker_whose_queues_have_no_jobs_names_the_queues_that_wait(cli, processes):
    args = ("worker", "shop", "--queues", "default", "--json-logs")
    for id, tenant in (("a", "acme"), ("b", "acme"), ("c", "other")):
        cli("enqueue", "x", "--id", id, "-q", f"{tenant}-mail", "--tenant", tenant)
    worker = processes.start(*args)
    hint = json.loads(worker.wait_for("--queues")[-1])
    assert (hint["level"], hint["waiting"]) == ("warning", "acme-mail (2)")
    assert cli("enqueue", "pid", "--wait", "30s").code == 0
    assert worker.end().code == 0
    again = processes.start(*args)
    again.wait_for("worker started")
    assert "--queues" not in again.end().err


def test_all_tenants_are_served_although_the_environment_names_one(cli, processes):
    worker = processes.start("worker", "shop", "--all-tenants", "--queues", "default", "-c", "2", "--lease", "5s")
    assert "tenant=(all)" in worker.wait_for("worker started")[-1].replace("'", "")
    for tenant in ("acme", "beta"):
        assert cli("enqueue", "who", "--tenant", tenant, "--wait", "30s").out == f'"{tenant}"\n'
    assert worker.end(signal.SIGINT).code == 0


def test_a_running_job_is_finished_within_the_grace_and_a_thread_is_waited_for_after_it(cli, place, processes):
    pipe = place / "pipe"
    os.mkfifo(pipe)
    payload = json.dumps({"path": str(pipe)})
    for id_, grace in (("within", "60"), ("after", "0")):
        worker = processes.start("worker", "shop", "--grace", grace)
        worker.wait_for("worker started")
        cli("enqueue", "touch_and_wait", "--id", id_, "--payload", payload)
        with pipe.open("wb"):  # opens when the job has opened it
            worker.send_signal(signal.SIGTERM)
            if id_ == "after":  # A thread cannot be stopped: it keeps its lease, and no other worker gets its job.
                worker.wait_for("waiting for handlers that do not stop")
                assert cli("status", id_, "--json").json["state"] == "leased"
        assert worker.wait() == 0
        assert cli("result", id_).out == '"done"\n'


def test_metrics_are_served_and_large_results_are_kept_in_blobs(cli, processes, monkeypatch):
    monkeypatch.setenv("HOLDFAST_BLOBS", "file:./blobs")
    port = free_port()
    worker = processes.start("worker", "shop", "--metrics-port", str(port))
    worker.wait_for("worker started")
    assert len(cli("enqueue", "big", "--wait", "30s").out) == 300_003
    assert 'holdfast_claimed_total{queue="default"} 1.0' in read_page(port, "/metrics")[1]
    assert worker.end().code == 0


BLOCKING = """
from holdfast import job
from holdfast.worker import health

health.LOOP_S = 1.5

@job
async def block(path: str) -> str:
    with open(path, "rb") as pipe:
        pipe.read()
    return "done"
"""


def test_a_worker_whose_loop_is_blocked_does_not_live_until_it_turns_again(cli, place, processes):
    (place / "blocking.py").write_text(BLOCKING)
    pipe, port = place / "pipe", free_port()
    os.mkfifo(pipe)
    worker = processes.start("worker", "blocking", "--metrics-port", str(port))
    worker.wait_for("worker started")
    assert read_until(port, "/readyz", lambda status, _: status == 200) == "ok\n"
    assert read_page(port, "/livez") == (200, "ok\n")
    cli("enqueue", "block", "--id", "j", "--payload", json.dumps({"path": str(pipe)}))
    with pipe.open("wb"):  # opens when the job has opened it
        reported = read_until(port, "/livez", lambda status, _: status == 503)
        assert reported.startswith("the event loop has stood still for")
        assert read_page(port, "/readyz")[0] == 503
    assert read_until(port, "/livez", lambda status, _: status == 200) == "ok\n"
    assert cli("result", "j", "--wait", "30s").out == '"done"\n'
    assert worker.end().code == 0


def test_one_process_exports_the_gauges_of_all_tenants(cli, processes, url):
    for tenant, count in (("acme", 3), ("beta", 2)):
        for _ in range(count):
            cli("enqueue", "x", "-q", "mail", "--tenant", tenant)
    fail(url, queue="mail")
    assert claim(url, queue="mail")
    ports = [free_port() for _ in range(2)]
    options = ("--metrics-port", "--gauges-by-tenant", "beta")
    upkeep = processes.start("maintain", options[0], str(ports[0]), *options[1:])
    upkeep.wait_for("maintenance started")
    text = read_until(ports[0], "/metrics", lambda _, text: "holdfast_queue_jobs{" in text)
    counts = dict.fromkeys(("ready", "scheduled", "leased", "retrying", "failed"), 0)
    for tenant in ("acme", "beta"):
        (found,) = cli("stats", "mail", "--tenant", tenant, "--json").json["queues"]
        counts = {state: number + found["counts"][state] for state, number in counts.items()}
    assert counts == {"ready": 3, "scheduled": 0, "leased": 1, "retrying": 0, "failed": 1}
    for state, number in counts.items():
        assert f'holdfast_queue_jobs{{queue="mail",state="{state}"}} {number}.0' in text
    assert 'holdfast_tenant_jobs{state="ready",tenant="beta"} 2.0' in text
    assert "acme" not in text

    worker = processes.start("worker", "shop", "--queues", "emails", "--all-tenants", options[0], str(ports[1]))
    worker.wait_for("worker started")
    read_until(ports[1], "/readyz", lambda status, _: status == 200)
    assert "holdfast_queue_jobs{" not in read_page(ports[1], "/metrics")[1]
    assert upkeep.end().code == 0
    text = read_until(ports[1], "/metrics", lambda _, text: "holdfast_queue_jobs{" in text)
    assert 'holdfast_queue_jobs{queue="mail",state="ready"} 3.0' in text
    assert worker.end().code == 0


COMFORT = """
import logging
from contextlib import asynccontextmanager
from holdfast import job

log = logging.getLogger("shop.orders")

@asynccontextmanager
async def around(worker):
    log.info("the shop opens")
    yield
    log.info("the shop closes")

@job
def here() -> None:
    log.info("packed here")

@job(executor="process")
def elsewhere() -> None:
    log.info("packed elsewhere")

@job(max_attempts=1)
def broken() -> None:
    raise LookupError("no such shelf")

@job(max_attempts=1, executor="process")
def broken_elsewhere() -> None:
    raise LookupError("no such shelf")
"""


def test_a_worker_has_a_lifespan_and_the_logs_of_the_application_look_like_its_own(cli, place, processes):
    (place / "orders.py").write_text(COMFORT)
    worker = processes.start("worker", "orders", "--lifespan", "orders:around", "--json-logs")
    lines = worker.wait_for("worker started")
    for type_ in ("here", "elsewhere"):
        assert cli("enqueue", type_, "--wait", "30s").code == 0
    lines += worker.wait_for("packed elsewhere")
    answer = worker.end()
    assert answer.code == 0
    said = [json.loads(line) for line in (*lines, *answer.err.splitlines())]
    by_event = {line["event"]: line for line in said}
    assert {"the shop opens", "packed here", "packed elsewhere", "the shop closes"} <= by_event.keys()
    for event in ("the shop opens", "packed here", "packed elsewhere"):
        line = by_event[event]
        assert (line["level"], line["logger"]) == ("info", "shop.orders")
        assert "at" in line
    order = [line["event"] for line in said]
    assert order.index("the shop opens") < order.index("worker started") < order.index("the shop closes")


@pytest.mark.parametrize("type_", ["broken", "broken_elsewhere"])
def test_a_traceback_is_in_the_log_and_in_the_status(cli, place, processes, type_):
    (place / "orders.py").write_text(COMFORT)
    worker = processes.start("worker", "orders", "--json-logs")
    worker.wait_for("worker started")
    assert cli("enqueue", type_, "--id", "b", "--wait", "30s").code == 1
    failed = json.loads(worker.wait_for("job failed")[-1])
    assert "no such shelf" in failed["traceback"]
    assert "orders.py" in failed["traceback"]
    shown = cli("status", "b")
    assert "LookupError: no such shelf" in shown.out
    assert "orders.py" in shown.out
    assert worker.end().code == 0


def test_the_list_of_workers_and_the_metrics_agree_about_running_jobs(cli, place, processes):
    port = free_port()
    pipe = place / "pipe"
    os.mkfifo(pipe)
    worker = processes.start("worker", "shop", "--metrics-port", str(port))
    worker.wait_for("worker started")
    cli("enqueue", "touch_and_wait", "--id", "a", "--payload", json.dumps({"path": str(pipe)}))

    def held():
        (found,) = cli("workers", "--json").json["workers"]
        return found["held"]

    def measured():
        _, text = read_page(port, "/metrics")
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("holdfast_held "))

    with pipe.open("wb"):  # opens when the job has opened it
        comes(held, 1)
        assert measured() == 1
    assert cli("result", "a", "--wait", "30s").code == 0
    comes(held, 0)
    assert measured() == 0
    assert worker.end().code == 0


def comes(look, wanted, within_s=30):
    """Poll until the condition is true."""
    until = time.monotonic() + within_s
    while (found := look()) != wanted:
        assert time.monotonic() < until, found
        time.sleep(0.05)


@pytest.mark.parametrize(
    "args, reason",
    [
        ((), "nothing to run"),
        (("nothing_here",), "there is no module 'nothing_here'"),
        (("shop", "--tenant", "acme", "--all-tenants"), "not both"),
        (("shop", "--handler", "shop"), "write module:function"),
        (("shop", "--lifespan", "shop:collector"), "it is called with the worker"),
        (("shop", "--lease", "1ms"), "lease"),
        (("shop", "--grace", "long"), "is not a duration"),
        (("shop", "-c", "0"), "concurrency"),
        (("shop", "--processes", "0"), "--processes"),
        (("shop", "--queues", "a,,b"), "empty name"),
        (("shop", "--queues", "a b"), "is not allowed"),
        (("shop", "--log-level", "loud"), "log_level"),
        (("shop", "--all-tenants", "--gauges-by-tenant", "acme"), "it needs --metrics-port"),
        (("shop", "--metrics-port", "1", "--gauges-by-tenant", "acme"), "it needs --all-tenants"),
    ],
)
def test_wrong_usage_is_reported_before_any_job_runs(cli, monkeypatch, args, reason):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    answer = cli("worker", *args)
    assert answer.code == 2
    assert reason in answer.err
    assert "Traceback" not in answer.err


def test_a_worker_without_a_tenant_gets_an_error_that_names_both_flags(cli, monkeypatch):
    monkeypatch.delenv("HOLDFAST_TENANT")
    answer = cli("worker", "shop")
    assert answer.code == 2
    assert "pass --tenant, --all-tenants or set HOLDFAST_TENANT" in answer.err


def test_maintain_ends_expired_leases_until_sigterm(cli, processes, place):
    cli("enqueue", "x", "--id", "j", "--max-attempts", "1")
    _lease_briefly(f"file:{place}/data")
    upkeep = processes.start("maintain")
    upkeep.wait_for("maintenance started")
    answer = cli("result", "j", "--wait", "30s", "--json")
    assert answer.json["error"]["reason"] == "lease_expired"
    answer = upkeep.end()
    assert answer.code == 0
    assert "maintenance stopped" in answer.err


def _lease_briefly(url):
    import asyncio

    from holdfast.core.job import ClaimRequest
    from holdfast.opening import open_store

    async def act():
        store = await open_store(url)
        await store.claim(ClaimRequest("acme", ("default",), 1, 1000, "w1"))
        await store.close()

    asyncio.run(act())
