"""A PostgreSQL server whose commits are on the disk, for one queue at a time; and what it used."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Self

import psycopg

from bench.measure import cpu_of
from holdfast.testing.postgres import PostgresServer
from holdfast.testing.processes import children

HERE = Path(__file__).parent / "out"


class Server:
    """The running server: its URL, a client to look at it, and what it used."""

    def __init__(self, **settings: str | int) -> None:
        # Beside the code and not in /tmp, which is memory on many machines: fsync must mean something.
        HERE.mkdir(exist_ok=True)
        self._home = tempfile.TemporaryDirectory(prefix="postgres-", dir=HERE)
        Path(self._home.name).chmod(0o755)  # As root, the server is another user.
        self._server = PostgresServer(directory=Path(self._home.name) / "server", **settings)
        self._client: psycopg.Connection | None = None
        self._databases = 0
        self.url = ""
        self.empty()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._hang_up()
        self._server.close()
        self._home.cleanup()

    @property
    def client(self) -> psycopg.Connection:
        if self._client is None:
            self._client = psycopg.connect(self.url, autocommit=True)
        return self._client

    @property
    def version(self) -> str:
        return self.ask("SHOW server_version")

    def ask(self, text: str, *values: object) -> Any:
        """The one value that this comes to."""
        row = self.client.execute(text, values).fetchone()
        return None if row is None else row[0]

    def cpu(self) -> float:
        """Seconds of processor time so far, of all its processes, those that have ended too."""
        pid = self._server.pid
        living: list[int] | None = None
        used = float("nan")
        # One that ends meanwhile is counted twice or not at all: then once more.
        while living != (now := children(pid)):
            living = now
            used = cpu_of(pid, ended_children=True) + sum(map(cpu_of, living))
        return used

    def cpu_for_others(self) -> float:
        """Seconds of processor time of its processes that serve a connection now, other than ours."""
        ours = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        return sum(cpu_of(pid) for (pid,) in self.client.execute(ours))

    def memory(self) -> int:
        """Bytes on the disk."""
        return self.ask("SELECT pg_database_size(current_database())")

    def empty(self) -> None:
        """As new: another database, at another URL, and nothing of the last one left to be written."""
        self._hang_up()
        self._server.sql(f"DROP DATABASE IF EXISTS bench{self._databases} WITH (FORCE)")
        self._databases += 1
        self._server.sql(f"CREATE DATABASE bench{self._databases}")
        self._server.sql("CHECKPOINT")
        self.url = self._server.url(f"bench{self._databases}")

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
