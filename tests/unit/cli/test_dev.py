"""`holdfast dev`, as a process: what it prints works, and Ctrl-C ends all of it."""

import json
import re
import shutil
import signal
import socket
import subprocess

import pytest

pytestmark = pytest.mark.usefixtures("no_variables")
CURL = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")


@pytest.fixture
def no_variables(monkeypatch):
    monkeypatch.delenv("HOLDFAST_TENANT")


def greeted(process):
    """The output when it is ready: the address, and the lines to try."""
    lines = [process.stdout.readline() for _ in range(4)]
    assert "Holdfast serves" in lines[0], (lines, process.poll())
    assert "/dashboard" in lines[1], lines
    tries = [process.stdout.readline() for _ in range(3)]
    return lines[0], tries


def ended(process):
    """Send Ctrl-C. Returns standard error."""
    answer = process.end(signal.SIGINT)
    assert answer.code == 0, answer.err
    # A sample job fails on purpose, and the log has its traceback. There is none of ours.
    assert answer.err.count("Traceback") == answer.err.count("samples.py"), answer.err
    return answer.err


def shell(*lines):
    """Run lines as they were printed."""
    done = subprocess.run(["sh", "-c", "\n".join(lines)], check=True, text=True, capture_output=True)
    return [json.loads(text) for text in re.findall(r"\{.*?\}(?=\{|\s*$)", done.stdout)]


@CURL
def test_the_printed_commands_work_and_jobs_survive_a_restart(processes, tmp_path):
    process = processes.start("dev", "--port", "0", cwd=tmp_path)
    first, tries = greeted(process)
    assert "on file:.holdfast, with a worker for tenant dev" in first
    queued, result = shell(*tries)
    assert (queued["status"], queued["id"]) == ("queued", "first")
    assert result == {"state": "completed", "result": "hello, you"}
    assert "sample-broken" in ended(process)
    listed = processes.run(
        "list", "--store", f"file:{tmp_path}/.holdfast", "--tenant", "dev", "-q", "samples", "--json"
    )
    states = {job["id"]: job["state"] for job in listed.json["jobs"]}
    assert (states["first"], states["sample-broken"], states["sample-later"]) == ("completed", "failed", "scheduled")
    again = processes.start("dev", "--port", "0", cwd=tmp_path)
    assert shell(*greeted(again)[1])[0]["status"] == "completed"
    ended(again)


@CURL
def test_dev_can_start_a_valkey_server_that_ends_with_it(processes, tmp_path):
    process = processes.start("dev", "--port", "0", "--store", "valkey", "--tenant", "acme", cwd=tmp_path)
    first, tries = greeted(process)
    assert "for tenant acme" in first
    assert shell(*tries)[1]["result"] == "hello, you"
    assert "redis://:***@127.0.0.1:" in first
    with socket.create_connection(("127.0.0.1", int(re.search(r"\*@127\.0\.0\.1:(\d+)", first)[1]))) as stranger:
        stranger.sendall(b"KEYS *\r\n")
        assert stranger.recv(100).startswith(b"-NOAUTH")
    ended(process)
    ports = [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", first)]
    assert len(ports) == 2
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_a_job_of_the_users_module_runs_and_is_released_at_the_end(processes, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(
        "import asyncio\nfrom holdfast import current_job, job\n\n@job\nasync def stuck():\n"
        "    current_job().log.warning('stuck now')\n    await asyncio.Event().wait()\n"
    )
    process = processes.start("dev", "own", "--port", "0", cwd=tmp_path)
    first, tries = greeted(process)
    monkeypatch.setenv("HOLDFAST_TOKEN", tries[0].partition("=")[2].strip())
    service = re.search(r"http://\S+", first)[0]
    assert processes.run("enqueue", "stuck", "--id", "x", "--store", service, "--tenant", "dev").code == 0
    process.wait_for("stuck now")
    process.send_signal(signal.SIGINT)
    ended(process)
    job = processes.run("status", "x", "--store", f"file:{tmp_path}/.holdfast", "--tenant", "dev", "--json").json
    assert (job["state"], job["attempts"]) == ("ready", 0)


@pytest.mark.parametrize(
    "args, said",
    [
        (["--store", "nonsense"], "not a store URL"),
        (["--tenant", "a/b"], "tenant"),
        (["no_such_module"], "there is no module"),
    ],
)
def test_errors_name_their_reason(processes, tmp_path, args, said):
    answer = processes.run("dev", "--port", "0", *args, cwd=tmp_path)
    assert answer.code == 2, answer.err
    assert said in answer.err
    assert answer.out == ""


def test_a_missing_valkey_server_is_named(processes, tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_VALKEY_SERVER", "/nowhere/valkey-server")
    answer = processes.run("dev", "--port", "0", "--store", "valkey", cwd=tmp_path)
    assert answer.code == 1
    assert "/nowhere/valkey-server" in answer.err
    assert "Traceback" not in answer.err
