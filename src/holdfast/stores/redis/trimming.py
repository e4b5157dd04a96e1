"""Trims the log: by age, and tenants to their share of its room. [EVENT-2]

What tenants keep is counted first, in steps; from that comes the level that they are cut to. `lua/trim.lua` cuts by the
counts as they are when it runs, so that two processes that trim at once cut nothing twice.
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.core.trimming import level
from holdfast.store import EVENTS_BOUND, EVENTS_BOUND_MS
from holdfast.stores.redis.records import encode
from holdfast.stores.redis.shards import Shards

STEPS = 50
"""How many scripts one call runs to count, and to cut."""
TENANTS = 1000
"""How many tenants one script is asked to cut."""
SMALL = 1000
"""Up to how many entries that survived earlier cuts are always gone through again ..."""
STAND_OVER = 8
"""... of more, only where so many events have to go: one for each this many entries. The others stand over."""


async def trim(shards: Shards, shard: int, keep_events: int) -> tuple[int, bool]:
    """Trim one shard's log: how many events went, and whether more have to."""
    for _ in range(STEPS):
        kept, left, old = await shards.run("count", shard, encode((EVENTS_BOUND_MS,)), repeat=False)
        if not left:
            break
    else:
        return 0, True
    cut = _Cut(shards, shard)
    if old:
        await cut.by_age()
        kept -= cut.gone
    if kept > keep_events and not cut.more:
        await cut.to_level(keep_events)
    return cut.gone, cut.more


class _Cut:
    """The cutting of one shard's log, in a bounded number of steps."""

    def __init__(self, shards: Shards, shard: int) -> None:
        self._shards = shards
        self._shard = shard
        self._steps = STEPS
        self.gone = 0
        self.more = False

    async def by_age(self) -> None:
        """What is older than the bound goes, whosever it is."""
        while (await self._step("age", EVENTS_BOUND_MS)).more:
            pass

    async def to_level(self, keep_events: int) -> None:
        """Tenants that keep more than their share lose the oldest of it."""
        kept = await self._counts()
        soft, hard = level(kept.values(), keep_events), level(kept.values(), EVENTS_BOUND)
        over = sorted((name for name in kept if kept[name] > soft), key=lambda name: -kept[name])
        cut = await self._newest(soft, hard, over[:TENANTS])
        few = cut.not_cut and cut.aside <= SMALL
        if few or 0 < cut.aside <= (cut.blocked + cut.waste) * STAND_OVER:
            while (await self._step("a", soft, hard)).more:
                pass
            await self._newest(soft, hard, cut.not_cut)
        # Where readers hold those that keep most, the others wait for the next time.
        self.more = self.more or (len(over) > TENANTS and self.gone > 0)

    async def _newest(self, soft: int, hard: int, tenants: list[str]) -> _Answer:
        first = answer = await self._step("e", soft, hard, tenants)
        while answer.more:
            answer = await self._step("e", soft, hard, answer.pending)
        return first

    async def _counts(self) -> dict[str, int]:
        kept: dict[str, int] = {}
        cursor = b"0"
        while True:
            cursor, found = await self._shards.run("levels", self._shard, encode((cursor.decode(),)))
            kept |= {name.decode(): int(count) for name, count in zip(found[::2], found[1::2], strict=True)}
            if cursor == b"0":
                return kept

    async def _step(self, *request: str | int | list[str]) -> _Answer:
        gone, more, aside, waste, blocked, *names = await self._shards.run(
            "trim", self._shard, encode(request), repeat=False
        )
        self.gone += gone
        self._steps -= 1
        self.more = bool(more) and self._steps <= 0
        pending, not_cut = ([name.decode() for name in some] for some in names)
        return _Answer(bool(more) and not self.more, aside, waste, blocked, pending, not_cut)


class _Answer(Struct, frozen=True):
    """What `trim.lua` answers."""

    more: bool
    """Whether to go on at once."""
    aside: int
    """Entries that survived earlier cuts."""
    waste: int
    """Events in them that are gone."""
    blocked: int
    """How many events are too many that are held up by some in these entries."""
    pending: list[str]
    not_cut: list[str]
