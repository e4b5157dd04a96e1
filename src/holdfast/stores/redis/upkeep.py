"""Upkeep: ending expired leases, forgetting jobs, trimming the log."""

from __future__ import annotations

from holdfast.core.errors import StoreError
from holdfast.core.job import JobKey
from holdfast.store import Pruned, Reaped
from holdfast.stores.redis import records, trimming
from holdfast.stores.redis.keys import names_of
from holdfast.stores.redis.layout import NONE
from holdfast.stores.redis.records import encode
from holdfast.stores.redis.shards import MAX_BATCH, Shards


async def reap(shards: Shards, limit: int, random: float) -> Reaped:
    """End expired leases. Raises only if no shard answers. [LEASE-3]"""
    keys: list[JobKey] = []
    times: list[int] = []
    now = 0
    failures: list[StoreError] = []
    for shard in range(shards.count):
        try:
            now, next_at = await _reap_shard(shards, shard, limit, random, keys)
        except StoreError as error:
            failures.append(error)
        else:
            times += [next_at] if next_at != NONE else []
    if len(failures) == shards.count:
        raise failures[0]
    return Reaped(keys, now, min(times, default=None))


async def _reap_shard(shards: Shards, shard: int, limit: int, random: float, keys: list[JobKey]) -> tuple[int, int]:
    while True:
        batch = min(limit - len(keys), MAX_BATCH)
        now, next_at, *found = await shards.run("reap", shard, encode((batch, random)), repeat=False)
        pairs = zip(found[::2], found[1::2], strict=True)
        keys += [JobKey(*names_of(lane.decode()), id_.decode()) for lane, id_ in pairs]
        if len(found) < 2 * batch or batch == 0:
            return now, next_at


async def prune(shards: Shards, limit: int, keep_events: int, *, blobs: bool) -> Pruned:
    """Forget jobs past their retention and trim the log. Raises only if no shard answers. [KEEP-1, EVENT-2]"""
    jobs = events = 0
    names: list[str] = []
    more = False
    failures: list[StoreError] = []
    for shard in range(shards.count):
        request = encode((min(limit - jobs, MAX_BATCH), int(blobs)))
        try:
            forgotten, jobs_left, *results = await shards.run("prune", shard, request, repeat=False)
            # The server names each blob once: keep the names even if a later step or shard fails.
            names += [records.to_result(result).blob for result in results]
            trimmed, events_left = await trimming.trim(shards, shard, keep_events)
        except StoreError as error:
            failures.append(error)
            continue
        jobs, events, more = jobs + forgotten, events + trimmed, more or bool(jobs_left) or events_left
    if len(failures) == shards.count:
        raise failures[0]
    return Pruned(jobs, events, names, more)


async def erase(shards: Shards) -> None:
    """Remove everything, for tests."""
    for shard in range(shards.count):
        cursor = "0"
        while True:
            cursor = (await shards.run("erase", shard, encode((cursor,)))).decode()
            if cursor == "0":
                break
