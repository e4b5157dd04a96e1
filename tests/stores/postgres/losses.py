"""The ways in which a server loses what it has acknowledged last, each with the rest of the world going on."""

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from holdfast.testing.postgres import UNPRIVILEGED, PostgresServer
from holdfast.testing.processes import ServerError
from tests.eventually import eventually


class Losing(PostgresServer):
    """A server with synchronous_commit=off that loses, when it crashes, all that came after `hold`."""

    def __init__(self, **settings):
        super().__init__(synchronous_commit=False, **settings)
        self._writer = 0

    def hold(self) -> None:
        """From now on nothing gets to the disk. The sequences are at the point where they would have to be logged."""
        self.sql("CHECKPOINT")
        self._writer = _writer(self)
        os.kill(self._writer, signal.SIGSTOP)

    async def lose(self) -> None:
        """One process of the server is killed, and the server recovers by itself. Its start time stays the same."""
        await crashed(self, self._writer, self._writer)


async def crashed(server, pid: int, writer: int = 0) -> None:
    """Kill this process of the server; return when the server has recovered by itself and answers.

    It answers for a moment longer, until it has noticed. So the process that writes its log must be another one.
    """
    writer = writer or await asyncio.to_thread(_writer, server)
    os.kill(pid, signal.SIGKILL)
    # In a thread: what was acknowledged before the crash is heard before this returns.
    await eventually(lambda: asyncio.to_thread(_writer, server), lambda found: found not in (0, writer), patience_s=60)
    await answers(server)


def _writer(server) -> int:
    """The process that writes the server's log; 0: the server does not answer."""
    try:
        return int(server.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")[0][0])
    except Exception:  # noqa: BLE001 - whatever it says while it is not there
        return 0


async def answers(server) -> None:
    await eventually(lambda: asyncio.to_thread(_answers, server), patience_s=60)


def _answers(server) -> bool:
    try:
        return server.sql("SELECT NOT pg_is_in_recovery()") == [["t"]]
    except Exception:  # noqa: BLE001 - whatever it says while it is not there
        return False


class Standby:
    """A standby that has got nothing since it was made, as an asynchronous one may."""

    def __init__(self, primary) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="holdfast-standby-"))
        data = self._directory / "data"
        command = [str(primary._bin / "pg_basebackup"), "-D", str(data), "-d", primary.url(), "-X", "stream"]
        subprocess.run([*command, "--checkpoint=fast", "--no-sync"], check=True, capture_output=True)
        (data / "standby.signal").touch()
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", UNPRIVILEGED, str(self._directory)], check=True)
        self._server = None

    async def take_over(self, port=None) -> PostgresServer:
        """Become the primary, at this port."""
        self._server = await asyncio.to_thread(PostgresServer, directory=self._directory, port=port)
        self._server.sql("SELECT pg_promote()")
        await answers(self._server)
        return self._server

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def dump(server, *flags) -> str:
    command = [str(server._bin / "pg_dump"), "--schema=holdfast", *flags, server.url()]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _dropped(server) -> bool:
    try:
        server.sql("SET lock_timeout = '5s'; DROP SCHEMA holdfast CASCADE")
    except ServerError:  # A deadlock, or no lock: it wants every table, and the others are at work.
        return False
    return True


async def restore(server, text) -> None:
    """Load a dump in place of what is there, as psql does: statement by statement, with all clients connected."""
    await eventually(lambda: asyncio.to_thread(_dropped, server), patience_s=60)
    command = [str(server._bin / "psql"), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", server.url()]
    program = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _, errors = await program.communicate(text.encode())
    assert program.returncode == 0, errors.decode()
