"""Requests to the service: one pool of connections, the token on each, and which of them may be sent twice."""

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
from holdfast.stores.http import errors as trouble
from holdfast.stores.http.address import Address
from holdfast.stores.http.bearer import Bearer

T = TypeVar("T")

KEEP_ALIVE_S = 8.0
"""Less than a service keeps an idle connection, so that few are found closed."""
SILENCE_S = 45.0
"""A stream that says nothing for so long is dead: the service beats every 15 s."""
FIRST_S = 0.1
"""The shortest pause before asking again; it doubles."""
OFFERED_S = 5.0
"""How long to wait for our turn where the service says that this token asks too often."""


class Link:
    """A service, and the way to it. Belongs to one event loop."""

    def __init__(self, address: Address, bearer: Bearer) -> None:
        self.address = address
        self.bearer = bearer
        self._client: httpx.AsyncClient | None = None
        self._stream: Any = None

    @property
    def shown(self) -> str:
        """The service, for messages."""
        return self.address.base

    def open(self) -> None:
        """Make the pool. Twice is harmless."""
        if self._client is None:
            self._client = httpx.AsyncClient(
                verify=ssl.create_default_context() if self.address.is_secure else _NO_TLS,
                timeout=self.address.timeout_s,
                limits=httpx.Limits(
                    max_connections=self.address.connections,
                    max_keepalive_connections=self.address.connections,
                    keepalive_expiry=KEEP_ALIVE_S,
                ),
                # Proxies of the environment are for what leaves the machine.
                trust_env=self.address.is_secure,
                headers={"accept": "application/json", "user-agent": "holdfast-python"},
            )

    def leave(self) -> None:
        """Say that nothing more will be asked for, and go on reading: for a link with one request at a time.

        So what the service had sent before it noticed still comes, and it gives back the rest.
        """
        with contextlib.suppress(OSError, AttributeError):
            self._stream.get_extra_info("socket").shutdown(socket.SHUT_WR)

    async def close(self) -> None:
        """Close every connection. Twice is harmless."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

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
        """The answer to a request. Raises what the service says is wrong, or StoreError.

        `repeat` says that a second one does no harm: it is sent once more where the connection broke.
        """
        end = time.monotonic() + OFFERED_S
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
                raise trouble.of_transport(error, self.shown, self.address.timeout_s + wait_s) from None
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
            raise trouble.of_answer(answer, self.shown)

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str]
    ) -> AsyncGenerator[AsyncIterator[tuple[str | None, bytes]]]:
        """Server-sent events: the offset, if one was said, and the data, which may be empty."""
        timeout = httpx.Timeout(self.address.timeout_s, read=SILENCE_S)
        try:
            headers = self._headers(self.bearer.text(), None)
            request = self._open.build_request("GET", self._url(path), params=query, headers=headers, timeout=timeout)
            answer = await self._open.send(request, stream=True)
            try:
                if not answer.is_success:
                    await answer.aread()
                    raise trouble.of_answer(answer, self.shown)
                if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                    raise trouble.not_ours(self.shown)
                yield _messages(answer)
            finally:
                await answer.aclose()
        except httpx.HTTPError as error:
            raise trouble.of_transport(error, self.shown, SILENCE_S) from None

    @property
    def _open(self) -> httpx.AsyncClient:
        if self._client is None:
            raise StoreUnavailable("the connection to the service is closed; open the queue first")
        return self._client

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
            raise trouble.not_ours(self.shown) from None

    def __repr__(self) -> str:
        return f"<Link to {self.shown}>"


_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For http://: a real one takes its time to make, and is not used."""


def segment(text: str) -> str:
    """A name as a part of a path. Dots alone would be taken for directories."""
    quoted = quote(text, safe="")
    return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted


@cache
def _decoder(type: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type)


def _pause_s(answer: httpx.Response, least_s: float) -> float | None:
    """When to come again, where the service asks for patience and has done nothing."""
    if answer.status_code != HTTPStatus.TOO_MANY_REQUESTS or trouble.RATE_LIMITED not in answer.text:
        return None
    text = answer.headers.get("retry-after", "")
    # Spread, so that a fleet does not come back in step.
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
    """Lines as server-sent events have them. What else Unicode takes for the end of one may stand in a name."""
    parts: list[bytes] = []
    async for some in answer.aiter_bytes():
        first, *more = some.split(b"\n")
        parts.append(first)
        for part in more:
            yield b"".join(parts)
            parts = [part]
