"""The Redis store: jobs on Redis or Valkey, on one server, behind Sentinel or on a cluster.

store           the `Store`: one method for each operation
jobs, claims, listing, log, tenants, upkeep, trimming, payloads     the operations, by subject
handoff         direct hand-off to waiting workers
shards          which shard a call runs on, and how batches are split
scripts, lua/   one Lua script for each operation: the contract, next to the data
layout, records, entries, keys      the format of the data, shared by Lua and Python
notifications, messages     notifications by pub/sub
client, routing, pool, connection, connector, errors    how commands reach the server
address         store URLs
doctor          what the server's settings mean for jobs
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.kinds import OffsetForm, store_kind
from holdfast.opening import Options, StoreUrl

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

    from holdfast.stores.redis.store import RedisStore


@store_kind(install="holdfast[redis]", space_option="prefix", offsets=OffsetForm(by_shard=True))
def open_redis(url: StoreUrl) -> RedisStore:
    """The store of a URL like `redis://HOST:6379/0`. `address` describes the URLs."""
    from holdfast.stores.redis.address import parse_address
    from holdfast.stores.redis.client import RedisClient
    from holdfast.stores.redis.store import RedisStore

    address = parse_address(url)
    return RedisStore(RedisClient(address), address.common, prefix=address.prefix, shards=address.shards)


def from_client(client: Redis | RedisCluster, *, prefix: str = "hf", shards: int | None = None) -> RedisStore:
    """A store on the server of a redis-py client, for `Queue(store=...)`."""
    from holdfast.stores.redis.client import RedisClient
    from holdfast.stores.redis.store import RedisStore

    common = Options(StoreUrl("redis:", "redis", "", {})).common()
    return RedisStore(RedisClient.of_redis_py(client), common, prefix=prefix, shards=shards)
