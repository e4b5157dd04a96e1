"""A load client: connections with one request at a time on each, on raw sockets, and what they saw."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Self

import httptools
import uvloop

from bench.measure import percentile

PATIENCE = 90


class Answer(NamedTuple):
    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Connection(asyncio.Protocol):
    """One connection. It does not pipeline: the next request goes when the last one is answered."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._answer: asyncio.Future[Answer] | None = None
        self._transport: Any = None
        self._parser: Any = None

    @classmethod
    async def open(cls, port: int) -> Self:
        _, connection = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(f"the connection ended: {exc}"))

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(Answer(self._parser.get_status_code(), b"".join(self._parts)))

    def ask(self, request: bytes) -> Awaitable[Answer]:
        self._parts.clear()
        self._parser = httptools.HttpResponseParser(self)
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        self._transport.close()


class Form:
    """Makes requests for one server."""

    def __init__(self, port: int, token: str = "") -> None:
        self.port = port
        bearer = f"Authorization: Bearer {token}\r\n" if token else ""
        self._head = f"Host: 127.0.0.1:{port}\r\n{bearer}"

    def get(self, path: str) -> bytes:
        return f"GET {path} HTTP/1.1\r\n{self._head}\r\n".encode()

    def post(self, path: str, body: Any) -> bytes:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        return f"POST {path} HTTP/1.1\r\n{self._head}{kind}".encode() + data


class Seen:
    """What was answered: how often and how fast, by the kind of request; and what went wrong."""

    def __init__(self) -> None:
        self.ms: dict[str, list[float]] = defaultdict(list)
        self.errors: list[str] = []

    async def ask(self, connection: Connection, kind: str, request: bytes, *wanted: int) -> Answer:
        began = time.perf_counter()
        answer = await connection.ask(request)
        self.ms[kind].append((time.perf_counter() - began) * 1000)
        if answer.status not in (wanted or (200, 201)):
            self.errors.append(f"{kind}: {answer.status} {answer.body[:200].decode(errors='replace')}")
        return answer

    def shown(self, kind: str) -> dict[str, float]:
        values = self.ms[kind]
        return {"requests": len(values), "p50": percentile(values, 50), "p99": percentile(values, 99)}

    @property
    def requests(self) -> int:
        return sum(map(len, self.ms.values()))


async def each(port: int, connections: int, act: Callable[[Connection, int], Awaitable[None]]) -> None:
    """Run each connection in a task of its own; return when all have ended."""
    made = [await Connection.open(port) for _ in range(connections)]
    try:
        await asyncio.gather(*(act(connection, number) for number, connection in enumerate(made)))
    finally:
        for connection in made:
            connection.close()


async def rate(form: Form, connections: int, seconds: float, request: bytes) -> tuple[float, Seen]:
    """The same request again and again; how many a second were answered."""
    seen = Seen()
    began = time.monotonic()
    end = began + seconds

    async def act(connection: Connection, _: int) -> None:
        while time.monotonic() < end:
            await seen.ask(connection, "request", request)

    await each(form.port, connections, act)
    return seen.requests / (time.monotonic() - began), seen


def run(main: Any) -> Any:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
