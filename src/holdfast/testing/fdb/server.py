"""Real FoundationDB servers for tests, where their programs are found: one process, or a cluster of several.

    with FdbServer(processes=3) as server:      # each commit is on the disks of two of them
        async with Queue(server.url(prefix="test"), tenant="acme") as queue: ...
        server.nodes[1].kill()                  # SIGKILL
        server.nodes[1].restart()               # the same port, the same data

The server is `fdbserver` on the PATH, or what HOLDFAST_FDB_SERVER names; `fdbcli` is beside it or on the PATH. A client
needs the package `foundationdb` and its library, libfdb_c.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from holdfast.testing.processes import (
    HOST,
    PATIENCE_S,
    ChildProcess,
    PortTaken,
    ServerError,
    ServerProcess,
    free_port,
    wait_until,
    with_options,
)

TRIES = 5


def missing() -> str:
    """Return what keeps this machine from running a server and a client of it, in a sentence; "" for nothing."""
    try:
        _programs()
    except ServerError as error:
        return str(error)
    if find_spec("fdb") is None:
        return "the package foundationdb is not installed"
    # In a process of its own: what the package loads stays loaded.
    words = [sys.executable, "-c", "import fdb; fdb.api_version(630)"]
    tried = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    return "" if tried.returncode == 0 else f"libfdb_c cannot be loaded: {tried.stderr.strip().splitlines()[-1]}"


class FdbProcess(ServerProcess):
    """One process of a server. It is restarted on the same port and data."""

    _log_name = "fdbserver.log"
    _stop_signal = signal.SIGTERM

    def __init__(self, program: str, port: int, directory: Path, cluster: str, listens_on: int | None = None) -> None:
        self.port, self.directory = port, directory
        self._listens_on = listens_on or port
        directory.mkdir(parents=True)
        # A file of its own: servers write it, too.
        file = directory / "fdb.cluster"
        file.write_text(cluster)
        where = ["-p", f"{HOST}:{port}", "-l", f"{HOST}:{self._listens_on}", "-C", str(file)]
        where += ["-d", str(directory / "data"), "-L", str(directory)]
        zone = [f"--locality_machineid={port}", f"--locality_zoneid={port}"]
        self._child = ChildProcess([program, *where, *zone], directory)
        self._close = weakref.finalize(self, self._child.close)
        self._start()

    def _write_settings(self) -> None: ...

    def _is_ready(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self._listens_on)) == 0


class FdbServer:
    """A database in memory, with its log on disk, on free ports of 127.0.0.1. It is ready when this object is made.

    With several processes, all of them are coordinators, and each commit is kept by two. `proxied` is for one behind a
    proxy: the port of the proxy, to which clients are led, and the port on which the process listens.
    """

    def __init__(self, processes: int = 1, *, proxied: tuple[int, int] | None = None) -> None:
        self._program, self._cli = _programs()
        self.nodes: list[FdbProcess] = []
        """The processes."""
        self._directory = tempfile.TemporaryDirectory(prefix="holdfast-fdb-", ignore_cleanup_errors=True)
        try:
            if proxied:
                self._start_on([proxied[0]], "proxied", proxied[1])
            else:
                self._start(processes)
            self.command(f"configure new {'single' if processes == 1 else 'double'} memory")
            self.wait()
        except BaseException:
            self.close()
            raise

    def _start(self, processes: int) -> None:
        for attempt in range(TRIES):
            with contextlib.suppress(PortTaken):
                self._start_on([free_port() for _ in range(processes)], str(attempt))
                return
            self._end()
        raise ServerError(f"no free ports after {TRIES} tries")

    def _start_on(self, ports: list[int], name: str, listens_on: int | None = None) -> None:
        cluster = f"test:test@{','.join(f'{HOST}:{port}' for port in ports)}\n"
        Path(self.cluster_file).write_text(cluster)
        for port in ports:
            place = Path(self._directory.name) / name / str(port)
            self.nodes.append(FdbProcess(self._program, port, place, cluster, listens_on))

    @property
    def cluster_file(self) -> str:
        """The path of the cluster file of clients."""
        return str(Path(self._directory.name) / "fdb.cluster")

    def url(self, **options: str | int) -> str:
        """The address of a store on this server, with these options."""
        return with_options(f"fdb://{self.cluster_file}", options)

    def command(self, text: str) -> str:
        """Run one command of fdbcli. Raises ServerError if it fails."""
        words = [self._cli, "-C", self.cluster_file, "--exec", text, "--timeout", f"{PATIENCE_S:.0f}"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServerError(f"fdbcli {text!r}: {done.stdout}{done.stderr}")
        return done.stdout

    def wait(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until the database answers."""
        what = "the database"
        wait_until(lambda: "database is available" in self.command("status minimal"), what, patience_s, every_s=0.1)

    def close(self) -> None:
        """End all processes and remove their files. It can be called more than once."""
        self._end()
        self._directory.cleanup()

    def _end(self) -> None:
        for node in self.nodes:
            node.close()
        self.nodes.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _programs() -> tuple[str, str]:
    """Return the paths of fdbserver and fdbcli. Raises ServerError."""
    server = os.environ.get("HOLDFAST_FDB_SERVER") or shutil.which("fdbserver")
    if not server:
        raise ServerError("there is no fdbserver on the PATH, and HOLDFAST_FDB_SERVER names none")
    beside = Path(server).with_name("fdbcli")
    cli = str(beside) if beside.exists() else shutil.which("fdbcli")
    if not cli:
        raise ServerError(f"there is no fdbcli beside {server} or on the PATH")
    return server, cli
