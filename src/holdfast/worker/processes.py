"""Child processes for `executor="process"`, one job at a time in each.

In `concurrent.futures`, the death of one child breaks the pool and every job in it. Here it fails one attempt, and the
next job gets a new child.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from holdfast.core.job import AttemptError, Job, Progress
from holdfast.telemetry import logging
from holdfast.worker import messages

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from holdfast.queue.connection import Address

TERM_S = 2.0

_PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from holdfast.worker.child import main; main()"


class Processes:
    """Child processes, started when needed and kept for the next job. Never more than jobs that run at once."""

    def __init__(self, store: Address | None = None) -> None:
        self._store = store
        self._idle: list[_Child] = []

    async def run(
        self, job: Job, reference: str, codec: str, on_progress: Callable[[Progress], None]
    ) -> bytes | messages.Raised:
        """Run a job in a child. A cancel ends the child: by SIGTERM, and 2 s later by SIGKILL."""
        child = self._idle.pop() if self._idle else await _Child.start()
        kept = False
        try:
            main = _main() if reference.startswith("__main__:") else ""
            child.send(messages.Task(reference, codec, job, main, self._store))
            while True:
                message = await child.receive()
                if message is None:
                    return messages.Raised("retry", await child.obituary())
                if isinstance(message, messages.Said):
                    on_progress(Progress(message.fraction, message.message))
                else:
                    kept = True
                    return message.data if isinstance(message, messages.Returned) else message
        finally:
            if kept:
                self._idle.append(child)
            else:
                await child.end()

    async def close(self) -> None:
        """End the idle children."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(child.end() for child in idle))


class _Child:
    """A child process, seen from outside."""

    def __init__(self, process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._gone = asyncio.ensure_future(process.wait())

    @classmethod
    async def start(cls) -> _Child:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", _PROGRAM, json.dumps(_path()), json.dumps(logging.configured),
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL,
                )  # fmt: skip
            except BaseException:
                ours.close()
                raise
        try:
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            process.kill()
            raise
        return cls(process, reader, writer)

    def send(self, message: object) -> None:
        self._writer.write(messages.frame(message))

    async def receive(self) -> messages.Said | messages.Ending | None:
        """The next message. None: the process has ended."""
        reading = asyncio.ensure_future(self._read())
        try:
            await asyncio.wait([reading, self._gone], return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                # The child's last messages may still be in the pipe.
                await asyncio.wait([reading], timeout=0.1)
            return reading.result() if reading.done() else None
        finally:
            reading.cancel()

    async def _read(self) -> messages.Said | messages.Ending | None:
        try:
            size = messages.HEAD.unpack(await self._reader.readexactly(messages.HEAD.size))[0]
            return messages.for_worker(await self._reader.readexactly(size))
        except (EOFError, OSError):
            return None

    async def obituary(self) -> AttemptError:
        """Why the process died."""
        try:
            async with asyncio.timeout(TERM_S):
                code = await asyncio.shield(self._gone)
        except TimeoutError:
            return AttemptError("ProcessDied", "the process closed its connection to the worker")
        return AttemptError("ProcessDied", f"the process running the handler ended with {_cause(code)}")

    async def end(self) -> None:
        """End the process, even if it does not react."""
        try:
            self._signal(signal.SIGTERM)
            await asyncio.wait([self._gone], timeout=TERM_S)
        finally:
            self._signal(signal.SIGKILL)
            self._writer.close()
            await asyncio.wait([self._gone])

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


def _cause(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


def _path() -> list[str]:
    """The module search path for the child: that of this process."""
    return [os.fspath(entry) if entry else os.getcwd() for entry in sys.path]  # noqa: PTH109 - text for JSON


def _main() -> str:
    """The module or file that this program was started from."""
    main: Any = sys.modules["__main__"]
    spec = main.__spec__
    return cast("str", spec.name if spec is not None else os.path.abspath(main.__file__))  # noqa: PTH100
