"""Reading a body: bounded in size and time, JSON and nothing else, and every key once."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

import msgspec

from holdfast import codec
from holdfast.core import wire
from holdfast.core.errors import HoldfastError
from holdfast.core.failpoint import hit
from holdfast.service.errors import Refusal, invalid

T = TypeVar("T")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

DRAIN_BYTES = 8 * 1024 * 1024
DRAIN_S = 2.0
"""What is read and thrown away before a refusal, so that a client that is still sending gets to see it."""

_LENGTH_DIGITS = 20
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_RAW_BATCH = msgspec.json.Decoder(dict[str, list[msgspec.Raw]])


class Body:
    """The body of one request, not read yet."""

    def __init__(self, receive: Receive, headers: dict[bytes, bytes]) -> None:
        self._receive = receive
        self._headers = headers
        length = headers.get(b"content-length", b"0")
        if len(length) > _LENGTH_DIGITS:
            raise invalid("the header content-length is too long")
        self.length = int(length) if length.isdigit() else 0
        self.ended = self.length == 0 and b"transfer-encoding" not in headers

    async def read(self, limit: int, timeout_s: float) -> bytes:
        """All of it, if it is JSON by its headers and no longer than `limit`. Raises a refusal."""
        kind, _, charset = self._headers.get(b"content-type", b"").decode("latin-1").lower().partition(";")
        if kind.strip() != "application/json" or charset.strip() not in ("", "charset=utf-8", 'charset="utf-8"'):
            raise Refusal("unsupported_media_type", "send JSON in UTF-8, as application/json")
        if self._headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise Refusal("unsupported_media_type", "send it as it is, without content-encoding")
        if self.length > limit:
            raise _too_large(limit)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(timeout_s):
                while not self.ended:
                    part = await self._part()
                    size += len(part)
                    if size > limit:
                        raise _too_large(limit)
                    parts.append(part)
        except TimeoutError:
            raise Refusal("request_timeout", f"the body did not come within {timeout_s:g} s") from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def drain(self) -> bool:
        """Read what is left and forget it; whether that was all."""
        if not self.ended and b"expect" not in self._headers:
            size = 0
            with contextlib.suppress(TimeoutError, Refusal):
                async with asyncio.timeout(DRAIN_S):
                    while not self.ended and size < DRAIN_BYTES:
                        size += len(await self._part())
        return self.ended

    async def _part(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.ended = True
            raise Refusal("request_timeout", "the client left in the middle of the body")
        self.ended = not message.get("more_body", False)
        if not self.ended:
            hit("service.mid_body")
        return message.get("body", b"")


def decode(data: bytes, type: type[T]) -> T:
    """A body as what it should be. Raises a refusal that says where it is not."""
    _check_text(data)
    return _decode(data, type)


def decode_batch(data: bytes, name: str, type: type[T]) -> list[T | HoldfastError]:
    """The items of `{name: [...]}`, each as what it should be, or why it is not. [ENQ-4]"""
    _check_text(data)
    try:
        batch = _RAW_BATCH.decode(data)
    except msgspec.MsgspecError as error:
        raise invalid(f"not a batch: {error}") from None
    if batch.keys() != {name}:
        raise invalid(f'a batch is {{"{name}": [...]}} and nothing else')
    items = batch[name]
    if len(items) > wire.BATCH_LIMIT:
        raise invalid(f"a batch has up to {wire.BATCH_LIMIT} items, this one {len(items)}")
    return [_item(bytes(item), type) for item in items]


def convert_query(pairs: list[tuple[str, str]], type: type[T]) -> T:
    """The query as what it should be. Raises a refusal."""
    query = dict(pairs)
    if len(query) != len(pairs):
        raise invalid("a parameter stands twice in the query")
    try:
        return msgspec.convert(query, type, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(f"query: {error}") from None


def _item(data: bytes, type: type[T]) -> T | HoldfastError:
    try:
        return _decode(data, type)
    except Refusal as refusal:
        return refusal


def _decode(data: bytes, type: Any) -> Any:
    try:
        return codec.reader(type)(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(str(error)) from None


def _check_text(data: bytes) -> None:
    """Refuse what is not JSON, or has a key twice: another reader might see the other one."""
    try:
        again = msgspec.json.encode(msgspec.json.decode(data))
    except RecursionError:
        raise invalid("nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise invalid(str(error)) from None
    # Most clients write what msgspec would write, but for spaces: then there is nothing to count.
    if msgspec.json.format(data, indent=-1) != again and _members(data) != _members(again):
        raise invalid("a key stands twice in an object")


def _members(text: bytes) -> int:
    """How many members all objects of a JSON text have: outside strings, each has one colon."""
    return _STRINGS.sub(b"", text).count(b":")


def _too_large(limit: int) -> Refusal:
    return Refusal("body_too_large", f"the body is longer than {limit} bytes")
