"""A rolling deploy under load: workers of two versions of one application, each a process, replaced one by one.

    python -m tests.chaos.rolling file|valkey|postgres [SECONDS]     deploys, back and forth, for so long
    python -m tests.chaos.rolling worker VERSION URL                 one worker of the old or of the new version

Prints what was done, and fails if
- a job did not complete, or took more than its one attempt, though half of the workers do not know it [RETRY-6]
- a worker that got SIGTERM did not exit with 0
"""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections import Counter

from holdfast import Queue, Worker, job
from holdfast.core.job import JobKey, JobState
from tests.eventually import eventually
from tests.places import PLACES

TENANT = "acme"
WORKERS = 2


def application(version):
    """The jobs of one version. Each has one attempt: an attempt that is counted without a run fails the job."""
    if version == 1:

        @job(name="mail", max_attempts=1)
        async def mail(to: str) -> str:
            await asyncio.sleep(0.02)
            return to

        @job(name="crunch", max_attempts=1)
        def crunch(n: int) -> int:
            time.sleep(0.02)
            return n

        return {"mail": mail, "crunch": crunch}

    @job(name="mail", version=2, max_attempts=1)
    async def new_mail(address: str) -> str:
        await asyncio.sleep(0.02)
        return address

    @new_mail.upcast(1)
    def _(payload: dict) -> dict:
        return {"address": payload["to"]}

    @job(name="crunch", max_attempts=1)
    def crunch(n: int) -> int:
        time.sleep(0.02)
        return n

    @job(name="report", max_attempts=1)
    async def report(n: int) -> int:
        return n

    return {"mail": new_mail, "crunch": crunch, "report": report}


async def work(version, url):
    async with Queue(url, tenant=TENANT) as queue:
        worker = Worker(queue, jobs=list(application(version).values()), concurrency=4, shutdown_grace=20)
        await worker.run()


# The deploys ----------------------------------------------------------------------------------------------------


class Fleet:
    """Worker processes of either version."""

    def __init__(self, url):
        self.url = url
        self.running = []
        self.exits = Counter()

    async def start(self, queue, version):
        """Start a process, and wait until the store lists its worker."""
        command = [sys.executable, "-m", "tests.chaos.rolling", "worker", str(version), self.url]
        process = await asyncio.to_thread(subprocess.Popen, command)
        self.running.append(process)
        await eventually(
            lambda: queue.store.workers(TENANT),
            lambda found: process.pid in [one.pid for one in found],
            patience_s=60,
        )

    async def end(self, process):
        """Send SIGTERM. Returns the exit code."""
        process.send_signal(signal.SIGTERM)
        self.running.remove(process)
        self.exits[await asyncio.to_thread(process.wait, 60)] += 1

    def kill(self):
        for process in self.running:
            process.kill()
            process.wait()


async def produce(queue, stop, tickets):
    """Enqueue jobs of both versions, as their producers do, until stopped."""
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


async def deploy(url, seconds=0.0):
    """Deploy the new version and the old one in turns, at least once. Returns the jobs, and what is wrong."""
    end = time.monotonic() + seconds
    fleet, tickets, stop = Fleet(url), [], asyncio.Event()
    async with Queue(url, tenant=TENANT) as queue:
        try:
            for _ in range(WORKERS):
                await fleet.start(queue, 1)
            producing = asyncio.create_task(produce(queue, stop, tickets))
            version = 1
            while version == 1 or time.monotonic() < end:
                version = 3 - version
                for process in list(fleet.running):
                    await fleet.start(queue, version)
                    await fleet.end(process)
            if version == 1:
                await fleet.start(queue, 2)
            stop.set()
            await producing
            await eventually(queue.stats, is_done, patience_s=180, every_s=0.2)
        finally:
            fleet.kill()
        keys = [JobKey(TENANT, "default", ticket.id) for ticket in tickets]
        found = [one for n in range(0, len(keys), 500) for one in await queue.store.get(keys[n : n + 500])]
        ends = Counter("gone" if one is None else f"{one.state}, attempt {one.attempts}" for one in found)
        released = Counter([event.data.get("reason") async for event in queue.events() if event.kind == "released"])
    figures = {"jobs": len(tickets), "SIGTERM": fleet.exits.total(), "ended": dict(ends), "released": dict(released)}
    wrong = [f"{count} jobs: {what}" for what, count in ends.items() if what != f"{JobState.COMPLETED}, attempt 1"]
    wrong += [f"{count} workers exited with {code}" for code, count in fleet.exits.items() if code != 0]
    # Otherwise nothing was tried.
    wrong += [f"no worker met an {name}" for name in ("unknown_type", "unknown_version") if not released[name]]
    return figures, wrong


def is_done(stats):
    waiting = (JobState.READY, JobState.SCHEDULED, JobState.RETRYING, JobState.LEASED)
    return not any(stats.counts[state] for state in waiting)


def main(kind, seconds="300"):
    with PLACES[kind]() as url:
        figures, wrong = asyncio.run(deploy(url, float(seconds)))
    sys.stdout.write("\n".join([f"{kind}, {seconds} s: {json.dumps(figures)}, {len(wrong)} wrong", *wrong, ""]))
    return bool(wrong)


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        asyncio.run(work(int(sys.argv[2]), sys.argv[3]))
    else:
        sys.exit(main(*sys.argv[1:]))
