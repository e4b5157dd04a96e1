"""A TCP proxy that breaks connections on purpose. It parses no protocol: a request is one chunk from a client.

    async with Proxy("127.0.0.1", server.port) as proxy:
        proxy.cut_replies(when=b"EVALSHA", after=3)      # the server runs the third such request, its reply is lost
        ...
        assert proxy.counts.replies_cut == 1             # the fault did happen

    cut_replies     the request reaches the server, the reply does not reach the client: its connection is reset
    cut_requests    the request does not reach the server
    freeze, thaw    a half-open connection: both ends stay connected, but nothing passes
    delay           requests and replies take longer
    lead_to         new connections lead to another server
    drop_all        reset all connections
    refuse, accept  the port is closed

Faults apply from the call on, to old and new connections; `heal` ends them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Self

from msgspec import Struct

from holdfast.testing.servers import HOST, free_port

When = bytes | Callable[[bytes], bool] | None
"""Which requests: those that contain these bytes, those that a function selects, or all."""

_CHUNK = 1 << 16
_TURNS_TO_BEGIN = 5
_TAIL = 256
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with 0 s: close sends a reset


class Counts(Struct):
    """Counts of what happened so far."""

    connections: int = 0
    requests: int = 0
    """Forwarded to the server, including those whose replies were cut."""
    replies: int = 0
    requests_cut: int = 0
    replies_cut: int = 0
    dropped: int = 0
    """Connections reset by `drop_all`."""


class Proxy:
    """The proxy in front of `host:port`, on `port` of 127.0.0.1. Belongs to one event loop; clients may be anywhere."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self.port = 0
        self.counts = Counts()
        self._listener: socket.socket | None = None
        self._connections: set[_ProxiedPair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests = _Fault()
        self._replies = _Fault()
        self._delay_s = 0.0
        self._frozen_new = False

    async def __aenter__(self) -> Self:
        for _ in range(20):
            self.port = free_port()
            with contextlib.suppress(OSError):
                await self.accept()
                return self
        raise OSError("no free port for the proxy")

    async def __aexit__(self, *_: object) -> None:
        self.refuse()
        # A connection that was just accepted: canceled before its task begins, that would not close it.
        for _turn in range(_TURNS_TO_BEGIN):
            await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def open_connections(self) -> int:
        """How many clients are connected now."""
        return len(self._connections)

    # Faults ---------------------------------------------------------------------------------------------------

    def cut_replies(self, when: When = None, *, after: int = 1, times: int | None = 1) -> None:
        """Forward every `after`-th such request, but cut its connection at the reply; `times` in total.

        `times=None`: without a limit. 0 ends the fault.
        """
        self._replies = _Fault(when, after, times)

    def cut_requests(self, when: When = None, *, after: int = 1, times: int | None = 1) -> None:
        """Cut the connection at every `after`-th such request, before the server receives it; `times` in total."""
        self._requests = _Fault(when, after, times)

    def freeze(self, *, new: bool = True) -> None:
        """Forward nothing in either direction. `new=False` excludes connections made from now on."""
        self._frozen_new = new
        for connection in self._connections:
            connection.gate.clear()

    def thaw(self) -> None:
        """Forward again, including what was sent in the meantime."""
        self._frozen_new = False
        for connection in self._connections:
            connection.gate.set()

    def delay(self, seconds: float) -> None:
        """Delay everything by this time, in each direction."""
        self._delay_s = seconds

    def lead_to(self, port: int) -> None:
        """Connect new connections to this port of the same host."""
        self._target = (self._target[0], port)

    def drop_all(self) -> int:
        """Reset all connections. Returns how many there were."""
        dropped = len(self._connections)
        self.counts.dropped += dropped
        for connection in list(self._connections):
            connection.reset()
        return dropped

    def refuse(self) -> None:
        """Stop listening: new connections are refused, existing ones stay."""
        if self._listener is not None:
            # Not by closing an asyncio.Server, which would leave open what it accepted in the turn before.
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    async def accept(self) -> None:
        """Listen again."""
        if self._listener is None:
            self._listener = socket.create_server((HOST, self.port))
            await asyncio.start_server(self._connected, sock=self._listener, limit=_CHUNK)

    async def heal(self) -> None:
        """End all faults."""
        self.cut_replies(times=0)
        self.cut_requests(times=0)
        self.delay(0)
        self.thaw()
        await self.accept()

    # Steps ----------------------------------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            there = await asyncio.open_connection(*self._target, limit=_CHUNK)
        except (OSError, asyncio.CancelledError):
            _reset(writer)
            return
        self.counts.connections += 1
        connection = _ProxiedPair(reader, writer, *there)
        if self._frozen_new:
            connection.gate.clear()
        self._connections.add(connection)
        try:
            await asyncio.gather(self._carry_requests(connection), self._carry_replies(connection))
        except asyncio.CancelledError:
            connection.reset()  # Do not raise: asyncio would report a handler that ends as canceled.
        finally:
            self._connections.discard(connection)
            # What was written before still arrives.
            connection.to_client.close()
            connection.to_server.close()

    async def _carry_requests(self, connection: _ProxiedPair) -> None:
        while chunk := await self._next(connection, connection.from_client):
            if connection.over or connection.cut:
                return
            if self._requests.strikes(connection.tail, chunk):
                self.counts.requests_cut += 1
                connection.reset()
                return
            # Decide before sending: the reply may arrive while the request is still being written.
            connection.doomed = connection.doomed or self._replies.strikes(connection.tail, chunk)
            connection.tail = (connection.tail + chunk)[-_TAIL:]
            self.counts.requests += 1
            await _send(connection.to_server, chunk)
        _finish(connection.to_server)

    async def _carry_replies(self, connection: _ProxiedPair) -> None:
        while chunk := await self._next(connection, connection.from_server):
            if connection.over:
                return
            if connection.cut:
                continue  # Read to the end, so that the server keeps its connection and completes the request.
            if connection.doomed:
                self.counts.replies_cut += 1
                connection.cut = True
                _reset(connection.to_client)
                _finish(connection.to_server)
                continue
            self.counts.replies += 1
            await _send(connection.to_client, chunk)
        connection.to_client.close()

    async def _next(self, connection: _ProxiedPair, reader: asyncio.StreamReader) -> bytes:
        """Read the next bytes; none at the end or after a reset. It waits for the gate before it returns them."""
        chunk = b""
        with contextlib.suppress(ConnectionError):
            chunk = await reader.read(_CHUNK)
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        await connection.gate.wait()
        return chunk


class _ProxiedPair:
    """A client and the server, connected."""

    def __init__(
        self,
        from_client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        from_server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        self.from_client, self.to_client = from_client, to_client
        self.from_server, self.to_server = from_server, to_server
        self.gate = asyncio.Event()
        self.gate.set()
        self.tail = b""
        """The last bytes of the requests: two chunks may split a match."""
        self.doomed = False
        """The next reply is to be cut."""
        self.cut = False
        """The client is gone, but the server finishes the request."""
        self.over = False

    def reset(self) -> None:
        """Reset both sides, even if the connection is frozen."""
        self.over = True
        _reset(self.to_client)
        _reset(self.to_server)
        self.gate.set()


class _Fault:
    """A fault that waits for its request."""

    def __init__(self, when: When = None, after: int = 1, times: int | None = 0) -> None:
        self._when = when
        self._after = after
        self._left = times
        self._seen = 0

    def strikes(self, tail: bytes, chunk: bytes) -> bool:
        """Whether this is the request; `tail` came before it."""
        if self._left == 0 or not self._meant(tail, chunk):
            return False
        self._seen += 1
        if self._seen < self._after:
            return False
        self._seen = 0
        if self._left is not None:
            self._left -= 1
        return True

    def _meant(self, tail: bytes, chunk: bytes) -> bool:
        if isinstance(self._when, bytes):
            # Only as much of the tail as a split match needs: a whole match in it was counted before.
            torn = len(self._when) - 1
            return self._when in (tail[-torn:] if torn else b"") + chunk
        return self._when is None or self._when(chunk)


async def _send(writer: asyncio.StreamWriter, chunk: bytes) -> None:
    """Forward to the peer, if it is still connected."""
    with contextlib.suppress(ConnectionError):
        writer.write(chunk)
        await writer.drain()


def _finish(writer: asyncio.StreamWriter) -> None:
    """Send an end of file."""
    with contextlib.suppress(OSError):
        if not writer.is_closing():
            writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close immediately, with a reset: the peer gets an error, not an end of file."""
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
