"""A real FoundationDB server for tests, of one process, where its programs are found.

The server is `fdbserver` on the PATH, or what HOLDFAST_FDB_SERVER names; `fdbcli` is beside it or on the PATH. A client
needs the package `fdb` and its library, libfdb_c.
"""

from __future__ import annotations

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

from holdfast.testing.processes import HOST, PATIENCE_S, ChildProcess, ServerError, ServerProcess, on_a_free_port


def missing() -> str:
    """Return what keeps this machine from running a server and a client of it, in a sentence; "" for nothing."""
    try:
        _programs()
    except ServerError as error:
        return str(error)
    if find_spec("fdb") is None:
        return "the package fdb is not installed"
    # In a process of its own: what the package loads stays loaded.
    words = [sys.executable, "-c", "import fdb; fdb.api_version(630)"]
    tried = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    return "" if tried.returncode == 0 else f"libfdb_c cannot be loaded: {tried.stderr.strip().splitlines()[-1]}"


class FdbServer(ServerProcess):
    """A server on a free port of 127.0.0.1, with an empty database in memory. It is ready when this object is made."""

    _log_name = "fdbserver.log"
    _stop_signal = signal.SIGTERM

    def __init__(self, *, port: int | None = None) -> None:
        server, self._cli = _programs()
        self.directory = Path(tempfile.mkdtemp(prefix="holdfast-fdb-"))
        self._command = [server, "-C", self.cluster_file, "-d", str(self.directory / "data"), "-L", str(self.directory)]
        self._child = ChildProcess(self._command, self.directory)
        self._close = weakref.finalize(self, self._child.close)
        try:
            on_a_free_port(port, self._first_start)
            self.command("configure new single memory")
        except BaseException:
            self.close()
            raise

    @property
    def cluster_file(self) -> str:
        """The path of the cluster file."""
        return str(self.directory / "fdb.cluster")

    def command(self, text: str) -> str:
        """Run one command of fdbcli. Raises ServerError if it fails."""
        words = [self._cli, "-C", self.cluster_file, "--exec", text, "--timeout", f"{PATIENCE_S:.0f}"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServerError(f"fdbcli {text!r}: {done.stdout}{done.stderr}")
        return done.stdout

    def _write_settings(self) -> None:
        Path(self.cluster_file).write_text(f"test:test@{HOST}:{self.port}\n")
        self._command[:] = [*self._command[:7], "-p", f"{HOST}:{self.port}"]

    def _is_ready(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0


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
