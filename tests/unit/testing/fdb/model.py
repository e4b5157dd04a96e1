"""A database that does one transaction after the other: what the simulation must agree with."""

from __future__ import annotations

import random
from typing import Any

Step = tuple[Any, ...]
"""The name of a method of a transaction, and its arguments."""

READS = ("get", "get_range")


class Model:
    """A dict, with the operations written down once more and as plainly as can be."""

    def __init__(self, pairs: dict[bytes, bytes] | None = None) -> None:
        self.pairs = dict(pairs or {})

    def do(self, step: Step) -> Any:
        name, *arguments = step
        return getattr(self, name)(*arguments)

    def get(self, key: bytes) -> bytes | None:
        return self.pairs.get(key)

    def get_range(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[tuple[bytes, bytes]]:
        found = sorted(((key, value) for key, value in self.pairs.items() if begin <= key < end), reverse=reverse)
        return found[:limit] if limit else found

    def set(self, key: bytes, value: bytes) -> None:
        self.pairs[key] = value

    def clear(self, key: bytes) -> None:
        self.pairs.pop(key, None)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        self.pairs = {key: value for key, value in self.pairs.items() if not begin <= key < end}

    def add(self, key: bytes, amount: int) -> None:
        total = int.from_bytes(self.pairs.get(key, b"")[:8], "little") + amount
        self.pairs[key] = (total % 2**64).to_bytes(8, "little")

    def max(self, key: bytes, value: bytes) -> None:
        self._number(key, value, max)

    def min(self, key: bytes, value: bytes) -> None:
        self._number(key, value, min)

    def _number(self, key: bytes, value: bytes, choose: Any) -> None:
        old = int.from_bytes(self.pairs[key][: len(value)], "little") if key in self.pairs else None
        new = int.from_bytes(value, "little")
        kept = new if old is None else choose(old, new)
        self.pairs[key] = kept.to_bytes(len(value), "little")

    def byte_max(self, key: bytes, value: bytes) -> None:
        self.pairs[key] = max(value, self.pairs.get(key, value))

    def byte_min(self, key: bytes, value: bytes) -> None:
        self.pairs[key] = min(value, self.pairs.get(key, value))

    def compare_and_clear(self, key: bytes, value: bytes) -> None:
        if self.pairs.get(key) == value:
            del self.pairs[key]


# As often as each step comes.
STEPS = ["get"] * 3 + ["get_range", "set"] * 2 + ["clear", "clear_range", "add", "max", "min"]
STEPS += ["byte_max", "byte_min", "compare_and_clear"]


def a_step(rng: random.Random, keys: int = 12) -> Step:
    """A random step over a few keys, so that steps meet."""
    name = rng.choice(STEPS)
    key, other = (b"k%02d" % rng.randrange(keys) for _ in range(2))
    if name in {"get", "clear"}:
        return name, key
    if name == "get_range":
        return name, key, other, rng.choice((0, 0, 1, 2, 3)), rng.random() < 0.4
    if name == "clear_range":
        return name, min(key, other), max(key, other)
    if name == "add":
        return name, key, rng.randrange(-300, 300)
    value = rng.randbytes(rng.choice((0, 1, 2, 8, 9)))
    return name, key, rng.choice((value, b"x", b"y", bytes(8)))


async def do(transaction: Any, step: Step, *, snapshot: bool = False) -> Any:
    """Do a step in a transaction."""
    name, *arguments = step
    if name in {"get", "get_all"}:
        return await getattr(transaction, name)(*arguments, snapshot=snapshot)
    if name == "get_ranges":
        return await transaction.get_ranges(arguments[0], limit=arguments[1], snapshot=snapshot)
    if name == "get_range":
        begin, end, limit, reverse = arguments
        return await transaction.get_range(begin, end, limit=limit, reverse=reverse, snapshot=snapshot)
    return getattr(transaction, name)(*arguments)
