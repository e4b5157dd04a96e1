"""Positions: the offsets of a store as texts that sort, byte by byte, in log order within a shard.

A store declares how its offsets are built: `kinds.OffsetForm`.
"""

from __future__ import annotations

from holdfast.kinds import OffsetForm, kind_of

POSITION_WIDTH = 20
"""Digits of each number in a position."""


def offset_before(store: str, shard: int, offset: str) -> str:
    """The offset just before the event of this shard that has `offset`, in the store at this URL.

    It has no check value: that of `offset` belongs to the event itself.
    """
    form = kind_of(store).offsets
    numbers = [int(number) for number in _used(form, offset)]
    numbers[shard if form.by_shard else -1] -= 1
    return ".".join(map(str, numbers))


def positions(store: str, offset: str) -> list[str]:
    """The position in each shard that an offset of the store at this URL stands for."""
    form = kind_of(store).offsets
    numbers = [number.zfill(POSITION_WIDTH) for number in _used(form, offset)]
    return numbers if form.by_shard else [".".join(numbers)]


def _used(form: OffsetForm, offset: str) -> list[str]:
    return offset.split(".")[: form.used]
