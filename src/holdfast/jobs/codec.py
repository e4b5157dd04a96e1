"""Codecs: how payloads and results become bytes, and which values are refused. [ENQ-6]

Every envelope names its codec, so a worker knows how to read it. `json` (the default) and `msgpack` are built in;
`register` adds others. Every codec refuses the same values: NaN and infinity, integers beyond 64 bits, unpaired
surrogates, NUL characters, nesting deeper than 100.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Protocol, cast, get_origin

import msgspec

from holdfast.core.errors import InvalidOption, InvalidPayload, PayloadTooLarge, UnknownCodec
from holdfast.core.job import PAYLOAD_LIMIT

NESTING_LIMIT = 100
INT_MIN, INT_MAX = -(2**63), 2**64 - 1

CODEC_ERRORS = (TypeError, ValueError, ArithmeticError, RecursionError, NotImplementedError)
"""The errors that a codec may raise for an invalid value."""

_BACKSLASH = ord("\\")
_DIGITS = b"0123456789"
_LONG = 19
_LONG_NUMBER = re.compile(rb"\d{%d}" % _LONG)
_MSGSPEC_ERROR = re.compile(r"(.*?)(?: - at (?:`key` in )?`(.*)`)?", re.DOTALL)


class Codec(Protocol):
    """How values of one encoding are written and read. It need not check the values: the function `encode` does."""

    @property
    def name(self) -> str: ...

    def encode(self, value: Any, /) -> bytes: ...

    def decode(self, data: bytes, type: Any = Any, /) -> Any: ...


def register(codec: Codec) -> None:
    """Register a codec in this process, which may be a producer or a worker. A name can be registered once."""
    known = _codecs.setdefault(codec.name, codec)
    if known is not codec:
        raise InvalidOption("codec", f"{codec.name!r} is already registered")


def get(name: str) -> Codec:
    """The codec of that name. Raises UnknownCodec."""
    try:
        return _codecs[name]
    except KeyError:
        raise UnknownCodec(name) from None


def encode(value: Any, codec: str = "json") -> bytes:
    """Encode a payload or a result. Raises InvalidPayload with the reason and the path in the value."""
    writer = get(codec)
    if writer is not _json:
        check_value(value)
    try:
        data = writer.encode(value)
    except CODEC_ERRORS as error:
        check_value(value)
        raise InvalidPayload(f"cannot be written as {codec}: {error}") from error
    if writer is _json and _is_suspect(data):
        check_value(value)
    return data


def decode(data: bytes, codec: str = "json", type: Any = Any) -> Any:
    """Decode what `encode` wrote, as `type`. Raises UnknownCodec, or InvalidPayload if it does not fit."""
    try:
        return get(codec).decode(data, type)
    except CODEC_ERRORS as error:
        raise unreadable(codec, error) from error


def decode_json_text(data: bytes | str) -> Any:
    """Decode JSON text from any program, and refuse the same values as `encode`."""
    text = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    value = decode(text)
    if _is_suspect(text):
        check_value(value)
    return value


def check_json_text(data: bytes) -> bytes:
    """Return well-formed JSON text if its values obey the rules of `encode`. Raises InvalidPayload."""
    if _is_suspect(data):
        check_value(decode(data))
    return data


def check_size(data: bytes, limit: int = PAYLOAD_LIMIT) -> bytes:
    """Return `data` if it is within the limit. Raises PayloadTooLarge. [ENQ-6]"""
    if len(data) > limit:
        raise PayloadTooLarge(len(data), limit)
    return data


def check_value(value: Any) -> None:
    """Raise InvalidPayload, with the path, if a part of `value` cannot be stored."""
    # A stack of the open containers, each an iterator with its key. A leaf costs no memory, and the keys make the path.
    opened: list[Iterator[tuple[Any, Any]]] = [iter([("", value)])]
    path: list[Any] = []
    while opened:
        for key, found in opened[-1]:
            part: Any = found
            if not isinstance(found, _PLAIN):
                part = _plain(found, [*path, key])
            if isinstance(part, _CONTAINERS):
                path.append(key)
                if len(opened) > NESTING_LIMIT:
                    raise InvalidPayload(f"nested deeper than {NESTING_LIMIT}", _show(path[:9]) + "...")
                opened.append(_parts(cast("dict[Any, Any] | list[Any]", part), path))
                break
            if fault := _fault(part):
                raise InvalidPayload(fault, _show([*path, key]))
        else:
            opened.pop()
            if path:
                path.pop()


def _fault(value: Any) -> str:
    if isinstance(value, str):
        return _text_fault(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is not a number JSON can carry"
    if isinstance(value, int) and not INT_MIN <= value <= INT_MAX:
        return "integer beyond 64 bits; pass it as a string"
    return ""


_CONTAINERS = (dict, list, tuple, set, frozenset)
_PLAIN = (str, int, float, bytes, type(None), *_CONTAINERS)


def _is_suspect(data: bytes) -> bool:
    """Whether JSON bytes could hide a refused value. msgspec writes NaN as null; the others are visible in the text."""
    # `find` and the guards are for speed: this runs for every payload, and `in` is slow on bytes.
    return (
        data.find(b"null") >= 0
        or (_BACKSLASH in data and data.find(b"\\u0000") >= 0)
        or (len(data) > 2 * NESTING_LIMIT and data.count(b"[") + data.count(b"{") > NESTING_LIMIT)
        or (
            len(data) >= _LONG
            and len(data) - len(data.translate(None, _DIGITS)) >= _LONG
            and _LONG_NUMBER.search(data) is not None
        )
    )


def _parts(value: dict[Any, Any] | list[Any], path: list[Any]) -> Iterator[tuple[Any, Any]]:
    if not isinstance(value, dict):
        return enumerate(value)
    for key in value:
        if fault := _fault(key):
            raise InvalidPayload(f"key: {fault}", _show(path))
    return iter(value.items())


def _plain(value: Any, path: list[Any]) -> Any:
    """A struct, dataclass, model or enum converted to builtins, one level or more. Other values stay as they are."""
    try:
        plain = msgspec.to_builtins(value, enc_hook=_enc_hook)
    except RecursionError:
        raise InvalidPayload(f"nested deeper than {NESTING_LIMIT}", _show(path)) from None
    except (TypeError, ValueError, NotImplementedError):
        return value
    return value if type(plain) is type(value) else plain


def _text_fault(text: str) -> str:
    if "\x00" in text:
        return "NUL characters cannot be stored"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "not valid Unicode (an unpaired surrogate)"
    return ""


def _show(path: list[Any]) -> str:
    """The path as text. Its first key means the value itself."""
    return "$" + "".join(f"[{key}]" if isinstance(key, int) else f".{_printable(key)}" for key in path[1:])


def _printable(key: Any) -> str:
    return str(key).encode(errors="replace").decode()


def unreadable(codec: str, error: Exception) -> InvalidPayload:
    """A decoder's error as an InvalidPayload."""
    if isinstance(error, RecursionError):
        return InvalidPayload(f"nested deeper than {NESTING_LIMIT}")
    if isinstance(error, msgspec.ValidationError) and (match := _MSGSPEC_ERROR.fullmatch(str(error))):
        reason = match[1]
        return InvalidPayload(reason[:1].lower() + reason[1:], match[2] or "")
    return InvalidPayload(f"not readable as {codec}: {error}")


# Pydantic is never imported here: a model has methods of its own. ----------------------------------


def _enc_hook(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise NotImplementedError(f"objects of type {type(value).__qualname__} cannot be encoded")
    return dump(mode="json")


def _dec_hook(type_: Any, value: Any) -> Any:
    if isinstance(value, get_origin(type_) or type_):
        return value
    validate = getattr(type_, "model_validate_json", None)
    if validate is None:
        raise NotImplementedError(f"objects of type {type_.__qualname__} cannot be decoded")
    # Through JSON text: a strict model accepts a string for a date only from there.
    return validate(_json.encode(value))


class _Json:
    name = "json"

    def __init__(self) -> None:
        self.encode = msgspec.json.Encoder(enc_hook=_enc_hook).encode

    def decode(self, data: bytes, type: Any = Any) -> Any:
        return _json_decoder(type).decode(data)


class _Msgpack:
    name = "msgpack"

    def __init__(self) -> None:
        self.encode = msgspec.msgpack.Encoder(enc_hook=_enc_hook).encode

    def decode(self, data: bytes, type: Any = Any) -> Any:
        return _msgpack_decoder(type).decode(data)


@lru_cache(maxsize=512)
def _json_decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type_, dec_hook=_dec_hook)


@lru_cache(maxsize=512)
def _msgpack_decoder(type_: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(type_, dec_hook=_dec_hook)


def convert(value: Any, type: Any) -> Any:
    """Convert decoded builtins to `type`. Raises InvalidPayload if they do not fit."""
    try:
        return msgspec.convert(value, type, dec_hook=_dec_hook, str_keys=True)
    except CODEC_ERRORS as error:
        raise unreadable("json", error) from error


def reader(type: Any) -> Callable[[bytes | memoryview], Any]:
    """Return a decoder of JSON as `type` that raises msgspec's errors, to read many values of one type."""
    return _json_decoder(type).decode


def can_decode(type: Any) -> bool:
    """Whether values can be read back as `type` at all."""
    try:
        _json_decoder(type)
    except (TypeError, ValueError, NameError):
        return False
    return True


_json = _Json()
_codecs: dict[str, Codec] = {"json": _json, "msgpack": _Msgpack()}
