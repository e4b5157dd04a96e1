"""What all test servers share: a process that never outlives the test process, a free port, and waiting."""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import IO, ClassVar, Self, TypedDict
from urllib.parse import urlencode

HOST = "127.0.0.1"
PATIENCE_S = 30.0

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_PORT_TRIES = 20

# The watchdog reads a pipe. A line ends it; end of file means that the test process is gone. Then the watchdog kills
# the server and its children and removes the files.
_WATCHDOG = """
read -r word && exit 0
kill -9 "$1" $(cat "/proc/$1/task/$1/children" 2>/dev/null || pgrep -P "$1")
eval "$3"
[ -z "$2" ] || rm -rf -- "$2"
"""


class ServerError(Exception):
    """A server that did not start, did not become ready in time, or answered with an error."""


class PortTaken(ServerError):
    """Another process took the port first."""


def free_port() -> int:
    """A port of 127.0.0.1 that no process listens on.

    It is outside the range of ephemeral ports: a client that tries to reach a dead server there would sooner or later
    get the same port as its own, connect to itself, and keep the server from restarting.
    """
    try:
        low = int(_EPHEMERAL.read_text().split()[0])
    except OSError:
        low = 32768
    first, last = (10_000, low - 1) if low > 12_000 else (20_000, 65_535)
    for _ in range(1000):
        port = random.SystemRandom().randint(first, last)
        with socket.socket() as probe, contextlib.suppress(OSError):
            # Otherwise a port is "in use" for a minute after its last connection.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return port
    raise ServerError(f"no free port between {first} and {last}")


def on_a_free_port(port: int | None, start: Callable[[int], None]) -> None:
    """Start on the given port, else on a free one, and on another one if a process took that first."""
    if port is not None:
        start(port)
        return
    for _ in range(_PORT_TRIES):
        with contextlib.suppress(PortTaken):
            start(free_port())
            return
    raise ServerError(f"no free port after {_PORT_TRIES} tries")


def wait_until(look: Callable[[], bool], what: str, patience_s: float = PATIENCE_S, *, every_s: float = 0.02) -> None:
    """Poll until the condition is true. Raises ServerError after `patience_s`."""
    end = time.monotonic() + patience_s
    while not look():
        if time.monotonic() > end:
            raise ServerError(f"{what} was not ready after {patience_s:g} s")
        time.sleep(every_s)


class ChildProcess:
    """A server's process, and a watchdog that ends it when this process is gone, even if it was killed.

    `owned` is a directory that is removed with it. `user` runs it, if this process may choose the user. `sweep` is a
    shell command that removes what a SIGKILL leaves elsewhere.
    """

    def __init__(self, command: list[str], owned: Path | None, *, user: str | None = None, sweep: str = "") -> None:
        self._command = command
        self._owned = owned
        self._user = user
        self._sweep = sweep
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._home = os.getpid()

    @property
    def running(self) -> subprocess.Popen[bytes]:
        """The process. Raises ServerError if it does not run."""
        if self._process is None:
            raise ServerError("the server does not run")
        return self._process

    @property
    def alive(self) -> bool:
        """Whether the process exists."""
        return self._process is not None and self._process.poll() is None

    def start(self, log: Path) -> None:
        """Start the process, and then the watchdog."""
        self.end(signal.SIGKILL)
        with log.open("wb") as output:
            self._process = _spawn(self._command, subprocess.DEVNULL, output, self._user)
        reader, self._pipe = os.pipe()
        _pipes.add(self._pipe)
        owned = str(self._owned or "")
        words = ["/bin/sh", "-c", _WATCHDOG, "watchdog", str(self._process.pid), owned, self._sweep]
        self._watchdog = _spawn(words, reader, subprocess.DEVNULL)
        os.close(reader)

    def end(self, number: signal.Signals) -> None:
        """End the process and wait for it; then end the watchdog. It can be called more than once.

        SIGKILL ends its children, too: a child that lives longer could write what a dead server would not.
        """
        if self._process is None or self._watchdog is None or os.getpid() != self._home:
            return
        if self._process.poll() is None and number is signal.SIGKILL:
            self._kill()
        elif self._process.poll() is None:
            self._process.send_signal(number)
            self.signal(signal.SIGCONT)
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._kill()
        _pipes.discard(self._pipe)
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, b"done\n")
        os.close(self._pipe)
        self._watchdog.wait()
        self._process = self._watchdog = None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children. Raises ServerError if it does not run."""
        _signal([self.running.pid, *children(self.running.pid)], number)

    def stop(self) -> None:
        """Stop the process and its children until a SIGCONT. Raises ServerError if it does not run."""
        _signal(self._still(), signal.SIGSTOP)

    def _still(self) -> list[int]:
        """Stop the process. Returns its children: no others are made while it is stopped."""
        pid = self.running.pid
        self.running.send_signal(signal.SIGSTOP)
        # The signal may arrive during a fork.
        wait_until(lambda: _state(pid) not in ("R", "S", "D"), "the server to stop", every_s=0.001)
        return children(pid)

    def close(self) -> None:
        """End the process, and remove the directory if it is owned."""
        self.end(signal.SIGKILL)
        if os.getpid() != self._home:
            return
        if self._sweep:
            subprocess.run(["/bin/sh", "-c", self._sweep], check=False)
        if self._owned is not None:
            shutil.rmtree(self._owned, ignore_errors=True)

    def _kill(self) -> None:
        family = self._still()
        _signal([self.running.pid, *family], signal.SIGKILL)
        self.running.wait()
        wait_until(lambda: all(map(_is_gone, family)), "the end of the server's children", every_s=0.002)


class ServerProcess(ABC):
    """A server that runs as long as this object: keep a reference to it."""

    _log_name: ClassVar[str]
    """The file name of its log."""
    _stop_signal: ClassVar[signal.Signals]
    """The signal by which an operator ends it."""

    port: int
    directory: Path
    _child: ChildProcess
    _close: Callable[[], object]

    @property
    def pid(self) -> int:
        """The first process of the server. Raises ServerError if it does not run."""
        return self._child.running.pid

    @property
    def alive(self) -> bool:
        """Whether the server exists, running or paused."""
        return self._child.alive

    @property
    def log(self) -> str:
        """The server's log since it was started."""
        return (self.directory / self._log_name).read_text(errors="replace")

    def kill(self) -> None:
        """End all its processes by SIGKILL, and wait for that. What it has not written is lost."""
        self._child.end(signal.SIGKILL)

    def stop(self) -> None:
        """End it as an operator does, and wait for that."""
        self._child.end(self._stop_signal)

    def restart(self) -> None:
        """Stop it if it runs, and start it on the same port and directory."""
        self.stop()
        self._start()

    def pause(self) -> None:
        """Stop all its processes by SIGSTOP: connections stay open without an answer."""
        self._child.stop()

    def resume(self) -> None:
        """Continue it after `pause`."""
        self._child.signal(signal.SIGCONT)

    def close(self) -> None:
        """End it, and remove its directory unless the caller gave it. It can be called more than once."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _first_start(self, port: int) -> None:
        self.port = port
        self._write_settings()
        self._start()

    def _start(self) -> None:
        self._child.start(self.directory / self._log_name)
        wait_until(self._is_up, f"the server on port {self.port}", every_s=0.005)

    def _is_up(self) -> bool:
        if self.alive:
            return self._is_ready()
        log = self.log
        if "Address already in use" in log:
            raise PortTaken(f"port {self.port} is in use")
        raise ServerError(f"the server did not start:\n{log[-2000:]}")

    @abstractmethod
    def _write_settings(self) -> None: ...

    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether the process, which exists, serves clients."""


def children(pid: int) -> list[int]:
    """The living processes that this one has started."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        found = subprocess.run(["/usr/bin/pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout
    return [int(word) for word in found.split()]


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _is_gone(pid: int) -> bool:
    """Whether it has ended. It may stay in the process list until its parent has waited for it."""
    state = _state(pid)
    if state:
        return state in ("Z", "X")
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def _state(pid: int) -> str:
    """The state of a process by its letter in /proc; empty without the process or /proc."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _spawn(command: list[str], stdin: int, output: int | IO[bytes], user: str | None = None) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C and a closed terminal must reach the tests, not their servers.
    return subprocess.Popen(
        command, stdin=stdin, stdout=output, stderr=output, start_new_session=True, text=False, **rights_of(user)
    )


class Rights(TypedDict):
    """The user that runs a program, as arguments of subprocess."""

    user: str | None
    group: int | None
    extra_groups: list[str | int] | None


def rights_of(user: str | None) -> Rights:
    """This user, with none of this process's groups. None: the user of this process."""
    group = None if user is None else pwd.getpwnam(user).pw_gid
    return {"user": user, "group": group, "extra_groups": None if user is None else []}


def with_options(address: str, options: dict[str, str | int]) -> str:
    """The URL of a store with these options."""
    return f"{address}?{urlencode(options)}" if options else address


_pipes: set[int] = set()


def _let_go() -> None:
    """Close the pipes in a fork: with them open, the watchdogs would wait for its end instead."""
    for pipe in _pipes:
        with contextlib.suppress(OSError):
            os.close(pipe)
    _pipes.clear()


os.register_at_fork(after_in_child=_let_go)
