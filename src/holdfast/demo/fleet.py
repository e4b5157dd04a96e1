"""The demo's worker processes, restarted when they die, as systemd or Kubernetes would do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Callable
from pathlib import Path
from typing import Self

from holdfast.demo.effects import PATH_VARIABLE

SIZE = 2
CONCURRENCY = 10
STOP_S = 10.0


class WorkerBroke(Exception):
    """A worker ended in a way that is no part of the story."""


class Fleet:
    """Real processes, by the numbers 1 to SIZE. `on_death(worker_id, by_us)` is called for each that is killed."""

    def __init__(self, store: str, directory: Path, lease_s: float, on_death: Callable[[str, bool], None]) -> None:
        self._store = store
        self._lease_s = lease_s
        self._on_death = on_death
        self._log = directory / "workers.log"
        self._environment = {**os.environ, PATH_VARIABLE: str((directory / "effects.log").absolute())}
        self._processes: dict[int, tuple[str, Process]] = {}
        self._doomed: set[str] = set()
        self._stopping = False
        self._keepers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._keepers = [asyncio.create_task(self._keep(number)) for number in range(1, SIZE + 1)]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._stopping = True
        for _, process in self._processes.values():
            if process.stdin is not None:
                process.stdin.close()  # Asks it to end; see worker.py.
        await asyncio.wait(self._keepers, timeout=STOP_S)
        for _, process in self._processes.values():
            if process.returncode is None:
                process.kill()
        # What one of them had to say was said by `check`.
        await asyncio.gather(*self._keepers, return_exceptions=True)

    def id_of(self, number: int) -> str:
        """The worker that has this number now; each life has an id of its own."""
        return self._processes[number][0]

    async def kill(self, number: int) -> str:
        """Kill a worker so that it has no chance to clean up; its id."""
        worker_id, process = self._processes[number]
        self._doomed.add(worker_id)
        process.kill()
        await process.wait()
        return worker_id

    def check(self) -> None:
        """Raise what went wrong with the workers, if anything did."""
        for keeper in self._keepers:
            if keeper.done() and not self._stopping:
                keeper.result()

    async def _keep(self, number: int) -> None:
        life = 0
        while not self._stopping:
            life += 1
            worker_id = f"worker-{number}.{life}"
            process = await self._start(worker_id)
            self._processes[number] = (worker_id, process)
            code = await process.wait()
            if self._stopping:
                return
            if code != -signal.SIGKILL:
                raise WorkerBroke(f"{worker_id} ended with code {code}; see {self._log}")
            self._on_death(worker_id, worker_id in self._doomed)

    async def _start(self, worker_id: str) -> Process:
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "holdfast.demo.worker", self._store, "--id", worker_id,
                "--concurrency", str(CONCURRENCY), "--lease", str(self._lease_s),
                stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log, env=self._environment,
                # A group of its own: Ctrl-C reaches the demo, and the demo ends its workers.
                start_new_session=True,
            )  # fmt: skip
        if self._stopping:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        return process
