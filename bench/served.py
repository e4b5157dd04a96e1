"""The servers that are asked over HTTP: ours, and Celery behind FastAPI; each in processes of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench import environments
from bench.load import Form
from bench.measure import cpu_of
from bench.peer import HERE, Gone, running
from holdfast.service.settings import TokenSettings
from holdfast.service.signing import new_secret, sign
from holdfast.testing.processes import children, free_port

PATIENCE = 60
SCOPES = ("produce", "work", "read", "admin")


class Served:
    """A server, and how to ask it."""

    def __init__(self, process: subprocess.Popen, form: Form, token: str = "") -> None:
        self._process = process
        self.form = form
        self.token = token
        self.url = f"http://127.0.0.1:{form.port}"

    def rss(self) -> float:
        """MiB that its processes have in memory together."""
        return sum(map(_rss, self._pids())) / 1024

    def cpu(self) -> float:
        """Seconds of processor time that its processes have used so far."""
        return sum(map(cpu_of, self._pids()))

    def _pids(self) -> list[int]:
        return [self._process.pid, *children(self._process.pid)]


@contextlib.contextmanager
def ours(store: str, processes: int = 1) -> Iterator[Served]:
    key, port = new_secret(), free_port()
    token = sign(TokenSettings(hs256_key=key), tenant="bench", scopes=SCOPES, lifetime_s=86400)
    command = [sys.executable, "-m", "holdfast", "serve", "--store", store, "--port", str(port)]
    # All the load is one tenant's, and comes from here.
    command += ["--max-connections-per-tenant", "0", "--max-connections-per-address", "0"]
    command += ["--max-waits-per-tenant", "0", "--max-streams-per-tenant", "0", "--max-connections", "20000"]
    command += ["--rate-limit-per-tenant", "0", "--change-limit-per-tenant", "0"]
    command += ["--no-access-log", "--processes", str(processes), "--log-level", "warning"]
    with running(command, {**os.environ, "HOLDFAST_JWT_HS256_KEY": key}) as process:
        wait_for(process, port)
        yield Served(process, Form(port, token), token)


@contextlib.contextmanager
def celery(broker: str, processes: int = 1) -> Iterator[Served]:
    port = free_port()
    command = [environments.program("celery", "uvicorn"), "celery_api:app", "--port", str(port), "--no-access-log"]
    command += ["--loop", "uvloop", "--http", "httptools", "--log-level", "warning", "--workers", str(processes)]
    variables = {**environments.variables("celery"), "BENCH_URL": broker, "PYTHONPATH": str(HERE)}
    with running(command, variables) as process:
        wait_for(process, port)
        yield Served(process, Form(port))


def wait_for(process: subprocess.Popen, port: int) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if process.poll() is not None:
            raise Gone(f"the server ended with {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise TimeoutError(f"no server within {PATIENCE} s")


def _rss(pid: int) -> float:
    """KiB."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return float(line.split()[1])
    return 0.0
