"""What the tests of the command share: answers, processes, and jobs brought into a state."""

import asyncio
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from holdfast.core.job import AttemptError, ClaimRequest, Finish, Result
from holdfast.opening import open_store

COMMAND = (sys.executable, "-m", "holdfast")

JOBS = '''
import gc
import os
import signal
import threading
from holdfast import Permanent, current_job, job

@job(queue="emails")
async def send_email(to: str, template: str = "welcome") -> str:
    if "@" not in to:
        raise Permanent(f"not an address: {to}")
    return f"{template} -> {to}"

@job
def pid() -> int:
    return os.getpid()

@job
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

@job(executor="process")
def pid_elsewhere() -> int:
    return os.getpid()

@job
def collector() -> list[int]:
    return [min(1, gc.get_freeze_count()), gc.get_threshold()[0]]

@job
def big() -> str:
    return "x" * 300_000

@job
def who() -> str:
    return current_job().tenant

@job
def touch_and_wait(path: str) -> str:
    """Report that it runs, and continue until the other end of the pipe is closed."""
    with open(path, "rb") as pipe:
        pipe.read()
    return "done"

def anything(payload):
    return {"got": payload}
'''


@dataclass
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def lines(self):
        return [json.loads(line) for line in self.out.splitlines()]


class Process(subprocess.Popen):
    """A command as a process, its standard error readable line by line."""

    def wait_for(self, text: str, times: int = 1) -> list[str]:
        """Read standard error until this many lines have `text`. Returns everything read."""
        read = []
        while sum(text in line for line in read) < times:
            line = self.stderr.readline()
            if not line:
                raise AssertionError(f"{text!r} did not come; standard error was: {''.join(read)}")
            read.append(line)
        return read

    def end(self, number: int = signal.SIGTERM) -> Answer:
        """Send a signal and wait for the end."""
        self.send_signal(number)
        out, err = self.communicate()
        return Answer(self.returncode, out, err)


class Processes(ExitStack):
    """The processes of one test."""

    def start(self, *args: str, **options) -> Process:
        process = Process(
            [*COMMAND, *args], text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            **options,
        )  # fmt: skip
        self.callback(_end, process)
        return process

    def run(self, *args: str, stdin: str = "", **options) -> Answer:
        done = subprocess.run([*COMMAND, *args], check=False, text=True, input=stdin, capture_output=True, **options)
        return Answer(done.returncode, done.stdout, done.stderr)

    def on_terminal(self, *args: str, until: str | None = None, number: int = signal.SIGINT) -> Answer:
        """Run a command on a terminal of 100 columns; with `until`, send a signal once that text was printed."""
        ours, theirs = pty.openpty()
        env = {**os.environ, "COLUMNS": "100", "LINES": "40", "TERM": "xterm"}
        process = subprocess.Popen([*COMMAND, *args], stdin=theirs, stdout=theirs, stderr=theirs, env=env)
        os.close(theirs)
        read = b""
        # Linux says EIO when the other end is closed.
        with suppress(OSError):
            while select.select([ours], [], [], 60)[0] and (part := os.read(ours, 65536)):
                read += part
                if until is not None and until.encode() in read:
                    process.send_signal(number)
                    until = None
        os.close(ours)
        return Answer(process.wait(), read.decode(), "")


def _end(process: Process) -> None:
    if process.poll() is None:
        process.kill()
    process.communicate()


def claim(url: str, count: int = 1, *, tenant: str = "acme", queue: str = "default", **outcome) -> list[str]:
    """Lease jobs and, with an `outcome`, finish them. Returns their ids."""

    async def act():
        store = await open_store(url)
        try:
            claimed = await store.claim(ClaimRequest(tenant, (queue,), count, 60_000, "w1"))
            if outcome:
                await store.finish([Finish(job.key, job.token, **outcome) for job in claimed.jobs])
            return [job.id for job in claimed.jobs]
        finally:
            await store.close()

    return asyncio.run(act())


def fail(url: str, count: int = 1, *, message: str = "boom", **options) -> list[str]:
    """Make jobs dead letters."""
    return claim(url, count, outcome="fail", error=AttemptError("ValueError", message), **options)


def complete(url: str, count: int = 1, *, result: bytes = b"42", **options) -> list[str]:
    """Complete jobs."""
    return claim(url, count, outcome="complete", result=Result(result), **options)


def read_page(port, path):
    """Status and text of a page on the metrics port."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def read_until(port, path, wanted):
    """Read a page until `wanted(status, text)`; its text."""
    end = time.monotonic() + 60
    while not wanted(*(found := read_page(port, path))):
        assert time.monotonic() < end, found
        time.sleep(0.05)
    return found[1]
