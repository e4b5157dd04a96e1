"""The worker in a web application, as the how-to says: under a real uvicorn, ended by a real SIGTERM."""

import asyncio
import signal
import subprocess
import sys

import httpx
import pytest

from holdfast import Queue
from holdfast.core.job import JobState
from holdfast.testing.processes import free_port
from tests.docs.test_examples import ROOT, write_files
from tests.eventually import eventually

PAGE = ROOT / "docs" / "howto" / "fastapi.md"
GRACE = "shutdown_grace=10"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize(
    "seconds, grace, state", [(0.5, GRACE, JobState.COMPLETED), (600, "shutdown_grace=0.2", JobState.READY)]
)
def test_sigterm_ends_the_server_and_its_worker_within_the_grace(tmp_path, seconds, grace, state, loop):
    """What runs finishes, or is given back when the grace is over; the server is not left standing."""
    assert write_files(PAGE, tmp_path, GRACE, grace) == ["web.py"]
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "web:app", "--port", str(port), "--loop", loop]
    server = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        found = asyncio.run(start_a_job(f"http://127.0.0.1:{port}/naps/{seconds}", f"file:{tmp_path}/data", server))
        server.send_signal(signal.SIGTERM)
        said, _ = server.communicate(timeout=60)
    finally:
        server.kill()
        server.wait()
    # It has re-raised the signal at its end, as uvicorn does.
    assert server.returncode in (0, -signal.SIGTERM), said
    assert "Finished server process" in said
    record = asyncio.run(look(f"file:{tmp_path}/data", found))
    assert (record.state, record.attempts) == (state, 1 if state is JobState.COMPLETED else 0), said


async def start_a_job(url, store, server):
    """The id of a job once it runs in the server's worker."""

    async def ask():
        assert server.poll() is None
        try:
            return (await client.post(url)).json()
        except httpx.TransportError:
            return None

    async with httpx.AsyncClient() as client:
        id_ = await eventually(ask, patience_s=40, every_s=0.1)
    async with Queue(store, tenant="acme") as queue:
        running = (JobState.LEASED, JobState.COMPLETED)
        await eventually(lambda: queue.get(id_), lambda found: found.state in running, patience_s=40)
    return id_


async def look(store, id_):
    async with Queue(store, tenant="acme") as queue:
        return await queue.get(id_)
