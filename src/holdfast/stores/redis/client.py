"""The client: every command of the store is sent here, and every error becomes one of Holdfast's.

A script runs by its hash, and by its text if the server does not know the hash. The caller decides with `repeat`
whether a call may be sent again after a lost connection. After a timeout nothing is sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol, Self

from redis.asyncio import Redis, RedisCluster
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, NoScriptError, ReadOnlyError, ResponseError
from redis.exceptions import TryAgainError as TryAgain

from holdfast.core.errors import StoreError
from holdfast.stores.redis.address import RedisAddress, Topology
from holdfast.stores.redis.connection import Argument, RedisConnection, pack
from holdfast.stores.redis.connector import ConnectionSettings, settings_for, settings_of_client
from holdfast.stores.redis.errors import REDIS_ERRORS, is_lost, translate
from holdfast.stores.redis.pool import ConnectionPool
from holdfast.stores.redis.routing import Router, router_for

RETRY_S = 0.05
"""How long to wait before a call is sent again."""

MAX_REDIRECTS = 8
"""How many redirections of a cluster to follow for one call."""


class LuaScript(Protocol):
    """The text of a Lua script, and its SHA-1 in hex."""

    @property
    def sha(self) -> str: ...
    @property
    def text(self) -> str: ...


class RedisClient:
    """One store handle's connections to a server or cluster, for one event loop. Connects on first use."""

    def __init__(self, address: RedisAddress | ConnectionSettings) -> None:
        self._settings = address if isinstance(address, ConnectionSettings) else settings_for(address)
        self._router: Router = router_for(self._settings)

    @classmethod
    def of_redis_py(
        cls, client: Redis | RedisCluster, *, timeout_s: float = 5, connect_timeout_s: float = 5, connections: int = 32
    ) -> Self:
        """A client with the address and the credentials of a redis-py client, which is neither used nor closed.

        The connections are our own: redis-py sends lost calls again, and not every call may run twice.
        """
        settings = settings_of_client(
            client, timeout_s=timeout_s, connect_timeout_s=connect_timeout_s, connections=connections
        )
        return cls(settings)

    @property
    def shown(self) -> str:
        """The server's address for people, without the password."""
        return self._settings.shown

    @property
    def connections(self) -> int:
        """The most connections to one server."""
        return self._settings.connections

    @property
    def timeout_s(self) -> float:
        """How long to wait for a reply."""
        return self._settings.timeout_s

    @property
    def is_cluster(self) -> bool:
        return self._settings.topology is Topology.CLUSTER

    def sibling(self) -> RedisClient:
        """A client for the same address and another event loop."""
        return RedisClient(self._settings)

    async def open(self) -> None:
        """Check that the server answers and accepts our credentials. Raises StoreUnavailable."""
        await self.command(b"", "PING", repeat=True)

    async def close(self) -> None:
        """Close every connection. Calls in flight fail. Closing twice is harmless."""
        await self._router.close()

    async def run(
        self,
        script: LuaScript,
        key: str | bytes,
        args: Sequence[Argument],
        *,
        repeat: bool,
        subscribers_first: bool = False,
    ) -> Any:
        """Run a script on the server that has `key`.

        `repeat`: running it twice has the effect of running it once, so a lost connection is tried once more.
        `subscribers_first`: the server sends what the script publishes before it sends our reply, see `_PING`.
        Raises StoreUnavailable or StoreBusy.
        """
        key = _bytes(key)
        before, count = (_PING, 2) if subscribers_first else (b"", 1)
        try:
            packed = before + pack(b"EVALSHA", script.sha, *self._key_arguments(key), *args)
            reply = (await self._send_guarded(key, packed, count, repeat=repeat, follow=False))[-1]
            if isinstance(reply, NoScriptError):
                # The script did not run: sending it again is safe even without `repeat`.
                packed = before + pack(b"EVAL", script.text, *self._key_arguments(key), *args)
                reply = (await self._send_guarded(key, packed, count, repeat=repeat, follow=False))[-1]
            return _checked(reply)
        except REDIS_ERRORS as error:
            raise self._translated(error) from error

    async def command(self, key: str | bytes, *args: Argument, repeat: bool = False) -> Any:
        """Run a plain command on the server that has `key`. Raises as `run` does."""
        try:
            return _checked((await self._send_guarded(_bytes(key), pack(*args), 1, repeat=repeat))[0])
        except REDIS_ERRORS as error:
            raise self._translated(error) from error

    async def each(self, *args: Argument) -> list[tuple[str, Any]]:
        """Run a command on every primary: the server's name and its reply, or None if it refuses."""
        try:
            replies: list[tuple[str, Any]] = []
            for name, pool in await self._router.primaries():
                reply = (await self._exchange(pool, pack(*args), 1))[0]
                replies.append((name, None if isinstance(reply, ResponseError) else reply))
            return replies
        except REDIS_ERRORS as error:
            raise self._translated(error) from error

    async def info(self) -> list[tuple[str, dict[str, str]]]:
        """INFO of every primary, by its name; empty if the server forbids it."""
        return [(name, _parse_info(reply or b"")) for name, reply in await self.each("INFO", "all")]

    async def slot_owners(self, keys: Sequence[str | bytes]) -> list[tuple[int, str]]:
        """For each key its slot and the name of the server that has it."""
        try:
            names = {id(pool): name for name, pool in await self._router.primaries()}
            pools = [await self._router.pool(_bytes(key)) for key in keys]
            return [(key_slot(_bytes(key)), names.get(id(p), "")) for key, p in zip(keys, pools, strict=True)]
        except REDIS_ERRORS as error:
            raise self._translated(error) from error

    async def connect(self) -> RedisConnection:
        """A connection outside of the pool, which the caller closes. Raises StoreUnavailable."""
        try:
            return await self._router.connect()
        except REDIS_ERRORS as error:
            raise self._translated(error) from error

    async def drop_connections(self) -> None:
        """Use no connection made so far again: one was found dead, and others may be. Does not suspend."""
        await self._router.drop_connections()

    def _key_arguments(self, key: bytes) -> tuple[bytes, ...]:
        """The keys that a script call names, after their number.

        While a slot moves key by key, its old node refuses every key that has left, and also a key that the script has
        just emptied: the script would stop half-way. So on a cluster each call also names a key of the slot that never
        exists. While the slot moves, the node then refuses the call before the script begins.
        """
        if not self.is_cluster:
            return (b"1", key)
        return (b"2", key, key + b"?" if b"{" in key else b"{" + key + b"}?")

    async def _send_guarded(
        self, key: bytes, packed: bytes, count: int, *, repeat: bool, follow: bool = True
    ) -> list[Any]:
        """Send. Send again after a lost connection, if `repeat` allows it, or if the server is no longer a primary."""
        try:
            replies = await self._send(key, packed, count, follow=follow)
        except REDIS_ERRORS as error:
            if not repeat or not is_lost(error):
                raise
        else:
            if not isinstance(_not_run(replies), ReadOnlyError):
                return replies
        await asyncio.sleep(RETRY_S)
        return await self._send(key, packed, count, follow=follow)

    async def _send(self, key: bytes, packed: bytes, count: int, *, follow: bool) -> list[Any]:
        """Send a command to the server that has `key`, and follow a cluster's redirections.

        Without `follow`, ASK is not followed. A script uses more keys than the one it names. While a slot moves, some
        of them are still on the old node, and the new node would treat them as empty. So the call waits until the
        whole slot has moved.
        """
        pool = await self._router.pool(key)
        replies = await self._exchange(pool, packed, count)
        for _ in range(MAX_REDIRECTS):
            refusal = _not_run(replies)
            if refusal is None:
                break
            if isinstance(refusal, AskError) and not isinstance(refusal, MovedError) and not follow:
                await asyncio.sleep(RETRY_S)
                replies = await self._exchange(await self._router.pool(key), packed, count)
            elif isinstance(refusal, AskError):
                moved = isinstance(refusal, MovedError)
                target = await self._router.redirect(refusal, moved=moved)
                if target is None:
                    break
                if moved:
                    replies = await self._exchange(target, packed, count)
                else:
                    replies = (await self._exchange(target, _ASKING + packed, count + 1))[1:]
            elif isinstance(refusal, TryAgain):
                await asyncio.sleep(RETRY_S)
                replies = await self._exchange(await self._router.pool(key), packed, count)
            else:
                await self._router.connection_lost(pool)
                break
        return replies

    async def _exchange(self, pool: ConnectionPool, packed: bytes, count: int) -> list[Any]:
        """Send commands on a connection of the pool and read `count` replies; errors among them are values."""
        try:
            connection = await pool.acquire()
            try:
                replies = await connection.exchange(packed, count, self._settings.timeout_s)
            except BaseException:
                # Also after a cancellation: a reply may be half read, or still arrive.
                await pool.discard(connection)
                raise
        except REDIS_ERRORS:
            await self._router.connection_lost(pool)
            raise
        await pool.release(connection)
        return replies

    def _translated(self, error: BaseException) -> StoreError:
        return translate(error, self._settings.shown, self._settings.timeout_s)


_NOT_RUN = (AskError, TryAgain, ClusterDownError, ReadOnlyError)
"""Errors that say that the call did not run."""
_ASKING = pack("ASKING")
_PING = pack("PING")
"""The server writes to clients in the reverse order of their first pending output. A script publishes before it
replies, so a subscriber would be written to after us. The reply to a PING in front of the script is pending earlier,
and makes us the last. (ADR 9)"""


def _not_run(replies: list[Any]) -> Exception | None:
    """The reply that says that the call did not run."""
    return next((reply for reply in replies if isinstance(reply, _NOT_RUN)), None)


def _bytes(key: str | bytes) -> bytes:
    return key if isinstance(key, bytes) else key.encode()


def _checked(reply: Any) -> Any:
    if isinstance(reply, ResponseError):
        raise reply
    return reply


def _parse_info(text: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in text.decode(errors="replace").splitlines() if line[:1] not in ("", "#"))
    return {name: value for name, _, value in lines}
