"""How connections are made: the settings, and the connector that uses them.

redis-py's own retries are off: only the caller knows whether a call may run twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

from msgspec import Struct
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import RedisError

from holdfast.stores.redis.address import Host, RedisAddress, Tls, Topology
from holdfast.stores.redis.connection import RedisConnection, pack

NAME = "holdfast"
"""The name of our connections in CLIENT LIST."""


class ConnectionSettings(Struct, frozen=True):
    """Everything needed to connect, from any event loop."""

    shown: str
    """The address for people, without the password."""
    topology: Topology
    hosts: tuple[Host, ...]
    service: str
    connection_class: Any
    """redis-py's class of connection."""
    arguments: dict[str, Any]
    """Its keyword arguments, without host and port."""
    sentinel: dict[str, Any]
    """The keyword arguments of a sentinel's client, without host and port."""
    timeout_s: float
    connect_timeout_s: float
    connections: int
    name: str | None = NAME


def settings_for(address: RedisAddress) -> ConnectionSettings:
    """The settings to connect to an address."""
    arguments = _arguments(address.username, address.password, address.connect_timeout_s) | _tls(address.tls)
    arguments["db"] = address.db
    connection_class: Any = SSLConnection if address.tls else Connection
    if address.topology is Topology.UNIX:
        arguments["path"] = address.path
        connection_class = UnixDomainSocketConnection
    sentinel = _arguments(address.sentinel_username, address.sentinel_password, address.connect_timeout_s)
    sentinel |= _tls(address.tls) | {"ssl": address.tls is not None, "socket_timeout": address.connect_timeout_s}
    return ConnectionSettings(
        shown=address.shown,
        topology=address.topology,
        hosts=address.hosts,
        service=address.service,
        connection_class=connection_class,
        arguments=arguments,
        sentinel=sentinel,
        timeout_s=address.timeout_s,
        connect_timeout_s=address.connect_timeout_s,
        connections=address.connections,
    )


def settings_of_client(
    client: Redis | RedisCluster, *, timeout_s: float = 5, connect_timeout_s: float = 5, connections: int = 32
) -> ConnectionSettings:
    """The settings to connect to the servers of a redis-py client, in the same way. The client is not used."""
    if isinstance(client, RedisCluster):
        given = client.connection_kwargs
        connection_class = given["connection_class"]
        hosts = tuple(Host(str(node.host), int(node.port)) for node in client.startup_nodes)
        topology, service, sentinel = Topology.CLUSTER, "", {}
    else:
        pool = cast("Any", client.connection_pool)
        given = cast("dict[str, Any]", pool.connection_kwargs)
        connection_class, topology, service, sentinel = pool.connection_class, Topology.SINGLE, "", {}
        hosts = (Host(given["host"], int(given["port"])),) if "host" in given else ()
        if isinstance(pool, SentinelConnectionPool):
            connection_class = SSLConnection if issubclass(connection_class, SSLConnection) else Connection
            sentinel_pool = cast("Any", pool)
            manager = sentinel_pool.sentinel_manager
            topology, service = Topology.SENTINEL, str(sentinel_pool.service_name)
            sentinel = dict(manager.sentinel_kwargs)
            hosts = tuple(_host_of(one) for one in manager.sentinels)
    return ConnectionSettings(
        shown=", ".join(map(str, hosts)) or str(given.get("path", "")),
        topology=topology,
        hosts=hosts,
        service=service,
        connection_class=connection_class,
        arguments={name: value for name, value in given.items() if name not in _NOT_COPIED} | _FIXED_ARGUMENTS,
        sentinel=sentinel | {"retry": _no_retry()},
        timeout_s=timeout_s,
        connect_timeout_s=connect_timeout_s,
        connections=connections,
        name=None,
    )


class Connector:
    """Makes connections, for one event loop. With Sentinel it asks for the primary each time."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._sentinels: list[Redis] = []
        self._tls: Any = None

    async def connect(self, host: Host | None = None) -> RedisConnection:
        """A ready connection. Raises redis-py's errors and TimeoutError."""
        try:
            return await self._connect(host)
        except TimeoutError:
            if not issubclass(self._settings.connection_class, SSLConnection):
                raise
            raise ConnectionLost("no answer in TLS; if the server does not use TLS, write redis: in its URL") from None

    async def _connect(self, host: Host | None) -> RedisConnection:
        settings = self._settings
        async with asyncio.timeout(settings.connect_timeout_s):
            opened = self._make(host or await self._locate())
            try:
                await opened.connect()
            except BaseException:
                with contextlib.suppress(Exception):
                    await opened.disconnect(nowait=True)
                raise
            connection = RedisConnection(opened)
            try:
                if settings.name:
                    # A user without the right to set a name works too: the error in the reply is ignored.
                    await connection.exchange(pack("CLIENT", "SETNAME", settings.name), 1, settings.connect_timeout_s)
                if settings.topology is Topology.SENTINEL:
                    await _check_primary(connection, settings.connect_timeout_s)
            except BaseException:
                await connection.abort()
                raise
        return connection

    async def close(self) -> None:
        """Close the connections to sentinels."""
        sentinels, self._sentinels = self._sentinels, []
        for sentinel in sentinels:
            await sentinel.aclose()

    def _make(self, host: Host | None) -> Any:
        place = {} if host is None else {"host": host.name, "port": host.port}
        made = self._settings.connection_class(**self._settings.arguments | place)
        if isinstance(made, SSLConnection):
            # A TLS context reads all certificates of the system on first use: share one between all connections.
            self._tls = made.ssl_context = self._tls or made.ssl_context
        return made

    async def _locate(self) -> Host | None:
        settings = self._settings
        if settings.topology is not Topology.SENTINEL:
            return settings.hosts[0] if settings.hosts else None
        if not self._sentinels:
            self._sentinels = [Redis(host=host.name, port=host.port, **settings.sentinel) for host in settings.hosts]
        reason = "they do not know it"
        for sentinel in list(self._sentinels):
            # redis-py's `discover_master` skips a primary that its sentinel believes to be down, and right after a
            # failover the sentinel believes that of the new primary.
            try:
                found = await cast("Any", sentinel).execute_command(
                    "SENTINEL GET-MASTER-ADDR-BY-NAME", settings.service
                )
            except RedisError as error:
                reason = str(error)
                continue
            if found:
                # Ask this sentinel first the next time.
                self._sentinels.sort(key=lambda one: one is not sentinel)
                return Host(_text(found[0]), int(found[1]))
        raise ConnectionLost(f"no sentinel names a primary for {settings.service!r}: {reason}")


async def _check_primary(connection: RedisConnection, timeout_s: float) -> None:
    """Raise if the server is not a primary: a sentinel's answer may be out of date."""
    role = (await connection.exchange(pack("ROLE"), 1, timeout_s))[0]
    if isinstance(role, list) and role[0] != b"master":
        raise ConnectionLost("Sentinel names a server that is not a primary, or not yet")


def _no_retry() -> Retry:
    return Retry(NoBackoff(), 0)


# `RedisConnection` times replies itself: redis-py's socket_timeout starts a task for each command.
_FIXED_ARGUMENTS: dict[str, Any] = {
    "retry": _no_retry(), "protocol": 2, "socket_timeout": None, "decode_responses": False,
}  # fmt: skip
_NOT_COPIED = {
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


def _arguments(username: str | None, password: str | None, connect_timeout_s: float) -> dict[str, Any]:
    return _FIXED_ARGUMENTS | {
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


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


def _host_of(sentinel: Any) -> Host:
    given = cast("dict[str, Any]", sentinel.connection_pool.connection_kwargs)
    return Host(str(given["host"]), int(given["port"]))
