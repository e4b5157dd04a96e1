"""The atomic operations: what becomes of a value, and what two operations on one key are together."""

from __future__ import annotations

from enum import Enum, auto


class Kind(Enum):
    """What a write does to its key."""

    SET = auto()
    ADD = auto()
    MAX = auto()
    MIN = auto()
    BYTE_MAX = auto()
    BYTE_MIN = auto()
    COMPARE_AND_CLEAR = auto()
    STAMPED_VALUE = auto()
    STAMPED_KEY = auto()


INDEPENDENT = frozenset({Kind.SET, Kind.STAMPED_VALUE, Kind.STAMPED_KEY})
"""Writes whose outcome doesn't depend on the value before."""

STAMP_BYTES = 10
OFFSET_BYTES = 4


def apply(kind: Kind, value: bytes | None, operand: bytes) -> bytes | None:
    """Return the value after an operation; None for no value."""
    size = len(operand)
    match kind:
        case Kind.SET:
            return operand
        case Kind.ADD:
            total = int.from_bytes((value or b"")[:size], "little") + int.from_bytes(operand, "little")
            return (total & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        case Kind.MAX | Kind.MIN:
            if not value and (kind is Kind.MAX or value is None):
                return operand
            old = (value or b"")[:size].ljust(size, b"\x00")
            return (max if kind is Kind.MAX else min)(old, operand, key=lambda number: number[::-1])
        case Kind.BYTE_MAX:
            return operand if value is None else max(value, operand)
        case Kind.BYTE_MIN:
            return operand if value is None else min(value, operand)
        case Kind.COMPARE_AND_CLEAR:
            return None if value == operand else value
        case _:
            raise ValueError(kind)  # A versionstamp is filled in before.


def together(kind: Kind, first: bytes, second: bytes) -> bytes | None:
    """Return the operand of one operation that does the same as two of its kind; None if there is none."""
    if kind is Kind.COMPARE_AND_CLEAR or len(first) != len(second):
        return None
    return apply(kind, first, second)


def offset_of(text: bytes) -> int | None:
    """Return where in `text` the versionstamp goes, as its last four bytes say; None if it has no room there."""
    if len(text) < OFFSET_BYTES:
        return None
    offset = int.from_bytes(text[-OFFSET_BYTES:], "little", signed=True)
    return offset if 0 <= offset <= len(text) - OFFSET_BYTES - STAMP_BYTES else None


def stamped(text: bytes, stamp: bytes) -> bytes:
    """Return `text` with the versionstamp filled in and the four bytes of its offset cut off."""
    offset = int.from_bytes(text[-OFFSET_BYTES:], "little")
    return text[:offset] + stamp + text[offset + STAMP_BYTES : -OFFSET_BYTES]


def stamp_of(version: int, order: int) -> bytes:
    """Return the versionstamp of a commit: its version and its place in the batch."""
    return version.to_bytes(8, "big") + order.to_bytes(2, "big")
