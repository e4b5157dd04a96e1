"""`worker --processes N`, as real processes with real signals."""

import json
import os
import shutil
import signal
import subprocess

import pytest

from tests.unit.cli.support import JOBS


@pytest.fixture(autouse=True)
def shop(place):
    (place / "shop.py").write_text(JOBS)


def pids(cli):
    return {worker["pid"] for worker in cli("workers", "--json").json["workers"]}


def test_two_processes_finish_jobs_and_all_exit_with_0_on_sigterm(cli, processes, place, url, monkeypatch):
    monkeypatch.setenv("HOLDFAST_STORE", f"{url}?keep_events=4321")
    supervisor = processes.start("worker", "shop", "--processes", "2", "-c", "1", "--prefetch", "0")
    supervisor.wait_for("worker started", 2)
    for _ in range(100):  # They say so before they have signed on; each look takes a while.
        if len(pids(cli)) == 2:
            break
    assert len(pids(cli)) == 2
    assert supervisor.pid not in pids(cli)
    for pid in pids(cli):
        # A URL may have a password in it, and every user can see the arguments of a process.
        shown = subprocess.run(["ps", "-o", "args=", "-p", str(pid)], check=True, capture_output=True, text=True).stdout
        assert "python" in shown
        assert "4321" not in shown
    for id in ("a", "b"):  # Each holds its process until both run.
        os.mkfifo(place / id)
        cli("enqueue", "touch_and_wait", "--id", id, "--payload", json.dumps({"path": str(place / id)}))
    with (place / "a").open("wb"), (place / "b").open("wb"):
        running = [cli("status", id, "--json").json["worker_id"] for id in ("a", "b")]
    assert len(set(running)) == 2
    for id in ("a", "b"):
        assert cli("result", id, "--wait", "30s").out == '"done"\n'
    answer = supervisor.end()
    assert answer.code == 0
    assert answer.err.count("worker stopped") == 2
    assert pids(cli) == set()


def test_a_process_that_dies_is_started_again_and_its_job_becomes_a_dead_letter(cli, processes):
    supervisor = processes.start("worker", "shop", "--processes", "2", "--lease", "1")
    supervisor.wait_for("worker started", 2)
    before = pids(cli)
    cli("enqueue", "die", "--id", "killer", "--max-attempts", "1")
    said = supervisor.wait_for("worker started")
    assert any("a worker process died" in line and "code=-9" in line for line in said)
    answer = cli("result", "killer", "--wait", "30s", "--json")
    assert answer.json["error"]["reason"] == "lease_expired"
    assert pids(cli) - before
    assert supervisor.end().code == 0


def test_ctrl_c_reaches_the_supervisor_alone_and_jobs_are_finished(cli, processes, place):
    supervisor = processes.start("worker", "shop", "--processes", "2", start_new_session=True)
    supervisor.wait_for("worker started", 2)
    os.mkfifo(place / "pipe")
    cli("enqueue", "touch_and_wait", "--id", "j", "--payload", json.dumps({"path": str(place / "pipe")}))
    with (place / "pipe").open("wb"):
        os.killpg(supervisor.pid, signal.SIGINT)
    assert supervisor.wait() == 0
    assert cli("result", "j").out == '"done"\n'


def test_a_second_signal_does_not_wait_for_running_jobs(cli, processes, place):
    supervisor = processes.start("worker", "shop", "--processes", "2", "--grace", "1h")
    supervisor.wait_for("worker started", 2)
    os.mkfifo(place / "pipe")
    cli("enqueue", "touch_and_wait", "--id", "j", "--payload", json.dumps({"path": str(place / "pipe")}))
    with (place / "pipe").open("wb"):
        supervisor.send_signal(signal.SIGTERM)
        supervisor.wait_for("worker stopped")  # The process that has nothing to do.
        assert supervisor.end().code == 0
    # A thread cannot be stopped: its job is not given back, its lease runs out.
    assert cli("status", "j", "--json").json["state"] == "leased"


def test_when_the_supervisor_is_killed_its_processes_stop(cli, processes):
    supervisor = processes.start("worker", "shop", "--processes", "2")
    supervisor.wait_for("worker started", 2)
    answer = supervisor.end(signal.SIGKILL)  # Reads standard error to its end: until it is closed.
    assert answer.err.count("worker stopped") == 2
    assert pids(cli) == set()


def test_if_the_first_process_cannot_start_its_reason_and_exit_code_are_given_once(processes, place):
    (place / "broken.py").write_text("import nothing_like_it")
    answer = processes.run("worker", "broken", "--processes", "3")
    assert answer.code == 2
    assert answer.err.count("No module named 'nothing_like_it'") == 1
    assert "Traceback" not in answer.err
    shutil.rmtree(place / "data")
    (place / "data").write_text("this is a file")
    answer = processes.run("worker", "shop", "--processes", "3")
    assert answer.code == 1
    assert answer.err.count("Error: ") == 1
