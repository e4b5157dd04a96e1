"""Checks large values as text or bytes, in slices: nothing is decoded, and a leaf needs no memory.

The rules are those of `codec.check_value`, and no object may have a duplicate key: parsers differ in which of the two
they keep. Each check is a generator. It yields after each slice, so that the event loop can run.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Generator
from typing import Any

import msgspec

from holdfast.core.errors import InvalidPayload
from holdfast.jobs.codec import INT_MAX, INT_MIN, NESTING_LIMIT
from holdfast.service.errors import Refusal, invalid

SLICE = 8 * 1024
"""The work of one slice, about 0.5 ms: 1 per byte, and more per part that needs its own check."""
PART, HARD_PART = 16, 64
SHOWN = 8
"""The most levels of a path in a message."""

Slices = Generator[None]

_SPACE = rb"[ \t\n\r]*+"
# First the parts that need no check: numbers with few digits, words, and strings that are not keys and have no escapes.
# No group is possessive: Python 3.11.2 then takes keys for such strings. Nothing is lost by it, since what follows the
# repeated group may be empty, so that it is never backtracked into.
_NEXT = re.compile(
    rb"(?:[ \t\n\r,:.+-]{1,64}+|\d{1,18}+(?:[eE][+-]?+\d{1,2}+)?(?![\deE])|true|false|null|"
    rb'"[^"\\]{0,4096}+"(?!' + _SPACE + rb":)){0,512}"
    rb'(?:([\[{])|([\]}])|"([^"\\]{0,4096}+)"' + _SPACE + rb':|(")|(\d[\d.eE+-]*+))?'
)
_OPEN, _CLOSE, _KEY, _STRING, _NUMBER = range(1, 6)
_PIECE = re.compile(rb'(?:[^"\\]{1,64}+|\\.){1,128}', re.DOTALL)
_COLON = re.compile(_SPACE + rb":")
_INTEGER_PART = re.compile(rb"-?\d{0,18}\.?\Z")
_LONGEST_NUMBER = 1000
_PATH_BYTES = 256 * 1024
_BRACE, _QUOTE = ord("{"), ord('"')


class _JsonScanner:
    """The state of a check of JSON text."""

    def __init__(self, data: bytes, past: bytes, *, rule: bool) -> None:
        self.data = data
        self.keys: list[set[bytes] | None] = []
        """The keys of each open object; None for a list."""
        self.starts: list[int] = []
        """The offset of each open container."""
        self.names: list[bytes] = []
        """The key of each open container, or of the last one at its place."""
        self._key = b""
        self._past = past
        self._rule = rule
        self._deepest = NESTING_LIMIT if rule else len(data)

    def open(self, place: int) -> None:
        """A container begins."""
        if len(self.keys) >= self._deepest:
            raise InvalidPayload(f"nested deeper than {NESTING_LIMIT}", self._path(place))
        self.keys.append(set() if self.data[place] == _BRACE else None)
        self.starts.append(place)
        self.names.append(self._key)

    def add_key(self, key: bytes, place: int) -> int:
        """Add a key. Returns the offset after its colon, or after a value that is skipped."""
        seen = self.keys[-1]
        if seen is None or key in seen:
            raise duplicate_key()
        seen.add(key)
        self._key = key
        while self.data[place] in b" \t\n\r":
            place += 1
        return place + len(self._past) if self.data.startswith(self._past, place) else place

    def string(self, start: int) -> Generator[None, None, int]:
        """Check a long string, or one with escapes. Returns the offset after it."""
        data, place, since = self.data, start + 1, start
        while data[place] != _QUOTE:
            place = _PIECE.match(data, place).end()  # pyright: ignore[reportOptionalMemberAccess]
            if place - since > SLICE:
                since = place
                yield
        place += 1
        text = msgspec.json.decode(data[start:place], type=str)
        colon = _COLON.match(data, place)
        if self._rule and "\x00" in text:
            fault = "NUL characters cannot be stored"
            raise InvalidPayload(f"key: {fault}" if colon else fault, self._path(start))
        return place if colon is None else self.add_key(text.encode(), colon.end())

    def check_number(self, start: int, end: int) -> None:
        """Check a number with many digits, or with an exponent. Its beginning may have been skipped already."""
        if not self._rule:
            return
        before = _INTEGER_PART.search(self.data, max(0, start - 20), start)
        start = before.start() if before else start
        fault = _number_fault(self.data[start:end])
        if fault:
            raise InvalidPayload(fault, self._path(start))

    def _path(self, place: int) -> str:
        """The path of the part at an offset."""
        starts, names = [*self.starts, place], [*self.names, self._key]
        shown = "$"
        for level, seen in enumerate(self.keys[:SHOWN]):
            if seen is None:
                shown += f"[{_count(self.data[starts[level] : starts[level + 1]])}]"
            else:
                shown += f".{names[level + 1].decode(errors='replace')}"
        return shown + ("..." if len(self.keys) > SHOWN else "")


def _number_fault(text: bytes) -> str:
    if len(text) > _LONGEST_NUMBER:
        return f"a number with more than {_LONGEST_NUMBER} digits; pass it as a string"
    try:
        value: Any = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return "not a number JSON can carry"
    if isinstance(value, int) and not INT_MIN <= value <= INT_MAX:
        return "integer beyond 64 bits; pass it as a string"
    return ""


def duplicate_key() -> Refusal:
    """The refusal of a duplicate key."""
    return invalid("an object has a duplicate key")


def json_text(data: bytes, *, past: bytes = b"", rule: bool = True) -> Slices:
    """Check JSON text that is well-formed. Raises a refusal, or InvalidPayload with the path.

    A member whose value is `past` is skipped. Without `rule` only keys are checked.
    """
    at = _JsonScanner(data, past, rule=rule)
    place, spent, end = 0, 0, len(data)
    keys, starts, names = at.keys, at.starts, at.names
    while place < end:
        begin = place
        match = _NEXT.match(data, place)
        if match is None or match.end() == begin:
            raise invalid("not well-formed")
        place, kind = match.end(), match.lastindex
        # The most frequent first.
        if kind == _CLOSE:
            del keys[-1], starts[-1], names[-1]
        elif kind == _OPEN:
            at.open(place - 1)
        elif kind == _KEY:
            place = at.add_key(match[_KEY], place)
        elif kind == _NUMBER:
            spent += HARD_PART
            at.check_number(match.start(_NUMBER), place)
        elif kind == _STRING:
            spent += HARD_PART
            place = yield from at.string(place - 1)
        spent += PART + min(place - begin, SLICE)
        if spent >= SLICE:
            spent = 0
            yield


def _count(text: bytes) -> str:
    """The number of values in the beginning of a list."""
    if len(text) > _PATH_BYTES:
        return "?"
    return str(len(msgspec.json.decode(text.rstrip(b" \t\n\r,") + b"]", type=list[msgspec.Raw])))


# MessagePack ----------------------------------------------------------------------------------------------

_FIXMAP, _FIXLIST, _FIXSTRING, _NIL, _NEGATIVE = 0x80, 0x90, 0xA0, 0xC0, 0xE0
"""The first bytes of types that need no further byte for their size."""
_FLOATS = {0xCA: ">f", 0xCB: ">d"}
_FIXED = {0xC0: 1, 0xC2: 1, 0xC3: 1, 0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5,
          0xD3: 9, 0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18}  # fmt: skip
"""The size of each scalar of fixed size."""
_COUNTED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""The size of the length field of a string, a binary or an extension."""
_STRINGS = frozenset({*range(_FIXSTRING, _NIL), 0xD9, 0xDA, 0xDB})
_EXTENSIONS = frozenset({0xC7, 0xC8, 0xC9})
_TIMES = frozenset({0xC7, 0xD6, 0xD7})
_MAPS, _LISTS = {0xDE: 2, 0xDF: 4}, {0xDC: 2, 0xDD: 4}


class _MsgpackScanner:
    """The state of a check of MessagePack."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.left: list[int] = []
        """The remaining parts of each open container. Keys and values of a map count one each."""
        self.keys: list[set[Any] | None] = []
        self.shown: list[Any] = []
        """The last key of each open map, the length of each open list."""

    def path(self) -> str:
        text = "$"
        for left, keys, shown in list(zip(self.left, self.keys, self.shown, strict=True))[:SHOWN]:
            text += f"[{shown - left - 1}]" if keys is None else f".{shown}"
        return text + ("..." if len(self.left) > SHOWN else "")

    def fault(self, reason: str, *, is_key: bool) -> InvalidPayload:
        return InvalidPayload(f"key: {reason}" if is_key else reason, self.path())

    def open(self, count: int, *, is_map: bool, is_key: bool) -> None:
        """A container begins."""
        if is_key:
            raise self.fault("a map or list cannot be a key", is_key=True)
        if len(self.left) >= NESTING_LIMIT:
            raise self.fault(f"nested deeper than {NESTING_LIMIT}", is_key=False)
        self.left.append(2 * count if is_map else count)
        self.keys.append(set() if is_map else None)
        self.shown.append("" if is_map else count)

    def close(self) -> bool:
        """Close containers without remaining parts. Returns whether none is open."""
        while self.left and not self.left[-1]:
            del self.left[-1], self.keys[-1], self.shown[-1]
        return not self.left

    def scalar(self, kind: int, place: int, end: int, *, is_key: bool) -> None:
        """Check a scalar. If it is a key, add it."""
        value: Any = None
        if kind in _STRINGS:
            start = place + 1 + _COUNTED.get(kind, 0)
            value = str(self.data[start:end], "utf-8")
            if "\x00" in value:
                raise self.fault("NUL characters cannot be stored", is_key=is_key)
        elif kind in _FLOATS:
            value = struct.unpack(_FLOATS[kind], self.data[place + 1 : end])[0]
            if not math.isfinite(value):
                raise self.fault(f"{value} is not a number JSON can carry", is_key=is_key)
        elif is_key or kind in _TIMES:
            value = msgspec.msgpack.decode(self.data[place:end])
        if is_key:
            keys = self.keys[-1]
            if keys is None or value in keys:
                raise self.fault(f"{value!r:.80} is duplicate in its map", is_key=True)
            keys.add(value)
            self.shown[-1] = value


def msgpack(data: bytes) -> Slices:
    """Check MessagePack. Raises InvalidPayload with the path."""
    try:
        yield from _msgpack(data)
    except (IndexError, struct.error, UnicodeDecodeError, TypeError, msgspec.MsgspecError) as error:
        reason = "it ends too early" if isinstance(error, (IndexError, struct.error)) else str(error)
        raise InvalidPayload(f"not readable as msgpack: {reason}") from error


def _msgpack(data: bytes) -> Slices:
    at = _MsgpackScanner(data)
    left, all_keys = at.left, at.keys
    place = spent = 0
    while True:
        kind = data[place]
        begin = place
        is_key = False
        if left:
            left[-1] -= 1
            is_key = all_keys[-1] is not None and left[-1] % 2 == 1
        if kind < _FIXMAP or kind >= _NEGATIVE:
            place += 1
            if is_key:
                at.scalar(kind, begin, place, is_key=True)
        elif kind < _FIXSTRING or kind in _MAPS or kind in _LISTS:
            place, count, is_map = _container(data, place, kind)
            at.open(count, is_map=is_map, is_key=is_key)
        else:
            place = _end(data, place, kind)
            at.scalar(kind, begin, place, is_key=is_key)
        if not left or (not left[-1] and at.close()):
            break
        spent += PART
        if spent >= SLICE:
            spent = 0
            yield
    if place != len(data):
        raise InvalidPayload("not readable as msgpack: there is more after the value")


def _container(data: bytes, place: int, kind: int) -> tuple[int, int, bool]:
    """The offset of the first part of a map or list, the number of parts, and whether it is a map."""
    if kind < _FIXSTRING:
        return place + 1, kind & 0x0F, kind < _FIXLIST
    width = (_MAPS.get(kind) or 0) + (_LISTS.get(kind) or 0)
    parts = place + 1 + width
    if parts > len(data):
        raise IndexError
    return parts, int.from_bytes(data[place + 1 : parts], "big"), kind in _MAPS


def _end(data: bytes, place: int, kind: int) -> int:
    """The end of a scalar."""
    if kind < _NIL:
        end = place + 1 + (kind & 0x1F)
    elif kind in _FIXED:
        end = place + _FIXED[kind]
    elif kind in _COUNTED:
        start = place + 1 + _COUNTED[kind]
        end = start + int.from_bytes(data[place + 1 : start], "big") + (kind in _EXTENSIONS)
    else:
        raise InvalidPayload(f"not readable as msgpack: no value begins with byte {kind:#x}")
    if end > len(data):
        raise IndexError
    return end
