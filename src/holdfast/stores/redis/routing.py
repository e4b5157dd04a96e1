"""Which server has a key: the only one, the primary that Sentinel names, or the cluster node that owns the key's slot.

redis-py's RedisCluster is not used here. While a slot moves, it sends ASKING and the command through different
connections of its pool, and with two connections every such command failed (8.1.0, "TTL exhausted"). A call also takes
a third more CPU time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol, cast

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AskError
from redis.exceptions import ConnectionError as ConnectionLost

from holdfast.stores.redis.address import Host, Topology
from holdfast.stores.redis.connection import RedisConnection, pack
from holdfast.stores.redis.connector import ConnectionSettings, Connector
from holdfast.stores.redis.errors import REDIS_ERRORS
from holdfast.stores.redis.pool import ConnectionPool

REFRESH_S = 0.1
"""The shortest time between two requests for the slot map."""


class Router(Protocol):
    """Finds the connection pool for a key."""

    async def pool(self, key: bytes) -> ConnectionPool: ...

    async def redirect(self, error: AskError, *, moved: bool) -> ConnectionPool | None:
        """The pool that a server redirects to; None if there is no such server."""
        ...

    async def connection_lost(self, pool: ConnectionPool) -> None:
        """Drop the pool's other connections, and forget what is known of the servers."""
        ...

    async def drop_connections(self) -> None:
        """Drop every connection made so far, to any server. Does not suspend."""
        ...

    async def primaries(self) -> Sequence[tuple[str, ConnectionPool]]:
        """Every server that accepts writes, by name."""
        ...

    async def connect(self) -> RedisConnection:
        """A connection outside of all pools, to any server that delivers published messages."""
        ...

    async def close(self) -> None: ...


def router_for(settings: ConnectionSettings) -> Router:
    """The router for these settings, for one event loop."""
    return ClusterRouter(settings) if settings.topology is Topology.CLUSTER else SingleRouter(settings)


class SingleRouter:
    """One server, or the primary that Sentinel names."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._connector = Connector(settings)
        self._name = settings.service or ", ".join(map(str, settings.hosts)) or settings.shown
        self._pool = ConnectionPool(self._connector.connect, settings.connections, settings.timeout_s, settings.shown)

    async def pool(self, key: bytes) -> ConnectionPool:  # noqa: ARG002
        return self._pool

    async def redirect(self, error: AskError, *, moved: bool) -> ConnectionPool | None:  # noqa: ARG002
        return None

    async def connection_lost(self, pool: ConnectionPool) -> None:
        await pool.drop_all()

    async def drop_connections(self) -> None:
        await self._pool.drop_all()

    async def primaries(self) -> Sequence[tuple[str, ConnectionPool]]:
        return [(self._name, self._pool)]

    async def connect(self) -> RedisConnection:
        return await self._connector.connect()

    async def close(self) -> None:
        try:
            await self._pool.close()
        finally:
            await self._connector.close()


class ClusterRouter:
    """A cluster: a pool for each primary, and a slot map that is refreshed when it proves wrong."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._connector = Connector(settings)
        self._hosts: list[Host | None] = []
        """The primary of each slot."""
        self._pools: dict[Host, ConnectionPool] = {}
        self._stale = True
        self._refreshed_at = 0.0
        self._lock = asyncio.Lock()

    async def pool(self, key: bytes) -> ConnectionPool:
        if self._stale:
            await self._refresh()
        host = self._hosts[key_slot(key)]
        if host is None:
            self._stale = True
            raise ConnectionLost(f"no node of the cluster serves slot {key_slot(key)}")
        return self._pool_of(host)

    async def redirect(self, error: AskError, *, moved: bool) -> ConnectionPool | None:
        host = Host(cast("str", error.host), error.port)  # pyright: ignore[reportUnknownMemberType]
        if not host.name:  # The node does not know its own name.
            self._stale = True
            return None
        if moved:
            self._hosts[error.slot_id] = host
            self._stale = True
        return self._pool_of(host)

    async def connection_lost(self, pool: ConnectionPool) -> None:
        self._stale = True
        await pool.drop_all()

    async def drop_connections(self) -> None:
        self._stale = True
        for pool in self._pools.values():
            await pool.drop_all()

    async def primaries(self) -> Sequence[tuple[str, ConnectionPool]]:
        if self._stale:
            await self._refresh()
        hosts = {host for host in self._hosts if host is not None}
        return [(str(host), self._pool_of(host)) for host in sorted(hosts, key=str)]

    async def connect(self) -> RedisConnection:
        connection, _ = await self._connect_any()
        return connection

    async def close(self) -> None:
        async with AsyncExitStack() as closing:  # A close that is canceled closes the rest too.
            closing.push_async_callback(self._connector.close)
            for pool in self._pools.values():
                closing.push_async_callback(pool.close)

    def _pool_of(self, host: Host) -> ConnectionPool:
        pool = self._pools.get(host)
        if pool is None:
            settings = self._settings
            name = f"{host} of {settings.shown}"
            pool = ConnectionPool(lambda: self._connector.connect(host), settings.connections, settings.timeout_s, name)
            self._pools[host] = pool
        return pool

    async def _refresh(self) -> None:
        """Read the slot map from any node. Concurrent callers share one request."""
        async with self._lock:
            loop = asyncio.get_running_loop()
            if not self._stale or (self._hosts and loop.time() < self._refreshed_at + REFRESH_S):
                return
            connection, node = await self._connect_any()
            try:
                reply = (await connection.exchange(pack("CLUSTER", "SLOTS"), 1, self._settings.timeout_s))[0]
            finally:
                await connection.abort()
            if isinstance(reply, Exception):
                raise reply
            self._hosts = _slot_map(reply, node)
            self._refreshed_at = loop.time()
            self._stale = False
            for host in self._pools.keys() - set(self._hosts):
                await self._pools.pop(host).drop_all()

    async def _connect_any(self) -> tuple[RedisConnection, Host]:
        """A connection to the first node that accepts one: known nodes in random order, then those of the URL."""
        known = {host for host in self._hosts if host is not None}
        hosts = random.sample(sorted(known, key=str), len(known)) + [h for h in self._settings.hosts if h not in known]
        failure: BaseException = ConnectionLost("no node is known")
        for host in hosts:
            try:
                return await self._connector.connect(host), host
            except REDIS_ERRORS as error:
                failure = error
        raise failure


def _slot_map(reply: Any, node: Host) -> list[Host | None]:
    """The reply to CLUSTER SLOTS as a list: slot to primary. `node` sent it."""
    hosts: list[Host | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
    for first, last, primary, *_ in reply:
        name = primary[0].decode() if primary[0] else ""
        host = Host(name if name not in ("", "?") else node.name, int(primary[1]))
        hosts[first : last + 1] = [host] * (last - first + 1)
    return hosts
