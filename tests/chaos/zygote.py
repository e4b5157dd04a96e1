"""Worker and other processes that start in milliseconds: a warmed process that forks one for each order.

Run as a program it is the zygote: it reads orders (JSON lines) from its standard input, forks a worker for each, and
writes to its standard output which workers started and which ended, and how. `Zygote` is the other side, for one test.
"""

import asyncio
import contextlib
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def warmed():
    """The process of the zygote. It serves one test after the other: it takes longer to start than many a test."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    command = [sys.executable, "-m", "tests.chaos.zygote"]
    with subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.stdin.close()


class Zygote:
    """The zygote, seen from a test. `async with Zygote(process) as zygote: pid = await zygote.start(...)`."""

    def __init__(self, process):
        self._orders = process.stdin
        self._messages = process.stdout.fileno()
        self._rest = b""
        self._started = asyncio.Queue()
        self._quiet = asyncio.Event()
        self._ends = {}
        self._stops = {}

    async def __aenter__(self):
        asyncio.get_running_loop().add_reader(self._messages, self._read)
        return self

    async def __aexit__(self, *exc):
        """End all live workers and wait for that: the next test must get messages about its own workers only."""
        try:
            self._order({"last": True})
            await asyncio.wait_for(self._quiet.wait(), 30)
            for pid, end in self._ends.items():
                if not end.done():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            for pid in self._ends:
                await self.end(pid)
        finally:
            asyncio.get_running_loop().remove_reader(self._messages)

    async def start(self, url, **order):
        """Start a worker on the store at `url`. Returns its process id. `workers.serve` has the other options."""
        self._order({"url": url, **order})
        return await asyncio.wait_for(self._started.get(), 30)

    async def end(self, pid, timeout_s=30):
        """The worker's exit code, or the number of its signal as a negative number."""
        return await asyncio.wait_for(asyncio.shield(self._ends[pid]), timeout_s)

    async def stopped(self, pid):
        """Wait until the worker is stopped by SIGSTOP."""
        await asyncio.wait_for(self._stops[pid].wait(), 30)

    def has_ended(self, pid):
        return self._ends[pid].done()

    def _order(self, order):
        self._orders.write(json.dumps(order).encode() + b"\n")
        self._orders.flush()

    def _read(self):
        data = os.read(self._messages, 65536)
        if not data:
            asyncio.get_running_loop().remove_reader(self._messages)
            raise EOFError("the zygote has ended")
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._handle(json.loads(line))

    def _handle(self, message):
        if "started" in message:
            self._ends[message["started"]] = asyncio.get_running_loop().create_future()
            self._stops[message["started"]] = asyncio.Event()
            self._started.put_nowait(message["started"])
        elif "stopped" in message:
            self._stops[message["stopped"]].set()
        elif "ended" in message:
            self._ends[message["ended"]].set_result(message["code"])
        else:
            self._quiet.set()


def main():
    # What is imported here is imported once; nothing here may start a thread or open a store. Stores are found by
    # entry point, and in every fork if they were not looked for here.
    from holdfast.opening import make_store
    from tests.chaos import workers

    for url in ("file:.", "redis://nowhere", "postgresql://nowhere"):
        make_store(url)

    # Servers die here on purpose: that a worker waits for one is expected.
    logging.getLogger("holdfast").setLevel(logging.ERROR)
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(reader, selectors.EVENT_READ)
    orders = b""
    while True:
        for key, _ in selector.select():
            if key.fd == reader:
                os.read(reader, 4096)
                _reap_children()
                continue
            data = os.read(0, 65536)
            if not data:
                return
            *lines, orders = (orders + data).split(b"\n")
            for order in map(json.loads, lines):
                if "last" in order:
                    _send(order)
                else:
                    _fork_worker(workers, order)


def _fork_worker(workers, order):
    pid = os.fork()
    if pid:
        _send({"started": pid})
        return
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        asyncio.run(workers.serve(order))
        code = 0
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        os._exit(code)


def _reap_children():
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if not pid:
                return
            if os.WIFSTOPPED(status):
                _send({"stopped": pid})
                continue
            _send({"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _send(message):
    os.write(1, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
