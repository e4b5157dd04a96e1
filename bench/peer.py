"""How a peer is measured: its own worker in processes of its own, and a driver beside it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import environments
from bench.measure import Figures, Server, cpu_of, percentile
from holdfast.testing.processes import free_port

HERE = Path(__file__).parent / "peers"
LOOK = 0.005
PATIENCE = 120


class Gone(Exception):
    """A worker that ended by itself."""


@dataclass(frozen=True)
class Peer:
    """One peer at its best settings."""

    name: str
    environment: str
    driver: tuple[str, ...]
    worker: tuple[str, ...]
    left: Callable[[Any], int]
    """How many jobs are not yet acknowledged (without acknowledgements: not yet taken), asked of a client."""
    settings: str
    lacks: str
    jobs: int
    singles: int = 1_000
    together: int = 5_000
    waits: int = 100
    variables: Mapping[str, str] = field(default_factory=dict)
    idle_worker: tuple[str, ...] = ()
    """With other settings where it is latency that counts."""
    is_empty: Callable[[Any], bool] | None = None
    """The same as no jobs left, where that is cheaper to ask."""
    has_tables: bool = False
    """They are made before anything is measured."""

    @property
    def version(self) -> str:
        """The peer and its driver, as pinned."""
        return ", ".join(environments.PINNED[self.environment])

    def rates(self, figures: Figures, server: Server) -> None:
        """Enqueue, then drain what was enqueued."""
        self._begin(server)
        before = server.cpu()
        for measure, value in self._drive(server, "enqueue", self.jobs, self.singles, self.together).items():
            figures.add(measure, self.name, value)
        jobs = self.left(server.client)
        figures.add("enqueue, server time", self.name, (server.cpu() - before) / jobs * 1e6)
        is_empty = self.is_empty or (lambda client: not self.left(client))
        with (
            tempfile.TemporaryDirectory() as marks,
            self._working(self.worker, server, BENCH_MARKS=marks) as worker,
        ):
            _until(lambda: bool(_marks(marks)), worker)
            before = server.cpu()
            _until(lambda: is_empty(server.client), worker)
            ended, after = time.monotonic(), server.cpu()
            begun = {int(file.name): [float(word) for word in file.read_text().split()] for file in _marks(marks)}
            used = sum(cpu_of(pid) - cpu for pid, (_, cpu) in begun.items())
        seconds = ended - min(began for began, _ in begun.values())
        figures.add("drain", self.name, jobs / seconds)
        figures.add("drain, processor time", self.name, used / jobs * 1e6)
        figures.add("drain, server time", self.name, (after - before) / jobs * 1e6)

    def idle(self, figures: Figures, server: Server) -> None:
        """Latency on an idle queue."""
        self._begin(server)
        worker = self.idle_worker or self.worker
        stamped = {"BENCH_RESULTS": "1", "BENCH_STAMPS": str(free_port())}
        with tempfile.TemporaryDirectory() as marks, self._working(worker, server, BENCH_MARKS=marks, **stamped):
            for measure, values in self._drive(server, "waits", self.waits, **stamped).items():
                for percent in (50, 99):
                    figures.add(f"{measure} p{percent}", self.name, percentile(values, percent))

    def _begin(self, server: Server) -> None:
        server.empty()
        if self.has_tables:
            self._drive(server, "install")

    def _drive(self, server: Server, *arguments: object, **variables: str) -> dict:
        command = [environments.program(self.environment, "python"), *self.driver, *map(str, arguments)]
        done = subprocess.run(
            command,
            cwd=HERE,
            env=self._variables(server, variables),
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            check=True,
            timeout=PATIENCE,
        )
        return json.loads(done.stdout)

    @contextlib.contextmanager
    def _working(self, worker: tuple[str, ...], server: Server, **variables: str) -> Iterator[subprocess.Popen]:
        command = [environments.program(self.environment, worker[0]), *worker[1:]]
        with running(command, self._variables(server, variables)) as process:
            yield process

    def _variables(self, server: Server, more: Mapping[str, str]) -> dict[str, str]:
        mine = {"BENCH_URL": server.url, "PYTHONPATH": str(HERE)}
        return {**environments.variables(self.environment), **mine, **self.variables, **more}


@contextlib.contextmanager
def running(command: list[str], variables: dict[str, str]) -> Iterator[subprocess.Popen]:
    """A process beside this one; what it said last goes with an error that comes meanwhile."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command,
            cwd=HERE,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        except BaseException as error:
            said.seek(0)
            error.add_note(said.read()[-2000:].decode(errors="replace"))
            raise
        finally:
            _stop(process)


def _marks(directory: str) -> list[Path]:
    return [file for file in Path(directory).iterdir() if not file.suffix]


def _until(true: Callable[[], bool], worker: subprocess.Popen) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        if worker.poll() is not None:
            raise Gone(f"its worker ended with {worker.returncode}")
        if time.monotonic() > end:
            raise TimeoutError(f"not within {PATIENCE} s")
        time.sleep(LOOK)


def _stop(process: subprocess.Popen) -> None:
    """By the signal for a clean end, then by force; the session is the process's own, with its children."""
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
