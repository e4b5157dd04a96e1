"""SIGKILL of workers and of processes of a cluster, under load; then every job is looked at in the log.

    python -m tests.stores.foundationdb.kills [SECONDS] [SEED] [LAKE]

With a directory for a lake, Spark ingests the log and audits it, and compares with the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from msgspec import Struct

from holdfast import Queue
from holdfast.core.job import JobState
from holdfast.testing.fdb.server import FdbServer
from tests.chaos import ledger
from tests.chaos.killing import drain
from tests.chaos.workers import TENANT, notes, work
from tests.chaos.zygote import Zygote, warmed
from tests.log import all_events

PATIENCE_S = 90.0
"""A cluster that lost several processes one after the other may need a minute on a busy machine."""
PROCESSES, PRODUCERS, CREW, LEASE_S = 3, 2, 3, 3


class Killed(Struct):
    """What was done."""

    jobs: int = 0
    workers: int = 0
    """Kills of workers."""
    servers: int = 0
    """Kills of processes of the cluster."""

    def __str__(self) -> str:
        return f"{self.jobs} jobs, {self.workers} kills of workers, {self.servers} of server processes"


class Kills:
    """A cluster under load, and what happens to it."""

    def __init__(self, server: FdbServer, zygote: Zygote, seed: int, log: str) -> None:
        self.server, self.zygote, self.log = server, zygote, log
        self.url = server.url()
        self.chance = random.Random(seed)
        self.done = Killed()

    async def run(self, seconds: float) -> Killed:
        """Kill for so long, let a healthy worker do the rest, and check that nothing was lost or leased twice."""
        async with Queue(self.url, tenant=TENANT) as queue:
            producers = [
                await self.zygote.start(self.url, role="produce", name=f"p{n}", log=self.log) for n in range(PRODUCERS)
            ]
            crew = [await self._worker() for _ in range(CREW)]
            until = time.monotonic() + seconds
            while time.monotonic() < until or not self.done.servers:
                if self.chance.random() < 0.25:
                    await self._kill_a_server()
                else:
                    await self._kill(crew.pop(self.chance.randrange(CREW)))
                    crew.append(await self._worker())
                await asyncio.sleep(self.chance.uniform(0, 0.5))
            for pid in producers:
                os.kill(pid, signal.SIGTERM)
                await self.zygote.end(pid)
            for pid in crew:
                await self._kill(pid)
            # Something is surely left to do: a worker is ended when it has done it, not while it still starts.
            await queue.enqueue(work.message(self.log), id="last")
            await drain(self.zygote, queue, self.url)
            await self._check(queue)
        return self.done

    async def _worker(self) -> int:
        return await self.zygote.start(self.url, log=self.log, concurrency=4, lease_s=LEASE_S)

    async def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        await self.zygote.end(pid)
        self.done.workers += 1

    async def _kill_a_server(self) -> None:
        """And start it again, so that there is always a majority."""
        node = self.chance.choice(self.server.nodes)
        await asyncio.to_thread(node.kill)
        await asyncio.sleep(self.chance.uniform(0, 3))
        await asyncio.to_thread(node.restart)
        await asyncio.to_thread(self.server.wait, PATIENCE_S)
        self.done.servers += 1

    async def _check(self, queue: Queue) -> None:
        queued = {"last", *(id_ for id_, *_ in notes(self.log, "queued"))}
        # The last job of a producer may be there without its knowledge.
        ids = queued | {event.job_id for event in await all_events(queue.store)}
        assert len(ids - queued) <= PRODUCERS
        jobs = await ledger.check(queue.store, TENANT, sorted(ids))
        effects = {(id_, fence) for id_, _, fence, _ in notes(self.log, "effect")}
        for job in jobs.values():
            assert job.state is JobState.COMPLETED
            assert (job.id, job.token) in effects
        self.done.jobs = len(jobs)


async def main(seconds: str = "60", seed: str = "1", lake: str = "") -> int:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(FdbServer(PROCESSES))
        log = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "log")
        async with Zygote(stack.enter_context(warmed())) as zygote:
            killed = await Kills(server, zygote, int(seed), log).run(float(seconds))
        sys.stdout.write(f"{killed}: 0 lost, 0 leased twice\n")
        if not lake:
            return 0
        for command in ("ingest", "audit"):
            words = [sys.executable, "-m", "holdfast", "pipeline", command, "--store", server.url(), "--lake", lake]
            done = await asyncio.to_thread(subprocess.run, words, check=False)
            if done.returncode:
                return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
