"""Reads a body: limited in size and time, JSON only, without duplicate keys.

Only a small body is decoded as a whole. A batch is split into items without decoding them, and a large item is checked
as text, one slice in each turn of the event loop (`scan`, `turns`).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from holdfast.core.errors import HoldfastError
from holdfast.core.failpoint import hit
from holdfast.jobs import codec
from holdfast.protocol import requests
from holdfast.service import scan
from holdfast.service.errors import Refusal, invalid
from holdfast.service.shares import Hold
from holdfast.service.turns import SIMPLE_BYTES, TURN, CheckTurns, is_simple, work_of

T = TypeVar("T")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

DRAIN_BYTES = 8 * 1024 * 1024
DRAIN_S = 2.0
"""How much of a body is read and discarded with a refusal: a client that is still sending would not see the answer."""

_LENGTH_DIGITS = 20
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BLANK = b" \t\n\r"
_FIRST_KEY = re.compile(rb'[ \t\n\r]*\{[ \t\n\r]*("(?:[^"\\]|\\.){0,64}")[ \t\n\r]*:', re.DOTALL)
_MIN_BOUNDED = 8 * requests.BATCH_LIMIT
"""A text with fewer commas is split without a limit, which is faster."""
_OPAQUE = ("payload", "result")
"""Fields that take any JSON. `parsing` checks them."""


def _raw_fields(count: int) -> type[Any]:
    """A list of up to `count` raw values. msgspec refuses the first one beyond that."""
    fields = [(f"f{number}", msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for number in range(count)]
    return msgspec.defstruct("Items", fields, array_like=True, forbid_unknown_fields=True)


_unlimited = msgspec.json.Decoder(list[msgspec.Raw])
_bounded = msgspec.json.Decoder(_raw_fields(requests.BATCH_LIMIT))


class Body:
    """The body of one request, before it is read."""

    def __init__(self, receive: Receive, headers: dict[bytes, bytes]) -> None:
        self._receive = receive
        self._headers = headers
        length = headers.get(b"content-length", b"0")
        if len(length) > _LENGTH_DIGITS:
            raise invalid("the header content-length is too long")
        self.length = int(length) if length.isdigit() else 0
        self.ended = self.length == 0 and b"transfer-encoding" not in headers

    async def read(self, limit: int, timeout_s: float, hold: Hold, scope: Mapping[str, Any]) -> bytes:
        """Read all of it. Raises a refusal if it is not JSON, longer than `limit`, too slow, or memory is short."""
        kind = self._headers.get(b"content-type", b"")
        if kind != b"application/json" and not _is_json(kind):
            raise Refusal("unsupported_media_type", "send JSON in UTF-8, as application/json")
        if self._headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise Refusal("unsupported_media_type", "send it without content-encoding")
        if self.length > limit:
            raise _too_large(limit)
        hold.take(self.length)
        cycle = scope.get("holdfast.cycle")
        if cycle is not None and not cycle.more_body and self.length:
            # All of it has arrived already, so there is no need for a timeout.
            return await self._part()
        parts: list[bytes] = []
        size, held = 0, self.length
        try:
            async with asyncio.timeout(timeout_s):
                while not self.ended:
                    part = await self._part()
                    size += len(part)
                    if size > limit:
                        raise _too_large(limit)
                    if size > held:  # Chunked: there was no length to count before.
                        hold.take(size - held)
                        held = size
                    parts.append(part)
        except TimeoutError:
            raise Refusal("request_timeout", f"the body did not arrive within {timeout_s:g} s") from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def drain(self) -> bool:
        """Read and discard the rest. Returns whether the body has ended."""
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
            raise Refusal("request_timeout", "the client disconnected in the middle of the body")
        self.ended = not message.get("more_body", False)
        if not self.ended:
            hit("service.mid_body")
        return message.get("body", b"")


async def decode(data: bytes, type: type[T], turns: CheckTurns, tenant: str) -> T:
    """Decode a body. Raises a refusal that names the wrong part."""
    work = work_of(data)
    if not turns.try_take(min(work, TURN)):
        await turns.take(min(work, TURN), tenant)
    _check_unicode(data)
    if work <= TURN:
        _check_text(data)
    else:
        await _check_large(data, type, turns, tenant)
    return _decode(data, type)


async def decode_batch(
    data: bytes, name: str, type: type[T], turns: CheckTurns, tenant: str
) -> list[T | HoldfastError]:
    """Decode the items of `{name: [...]}`. An item that is wrong becomes its refusal. [ENQ-4]"""
    work = work_of(data)
    if not turns.try_take(min(work, TURN)):
        await turns.take(min(work, TURN), tenant)
    _check_unicode(data)
    if work <= TURN:
        _check_text(data)
        try:
            # All at once, which takes half the time. If an item is wrong, one by one.
            found: list[T | HoldfastError] = codec.reader(list[type])(_list(data, name))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return [_item(item, type) for item in split(data, name)]
        return _check_count(found)
    await turns.take(TURN, tenant)
    items = split(data, name)
    read: list[T | HoldfastError] = []
    group: list[bytes] = []
    work = 0
    for item in items:
        more = work_of(item)
        if more > TURN:
            read.append(await _large_item(item, type, turns, tenant))
            continue
        if group and work + more > TURN:
            await _check_group(group, work, turns, tenant)
            group, work = [], 0
        group.append(item)
        work += more
        read.append(_item(item, type))
    await _check_group(group, work, turns, tenant)
    return read


def split(data: bytes, name: str) -> list[bytes]:
    """Split `{name: [...]}` into raw items, at most as many as a batch may have. Raises a refusal."""
    text = _list(data, name)
    try:
        if len(data) <= SIMPLE_BYTES and data.count(b",") < _MIN_BOUNDED:
            items = _unlimited.decode(text)
        else:
            items = [item for item in msgspec.structs.astuple(_bounded.decode(text)) if item is not msgspec.UNSET]
    except (msgspec.MsgspecError, RecursionError) as error:
        # Also for a second member after the list: the text up to the last brace is decoded as the list.
        raise invalid(f'not a batch, {{"{name}": [...]}} of up to {requests.BATCH_LIMIT} items: {error}') from None
    return [bytes(item) for item in _check_count(items)]


def _list(data: bytes, name: str) -> memoryview:
    """The text between the first colon and the last brace of `{name: [...]}`."""
    first, last = _FIRST_KEY.match(data), data.rstrip(_BLANK)
    if first is None or not last.endswith(b"}") or _decode(first[1], str) != name:
        raise invalid(f'a batch is {{"{name}": [...]}} and nothing else')
    return memoryview(last)[first.end() : -1]


def _check_count(items: list[T]) -> list[T]:
    if len(items) > requests.BATCH_LIMIT:
        raise invalid(f"a batch has up to {requests.BATCH_LIMIT} items; this one has {len(items)}")
    return items


async def _check_group(items: list[bytes], work: int, turns: CheckTurns, tenant: str) -> None:
    await turns.take(work, tenant)
    _check_text(b"[%s]" % b",".join(items))


async def _large_item(data: bytes, type: type[T], turns: CheckTurns, tenant: str) -> T | HoldfastError:
    try:
        await _check_large(data, type, turns, tenant)
    except Refusal as refusal:
        return refusal
    await turns.take(TURN, tenant)
    return _item(data, type)


async def _check_large(data: bytes, type: Any, turns: CheckTurns, tenant: str) -> None:
    """Check the keys of an object that is too large to decode, and the lengths of its lists."""
    await turns.take(TURN, tenant)
    outline = _decode(data, _outline(type))
    fields = {name: getattr(outline, name) for name in outline.__struct_fields__}
    values = {name: bytes(value) for name, value in fields.items() if value is not msgspec.UNSET}
    large = [value for name, value in values.items() if name in _OPAQUE and not is_simple(value)]
    await turns.run(scan.json_text(data, past=large[0] if large else b"", rule=False), tenant)
    await turns.take(TURN, tenant)
    for name, value in values.items():
        if name not in _OPAQUE and value.startswith(b"["):
            _decode(value, _bounded.type)


@lru_cache
def _outline(type: Any) -> type[Any]:
    """A struct with the same fields, all of them raw."""
    fields = [(name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for name in type.__struct_fields__]
    return msgspec.defstruct("Outline", fields, forbid_unknown_fields=True)


def _is_json(kind: bytes) -> bool:
    name, _, charset = kind.decode("latin-1").lower().partition(";")
    return name.strip() == "application/json" and charset.strip() in ("", "charset=utf-8", 'charset="utf-8"')


def _check_unicode(data: bytes) -> None:
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise invalid(str(error)) from None


def convert_query(pairs: list[tuple[str, str]], type: type[T]) -> T:
    """Convert a query. Raises a refusal."""
    query = dict(pairs)
    if len(query) != len(pairs):
        raise invalid("a query parameter occurs twice")
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
    """Refuse text that is not JSON, or has a duplicate key: parsers differ in which of the two they keep."""
    try:
        again = msgspec.json.encode(msgspec.json.decode(data))
    except RecursionError:
        raise invalid("nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise invalid(str(error)) from None
    # Most clients write the text that msgspec would write, apart from spaces: then no key is duplicate.
    if again != data and msgspec.json.format(data, indent=-1) != again and _members(data) != _members(again):
        raise invalid("an object has a duplicate key")


def _members(text: bytes) -> int:
    """The number of members of all objects in a JSON text: each has one colon outside strings."""
    return _STRINGS.sub(b"", text).count(b":")


def _too_large(limit: int) -> Refusal:
    return Refusal("body_too_large", f"the body is longer than {limit} bytes")
