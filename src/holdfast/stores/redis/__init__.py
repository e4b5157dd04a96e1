"""The Redis store: jobs on Redis or Valkey, one server, Sentinel or a cluster.

The parts:

    address     a store URL, taken apart
    connection, pool, routes, client, trouble     connections, who to talk to, how a script is run, what errors mean
    listener, messages  hints by pub/sub
    scripts, lua/   one Lua script for each operation: the contract, restated next to the data
    keys, records   names and bytes, as Lua and Python share them
    shards      which shard a call goes to, and how batches are cut
    reads       lists and the log, page by page
    doctor      what the server's settings mean for the jobs on it
    store       the `Store` face
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.opening import Options, StoreUrl
from holdfast.stores.redis import address
from holdfast.stores.redis.client import RedisClient
from holdfast.stores.redis.store import RedisStore

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster


def open_redis(url: StoreUrl) -> RedisStore:
    """`redis://HOST:6379/0` and its kin; see `address` for what can be written."""
    found = address.parse_address(url)
    return RedisStore(RedisClient(found), found.common, prefix=found.prefix, shards=found.shards)


def from_client(client: Redis | RedisCluster, *, prefix: str = "hf", shards: int | None = None) -> RedisStore:
    """A store at the place that a client of redis-py is connected to, for `Queue(store=...)`."""
    common = Options(StoreUrl("redis:", "redis", "", {})).common()
    return RedisStore(RedisClient.of_redis_py(client), common, prefix=prefix, shards=shards)


__all__ = ["RedisStore", "from_client", "open_redis"]
