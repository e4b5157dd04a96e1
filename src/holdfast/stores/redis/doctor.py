"""Whether a server can be trusted with jobs: what `holdfast doctor` finds, and what opening a store insists on.

All of it comes from INFO, and from CONFIG where the server lets us; what it does not tell is said to be unknown.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from holdfast.core.errors import StoreError, StoreMismatch
from holdfast.store import Finding, Hint
from holdfast.stores.redis.client import Link, Script
from holdfast.stores.redis.connection import pack
from holdfast.stores.redis.errors import TROUBLES

OLDEST = {"Valkey": 8, "Redis": 7}
"""The first version of each that we are tested with, or that has all we need."""
FULL_WARN, FULL_BAD = 0.8, 0.95
FRAGMENTED = 1.5
FRAGMENTED_LEAST = 256 << 20
"""A small server always looks fragmented."""
CLOCK_S = 1.0
SLOW_US = 100_000
PUBSUB_LEAST = 1 << 20

_SETTINGS = ("save", "appendonly", "appendfsync", "no-appendfsync-on-rewrite", "client-output-buffer-limit")
_POLICY_CURE = "CONFIG SET maxmemory-policy noeviction, and the line 'maxmemory-policy noeviction' in its file"
_AOF_CURE = "CONFIG SET appendonly yes, and the line 'appendonly yes' in its file"


class Durability(Struct, frozen=True):
    """What the server keeps, as a store's capabilities say it."""

    durable: bool
    """It loses nothing when it is killed."""
    survives_power_loss: bool
    note: str
    cure: str = ""


class Node(Struct, frozen=True):
    """One primary, by what it tells of itself."""

    name: str
    info: dict[str, str]
    settings: dict[str, str]
    """Empty where CONFIG is forbidden."""

    def number(self, name: str) -> float:
        try:
            return float(self.info.get(name, ""))
        except ValueError:
            return 0.0


async def refuse_eviction(link: Link) -> None:
    """Raise StoreMismatch if the server would throw jobs away when its memory is full."""
    for name, info in await link.info():
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            reason = (
                f"{name} evicts keys when its memory is full (maxmemory-policy is {policy}), and so would lose jobs"
            )
            raise StoreMismatch(f"{reason}; set it: {_POLICY_CURE}")


async def durability(link: Link) -> Durability:
    """What survives a restart and a power cut; of a cluster the least of its nodes."""
    kept = [_durability(node) for node in await _nodes(link)]
    return min(kept, key=lambda one: (one.durable, one.survives_power_loss))


async def findings(
    link: Link,
    *,
    prefix: str,
    shards: Sequence[str],
    scripts: Mapping[str, Script],
    layout: str,
    clock: Callable[[], float] = time.time,
) -> list[Finding]:
    """Look the deployment over. `shards` has one key of each shard, `layout` says in words how data is laid out.

    `clock` is this machine's, in seconds. Raises StoreUnavailable if the server cannot be reached.
    """
    nodes = await _nodes(link)
    found: list[Finding] = []
    for node in nodes:
        for finding in _of_node(node):
            text = f"{node.name}: {finding.text}" if len(nodes) > 1 else finding.text
            found.append(Finding(finding.level, finding.subject, text, finding.cure))
    found += await _clock(link, clock)
    found += await _scripts(link, scripts)
    found += await _slow(link, scripts)
    found += await _hints(link, prefix)
    found.append(Finding("ok", "layout", layout))
    if link.is_cluster:
        found.append(await _spread(link, shards, len(nodes)))
    return found


async def _nodes(link: Link) -> list[Node]:
    settings = await link.each("CONFIG", "GET", *_SETTINGS)
    return [
        Node(name, info, _pairs(answer)) for (name, info), (_, answer) in zip(await link.info(), settings, strict=True)
    ]


def _pairs(answer: Any) -> dict[str, str]:
    words = [cast("bytes", word).decode(errors="replace") for word in answer or ()]
    return dict(zip(words[::2], words[1::2], strict=True))


# One server ---------------------------------------------------------------------------------------------------


def _of_node(node: Node) -> Iterator[Finding]:
    if not node.info:
        yield Finding("warn", "server", "it does not let us see INFO, so little can be said", "ACL SETUSER ... +info")
        return
    yield _version(node)
    yield _role(node)
    yield _eviction(node)
    yield from _persistence(node)
    yield from _replication(node)
    yield from _memory(node)
    yield from _buffer(node)


def _version(node: Node) -> Finding:
    brand = "Valkey" if "valkey_version" in node.info else "Redis"
    version = node.info.get("valkey_version") or node.info.get("redis_version", "")
    major = version.partition(".")[0]
    if major.isdigit() and int(major) >= OLDEST[brand]:
        return Finding("ok", "server", f"{brand} {version}")
    cure = f"upgrade to Valkey {OLDEST['Valkey']} or Redis {OLDEST['Redis']}, or later"
    return Finding("bad", "server", f"{brand} {version or 'of an unknown version'} is too old", cure)


def _role(node: Node) -> Finding:
    role = node.info.get("role", "master")
    if role == "master":
        return Finding("ok", "role", "a primary")
    return Finding("bad", "role", "a replica: it takes no writes", "connect to its primary, or through Sentinel")


def _eviction(node: Node) -> Finding:
    policy = node.info.get("maxmemory_policy", "")
    if policy == "noeviction":
        return Finding("ok", "eviction", "noeviction: a full server refuses new jobs and keeps the old ones")
    if not policy:
        return Finding("warn", "eviction", "the server does not tell its maxmemory-policy", _POLICY_CURE)
    return Finding("bad", "eviction", f"{policy}: a full server throws jobs away", _POLICY_CURE)


def _durability(node: Node) -> Durability:
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
        note = "appendfsync always, but not during a rewrite: a power cut then may lose what came since it began"
        return Durability(True, False, note, "CONFIG SET no-appendfsync-on-rewrite no")
    if fsync == "always":
        note = "appendfsync always: survives power loss as far as the disk keeps its word"
        return Durability(True, True, note)
    if fsync == "everysec":
        # While a sync is under way the server keeps what it writes to itself, for up to two seconds.
        note = (
            "appendfsync everysec: a power cut may lose the last 1-2 seconds, and so may a kill while the disk is slow"
        )
        return Durability(False, False, note, cure)
    if fsync == "no":
        note = (
            "appendfsync no: a power cut may lose the last 30 seconds or more; killing the server process loses nothing"
        )
        return Durability(True, False, note, cure)
    note = "an append-only file, but the server does not tell how often it is synced: a power cut may lose some seconds"
    return Durability(False, False, note, "allow CONFIG GET, or ask whoever runs the server for appendfsync")


def _persistence(node: Node) -> Iterator[Finding]:
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


def _replication(node: Node) -> Iterator[Finding]:
    replicas = int(node.number("connected_slaves"))
    if not replicas:
        return
    behind = [n for n in range(replicas) if "state=online" not in node.info.get(f"slave{n}", "state=online")]
    text = f"{replicas} replica(s); a failover can lose acknowledged writes, and WAIT does not make it strong"
    if behind:
        yield Finding("warn", "replication", f"{text}; {len(behind)} not in step", "look at the replicas' logs")
    else:
        yield Finding("ok", "replication", text)


def _memory(node: Node) -> Iterator[Finding]:
    used, limit, host = (node.number(name) for name in ("used_memory", "maxmemory", "total_system_memory"))
    if not limit:
        text = f"{_size(used)} in use and no limit; the host has {_size(host)}"
        cure = f"CONFIG SET maxmemory {_size(host * 0.7).replace(' ', '')}, so that it refuses jobs before it is killed"
        yield Finding("warn", "memory", text, cure.replace("GiB", "gb").replace("MiB", "mb"))
    else:
        share = used / limit
        level = "bad" if share > FULL_BAD else "warn" if share > FULL_WARN else "ok"
        cure = "" if level == "ok" else "raise maxmemory, shorten result_ttl, or run more workers"
        yield Finding(level, "memory", f"{_size(used)} of {_size(limit)} in use ({share:.0%})", cure)
    ratio = node.number("mem_fragmentation_ratio")
    if ratio > FRAGMENTED and used > FRAGMENTED_LEAST:
        text = f"{ratio:.1f} times as much memory is taken from the host as is in use"
        yield Finding("warn", "memory", text, "CONFIG SET activedefrag yes, or restart it at a quiet hour")


def _buffer(node: Node) -> Iterator[Finding]:
    words = node.settings.get("client-output-buffer-limit", "").split()
    hard, soft = (int(word) for word in words[words.index("pubsub") + 1 :][:2]) if "pubsub" in words else (0, 0)
    least = min((limit for limit in (hard, soft) if limit), default=0)
    if 0 < least < PUBSUB_LEAST:
        text = f"a listener that falls {_size(least)} behind is cut off, and hints then come late"
        yield Finding("warn", "hints", text, "CONFIG SET client-output-buffer-limit 'pubsub 32mb 8mb 60'")


def _size(bytes_: float) -> str:
    return f"{bytes_ / (1 << 30):.0f} GiB" if bytes_ >= 10 << 30 else f"{bytes_ / (1 << 20):.0f} MiB"


# All of them --------------------------------------------------------------------------------------------------


async def _clock(link: Link, clock: Callable[[], float]) -> list[Finding]:
    """The servers' clocks beside ours. Ours decides nothing, but people read both."""
    found: list[Finding] = []
    began = clock()
    answers = await link.each("TIME")
    ours = (began + clock()) / 2
    off = {name: int(answer[0]) + int(answer[1]) / 1e6 - ours for name, answer in answers if answer}
    for name, seconds in off.items():
        if abs(seconds) > CLOCK_S:
            way = "ahead of" if seconds > 0 else "behind"
            text = f"{name} is {abs(seconds):.1f} s {way} this machine; only the server's clock counts"
            found.append(Finding("warn", "clock", text, "let both keep time by NTP"))
    return found or [Finding("ok", "clock", "the server's clock agrees with this machine's")]


async def _scripts(link: Link, scripts: Mapping[str, Script]) -> list[Finding]:
    shas = [script.sha for script in scripts.values()]
    if not shas:
        return []
    known = 0
    answers = await link.each("SCRIPT", "EXISTS", *shas)
    for name, answer in answers:
        if answer is None:
            return [Finding("bad", "scripts", f"{name} does not let us use scripts", "ACL SETUSER ... +@scripting")]
        known += sum(answer)
    text = f"{known} of {len(shas) * len(answers)} are loaded; the others are when they are first used"
    return [Finding("ok", "scripts", text)]


async def _slow(link: Link, scripts: Mapping[str, Script]) -> list[Finding]:
    """Runs of our scripts that kept a server from everybody else."""
    names = {script.sha.encode(): name for name, script in scripts.items()}
    slow: Counter[str] = Counter()
    longest = 0
    for _, answer in await link.each("SLOWLOG", "GET", "128"):
        for _, _, micros, words, *_ in answer or ():
            name = names.get(words[1]) if len(words) > 1 else None
            if name is not None and micros > SLOW_US:
                slow[name] += 1
                longest = max(longest, micros)
    if not slow:
        return []
    which = ", ".join(f"{name} ({count})" for name, count in slow.most_common())
    text = f"scripts held the server for more than {SLOW_US // 1000} ms, at most {longest // 1000} ms: {which}"
    return [Finding("warn", "scripts", text, "use smaller batches or a faster machine; SLOWLOG RESET forgets these")]


async def _hints(link: Link, prefix: str) -> list[Finding]:
    """Whether we may listen: a new user of an ACL may use no channel at all."""
    wire = await link.dial()
    answer: Any
    try:
        answer = (await wire.exchange(pack("SUBSCRIBE", f"{prefix}:{Hint.READY.value}"), 1, link.timeout_s))[0]
    except TROUBLES as error:
        answer = error
    finally:
        await wire.hang_up()
    if not isinstance(answer, Exception):
        return [Finding("ok", "hints", "they come by PUBLISH")]
    text = f"the server does not let us listen, so workers find jobs by looking now and then: {answer}"
    return [Finding("bad", "hints", text, f"ACL SETUSER ... +subscribe +unsubscribe +publish &{prefix}:*")]


async def _spread(link: Link, shards: Sequence[str], nodes: int) -> Finding:
    """How evenly the shards lie on the nodes."""
    try:
        owners = Counter(name for _, name in await link.slot_owners(shards))
    except StoreError as error:
        return Finding("bad", "shards", str(error), "look at CLUSTER INFO")
    text = ", ".join(f"{name}: {count}" for name, count in sorted(owners.items()))
    most = max(owners.values(), default=0)
    if most > 2 * len(shards) / nodes:
        cure = "move slots between the nodes, or begin with more shards under a new prefix"
        return Finding("warn", "shards", f"one node has more than twice its share; {text}", cure)
    return Finding("ok", "shards", text)
