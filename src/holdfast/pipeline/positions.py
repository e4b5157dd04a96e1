"""Positions: the offsets of a store as texts that sort, byte by byte, in log order within a shard."""

from __future__ import annotations

POSITION_WIDTH = 20
"""Digits of each number in a position."""


def place_in(store: str, shard: int) -> int:
    """Which number of an offset counts the events of this shard one by one, in a store of this name."""
    return -1 if store == "postgres" else shard


def positions(store: str, offset: str) -> list[str]:
    """The position in each shard that an offset of the store at this URL stands for."""
    parts = [part.zfill(POSITION_WIDTH) for part in offset.split(".")]
    scheme = store.partition(":")[0]
    if scheme == "file":
        return parts[:1]  # The second number is a check value.
    return parts if "redis" in scheme or "valkey" in scheme else [".".join(parts)]
