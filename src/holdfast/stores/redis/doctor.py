"""Whether a server is fit for jobs: the findings of `holdfast doctor`, and what opening a store requires.

Everything comes from INFO, and from CONFIG if the server allows it. What the server does not reveal is reported as
unknown.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from holdfast.core.errors import StoreError, StoreMismatch
from holdfast.store import Finding, Hint
from holdfast.stores.redis.client import LuaScript, RedisClient
from holdfast.stores.redis.connection import pack
from holdfast.stores.redis.errors import REDIS_ERRORS

MIN_VERSIONS = {"Valkey": 8, "Redis": 7}
"""The oldest version of each that has everything we use."""
FULL_WARN, FULL_BAD = 0.8, 0.95
MAX_FRAGMENTATION = 1.5
MIN_FRAGMENTED_BYTES = 256 << 20
"""A small server always looks fragmented."""
MAX_CLOCK_OFFSET_S = 1.0
SLOW_US = 100_000
MIN_PUBSUB_BUFFER = 1 << 20

_SETTINGS = ("save", "appendonly", "appendfsync", "no-appendfsync-on-rewrite", "client-output-buffer-limit")
_POLICY_CURE = "CONFIG SET maxmemory-policy noeviction, and the line 'maxmemory-policy noeviction' in its file"
_AOF_CURE = "CONFIG SET appendonly yes, and the line 'appendonly yes' in its file"


class Durability(Struct, frozen=True):
    """What the server keeps, for the store's capabilities."""

    durable: bool
    """Killing the server process loses nothing."""
    survives_power_loss: bool
    note: str
    cure: str = ""


class RedisNode(Struct, frozen=True):
    """One primary, as it describes itself."""

    name: str
    info: dict[str, str]
    settings: dict[str, str]
    """Empty if CONFIG is forbidden."""

    def number(self, name: str) -> float:
        try:
            return float(self.info.get(name, ""))
        except ValueError:
            return 0.0


async def refuse_eviction(client: RedisClient) -> None:
    """Raise StoreMismatch if the server evicts keys, and so jobs, when its memory is full."""
    for name, info in await client.info():
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            reason = f"{name} evicts keys when its memory is full (maxmemory-policy is {policy}), which would lose jobs"
            raise StoreMismatch(f"{reason}; set it: {_POLICY_CURE}")


async def durability(client: RedisClient) -> Durability:
    """What survives a restart and a power cut. For a cluster: what its weakest node keeps."""
    kept = [_durability(node) for node in await _nodes(client)]
    return min(kept, key=lambda one: (one.durable, one.survives_power_loss))


async def findings(
    client: RedisClient,
    *,
    prefix: str,
    shards: Sequence[str],
    scripts: Mapping[str, LuaScript],
    layout: str,
    clock: Callable[[], float] = time.time,
) -> list[Finding]:
    """Examine the deployment. `shards` has one key of each shard; `layout` describes the data layout in words.

    `clock` is this machine's clock, in seconds. Raises StoreUnavailable if the server cannot be reached.
    """
    nodes = await _nodes(client)
    found: list[Finding] = []
    for node in nodes:
        for finding in _of_node(node):
            text = f"{node.name}: {finding.text}" if len(nodes) > 1 else finding.text
            found.append(Finding(finding.level, finding.subject, text, finding.cure))
    found += await _clock(client, clock)
    found += await _scripts(client, scripts)
    found += await _slow(client, scripts)
    found += await _notifications(client, prefix)
    found.append(Finding("ok", "layout", layout))
    if client.is_cluster:
        found.append(await _spread(client, shards, len(nodes)))
    return found


async def _nodes(client: RedisClient) -> list[RedisNode]:
    settings = await client.each("CONFIG", "GET", *_SETTINGS)
    return [
        RedisNode(name, info, _pairs(reply))
        for (name, info), (_, reply) in zip(await client.info(), settings, strict=True)
    ]


def _pairs(reply: Any) -> dict[str, str]:
    words = [cast("bytes", word).decode(errors="replace") for word in reply or ()]
    return dict(zip(words[::2], words[1::2], strict=True))


# One server ---------------------------------------------------------------------------------------------------


def _of_node(node: RedisNode) -> Iterator[Finding]:
    if not node.info:
        yield Finding(
            "warn", "server", "the server forbids INFO, so most checks are not possible", "ACL SETUSER ... +info"
        )
        return
    yield _version(node)
    yield _role(node)
    yield _eviction(node)
    yield from _persistence(node)
    yield from _replication(node)
    yield from _memory(node)
    yield from _buffer(node)


def _version(node: RedisNode) -> Finding:
    brand = "Valkey" if "valkey_version" in node.info else "Redis"
    version = node.info.get("valkey_version") or node.info.get("redis_version", "")
    major = version.partition(".")[0]
    if major.isdigit() and int(major) >= MIN_VERSIONS[brand]:
        return Finding("ok", "server", f"{brand} {version}")
    cure = f"upgrade to Valkey {MIN_VERSIONS['Valkey']} or Redis {MIN_VERSIONS['Redis']}, or later"
    return Finding("bad", "server", f"{brand} {version or 'of an unknown version'} is too old", cure)


def _role(node: RedisNode) -> Finding:
    role = node.info.get("role", "master")
    if role == "master":
        return Finding("ok", "role", "a primary")
    return Finding("bad", "role", "a replica: it accepts no writes", "connect to its primary, or through Sentinel")


def _eviction(node: RedisNode) -> Finding:
    policy = node.info.get("maxmemory_policy", "")
    if policy == "noeviction":
        return Finding("ok", "eviction", "noeviction: a full server refuses new jobs and keeps the old ones")
    if not policy:
        return Finding("warn", "eviction", "the server does not reveal its maxmemory-policy", _POLICY_CURE)
    return Finding("bad", "eviction", f"{policy}: a full server evicts jobs", _POLICY_CURE)


def _durability(node: RedisNode) -> Durability:
    if node.info.get("aof_enabled") == "1":
        return _appended(node.settings.get("appendfsync", ""), node.settings.get("no-appendfsync-on-rewrite", "no"))
    if node.settings.get("save"):
        return Durability(False, False, "snapshots only: a restart loses everything since the last one", _AOF_CURE)
    if not node.settings:
        note = "no append-only file: a restart loses everything since the last snapshot, if there is one"
        return Durability(False, False, note, _AOF_CURE)
    return Durability(False, False, "nothing is kept: a restart loses every job", _AOF_CURE)


def _appended(fsync: str, pauses: str) -> Durability:
    cure = "CONFIG SET appendfsync always, if that matters more than speed"
    if fsync == "always" and pauses == "yes":
        note = "appendfsync always, but not during a rewrite: a power cut then may lose what was written since it began"
        return Durability(True, False, note, "CONFIG SET no-appendfsync-on-rewrite no")
    if fsync == "always":
        note = "appendfsync always: survives power loss if the disk does what it promises"
        return Durability(True, True, note)
    if fsync == "everysec":
        # During a sync the server buffers its writes in memory, for up to two seconds.
        note = (
            "appendfsync everysec: a power cut may lose the last 1-2 seconds, and so may a kill while the disk is slow"
        )
        return Durability(False, False, note, cure)
    if fsync == "no":
        note = (
            "appendfsync no: a power cut may lose the last 30 seconds or more; killing the server process loses nothing"
        )
        return Durability(True, False, note, cure)
    note = (
        "an append-only file, but the server does not reveal how often it is synced: a power cut may lose some seconds"
    )
    return Durability(False, False, note, "allow CONFIG GET, or ask the operator of the server for appendfsync")


def _persistence(node: RedisNode) -> Iterator[Finding]:
    kept = _durability(node)
    yield Finding("ok" if kept.survives_power_loss else "warn", "durability", kept.note, kept.cure)
    for name, what in (
        ("aof_last_write_status", "the append-only file cannot be written"),
        ("aof_last_bgrewrite_status", "the last rewrite of the append-only file failed"),
        ("rdb_last_bgsave_status", "the last snapshot failed"),
    ):
        if node.info.get(name, "ok") != "ok":
            yield Finding(
                "bad", "durability", what, "look at the server's log, its disk space and vm.overcommit_memory"
            )


def _replication(node: RedisNode) -> Iterator[Finding]:
    replicas = int(node.number("connected_slaves"))
    if not replicas:
        return
    behind = [n for n in range(replicas) if "state=online" not in node.info.get(f"slave{n}", "state=online")]
    text = f"{replicas} replica(s); a failover can lose acknowledged writes, and WAIT does not prevent that"
    if behind:
        yield Finding("warn", "replication", f"{text}; {len(behind)} not in sync", "look at the replicas' logs")
    else:
        yield Finding("ok", "replication", text)


def _memory(node: RedisNode) -> Iterator[Finding]:
    used, limit, host = (node.number(name) for name in ("used_memory", "maxmemory", "total_system_memory"))
    if not limit:
        text = f"{_size(used)} in use and no limit; the host has {_size(host)}"
        limit_text = _size(host * 0.7).replace(" ", "")
        cure = f"CONFIG SET maxmemory {limit_text}, so that it refuses jobs before the system kills it"
        yield Finding("warn", "memory", text, cure.replace("GiB", "gb").replace("MiB", "mb"))
    else:
        share = used / limit
        level = "bad" if share > FULL_BAD else "warn" if share > FULL_WARN else "ok"
        cure = "" if level == "ok" else "raise maxmemory, shorten result_ttl, or run more workers"
        yield Finding(level, "memory", f"{_size(used)} of {_size(limit)} in use ({share:.0%})", cure)
    ratio = node.number("mem_fragmentation_ratio")
    if ratio > MAX_FRAGMENTATION and used > MIN_FRAGMENTED_BYTES:
        text = f"the server holds {ratio:.1f} times as much memory as it uses"
        yield Finding("warn", "memory", text, "CONFIG SET activedefrag yes, or restart it at a quiet hour")


def _buffer(node: RedisNode) -> Iterator[Finding]:
    words = node.settings.get("client-output-buffer-limit", "").split()
    hard, soft = (int(word) for word in words[words.index("pubsub") + 1 :][:2]) if "pubsub" in words else (0, 0)
    least = min((limit for limit in (hard, soft) if limit), default=0)
    if 0 < least < MIN_PUBSUB_BUFFER:
        text = f"a subscriber that falls {_size(least)} behind is disconnected, and notifications then arrive late"
        yield Finding("warn", "notifications", text, "CONFIG SET client-output-buffer-limit 'pubsub 32mb 8mb 60'")


def _size(bytes_: float) -> str:
    return f"{bytes_ / (1 << 30):.0f} GiB" if bytes_ >= 10 << 30 else f"{bytes_ / (1 << 20):.0f} MiB"


# The whole deployment ---------------------------------------------------------------------------------------


async def _clock(client: RedisClient, clock: Callable[[], float]) -> list[Finding]:
    """Compare the servers' clocks with ours. Ours decides nothing, but people read both."""
    found: list[Finding] = []
    began = clock()
    replies = await client.each("TIME")
    ours = (began + clock()) / 2
    off = {name: int(reply[0]) + int(reply[1]) / 1e6 - ours for name, reply in replies if reply}
    for name, seconds in off.items():
        if abs(seconds) > MAX_CLOCK_OFFSET_S:
            way = "ahead of" if seconds > 0 else "behind"
            text = f"{name} is {abs(seconds):.1f} s {way} this machine; only the server's clock counts"
            found.append(Finding("warn", "clock", text, "synchronise both with NTP"))
    return found or [Finding("ok", "clock", "the server's clock agrees with this machine's")]


async def _scripts(client: RedisClient, scripts: Mapping[str, LuaScript]) -> list[Finding]:
    shas = [script.sha for script in scripts.values()]
    if not shas:
        return []
    known = 0
    replies = await client.each("SCRIPT", "EXISTS", *shas)
    for name, reply in replies:
        if reply is None:
            return [Finding("bad", "scripts", f"{name} forbids scripts", "ACL SETUSER ... +@scripting")]
        known += sum(reply)
    text = f"{known} of {len(shas) * len(replies)} are loaded; the others are loaded on first use"
    return [Finding("ok", "scripts", text)]


async def _slow(client: RedisClient, scripts: Mapping[str, LuaScript]) -> list[Finding]:
    """Runs of our scripts that blocked a server for long."""
    names = {script.sha.encode(): name for name, script in scripts.items()}
    slow: Counter[str] = Counter()
    longest = 0
    for _, reply in await client.each("SLOWLOG", "GET", "128"):
        for _, _, micros, words, *_ in reply or ():
            name = names.get(words[1]) if len(words) > 1 else None
            if name is not None and micros > SLOW_US:
                slow[name] += 1
                longest = max(longest, micros)
    if not slow:
        return []
    which = ", ".join(f"{name} ({count})" for name, count in slow.most_common())
    text = f"scripts blocked the server for more than {SLOW_US // 1000} ms, at most {longest // 1000} ms: {which}"
    return [Finding("warn", "scripts", text, "use smaller batches or a faster machine; SLOWLOG RESET forgets these")]


async def _notifications(client: RedisClient, prefix: str) -> list[Finding]:
    """Whether this user may subscribe: by default, a new ACL user may not use any channel."""
    connection = await client.connect()
    reply: Any
    try:
        reply = (await connection.exchange(pack("SUBSCRIBE", f"{prefix}:{Hint.READY.value}"), 1, client.timeout_s))[0]
    except REDIS_ERRORS as error:
        reply = error
    finally:
        await connection.abort()
    if not isinstance(reply, Exception):
        return [Finding("ok", "notifications", "this user may subscribe to them")]
    text = f"the server forbids subscriptions, so workers find jobs only by polling: {reply}"
    return [Finding("bad", "notifications", text, f"ACL SETUSER ... +subscribe +unsubscribe +publish &{prefix}:*")]


async def _spread(client: RedisClient, shards: Sequence[str], nodes: int) -> Finding:
    """How evenly the shards are spread over the nodes."""
    try:
        owners = Counter(name for _, name in await client.slot_owners(shards))
    except StoreError as error:
        return Finding("bad", "shards", str(error), "look at CLUSTER INFO")
    text = ", ".join(f"{name}: {count}" for name, count in sorted(owners.items()))
    most = max(owners.values(), default=0)
    if most > 2 * len(shards) / nodes:
        cure = "move slots between the nodes, or start with more shards under a new prefix"
        return Finding("warn", "shards", f"one node has more than twice its share; {text}", cure)
    return Finding("ok", "shards", text)
