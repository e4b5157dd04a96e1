"""Which server has a key: the only one there is, the primary that Sentinel names, or the node with the key's slot.

redis-py's RedisCluster is not used for this: when a slot is on its way it sends ASKING and the command through
different connections of its pool, and with two of them every such command failed (8.1.0, "TTL exhausted"); and a call
takes a third more CPU time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, Protocol, cast

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AskError
from redis.exceptions import ConnectionError as Lost

from holdfast.stores.redis.address import Host, Kind
from holdfast.stores.redis.connection import Dialer, Setup, Wire, pack
from holdfast.stores.redis.errors import TROUBLES
from holdfast.stores.redis.pool import Pool

REFRESH_S = 0.1
"""The map of slots is asked for at most this often."""


class Route(Protocol):
    """Finds the pool of connections for a key."""

    def group(self, key: bytes) -> int:
        """What can stand in one transaction has the same number."""
        ...

    async def pool(self, key: bytes) -> Pool: ...

    async def redirect(self, error: AskError, *, moved: bool) -> Pool | None:
        """The pool that a server pointed to; None if that makes no sense here."""
        ...

    async def lost(self, pool: Pool) -> None:
        """A connection of this pool broke: trust neither the others nor what is known of the servers."""
        ...

    async def distrust(self) -> None:
        """Trust no connection made so far, to any server. Does not suspend."""
        ...

    async def primaries(self) -> Sequence[tuple[str, Pool]]:
        """Every server that takes writes, by name."""
        ...

    async def dial(self) -> Wire:
        """A connection outside of all pools, to any server that passes on what is published."""
        ...

    async def close(self) -> None: ...


def route_for(setup: Setup) -> Route:
    """The way to find servers of this kind, for one event loop."""
    return Slots(setup) if setup.kind is Kind.CLUSTER else Single(setup)


class Single:
    """One server, or the primary that Sentinel names."""

    def __init__(self, setup: Setup) -> None:
        self._dialer = Dialer(setup)
        self._name = setup.service or ", ".join(map(str, setup.hosts)) or setup.shown
        self._pool = Pool(self._dialer.dial, setup.connections, setup.timeout_s, setup.shown)

    def group(self, key: bytes) -> int:  # noqa: ARG002
        return 0

    async def pool(self, key: bytes) -> Pool:  # noqa: ARG002
        return self._pool

    async def redirect(self, error: AskError, *, moved: bool) -> Pool | None:  # noqa: ARG002
        return None

    async def lost(self, pool: Pool) -> None:
        await pool.drop()

    async def distrust(self) -> None:
        await self._pool.drop()

    async def primaries(self) -> Sequence[tuple[str, Pool]]:
        return [(self._name, self._pool)]

    async def dial(self) -> Wire:
        return await self._dialer.dial()

    async def close(self) -> None:
        await self._pool.close()
        await self._dialer.close()


class Slots:
    """A cluster: a pool for each primary, and a map of slots that is asked for anew when it proves wrong."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._dialer = Dialer(setup)
        self._hosts: list[Host | None] = []
        self._pools: dict[Host, Pool] = {}
        self._stale = True
        self._asked_at = 0.0
        self._lock = asyncio.Lock()

    def group(self, key: bytes) -> int:
        return key_slot(key)

    async def pool(self, key: bytes) -> Pool:
        if self._stale:
            await self._refresh()
        host = self._hosts[key_slot(key)]
        if host is None:
            self._stale = True
            raise Lost(f"no node of the cluster serves slot {key_slot(key)}")
        return self._pool_of(host)

    async def redirect(self, error: AskError, *, moved: bool) -> Pool | None:
        host = Host(cast("str", error.host), error.port)  # pyright: ignore[reportUnknownMemberType]
        if not host.name:  # The server does not know its own name: then it is the one that was asked.
            self._stale = True
            return None
        if moved:
            self._hosts[error.slot_id] = host
            self._stale = True
        return self._pool_of(host)

    async def lost(self, pool: Pool) -> None:
        self._stale = True
        await pool.drop()

    async def distrust(self) -> None:
        self._stale = True
        for pool in self._pools.values():
            await pool.drop()

    async def primaries(self) -> Sequence[tuple[str, Pool]]:
        if self._stale:
            await self._refresh()
        hosts = {host for host in self._hosts if host is not None}
        return [(str(host), self._pool_of(host)) for host in sorted(hosts, key=str)]

    async def dial(self) -> Wire:
        wire, _ = await self._dial_any()
        return wire

    async def close(self) -> None:
        for pool in list(self._pools.values()):
            await pool.close()
        await self._dialer.close()

    def _pool_of(self, host: Host) -> Pool:
        pool = self._pools.get(host)
        if pool is None:
            setup = self._setup
            name = f"{host} of {setup.shown}"
            pool = Pool(lambda: self._dialer.dial(host), setup.connections, setup.timeout_s, name)
            self._pools[host] = pool
        return pool

    async def _refresh(self) -> None:
        """Ask a node which slots are where. One asks for all who wait."""
        async with self._lock:
            loop = asyncio.get_running_loop()
            if not self._stale or (self._hosts and loop.time() < self._asked_at + REFRESH_S):
                return
            wire, asked = await self._dial_any()
            try:
                answer = (await wire.exchange(pack("CLUSTER", "SLOTS"), 1, self._setup.timeout_s))[0]
            finally:
                await wire.hang_up()
            if isinstance(answer, Exception):
                raise answer
            self._hosts = _map(answer, asked)
            self._asked_at = loop.time()
            self._stale = False
            for host in self._pools.keys() - set(self._hosts):
                await self._pools.pop(host).drop()

    async def _dial_any(self) -> tuple[Wire, Host]:
        """A connection to the first node that takes one, known nodes and those of the URL in any order."""
        known = {host for host in self._hosts if host is not None}
        hosts = random.sample(sorted(known, key=str), len(known)) + [h for h in self._setup.hosts if h not in known]
        trouble: BaseException = Lost("no node is known")
        for host in hosts:
            try:
                return await self._dialer.dial(host), host
            except TROUBLES as error:
                trouble = error
        raise trouble


def _map(answer: Any, asked: Host) -> list[Host | None]:
    """CLUSTER SLOTS as a list: slot to primary."""
    hosts: list[Host | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
    for first, last, primary, *_ in answer:
        name = primary[0].decode() if primary[0] else ""
        host = Host(name if name not in ("", "?") else asked.name, int(primary[1]))
        hosts[first : last + 1] = [host] * (last - first + 1)
    return hosts
