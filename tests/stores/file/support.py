"""What the tests of the file store share: jobs to put in, wishes to claim, and real processes beside this one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

from holdfast.core.job import ClaimRequest, Envelope, Finish, JobKey, NewJob
from holdfast.opening import open_store

TENANT = "acme"
QUEUE = "mail"
PROGRAM = Path(__file__).with_name("child.py")


def key(id_, *, tenant=TENANT, queue=QUEUE):
    return JobKey(tenant, queue, id_)


def new(id_, payload=b"{}", *, tenant=TENANT, queue=QUEUE, delay_ms=0, **envelope):
    return NewJob(JobKey(tenant, queue, id_), Envelope("send", payload, **envelope), delay_ms)


def wish(limit=10, *, tenant=TENANT, queues=(QUEUE,), worker="w", lease_ms=600_000):
    return ClaimRequest(tenant, queues, limit, lease_ms, worker)


def complete(job, result=None):
    return Finish(job.key, job.token, "complete", result)


def number_of(event):
    """An event's number in the log, which its offset begins with."""
    return int(event.offset.partition(".")[0])


def payload_of(id_):
    """A payload derived from its job's id. Some are too large for the row, and are in `payloads`."""
    return id_.encode() * (300 if sum(id_.encode()) % 4 == 0 else 1)


def open_at(directory, options=""):
    """Open the store in `directory` as a user would, by its URL."""
    return open_store(f"file:{directory}{options}")


@contextlib.asynccontextmanager
async def opened(directory, options=""):
    store = await open_at(directory, options)
    try:
        yield store
    finally:
        await store.close()


def look(directory, query, *arguments):
    """Query the database directly, without the store."""
    with contextlib.closing(sqlite3.connect(f"file:{directory}/holdfast.db?mode=ro", uri=True)) as db:
        return db.execute(query, arguments).fetchall()


def quick_check(directory):
    return look(directory, "PRAGMA quick_check")[0][0]


class Child:
    """A real process that runs one function of child.py. It speaks in lines of JSON."""

    def __init__(self, command, **arguments):
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), command, json.dumps(arguments, default=str)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    @property
    def pid(self):
        return self._process.pid

    def says(self):
        """The next line. Text that the child wrote to stderr is raised as an error."""
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the child ended with {self._process.wait()}: {self._process.stderr.read()}")
        return json.loads(line)

    async def heard(self):
        """The next line, without blocking the event loop."""
        return await asyncio.to_thread(self.says)

    def go_on(self):
        """Let a waiting child continue."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self):
        self._process.send_signal(signal.SIGKILL)
        return self._process.wait()

    def ends(self):
        """Wait for the end, and fail on one that is not clean."""
        code = self._process.wait()
        assert code == 0, f"the child ended with {code}: {self._process.stderr.read()}"

    def dies(self):
        """Wait for the end, which is to be by SIGKILL."""
        code = self._process.wait()
        assert code == -signal.SIGKILL, f"the child ended with {code}: {self._process.stderr.read()}"


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def open_files(directory):
    """The files in the directory that this process has open."""
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # The descriptor of this listing.
            links.append(str(descriptor.readlink()))
    return [link for link in links if link.startswith(str(directory))]


def threads():
    """The threads of file stores in this process."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast-file")]
