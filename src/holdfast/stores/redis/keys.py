"""Names: which shard a tenant lives in, and what its keys are called. [TENANT-3]

A lane, one tenant's jobs in one queue name, is called `4:acme6:emails` on the server: each name after its own length,
so that no two lanes share a text. `lua/prelude.lua` makes the keys from it.
"""

from __future__ import annotations

from functools import lru_cache
from zlib import crc32

from holdfast.core.job import JobKey
from holdfast.core.names import join_key


@lru_cache(maxsize=65_536)
def lane_of(tenant: str, queue: str) -> str:
    """The name of a lane."""
    return join_key(tenant, queue)


@lru_cache(maxsize=65_536)
def names_of(lane: str) -> tuple[str, str]:
    """The tenant and the queue of a lane."""
    length, _, rest = lane.partition(":")
    # Tenants and queues are ASCII: their length in bytes is that in characters.
    tenant, rest = rest[: int(length)], rest[int(length) :]
    return tenant, rest.partition(":")[2]


def key_of(text: str) -> JobKey:
    """The job that is called by its lane and its id, one after the other."""
    length, _, rest = text.partition(":")
    tenant, rest = rest[: int(length)], rest[int(length) :]
    length, _, rest = rest.partition(":")
    return JobKey(tenant, rest[: int(length)], rest[int(length) :])


def shard_of(tenant: str, shards: int) -> int:
    """Where a tenant lives."""
    return crc32(tenant.encode()) % shards


def shard_key(prefix: str, shard: int) -> str:
    """The key of a shard's counters, under its hash tag: it goes with every script."""
    return f"{prefix}:{{{shard}}}:c"
