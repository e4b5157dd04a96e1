"""Requests and answers. Nothing is repeated here: the caller knows what may be."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
import msgspec

from holdfast.core import answers, errors
from holdfast.core.errors import HoldfastError, InvalidOption, StoreBusy, StoreError, StoreUnavailable

T = TypeVar("T")

TOKEN_VARIABLE = "HOLDFAST_TOKEN"  # noqa: S105 - its name
_BUSY = frozenset({"store_busy", "rate_limited"})
_UNAUTHORIZED, _FORBIDDEN, _SERVER = 401, 403, 500


class Link:
    """The way to one service, in one event loop."""

    def __init__(self, address: str, timeout_s: float, token: str | None = None) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self.token = token
        self._client: httpx.AsyncClient | None = None

    def open(self) -> None:
        """Make ready. Raises InvalidOption without a token."""
        if self._client is not None:
            return
        token = self.token or os.environ.get(TOKEN_VARIABLE)
        if not token:
            raise InvalidOption("token", f"the service asks for one: pass token=, or set {TOKEN_VARIABLE}")
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        headers = {"authorization": f"Bearer {token}"}
        self._client = httpx.AsyncClient(
            base_url=self.address, headers=headers, timeout=self.timeout_s, limits=limits, follow_redirects=False
        )

    async def close(self) -> None:
        """Let go of all connections."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()

    async def ask(
        self,
        type: type[T],
        method: str,
        path: str,
        body: Any = None,
        query: dict[str, Any] | None = None,
    ) -> T:
        """One request. Raises the error that the answer says; StoreUnavailable where none came."""
        content = None if body is None else msgspec.json.encode(body)
        headers = None if body is None else {"content-type": "application/json"}
        params = {name: value for name, value in (query or {}).items() if value is not None}
        try:
            answer = await self._live.request(method, path, content=content, headers=headers, params=params)
        except httpx.HTTPError as error:
            raise StoreUnavailable(f"no answer from {self.address}: {error_text(error)}") from error
        if answer.is_error:
            raise _problem(answer.status_code, answer.content)
        try:
            return msgspec.json.decode(answer.content, type=type)
        except msgspec.MsgspecError as error:
            raise StoreError(f"{self.address} does not answer like Holdfast: {error}") from error

    @asynccontextmanager
    async def stream(self, path: str, query: dict[str, str]) -> AsyncGenerator[httpx.Response]:
        """An answer that goes on. A line that says nothing for a minute is dead."""
        timeout = httpx.Timeout(self.timeout_s, read=60.0)
        try:
            async with self._live.stream("GET", path, params=query, timeout=timeout) as answer:
                if answer.is_error:
                    raise _problem(answer.status_code, await answer.aread())
                yield answer
        except httpx.HTTPError as error:
            raise StoreUnavailable(f"no answer from {self.address}: {error_text(error)}") from error

    @property
    def _live(self) -> httpx.AsyncClient:
        if self._client is None:
            raise InvalidOption("store", "is not open")
        return self._client


def error_of(code: str, message: str, args: Any) -> HoldfastError:
    """The library's own error for a code of the wire."""
    kind = _KINDS.get(code)
    if kind is not None and isinstance(args, list):
        try:
            return kind(*args)
        except TypeError:
            pass
    if code in _BUSY:
        return StoreBusy(message)
    return InvalidOption("request", message)


def error_text(error: Exception) -> str:
    """What an error of httpx says; some say nothing."""
    return str(error) or type(error).__name__


def _problem(status: int, content: bytes) -> HoldfastError:
    try:
        problem = msgspec.json.decode(content, type=answers.Problem)
    except msgspec.MsgspecError:
        return StoreUnavailable(f"answered {status}, and not as Holdfast does")
    if problem.code in _BUSY:
        return StoreBusy(problem.detail)
    if status >= _SERVER:
        return StoreUnavailable(problem.detail)
    if status in (_UNAUTHORIZED, _FORBIDDEN):
        return InvalidOption("token", problem.detail)
    return error_of(problem.code, problem.detail, problem.args)


_KINDS: dict[str, Any] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, HoldfastError) and not issubclass(kind, StoreError)
}
