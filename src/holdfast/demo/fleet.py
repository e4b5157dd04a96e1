"""The worker processes of the demo. They are restarted when they die, as systemd or Kubernetes would do."""

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
    """A worker ended unexpectedly."""


class Fleet:
    """Real processes, numbered 1 to SIZE. Calls `on_death(worker_id, by_us)` for each one that is killed."""

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
                process.stdin.close()  # This asks the worker to stop; see worker.py.
        await asyncio.wait(self._keepers, timeout=STOP_S)
        for _, process in self._processes.values():
            if process.returncode is None:
                process.kill()
        # `check` has raised their errors already.
        await asyncio.gather(*self._keepers, return_exceptions=True)

    def id_of(self, number: int) -> str:
        """The id of the worker with this number. A restarted worker has a new id."""
        return self._processes[number][0]

    async def kill(self, number: int) -> str:
        """Kill a worker without a chance to clean up. Returns its id."""
        worker_id, process = self._processes[number]
        self._doomed.add(worker_id)
        process.kill()
        await process.wait()
        return worker_id

    def check(self) -> None:
        """Raise the error of a worker, if there is one."""
        for keeper in self._keepers:
            if keeper.done() and not self._stopping:
                keeper.result()

    async def _keep(self, number: int) -> None:
        starts = 0
        while not self._stopping:
            starts += 1
            worker_id = f"worker-{number}.{starts}"
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
                # A separate session: Ctrl-C reaches only the demo, and the demo stops its workers.
                start_new_session=True,
            )  # fmt: skip
        if self._stopping:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        return process
