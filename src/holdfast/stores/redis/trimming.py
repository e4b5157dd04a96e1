"""Trims the log: by age, and tenants to their share of its room. [EVENT-2]

First what tenants keep is counted, in steps. The counts give the level that tenants are trimmed to. `lua/trim.lua` uses
the counts at the time it runs, so that two processes that trim at once remove nothing twice.
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.core.trimming import level
from holdfast.store import EVENTS_BOUND, EVENTS_BOUND_MS
from holdfast.stores.redis.records import encode
from holdfast.stores.redis.shards import Shards

MAX_STEPS = 50
"""The most scripts that one call runs to count, and to trim."""
MAX_TENANTS = 1000
"""The most tenants that one script is asked to trim."""
ALWAYS_RESCANNED = 1000
"""Up to this many entries that survived earlier trims are always read again."""
ENTRIES_PER_EVENT = 8
"""More entries are read again only if that removes an event for at least every eighth of them. Otherwise they wait."""


async def trim(shards: Shards, shard: int, keep_events: int) -> tuple[int, bool]:
    """Trim one shard's log. Returns how many events were removed, and whether there is more to do."""
    for _ in range(MAX_STEPS):
        kept, left, old = await shards.run("count_usage", shard, encode((EVENTS_BOUND_MS,)), repeat=False)
        if not left:
            break
    else:
        return 0, True
    trimmer = _LogTrimmer(shards, shard)
    if old:
        await trimmer.by_age()
        kept -= trimmer.removed
    if kept > keep_events and not trimmer.more:
        await trimmer.to_level(keep_events)
    return trimmer.removed, trimmer.more


class _LogTrimmer:
    """Trims one shard's log, in a bounded number of steps."""

    def __init__(self, shards: Shards, shard: int) -> None:
        self._shards = shards
        self._shard = shard
        self._steps_left = MAX_STEPS
        self.removed = 0
        self.more = False

    async def by_age(self) -> None:
        """Remove everything older than the bound."""
        while (await self._step("age", EVENTS_BOUND_MS)).more:
            pass

    async def to_level(self, keep_events: int) -> None:
        """Remove the oldest events of tenants that keep more than their share."""
        kept = await self._counts()
        soft, hard = level(kept.values(), keep_events), level(kept.values(), EVENTS_BOUND)
        over = sorted((name for name in kept if kept[name] > soft), key=lambda name: -kept[name])
        answer = await self._trim_newest(soft, hard, over[:MAX_TENANTS])
        few = answer.not_trimmed and answer.aside <= ALWAYS_RESCANNED
        if few or 0 < answer.aside <= (answer.blocked + answer.waste) * ENTRIES_PER_EVENT:
            while (await self._step("a", soft, hard)).more:
                pass
            await self._trim_newest(soft, hard, answer.not_trimmed)
        # If readers hold back the tenants that keep the most, the others wait for the next call.
        self.more = self.more or (len(over) > MAX_TENANTS and self.removed > 0)

    async def _trim_newest(self, soft: int, hard: int, tenants: list[str]) -> _TrimAnswer:
        first = answer = await self._step("e", soft, hard, tenants)
        while answer.more:
            answer = await self._step("e", soft, hard, answer.pending)
        return first

    async def _counts(self) -> dict[str, int]:
        kept: dict[str, int] = {}
        cursor = b"0"
        while True:
            cursor, found = await self._shards.run("event_counts", self._shard, encode((cursor.decode(),)))
            kept |= {name.decode(): int(count) for name, count in zip(found[::2], found[1::2], strict=True)}
            if cursor == b"0":
                return kept

    async def _step(self, *request: str | int | list[str]) -> _TrimAnswer:
        removed, more, aside, waste, blocked, *names = await self._shards.run(
            "trim", self._shard, encode(request), repeat=False
        )
        self.removed += removed
        self._steps_left -= 1
        self.more = bool(more) and self._steps_left <= 0
        pending, not_trimmed = ([name.decode() for name in some] for some in names)
        return _TrimAnswer(bool(more) and not self.more, aside, waste, blocked, pending, not_trimmed)


class _TrimAnswer(Struct, frozen=True):
    """The answer of `trim.lua`."""

    more: bool
    """Whether to continue at once."""
    aside: int
    """Entries that survived earlier trims."""
    waste: int
    """Removed events that these entries still hold."""
    blocked: int
    """Events to be removed that come after others in these entries."""
    pending: list[str]
    not_trimmed: list[str]
