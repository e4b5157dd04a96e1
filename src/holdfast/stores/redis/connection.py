"""One connection to a Redis or Valkey server, and commands as bytes.

redis-py connects and authenticates (`connector.py`). `RedisConnection` then takes the transport over, so that bytes
travel between asyncio and hiredis directly: a PING on an idle connection took 415 us through redis-py's streams and
329 us this way (ADR 6). The protocol is RESP2: reading 100 bulk strings took 205 us with it and 240 us with RESP3.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis
from redis.exceptions import ConnectionError as ConnectionLost

from holdfast.stores.redis.errors import server_error

Argument = str | bytes | int | float
_INCOMPLETE = object()


class RedisConnection(asyncio.Protocol):
    """A ready connection. One exchange at a time."""

    def __init__(self, redis_py_connection: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader: Any = hiredis.Reader(replyError=server_error, notEnoughData=_INCOMPLETE)
        self._replies: deque[Any] = deque()
        self._wanted = 0
        self._waiting: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._closed = self._loop.create_future()
        self.on_reply: Callable[[Any], bool] | None = None
        """Called with each reply as it arrives. If it returns True, the reply is not queued for `read`."""
        # redis-py has no public way to give up the transport. Without it, redis-py has nothing left to close.
        self._writer: asyncio.StreamWriter = redis_py_connection._writer  # noqa: SLF001
        redis_py_connection._reader = redis_py_connection._writer = None  # noqa: SLF001
        self._transport = self._writer.transport
        self._transport.set_protocol(self)

    @property
    def is_usable(self) -> bool:
        """Whether it is connected and has no unread replies."""
        return self.is_connected and not self._replies

    @property
    def is_connected(self) -> bool:
        return self._error is None and not self._transport.is_closing()

    async def exchange(self, packed: bytes, count: int, timeout_s: float) -> list[Any]:
        """Send commands and read `count` replies. An error reply is returned as a value.

        Raises `ConnectionLost` and TimeoutError. After either, and after a cancellation, the connection is unusable.
        """
        self.send(packed)
        await self._wait(count, timeout_s)
        next_reply = self._replies.popleft
        replies = [next_reply() for _ in range(count)]
        for reply in replies:
            if isinstance(reply, ConnectionLost):
                raise reply
        return replies

    def send(self, packed: bytes) -> None:
        """Send without waiting for a reply. Raises `ConnectionLost`."""
        if not self.is_connected:
            raise ConnectionLost("the connection was lost") from self._error
        self._transport.write(packed)

    async def read(self, timeout_s: float) -> Any:
        """The next reply. Raises `ConnectionLost` and TimeoutError."""
        if not self._replies:
            await self._wait(1, timeout_s)
        reply = self._replies.popleft()
        if isinstance(reply, ConnectionLost):
            raise reply
        return reply

    async def abort(self) -> None:
        """Close without waiting. Does not suspend. Calling it twice is harmless."""
        self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the connection is closed."""
        await self._closed

    async def _wait(self, count: int, timeout_s: float) -> None:
        if len(self._replies) >= count:
            return
        if self._error is not None:
            raise ConnectionLost("the connection was lost") from self._error
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

    # Called by the transport ------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse replies and wake the caller that waits for them."""
        reader, replies = self._reader, self._replies
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not _INCOMPLETE:
                if self.on_reply is None or not self.on_reply(reply):
                    replies.append(reply)
        except Exception as error:  # noqa: BLE001 - not RESP: nothing that follows can be parsed
            self._transport.abort()
            self._end(error)
            return
        if self._waiting is not None and len(replies) >= self._wanted and not self._waiting.done():
            self._waiting.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the caller that waits for replies."""
        self._end(exc or ConnectionLost("the server closed the connection"))
        if not self._closed.done():
            self._closed.set_result(None)

    def _end(self, error: Exception) -> None:
        self._error = self._error or error
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionLost(f"the connection was lost: {error}"))


def pack(*arguments: Argument) -> bytes:
    """A command in RESP."""
    parts = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        data = argument if type(argument) is bytes else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)
