"""How a peer is measured: its own worker in processes of its own, and a driver beside it."""

from __future__ import annotations

import contextlib
import json
import math
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
from bench.measure import (
    ALL_CORES,
    CORES,
    CROWD,
    NAPS,
    RECOVERED,
    TEXT,
    WAITING,
    WARM_UP,
    Figures,
    Server,
    add_crowd,
    cpu_of,
    percentile,
)
from holdfast.testing.processes import children, free_port

HERE = Path(__file__).parent / "peers"
LOOK = 0.005
PATIENCE = 120
PROCESSES = "{processes}"
LETTERS = 2_000
LEASES = 10_000


class Gone(Exception):
    """A worker that ended by itself."""


@dataclass(frozen=True)
class Peer:
    """One peer at its best settings."""

    name: str
    environment: str
    driver: tuple[str, ...]
    worker: tuple[str, ...]
    """A command with {processes} starts that many itself; otherwise the benchmark starts several of it."""
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
    recovers: bool = False
    """Its driver knows `recover`."""
    crowded: Mapping[str, str] | None = None
    """Variables that let it run ten jobs at once and none ahead, if small tenants are measured beside a big one."""

    @property
    def version(self) -> str:
        """The peer and its driver, as pinned."""
        return ", ".join(environments.PINNED[self.environment])

    def rates(self, figures: Figures, server: Server) -> None:
        """Enqueue, then drain what was enqueued with one worker process."""
        self._begin(server)
        before = server.cpu()
        for measure, value in self._drive(server, "enqueue", self.jobs, self.singles, self.together).items():
            figures.add(measure, self.name, value)
        used = server.cpu() - before
        figures.add("enqueue, server time", self.name, used / self.left(server.client) * 1e6)
        self._drain(figures, server, "drain", 1)

    def drain_on_all_cores(self, figures: Figures, server: Server) -> None:
        """Drain with as many worker processes as there are cores."""
        self._begin(server)
        self._drive(server, "fill", self.jobs, 0)
        self._drain(figures, server, ALL_CORES, CORES)

    def _drain(self, figures: Figures, server: Server, measure: str, processes: int) -> None:
        jobs = self.left(server.client)
        is_empty = self.is_empty or (lambda client: not self.left(client))
        with (
            tempfile.TemporaryDirectory() as marks,
            self._working(self.worker, server, processes, BENCH_MARKS=marks) as workers,
        ):
            _until(lambda: bool(_marks(marks)), workers)
            before, used = server.cpu(), _used(workers)
            _until(lambda: is_empty(server.client), workers)
            ended, after = time.monotonic(), server.cpu()
            now = _used(workers)
            begun = {int(file.name): [float(word) for word in file.read_text().split()] for file in _marks(marks)}
        # One that has run a job counts from its first; its parents, and what was later, from when the first was seen.
        used |= {pid: cpu for pid, (_, cpu) in begun.items()}
        seconds = ended - min(began for began, _ in begun.values())
        figures.add(measure, self.name, jobs / seconds)
        spent = sum(cpu - used.get(pid, 0.0) for pid, cpu in now.items())
        figures.add(f"{measure}, processor time", self.name, spent / jobs * 1e6)
        figures.add(f"{measure}, server time", self.name, (after - before) / jobs * 1e6)

    def memory(self, figures: Figures, server: Server) -> None:
        """What the server holds more with jobs of a text of 100 characters waiting."""
        self._begin(server)
        self._drive(server, "fill", WARM_UP, TEXT)
        before = server.memory()
        self._drive(server, "fill", LETTERS, TEXT)
        figures.add(WAITING, self.name, (server.memory() - before) / LETTERS)

    def recover(self, figures: Figures, server: Server) -> None:
        """How long it takes to take back 10,000 jobs from workers that are gone."""
        self._begin(server)
        (milliseconds,) = self._drive(server, "recover", LEASES).values()
        figures.add(RECOVERED, self.name, milliseconds)

    def crowd(self, figures: Figures, server: Server) -> None:
        """How soon jobs begin that come while 2,000 of 10 ms wait, ten at once."""
        self._begin(server)
        self._drive(server, "naps", NAPS)
        stamped = {"BENCH_RESULTS": "1", "BENCH_STAMPS": str(free_port()), **(self.crowded or {})}
        with (
            tempfile.TemporaryDirectory() as marks,
            self._working(self.worker, server, BENCH_MARKS=marks, **stamped) as workers,
        ):
            _until(lambda: bool(_marks(marks)), workers)
            (values,) = self._drive(server, "crowd", CROWD, **stamped).values()
        add_crowd(figures, self.name, values)

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
    def _working(
        self, worker: tuple[str, ...], server: Server, processes: int = 1, **variables: str
    ) -> Iterator[list[subprocess.Popen]]:
        command = [environments.program(self.environment, worker[0]), *worker[1:]]
        started = [[word.replace(PROCESSES, str(processes)) for word in command]]
        if PROCESSES not in " ".join(worker):
            started *= processes
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(running(one, self._variables(server, variables))) for one in started]

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


def _used(workers: list[subprocess.Popen]) -> dict[int, float]:
    """Seconds of processor time so far, of these processes and their children."""
    pids = [pid for worker in workers for pid in (worker.pid, *children(worker.pid))]
    return {pid: cpu for pid in pids if not math.isnan(cpu := cpu_of(pid, ended_children=True))}


def _until(true: Callable[[], bool], workers: list[subprocess.Popen]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        for worker in workers:
            if worker.poll() is not None:
                raise Gone(f"its worker ended with {worker.returncode}")
        if time.monotonic() > end:
            raise TimeoutError(f"not within {PATIENCE} s")
        time.sleep(LOOK)


def _stop(process: subprocess.Popen) -> None:
    """By the signal for a clean end, then soon by force: nothing is left to do, and some would wait for ten seconds.

    The session is the process's own, with its children.
    """
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
