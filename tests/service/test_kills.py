"""The server dies by SIGKILL; a client that asks again in the same words has exactly one job. [ENQ-1, ENQ-8]"""

import asyncio
import signal
import sys

import httpx
import pytest

from tests.service.support import Client, serving, token

STEPS = ["service.mid_body", "service.before_enqueue", "service.after_enqueue"]


async def start(url, spec=""):
    """A process, and its port once it serves."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.service.child", url, spec, stdout=asyncio.subprocess.PIPE
    )
    return process, int(await process.stdout.readline())


async def half(body, process):
    """A body whose second half arrives after the service was killed."""
    yield body[:10]
    await process.wait()
    yield body[10:]


@pytest.mark.parametrize("step", STEPS)
async def test_a_client_that_repeats_an_enqueue_has_one_job(tmp_path, step):
    url = f"file:{tmp_path}/store"
    process, port = await start(url, f"{step}:kill")
    bodies = {
        "by id": b'{"id": "x", "queue": "by-id"}',
        "by key": b'{"idempotency_key": "k", "queue": "by-key"}',
        "by request": b'{"request_id": "r", "queue": "by-request"}',
        "batch": b'{"jobs": [{"id": "a", "queue": "batch"}, {"id": "b", "queue": "batch"}]}',
    }
    paths = {"batch": "/v1/jobs:batch"}
    kind = {"content-type": "application/json"}
    async with Client(port, token()) as client:
        sending = [
            client.post(
                paths.get(name, "/v1/jobs"), content=half(body, process) if step == STEPS[0] else body, headers=kind
            )
            for name, body in bodies.items()
        ]
        answers = await asyncio.gather(*sending, return_exceptions=True)
    assert all(isinstance(answer, httpx.TransportError) for answer in answers)
    assert await process.wait() == -signal.SIGKILL
    async with serving(url) as service:
        client = await service.client()
        for name, body in bodies.items():
            answer = await client.post(paths.get(name, "/v1/jobs"), content=body, headers=kind)
            assert answer.status_code in (200, 201)
            if name == "by request":
                assert answer.json()["status"] == "queued"
        counts = {one["queue"]: one["counts"]["ready"] for one in (await client.get("/v1/queues")).json()["queues"]}
        assert counts == {"by-id": 1, "by-key": 1, "by-request": 1, "batch": 2}


async def test_a_server_stops_gracefully(tmp_path):
    process, port = await start(f"file:{tmp_path}/store")
    async with Client(port, token()) as client:
        waiting = asyncio.create_task(client.claim(wait_s=60))
        await client.enqueue(id="x", queue="other")
        process.send_signal(signal.SIGTERM)
        assert await waiting == []
    assert await process.wait() == 0
