"""Names of lanes, keys and shards. [TENANT-3]

A lane is one tenant's jobs in one queue name. Its name is like `4:acme6:emails`: each part comes with its length, so
that no two lanes share a name. `lua/prelude.lua` makes the keys from it.
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
    # Tenants and queues are ASCII: a length in bytes is a length in characters.
    tenant, rest = rest[: int(length)], rest[int(length) :]
    return tenant, rest.partition(":")[2]


def key_of(text: str) -> JobKey:
    """The job whose lane and id are joined in this text."""
    length, _, rest = text.partition(":")
    tenant, rest = rest[: int(length)], rest[int(length) :]
    length, _, rest = rest.partition(":")
    return JobKey(tenant, rest[: int(length)], rest[int(length) :])


def shard_of(tenant: str, shards: int) -> int:
    """The shard of a tenant."""
    return crc32(tenant.encode()) % shards


def shard_key(prefix: str, shard: int) -> str:
    """The key of a shard's counters, with its hash tag. Every script names it."""
    return f"{prefix}:{{{shard}}}:c"
