"""A rolling deploy under load: workers of two versions side by side, new types, new payload versions, SIGTERM to each.

Invariants verified:
- every job completes, with one attempt, though each has only one and half of the workers do not know it [RETRY-6]
- every worker exits with 0

HOLDFAST_ROLLING_S=600 python -m pytest tests/chaos/test_rolling_deploy.py deploys again and again for so long.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from holdfast import Queue
from holdfast.core.job import JobState
from holdfast.testing.servers import ValkeyServer
from tests.chaos.rolling import TENANT, application
from tests.eventually import eventually

SECONDS = float(os.environ.get("HOLDFAST_ROLLING_S", "0"))
WORKERS = 2


@pytest.fixture(params=["file", "valkey", "postgres"])
def place(request, tmp_path):
    if request.param == "file":
        yield f"file:{tmp_path}/store"
    elif request.param == "valkey":
        with ValkeyServer(directory=tmp_path / "valkey") as server:
            yield server.url()
    else:
        yield request.getfixturevalue("postgres").url(request.getfixturevalue("empty_database"))


class Fleet:
    """Worker processes of either version."""

    def __init__(self, url):
        self.url = url
        self.running = []

    async def start(self, queue, version):
        """Start one, and wait until the store knows it."""
        command = [sys.executable, "-m", "tests.chaos.rolling", str(version), self.url]
        process = await asyncio.to_thread(subprocess.Popen, command)
        self.running.append(process)
        await eventually(
            lambda: queue.store.workers(TENANT),
            lambda found: process.pid in [one.pid for one in found],
            patience_s=60,
        )

    async def end(self, process):
        """SIGTERM, and its exit code."""
        process.send_signal(signal.SIGTERM)
        self.running.remove(process)
        return await asyncio.to_thread(process.wait, 60)

    def kill(self):
        for process in self.running:
            process.kill()
            process.wait()


async def produce(queue, stop, tickets):
    """Jobs of both versions, as producers of both enqueue them, until told to stop."""
    old, new = application(1), application(2)
    n = 0
    while not stop.is_set():
        n += 1
        messages = [
            old["mail"].message(f"old-{n}"), new["mail"].message(f"new-{n}"), new["report"].message(n),
            old["crunch"].message(n),
        ]  # fmt: skip
        tickets += await queue.enqueue_many(messages)
        await asyncio.sleep(0.05)


async def test_every_job_of_a_rolling_deploy_completes(place):
    end = time.monotonic() + SECONDS
    fleet, tickets, stop = Fleet(place), [], asyncio.Event()
    async with Queue(place, tenant=TENANT) as queue:
        try:
            for _ in range(WORKERS):
                await fleet.start(queue, 1)
            producing = asyncio.create_task(produce(queue, stop, tickets))
            version = 1
            while version == 1 or time.monotonic() < end:
                version = 3 - version
                for process in list(fleet.running):
                    await fleet.start(queue, version)
                    assert await fleet.end(process) == 0
            if version == 1:
                await fleet.start(queue, 2)
            stop.set()
            await producing
            await eventually(queue.stats, is_done, patience_s=180, every_s=0.2)
        finally:
            fleet.kill()
        found = [await queue.get(ticket.id) for ticket in tickets]
        assert {(one.state, one.attempts) for one in found} == {(JobState.COMPLETED, 1)}
        reasons = {event.data.get("reason") async for event in queue.events() if event.kind == "released"}
        assert {"unknown_type", "unknown_version"} <= reasons, "no worker met what it does not know"


def is_done(stats):
    waiting = (JobState.READY, JobState.SCHEDULED, JobState.RETRYING, JobState.LEASED)
    return not any(stats.counts[state] for state in waiting)
