"""The example worker in TypeScript, run by Node as its first lines say."""

import asyncio
import os
import shutil
import signal
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast import Queue, job
from holdfast.core.job import JobState
from tests.service.support import PATIENCE_S, serving, token

EXAMPLES = Path(__file__).parents[2] / "examples"
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(NODE is None, reason="there is no Node here, and the example is for Node 20 or newer")


@job(queue="emails")
async def send_email(to: str, template: str = "welcome") -> str: ...


@job(queue="emails")
async def slow() -> None: ...


@job(queue="emails", max_attempts=1)
async def unheard_of() -> None: ...


@asynccontextmanager
async def working(service, tenant):
    """The worker, with a token that is valid only for work in its queue."""
    bearer = token(tenant, ["work"], queues=["emails"])
    settings = {"HOLDFAST_URL": f"http://127.0.0.1:{service.port}", "HOLDFAST_TOKEN": bearer}
    command = [NODE, "--import", "./strip-types.mjs", "worker.ts", "emails"]
    process = await asyncio.create_subprocess_exec(*command, cwd=EXAMPLES, env={**os.environ, **settings})
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def test_the_example_has_at_most_sixty_lines():
    lines = (EXAMPLES / "worker.ts").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.strip() and not line.startswith("//")]) <= 60


async def test_the_example_works_and_releases_its_jobs_when_it_stops():
    async with serving("memory:example") as service, Queue(f"http://127.0.0.1:{service.port}", token=token()) as queue:
        async with working(service, "acme") as process:
            sent = await queue.enqueue_and_wait(send_email.message("a@example.com"), timeout=PATIENCE_S)
            assert sent == "welcome -> a@example.com"
            bad = await queue.enqueue(unheard_of.message())
            await queue.enqueue(slow.message(), id="held")
            missing = {("failed", bad.id), ("claimed", "held")}
            async for event in queue.events(follow=True):
                missing.discard((event.kind, event.job_id))
                if not missing:
                    break
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
        (dead,) = await queue.dead_letters(queue="emails")
        assert dead.errors[0].message == "no handler for unheard_of"
        held = await queue.get("held", queue="emails")
        assert (held.state, held.attempts) == (JobState.READY, 0)
