"""Connections: what we use of redis-py's, how they are made, and to whom.

Each is made with redis-py's own retries off: whether a call may run twice is known to its caller alone. The protocol is
RESP2: reading 100 bulk strings took 205 us with it and 240 us with RESP3 here, and it needs no HELLO.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import hiredis
from msgspec import Struct
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import RedisError

from holdfast.stores.redis.address import Address, Host, Kind, Tls
from holdfast.stores.redis.errors import answered

Argument = str | bytes | int | float
_NOT_YET = object()
NAME = "holdfast"
"""What CLIENT LIST calls us."""


class Wire(asyncio.Protocol):
    """A connection that redis-py has made ready, taken over: from here on bytes go straight to hiredis.

    One exchange at a time. Through redis-py and asyncio's streams one on an idle connection took longer. (ADR 6)
    """

    def __init__(self, connection: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader: Any = hiredis.Reader(replyError=answered, notEnoughData=_NOT_YET)
        self._replies: deque[Any] = deque()
        self._wanted = 0
        self._waiting: asyncio.Future[None] | None = None
        self._trouble: Exception | None = None
        self._gone = self._loop.create_future()
        self.at_once: Callable[[Any], bool] | None = None
        """Called with each reply as it comes; what it takes is not read by anybody else."""
        # redis-py hands it out in no other way; from here on it knows of no connection, and has none to close.
        self._writer: asyncio.StreamWriter = connection._writer  # noqa: SLF001
        connection._reader = connection._writer = None  # noqa: SLF001
        self._transport = self._writer.transport
        self._transport.set_protocol(self)

    @property
    def is_quiet(self) -> bool:
        """Whether it can be used: still connected, and nothing came in that nobody asked for."""
        return self._trouble is None and not self._replies and not self._transport.is_closing()

    @property
    def is_connected(self) -> bool:
        return self._trouble is None and not self._transport.is_closing()

    async def exchange(self, packed: bytes, count: int, timeout_s: float) -> list[Any]:
        """Send commands and read as many answers; errors that the server answered with are values among them.

        Raises `Lost`, and TimeoutError; then, and when canceled, it is of no more use.
        """
        self.send(packed)
        await self._wait(count, timeout_s)
        take = self._replies.popleft
        answers = [take() for _ in range(count)]
        for answer in answers:
            if isinstance(answer, Lost):
                raise answer
        return answers

    def send(self, packed: bytes) -> None:
        """Send without waiting. Raises `Lost`."""
        if self._trouble is not None or self._transport.is_closing():
            raise Lost("the connection was lost") from self._trouble
        self._transport.write(packed)

    async def read(self, timeout_s: float) -> Any:
        """The next thing that comes. Raises `Lost`, and TimeoutError."""
        if not self._replies:
            await self._wait(1, timeout_s)
        answer = self._replies.popleft()
        if isinstance(answer, Lost):
            raise answer
        return answer

    async def _wait(self, count: int, timeout_s: float) -> None:
        if len(self._replies) >= count:
            return
        if self._trouble is not None:
            raise Lost("the connection was lost") from self._trouble
        self._wanted = count
        waiting = self._waiting = self._loop.create_future()
        timer = self._loop.call_later(timeout_s, self._time_out)
        try:
            await waiting
        finally:
            timer.cancel()
            self._waiting = None

    def _time_out(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(TimeoutError())

    def data_received(self, data: bytes) -> None:
        """The transport has something."""
        reader, replies = self._reader, self._replies
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not _NOT_YET:
                if self.at_once is None or not self.at_once(reply):
                    replies.append(reply)
        except Exception as error:  # noqa: BLE001 - not the protocol: there is no going on from here
            self._transport.abort()
            self._end(error)
            return
        if self._waiting is not None and len(replies) >= self._wanted and not self._waiting.done():
            self._waiting.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport has ended."""
        self._end(exc or Lost("the server has closed it"))
        if not self._gone.done():
            self._gone.set_result(None)

    def _end(self, error: Exception) -> None:
        self._trouble = self._trouble or error
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(Lost(f"the connection was lost: {error}"))

    async def hang_up(self) -> None:
        """Close without waiting. Does not suspend. Twice is harmless."""
        self._transport.abort()

    async def gone(self) -> None:
        """Wait until it is closed."""
        await self._gone


class Setup(Struct, frozen=True):
    """All that is needed to connect, from any event loop."""

    shown: str
    kind: Kind
    hosts: tuple[Host, ...]
    service: str
    connection: Any
    """redis-py's class of connection ..."""
    settings: dict[str, Any]
    """... and what it is made with, but for host and port."""
    sentinel: dict[str, Any]
    """What a client for a sentinel is made with, but for host and port."""
    timeout_s: float
    connect_timeout_s: float
    connections: int
    name: str | None = NAME


def setup_for(address: Address) -> Setup:
    """How to connect to an address."""
    kinds = {Kind.UNIX: UnixDomainSocketConnection}
    settings = _settings(address.username, address.password, address.connect_timeout_s) | _tls(address.tls)
    settings["db"] = address.db
    if address.kind is Kind.UNIX:
        settings["path"] = address.path
    sentinel = _settings(address.sentinel_username, address.sentinel_password, address.connect_timeout_s)
    sentinel |= _tls(address.tls) | {"ssl": address.tls is not None, "socket_timeout": address.connect_timeout_s}
    return Setup(
        shown=address.shown,
        kind=address.kind,
        hosts=address.hosts,
        service=address.service,
        connection=kinds.get(address.kind, SSLConnection if address.tls else Connection),
        settings=settings,
        sentinel=sentinel,
        timeout_s=address.timeout_s,
        connect_timeout_s=address.connect_timeout_s,
        connections=address.connections,
    )


def setup_of(
    client: Redis | RedisCluster, *, timeout_s: float = 5, connect_timeout_s: float = 5, connections: int = 32
) -> Setup:
    """How to connect to where a client connects, in the same way. The client itself is left alone."""
    if isinstance(client, RedisCluster):
        given = client.connection_kwargs
        connection = given["connection_class"]
        hosts = tuple(Host(str(node.host), int(node.port)) for node in client.startup_nodes)
        kind, service, sentinel = Kind.CLUSTER, "", {}
    else:
        pool = cast("Any", client.connection_pool)
        given = cast("dict[str, Any]", pool.connection_kwargs)
        connection, kind, service, sentinel = pool.connection_class, Kind.SINGLE, "", {}
        hosts = (Host(given["host"], int(given["port"])),) if "host" in given else ()
        if isinstance(pool, SentinelConnectionPool):
            connection = SSLConnection if issubclass(connection, SSLConnection) else Connection
            known = cast("Any", pool)
            manager = known.sentinel_manager
            kind, service, sentinel = Kind.SENTINEL, str(known.service_name), dict(manager.sentinel_kwargs)
            hosts = tuple(_host_of(one) for one in manager.sentinels)
    return Setup(
        shown=", ".join(map(str, hosts)) or str(given.get("path", "")),
        kind=kind,
        hosts=hosts,
        service=service,
        connection=connection,
        settings={name: value for name, value in given.items() if name not in _NOT_OURS} | _ALWAYS,
        sentinel=sentinel | {"retry": _no_retry()},
        timeout_s=timeout_s,
        connect_timeout_s=connect_timeout_s,
        connections=connections,
        name=None,
    )


def pack(*arguments: Argument) -> bytes:
    """A command as it goes over the wire."""
    parts = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        data = argument if type(argument) is bytes else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


class Dialer:
    """Makes connections, for one event loop. With Sentinel it asks each time who is the primary."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._sentinels: list[Redis] = []
        self._tls: Any = None

    async def dial(self, host: Host | None = None) -> Wire:
        """A connection that is ready for use. Raises redis-py's errors, and TimeoutError."""
        setup = self._setup
        try:
            return await self._dial(host)
        except TimeoutError:
            if not issubclass(setup.connection, SSLConnection):
                raise
            raise Lost("it did not answer in TLS; if it speaks none, write redis: in its URL") from None

    async def _dial(self, host: Host | None) -> Wire:
        setup = self._setup
        async with asyncio.timeout(setup.connect_timeout_s):
            connection = self._make(host or await self._locate())
            try:
                await connection.connect()
            except BaseException:
                with contextlib.suppress(Exception):
                    await connection.disconnect(nowait=True)
                raise
            wire = Wire(connection)
            try:
                if setup.name:
                    # A user who may not set a name does without.
                    await wire.exchange(pack("CLIENT", "SETNAME", setup.name), 1, setup.connect_timeout_s)
                if setup.kind is Kind.SENTINEL:
                    await _check_primary(wire, setup.connect_timeout_s)
            except BaseException:
                await wire.hang_up()
                raise
        return wire

    async def close(self) -> None:
        """Let go of the connections to sentinels."""
        sentinels, self._sentinels = self._sentinels, []
        for sentinel in sentinels:
            await sentinel.aclose()

    def _make(self, host: Host | None) -> Any:
        place = {} if host is None else {"host": host.name, "port": host.port}
        wire = self._setup.connection(**self._setup.settings | place)
        if isinstance(wire, SSLConnection):
            # It reads all certificates of the system when it is first used: once is enough for all connections.
            self._tls = wire.ssl_context = self._tls or wire.ssl_context
        return wire

    async def _locate(self) -> Host | None:
        setup = self._setup
        if setup.kind is not Kind.SENTINEL:
            return setup.hosts[0] if setup.hosts else None
        if not self._sentinels:
            self._sentinels = [Redis(host=host.name, port=host.port, **setup.sentinel) for host in setup.hosts]
        trouble = "it is not known there"
        for sentinel in list(self._sentinels):
            # Not by redis-py's `discover_master`: it takes no primary that its sentinel believes to be down, and right
            # after a failover it believes that of the new one.
            try:
                found = await cast("Any", sentinel).execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", setup.service)
            except RedisError as error:
                trouble = str(error)
                continue
            if found:
                # Whoever knows is asked first the next time.
                self._sentinels.sort(key=lambda one: one is not sentinel)
                return Host(_text(found[0]), int(found[1]))
        raise Lost(f"no sentinel names a primary for {setup.service!r}: {trouble}")


async def _check_primary(wire: Wire, timeout_s: float) -> None:
    """Raise if a sentinel sent us to a server that is no primary: what it says may be older than what it did."""
    role = (await wire.exchange(pack("ROLE"), 1, timeout_s))[0]
    if isinstance(role, list) and role[0] != b"master":
        raise Lost("Sentinel names a server that is not a primary, or not yet")


def _no_retry() -> Retry:
    return Retry(NoBackoff(), 0)


# The time for an answer is kept by the link, for all its steps at once: redis-py's own way starts a task per command.
_ALWAYS: dict[str, Any] = {"retry": _no_retry(), "protocol": 2, "socket_timeout": None, "decode_responses": False}
_NOT_OURS = {
    "connection_class",
    "connection_pool",
    "host",
    "maint_notifications_config",
    "maint_notifications_pool_handler",
    "max_connections",
    "port",
    "redis_connect_func",
    "response_callbacks",
}


def _settings(username: str | None, password: str | None, connect_timeout_s: float) -> dict[str, Any]:
    return _ALWAYS | {
        "username": username,
        "password": password,
        "socket_connect_timeout": connect_timeout_s,
        "driver_info": None,
    }


def _tls(tls: Tls | None) -> dict[str, Any]:
    if tls is None:
        return {}
    return {
        "ssl_ca_certs": tls.ca or None,
        "ssl_certfile": tls.cert or None,
        "ssl_keyfile": tls.key or None,
        "ssl_cert_reqs": "required" if tls.verify else "none",
        "ssl_check_hostname": tls.verify,
    }


def _text(word: str | bytes) -> str:
    return word if isinstance(word, str) else word.decode()


def _host_of(sentinel: Any) -> Host:
    given = cast("dict[str, Any]", sentinel.connection_pool.connection_kwargs)
    return Host(str(given["host"]), int(given["port"]))
