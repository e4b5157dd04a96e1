"""Jobs for workers that run on Spark."""

import os
from collections import Counter

from holdfast.core.job import Envelope, JobKey, NewJob
from tests.log import all_events

# A module that executors get with the task: it is on no path.
JOBS = """
import os, signal
from pathlib import Path
from holdfast import job

@job
def crunch(n: int, place: str) -> int:
    with open(Path(place) / "effects", "a") as file:
        file.write(f"{n}\\n")
    return n

@job
def ask_to_stop(place: str) -> None:
    (Path(place) / "stop").touch()

@job
def end_executor(place: str) -> str:
    # The first time it takes the whole executor with it: the parent of the parent of this process is its Java.
    try:
        (Path(place) / "ended").open("x").close()
    except FileExistsError:
        return "done"
    parent = lambda pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent(os.getppid()), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def write_jobs(folder):
    """A module with these jobs, under a name that is new."""
    module = folder / f"crunching_{os.getpid()}_{abs(hash(folder))}.py"
    module.write_text(JOBS)
    return module


async def fill(store, count, place, more=()):
    envelopes = [Envelope("crunch", b'{"n":%d,"place":"%s"}' % (n, str(place).encode())) for n in range(count)]
    await store.enqueue([
        NewJob(JobKey("acme", "default", f"{envelope.type}-{n}"), envelope)
        for n, envelope in enumerate([*envelopes, *more])
    ])  # fmt: skip


async def endings(store):
    """How often each job was completed, by the log."""
    return Counter(event.job_id for event in await all_events(store) if event.kind == "completed")
