"""A bounded pool of connections to one server.

redis-py has a pool too. This one passes a released connection to the caller that has waited longest, recognises a
connection that the server has closed before using it, and replaces all connections that are older than an error.
Acquiring and releasing a connection takes 1 us instead of 33.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from holdfast.core.errors import StoreBusy, StoreUnavailable
from holdfast.stores.redis.connection import RedisConnection


class ConnectionPool:
    """At most `limit` connections, made on demand. The connection used last is used first."""

    def __init__(
        self, connect: Callable[[], Awaitable[RedisConnection]], limit: int, wait_s: float, shown: str
    ) -> None:
        self._connect = connect
        self._limit = limit
        self._wait_s = wait_s
        self._shown = shown
        self._idle: list[RedisConnection] = []
        self._used: dict[RedisConnection, int] = {}
        """Connections in use, each with the generation that it belongs to."""
        self._count = 0
        self._generation = 0
        self._closed = False
        self._waiting: deque[asyncio.Future[RedisConnection | None]] = deque()

    async def acquire(self) -> RedisConnection:
        """A ready connection, to be released or discarded.

        Raises StoreBusy if no connection becomes free in time, and whatever `connect` raises.
        """
        if self._closed:
            raise _closed()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                self._used[connection] = self._generation
                return connection
            self._count -= 1
            await connection.abort()
        if self._count >= self._limit:
            waited = await self._wait()
            if waited is not None:
                return waited
        else:
            self._count += 1
        generation = self._generation
        try:
            connection = await self._connect()
        except BaseException:
            self._free_slot()
            raise
        self._used[connection] = generation
        if self._closed:
            await self.discard(connection)
            raise _closed()
        return connection

    async def release(self, connection: RedisConnection) -> None:
        """Take back a connection without an exchange in progress. Does not suspend."""
        if self._used[connection] != self._generation or self._closed or not connection.is_connected:
            await self.discard(connection)
        elif not self._give_to_waiter(connection):
            del self._used[connection]
            self._idle.append(connection)

    async def discard(self, connection: RedisConnection) -> None:
        """Close a connection that may have an exchange in progress. Does not suspend."""
        del self._used[connection]
        await connection.abort()
        self._free_slot()

    async def drop_all(self) -> None:
        """Close every connection made so far: idle ones now, used ones when they are released. Does not suspend."""
        self._generation += 1
        idle, self._idle = self._idle, []
        self._count -= len(idle)
        for connection in idle:
            await connection.abort()

    async def close(self) -> None:
        """Close everything, including connections in use."""
        self._closed = True
        connections = [*self._idle, *self._used]
        await self.drop_all()
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(_closed())
        for connection in connections:
            await connection.abort()
        for connection in connections:
            await connection.wait_closed()

    async def _wait(self) -> RedisConnection | None:
        """A connection that another caller released, or None: a slot for a new one."""
        future: asyncio.Future[RedisConnection | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            async with asyncio.timeout(self._wait_s):
                return await future
        except BaseException as error:
            if future.done() and not future.cancelled() and future.exception() is None:
                await self._give_back(future.result())  # It arrived just as the wait ended.
            if isinstance(error, TimeoutError):
                reason = f"all {self._limit} connections to {self._shown} were in use for {self._wait_s:g} s"
                raise StoreBusy(f"{reason}; raise `connections` in its URL") from None
            raise

    async def _give_back(self, connection: RedisConnection | None) -> None:
        if connection is None:
            self._free_slot()
        else:
            await self.release(connection)

    def _free_slot(self) -> None:
        if not self._give_to_waiter(None):
            self._count -= 1

    def _give_to_waiter(self, connection: RedisConnection | None) -> bool:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(connection)
                return True
        return False


def _closed() -> StoreUnavailable:
    return StoreUnavailable("the store is closed")
