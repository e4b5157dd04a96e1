"""The child process of `executor="process"`: it runs one job after the other.

Its main thread runs handlers. A second thread reads the worker's messages, and ends the process as soon as the
worker is gone. SIGTERM raises SystemExit in the running handler, so that it can clean up, and then ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import queue
import runpy
import signal
import socket
import sys
import threading
from functools import partial
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec.structs import replace

from holdfast.core.errors import HoldfastError, UnknownJobType
from holdfast.jobs import codec as codecs
from holdfast.jobs.context import JobContext, active
from holdfast.telemetry import logging
from holdfast.worker import messages, outcome
from holdfast.worker.clients import ChildClients

if TYPE_CHECKING:
    from holdfast.core.job import Progress
    from holdfast.jobs.definition import JobDefinition

_GONE = 70
_ENDED = 128 + signal.SIGTERM


class Child:
    """A child process, seen from inside."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._tasks: queue.SimpleQueue[messages.Task] = queue.SimpleQueue()
        self._running: JobContext | None = None
        self._clients = ChildClients()

    def serve(self) -> NoReturn:
        """Run the worker's tasks until the worker ends."""
        # Ctrl-C reaches the whole process group; the worker decides when its children end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._on_term)
        threading.Thread(target=self._read, name="holdfast child", daemon=True).start()
        while True:
            self._send(self._run(self._tasks.get()))

    def _run(self, task: messages.Task) -> messages.Ending:
        context = JobContext(task.job, on_progress=self._progress, clients=self._clients.at(task.store))
        try:
            try:
                definition = resolve(task.reference, task.main)
            except (AttributeError, ModuleNotFoundError) as error:
                # The files on disk are of another version than the worker: it was deployed since this process started.
                unknown = outcome.unreadable(UnknownJobType(task.job.envelope.type))
                return replace(unknown, error=outcome.describe(error))
            try:
                args, kwargs = definition.load(task.job.envelope)
            except HoldfastError as error:
                return outcome.unreadable(error)
            call = partial(definition.function, *args, **kwargs)
            self._running = context
            with active(context):
                value = asyncio.run(call()) if definition.is_async else call()
            self._running = None
            try:
                return messages.Returned(codecs.encode(value, task.codec))
            except Exception as error:  # noqa: BLE001 - whatever a codec raises, the result cannot be kept
                return outcome.unstorable(error)
        except BaseException as error:  # noqa: BLE001 - also SystemExit is just a failed attempt
            if context.canceled.is_set():
                # The handler was asked to end and has cleaned up. Skip the interpreter's own clean-up: a thread that
                # the handler left behind must not delay the exit.
                _exit(_ENDED)
            self._running = None
            return outcome.raised(error)

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._running is None:
            _exit(_ENDED)
        self._running.canceled.set()
        raise SystemExit(_ENDED)

    def _progress(self, progress: Progress) -> None:
        self._send(messages.Said(progress.fraction, progress.message))

    def _send(self, message: object) -> None:
        with self._sending:
            self._connection.sendall(messages.frame(message))

    def _read(self) -> None:
        while True:
            head = self._receive(messages.HEAD.size)
            self._tasks.put(messages.for_child(self._receive(messages.HEAD.unpack(head)[0])))

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._connection.recv(size - len(data))
            if not part:
                _exit(_GONE)
            data += part
        return bytes(data)


def resolve(reference: str, main: str) -> JobDefinition[..., Any, Any]:
    """The definition at `module:qualname`."""
    module, _, qualname = reference.partition(":")
    if module == "__main__":
        module = _load_main(main)
    found: Any = importlib.import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name)
    return found


def main() -> NoReturn:
    """Serve on the connection whose file descriptor is the last argument. The argument before it sets the log level."""
    if logs := json.loads(sys.argv[-2]):
        logging.configure(json=logs[0], level=logs[1], application=True)
    Child(socket.socket(fileno=int(sys.argv[-1]))).serve()


def _load_main(main: str) -> str:
    """Run the worker's main module under another name, so that its `if __name__ == "__main__"` block does not run."""
    name = "__mp_main__"  # The name that multiprocessing uses, for the same reason.
    if name not in sys.modules:
        module = ModuleType(name)
        run = runpy.run_path if main.endswith(".py") else runpy.run_module
        module.__dict__.update(run(main, run_name=name))
        sys.modules["__main__"] = sys.modules[name] = module
    return name


def _exit(code: int) -> NoReturn:
    # A flush fails inside another flush, if the signal interrupted that.
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
