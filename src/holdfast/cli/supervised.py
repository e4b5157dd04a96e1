"""One worker process under `holdfast worker --processes N`; see `supervisor` for what the two say to each other."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

import msgspec

from holdfast.cli import told
from holdfast.cli.running import Plan, configure_logs, exit_on_term, work
from holdfast.cli.supervisor import NOW, READY, take_over_stdin
from holdfast.worker import Worker
from holdfast.worker.shutdown import on_signal


class Supervised:
    """A worker that listens to its supervisor, and to signals of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._worker: Worker | None = None
        self._running: asyncio.Task[None] | None = None
        self._signals = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Work by the plan that comes first, until we are told to stop."""
        line = await self._reader.readline()
        if not line:
            return  # The supervisor is gone already.
        plan = msgspec.json.decode(line, type=Plan)
        configure_logs(plan)
        with on_signal(self._on_signal):
            self._running = asyncio.create_task(work(plan, handle_signals=False, on_ready=self._on_ready))
            await asyncio.wait([self._running])
        for task in self._tasks:
            task.cancel()
        self._writer.close()
        if not self._running.cancelled():
            self._running.result()

    def _on_ready(self, worker: Worker) -> None:
        self._worker = worker
        self._writer.write(READY)
        self._start(self._listen())

    async def _listen(self) -> None:
        """Do what the supervisor says; when it is gone, stop."""
        while True:
            try:
                word = await self._reader.readline()
            except OSError:
                word = b""
            self._end(now=word == NOW)
            if not word:
                return

    def _on_signal(self) -> None:
        self._signals += 1
        self._end(now=self._signals > 1)

    def _end(self, *, now: bool) -> None:
        if self._running is not None and (now or self._worker is None):
            # Cancelling hurries: what is held is given back at once. Before there is a worker nothing is held.
            self._running.cancel()
        elif self._worker is not None:
            self._start(self._worker.stop())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _serve() -> None:
    reader, writer = await asyncio.open_connection(sock=take_over_stdin())
    await Supervised(reader, writer).run()


if __name__ == "__main__":
    exit_on_term()
    sys.exit(told(lambda: asyncio.run(_serve())))
