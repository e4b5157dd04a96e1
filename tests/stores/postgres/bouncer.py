"""A pgbouncer in transaction mode, where the program is installed."""

import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from holdfast.testing.processes import HOST, free_port, rights_of, wait_until

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")

needs_bouncer = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed here")

SETTINGS = """[databases]
* = host={host} port={server}
[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 200
server_login_retry = 1
"""


class Bouncer:
    """A pgbouncer before a server."""

    def __init__(self, server, directory: Path) -> None:
        self.port = free_port()
        self._file = directory / "pgbouncer.ini"
        user = "nobody" if os.geteuid() == 0 else None
        directory.chmod(0o755)
        self._write(server)
        command = [PROGRAM, "-q", str(self._file)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", **rights_of(user)
        )
        wait_until(self._answers, "pgbouncer")

    def _write(self, server) -> None:
        # `auth_type = any` needs the user that logs in at the server.
        settings = SETTINGS.format(host=HOST, server=server.port, port=self.port).replace("* = ", "* = user=postgres ")
        self._file.write_text(settings)

    def lead_to(self, server) -> None:
        """From now on it leads to another server. Its clients stay connected."""
        self._write(server)
        self._process.send_signal(signal.SIGHUP)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url("postgres"), connect_timeout=5).close()
        except psycopg.Error:
            return False
        return True

    def url(self, database, **options):
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"postgresql://postgres@{HOST}:{self.port}/{database}{'?' if query else ''}{query}"

    def close(self):
        self._process.kill()
        self._process.wait()


@contextmanager
def bouncing(server):
    """A pgbouncer before this server."""
    place = Path(tempfile.mkdtemp(prefix="holdfast-bouncer-"))
    bouncer = Bouncer(server, place)
    try:
        yield bouncer
    finally:
        bouncer.close()
        shutil.rmtree(place)
