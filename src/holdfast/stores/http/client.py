"""Requests to the service: one pool of connections, the token in each request, repeats where they are safe."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.http import errors
from holdfast.stores.http.address import HttpAddress
from holdfast.stores.http.bearer import Bearer

T = TypeVar("T")

KEEP_ALIVE_S = 8.0
"""Shorter than the service's own timeout for idle connections, so that few of them turn out to be closed."""
SILENCE_S = 45.0
"""A stream that is silent for this long is dead: the service sends a comment every 15 s."""
FIRST_S = 0.1
"""The first pause before a repeated request. It doubles each time."""
MAX_PATIENCE_S = 5.0
"""How long to repeat a request that the service refuses because of its rate limits."""


class HttpClient:
    """The connections to one service. Belongs to one event loop."""

    def __init__(self, address: HttpAddress, bearer: Bearer) -> None:
        self.address = address
        self.bearer = bearer
        self._http: httpx.AsyncClient | None = None
        self._stream: Any = None

    @property
    def shown(self) -> str:
        """The name of the service in messages."""
        return self.address.base

    def open(self) -> None:
        """Create the pool. Calling it twice is harmless."""
        if self._http is None:
            self._http = httpx.AsyncClient(
                verify=ssl.create_default_context() if self.address.is_secure else _NO_TLS,
                timeout=self.address.timeout_s,
                limits=httpx.Limits(
                    max_connections=self.address.connections,
                    max_keepalive_connections=self.address.connections,
                    keepalive_expiry=KEEP_ALIVE_S,
                ),
                # A proxy from the environment is not for requests within the machine.
                trust_env=self.address.is_secure,
                headers={"accept": "application/json", "user-agent": "holdfast-python"},
            )

    def leave(self) -> None:
        """Close the sending side and keep reading, on a client that sends one request at a time.

        An answer in flight still arrives. The service releases jobs that it has not sent yet.
        """
        with contextlib.suppress(OSError, AttributeError):
            self._stream.get_extra_info("socket").shutdown(socket.SHUT_WR)

    async def close(self) -> None:
        """Close all connections. Calling it twice is harmless."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    async def call(
        self,
        method: str,
        path: str,
        type: type[T],
        *,
        body: bytes | None = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        repeat: bool = True,
        wait_s: float = 0.0,
    ) -> T:
        """Send a request and return its answer. Raises the error that the service answers, or StoreError.

        `repeat` marks a request that is safe to send twice: it is sent again if the connection breaks.
        """
        end = time.monotonic() + MAX_PATIENCE_S
        refused = broken = False
        least_s = FIRST_S
        while True:
            token = self.bearer.text()
            try:
                answer = await self._send(method, path, body, query, headers, token, wait_s)
            except httpx.HTTPError as error:
                if repeat and not broken and not isinstance(error, httpx.TimeoutException):
                    broken = True
                    continue
                raise errors.of_transport(error, self.shown, self.address.timeout_s + wait_s) from None
            if answer.is_success:
                return self._decoded(answer, type)
            if answer.status_code == HTTPStatus.UNAUTHORIZED and self.bearer.renews and not refused:
                refused = True
                if self.bearer.text() != token:
                    continue
            pause_s = _pause_s(answer, least_s)
            if pause_s is not None and time.monotonic() + pause_s < end:
                await asyncio.sleep(pause_s)
                least_s *= 2
                continue
            raise errors.of_answer(answer, self.shown)

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str]
    ) -> AsyncGenerator[AsyncIterator[tuple[str | None, bytes]]]:
        """Server-sent events as pairs: the offset, if the event has one, and the data, which may be empty."""
        timeout = httpx.Timeout(self.address.timeout_s, read=SILENCE_S)
        try:
            headers = self._headers(self.bearer.text(), None)
            request = self._open.build_request("GET", self._url(path), params=query, headers=headers, timeout=timeout)
            answer = await self._open.send(request, stream=True)
            try:
                if not answer.is_success:
                    await answer.aread()
                    raise errors.of_answer(answer, self.shown)
                if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                    raise errors.not_ours(self.shown)
                yield _messages(answer)
            finally:
                await answer.aclose()
        except httpx.HTTPError as error:
            raise errors.of_transport(error, self.shown, SILENCE_S) from None

    @property
    def _open(self) -> httpx.AsyncClient:
        if self._http is None:
            raise StoreUnavailable("the connection to the service is closed; open the queue first")
        return self._http

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        token: str,
        wait_s: float,
    ) -> httpx.Response:
        lines = self._headers(token, headers)
        if body is not None:
            lines["content-type"] = "application/json"
        timeout_s = self.address.timeout_s
        timeout = httpx.Timeout(timeout_s, read=timeout_s + wait_s)
        return await self._open.request(
            method, self._url(path), content=body, params=query, headers=lines, timeout=timeout,
            extensions={"trace": self._connected},
        )  # fmt: skip

    async def _connected(self, event: str, info: Mapping[str, Any]) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._stream = info["return_value"]

    def _url(self, path: str) -> str:
        return self.address.base + path

    def _headers(self, token: str, more: Mapping[str, str] | None) -> dict[str, str]:
        return {**(more or {}), "authorization": f"Bearer {token}"}

    def _decoded(self, answer: httpx.Response, type: type[T]) -> T:
        try:
            return _decoder(type).decode(answer.content)
        except msgspec.MsgspecError:
            raise errors.not_ours(self.shown) from None

    def __repr__(self) -> str:
        return f"<HttpClient of {self.shown}>"


_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For http://, which does not use it: creating a real context is slow."""


def segment(text: str) -> str:
    """A name as one segment of a path. `.` and `..` are escaped, because they mean directories."""
    quoted = quote(text, safe="")
    return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted


@cache
def _decoder(type: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type)


def _pause_s(answer: httpx.Response, least_s: float) -> float | None:
    """The pause before a repeat, if the service refused the request because of its rate limits."""
    if answer.status_code != HTTPStatus.TOO_MANY_REQUESTS or errors.RATE_LIMITED not in answer.text:
        return None
    text = answer.headers.get("retry-after", "")
    # Spread, so that a fleet does not retry in step.
    return max(float(text) if text.isdigit() else 1.0, least_s) + least_s * random.random()  # noqa: S311 - no secret


async def _messages(answer: httpx.Response) -> AsyncGenerator[tuple[str | None, bytes]]:
    offset: str | None = None
    data = b""
    async for line in _lines(answer):
        if line.startswith(b"id: "):
            offset = line[4:].decode()
        elif line.startswith(b"data: "):
            data = line[6:]
        elif not line and (offset is not None or data):
            yield offset, data
            offset, data = None, b""


async def _lines(answer: httpx.Response) -> AsyncGenerator[bytes]:
    """Lines of server-sent events. A name may contain other line separators of Unicode: only newlines split."""
    parts: list[bytes] = []
    async for some in answer.aiter_bytes():
        first, *more = some.split(b"\n")
        parts.append(first)
        for part in more:
            yield b"".join(parts)
            parts = [part]
