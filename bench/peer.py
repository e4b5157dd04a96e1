"""How a peer on Valkey is measured: its own worker in processes of its own, and a driver beside it."""

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

import redis

from bench import environments
from bench.measure import Figures, percentile
from bench.valkey import Server, cpu_of

HERE = Path(__file__).parent / "peers"
LOOK = 0.005
PATIENCE = 120


@dataclass(frozen=True)
class Peer:
    """One peer at its best settings."""

    name: str
    environment: str
    driver: tuple[str, ...]
    worker: tuple[str, ...]
    left: Callable[[redis.Redis], int]
    """How many jobs are not yet acknowledged (without acknowledgements: not yet taken)."""
    settings: str
    lacks: str
    jobs: int
    singles: int = 1_000
    together: int = 5_000
    waits: int = 100
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """The peer and its driver, as pinned."""
        return ", ".join(environments.PINNED[self.environment])

    def rates(self, figures: Figures, server: Server) -> None:
        """Enqueue, then drain what was enqueued."""
        server.empty()
        before = server.cpu()
        for measure, value in self._drive(server, "enqueue", self.jobs, self.singles, self.together).items():
            figures.add(measure, self.name, value)
        jobs = self.left(server.client)
        figures.add("enqueue, server time", self.name, (server.cpu() - before) / jobs * 1e6)
        with tempfile.TemporaryDirectory() as marks, self._working(server, BENCH_MARKS=marks):
            _until(lambda: bool(_marks(marks)))
            before = server.cpu()
            _until(lambda: not self.left(server.client))
            ended, after = time.monotonic(), server.cpu()
            begun = {int(file.name): [float(word) for word in file.read_text().split()] for file in _marks(marks)}
            used = sum(cpu_of(pid) - cpu for pid, (_, cpu) in begun.items())
        seconds = ended - min(began for began, _ in begun.values())
        figures.add("drain", self.name, jobs / seconds)
        figures.add("drain, processor time", self.name, used / jobs * 1e6)
        figures.add("drain, server time", self.name, (after - before) / jobs * 1e6)

    def idle(self, figures: Figures, server: Server) -> None:
        """Latency on an idle queue."""
        server.empty()
        with tempfile.TemporaryDirectory() as marks, self._working(server, BENCH_MARKS=marks, BENCH_RESULTS="1"):
            for measure, values in self._drive(server, "waits", self.waits, BENCH_RESULTS="1").items():
                for percent in (50, 99):
                    figures.add(f"{measure} p{percent}", self.name, percentile(values, percent))

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
    def _working(self, server: Server, **variables: str) -> Iterator[None]:
        command = [environments.program(self.environment, self.worker[0]), *self.worker[1:]]
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                command,
                cwd=HERE,
                env=self._variables(server, variables),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                yield
            except BaseException as error:
                said.seek(0)
                error.add_note(said.read()[-2000:].decode(errors="replace"))
                raise
            finally:
                _stop(process)

    def _variables(self, server: Server, more: Mapping[str, str]) -> dict[str, str]:
        mine = {"BENCH_URL": server.url, "PYTHONPATH": str(HERE)}
        return {**environments.variables(self.environment), **mine, **self.variables, **more}


def _marks(directory: str) -> list[Path]:
    return [file for file in Path(directory).iterdir() if not file.suffix]


def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
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
