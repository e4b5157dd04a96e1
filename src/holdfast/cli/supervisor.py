"""`holdfast worker --processes N`: keeps N worker processes running.

Each child holds one end of a socket as its standard input. The supervisor sends the plan, then `stop` (finish or give
back what you hold) or `now` (do not wait for it); the child answers `ready` once. When the supervisor dies, however it
dies, the socket closes and the child stops by itself. Words and not signals, because a process manager may signal
the children too, and to a worker a second signal means `now`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import Process

import msgspec

from holdfast.cli.running import Plan
from holdfast.telemetry.logging import get_logger
from holdfast.worker.shutdown import on_signal

STOP, NOW, READY = b"stop\n", b"now\n", b"ready\n"

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
STEADY_S = 10.0
"""A child that lived for so long is started again at once; others wait, twice as long each time."""
LAST_WORD_S = 1.0
OVERTIME_S = 15.0
"""How much longer than its grace a child may take to end before it is killed."""

_log = get_logger("holdfast.cli")


async def supervise(plan: Plan, processes: int) -> int:
    """Keep so many workers running until a signal. Returns the exit code."""
    return await Supervisor(plan, processes).run()


class Supervisor:
    """The first child is started alone: if it cannot start, its exit code is ours, and nothing else is tried."""

    def __init__(self, plan: Plan, processes: int) -> None:
        self._plan = plan
        self._processes = processes
        self._children: set[Child] = set()
        self._proved = asyncio.Event()
        self._stopping = asyncio.Event()
        self._hurried = False
        self._code = 0

    async def run(self) -> int:
        """Start the children, and start again whichever dies, until a signal. Returns the exit code."""
        with on_signal(self._on_signal):
            async with asyncio.TaskGroup() as group:
                first = group.create_task(self._keep(0))
                proved = group.create_task(self._proved.wait())
                await asyncio.wait([first, proved], return_when=asyncio.FIRST_COMPLETED)
                proved.cancel()
                for number in range(1, self._processes) if not self._stopping.is_set() else ():
                    group.create_task(self._keep(number))
        return self._code

    def _on_signal(self) -> None:
        self._hurried = self._stopping.is_set()
        self._stop()

    def _stop(self) -> None:
        self._stopping.set()
        for child in self._children:
            child.say(NOW if self._hurried else STOP)

    async def _keep(self, number: int) -> None:
        """Have one child running, until we stop."""
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE_S
        while not self._stopping.is_set():
            started = loop.time()
            code = await self._live(number)
            if self._stopping.is_set():
                self._code = self._code or int(code != 0)
            elif not self._proved.is_set():
                # It has said why on standard error.
                self._code = code if code > 0 else 1
                self._stop()
            else:
                pause = 0.0 if loop.time() - started >= STEADY_S else pause
                _log.warning("a worker process ended, and is started again", ended_with=_cause(code), pause_s=pause)
                await self._rest(pause)
                pause = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * pause))

    async def _live(self, number: int) -> int:
        """The life of one child. Returns its exit code."""
        try:
            child = await Child.start(self._plan_of(number))
        except OSError as error:
            _log.error("a worker process could not be started", error=error)
            return 1
        self._children.add(child)
        if self._stopping.is_set():
            child.say(STOP)
        proving = asyncio.ensure_future(self._prove(child))
        try:
            code = await child.ended(self._stopping, self._plan.grace_s + OVERTIME_S)
            # What it said last may still be in the socket.
            await asyncio.wait([proving], timeout=LAST_WORD_S)
            return code
        finally:
            proving.cancel()
            self._children.discard(child)
            await child.close()

    async def _prove(self, child: Child) -> None:
        if await child.ready():
            self._proved.set()

    def _plan_of(self, number: int) -> Plan:
        port = self._plan.metrics_port
        return self._plan if port is None else msgspec.structs.replace(self._plan, metrics_port=port + number)

    async def _rest(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._stopping.wait()
        except TimeoutError:
            pass


class Child:
    """A worker process, seen from outside."""

    def __init__(self, process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, plan: Plan) -> Child:
        """Start a process and send it the plan: not by its arguments, where `ps` would show a password."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # A session of its own: Ctrl-C goes to us alone.
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "holdfast.cli.supervised", stdin=theirs.fileno(), start_new_session=True
                )
            except BaseException:
                ours.close()
                raise
        reader, writer = await asyncio.open_connection(sock=ours)
        child = cls(process, reader, writer)
        child.say(msgspec.json.encode(plan) + b"\n")
        return child

    def say(self, word: bytes) -> None:
        """Tell the child something. One that is dead does not hear it."""
        if not self._writer.is_closing():
            self._writer.write(word)

    async def ready(self) -> bool:
        """Whether the child got as far as working; False once it is dead."""
        try:
            return await self._reader.readline() == READY
        except OSError:
            return False

    async def ended(self, stopping: asyncio.Event, patience_s: float) -> int:
        """Wait for its end; once `stopping` is set, no longer than `patience_s`. Returns the exit code."""
        gone = asyncio.ensure_future(self._process.wait())
        stop = asyncio.ensure_future(stopping.wait())
        try:
            await asyncio.wait([gone, stop], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([gone], timeout=patience_s)
            if not gone.done():
                _log.error("a worker process did not end in time, and is killed", pid=self._process.pid)
                self._process.kill()
            return await gone
        finally:
            stop.cancel()

    async def close(self) -> None:
        """Let go of the socket, and of a process that still runs because we were interrupted."""
        self._writer.close()
        if self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()


def take_over_stdin() -> socket.socket:
    """In the child: the socket to the supervisor. Standard input is empty from here on."""
    connection = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return connection


def _cause(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return f"signal {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"signal {-code}"
