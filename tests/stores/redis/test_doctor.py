from __future__ import annotations

import contextlib
import hashlib
import time
from pathlib import Path

import pytest
from msgspec import Struct

from holdfast.core.errors import StoreMismatch, StoreUnavailable
from holdfast.opening import parse_url
from holdfast.stores.redis import doctor
from holdfast.stores.redis.address import parse_address
from holdfast.stores.redis.client import RedisClient
from holdfast.stores.redis.doctor import RedisNode
from holdfast.testing.servers import HOST, ValkeyServer, free_port
from tests.eventually import eventually


class Script(Struct, frozen=True):
    text: str

    @property
    def sha(self):
        return hashlib.sha1(self.text.encode()).hexdigest()


SCRIPTS = {"enqueue": Script("return 1"), "claim": Script("return 2")}


@contextlib.asynccontextmanager
async def connected(url):
    client = RedisClient(parse_address(parse_url(url)))
    try:
        yield client
    finally:
        await client.close()


async def findings(client, *, shards=("hf:{0}",), scripts=SCRIPTS, clock=time.time):
    """The findings by subject; of several the worst."""
    found = await doctor.findings(client, prefix="hf", shards=shards, scripts=scripts, layout="1 shard", clock=clock)
    worst = {}
    for finding in sorted(found, key=lambda one: ("ok", "warn", "bad").index(one.level)):
        worst[finding.subject] = finding
        assert finding.text
        assert bool(finding.cure) == (finding.level != "ok"), finding
    return worst


async def findings_of_a_server(**options):
    """What the doctor finds at a server with these settings."""
    with ValkeyServer(**options) as server:
        async with connected(server.url()) as client:
            return await findings(client)


async def test_the_doctor_finds_nothing_wrong_with_a_healthy_server():
    found = await findings_of_a_server(appendonly=True, appendfsync="always", maxmemory="1gb")
    assert {subject: finding.level for subject, finding in found.items()} == dict.fromkeys(
        ("server", "role", "eviction", "durability", "memory", "clock", "scripts", "notifications", "layout"), "ok"
    )
    assert found["server"].text.startswith("Valkey 9")
    assert found["layout"].text == "1 shard"


@pytest.mark.parametrize(
    "options, durable, power, says",
    [
        ({"appendonly": True, "appendfsync": "always"}, True, True, "does what it promises"),
        (
            {"appendonly": True, "appendfsync": "always", "no_appendfsync_on_rewrite": True},
            True,
            False,
            "not during a rewrite",
        ),
        ({"appendonly": True, "appendfsync": "everysec"}, False, False, "last 1-2 seconds"),
        ({"appendonly": True, "appendfsync": "no"}, True, False, "killing the server process loses nothing"),
        ({"save": (3600, 1)}, False, False, "since the last one"),
        ({"save": ""}, False, False, "loses every job"),
    ],
)
async def test_durability_is_reported(options, durable, power, says):
    with ValkeyServer(**options) as server:
        async with connected(server.url()) as client:
            found = await doctor.durability(client)
            finding = (await findings(client))["durability"]
    assert (found.durable, found.survives_power_loss) == (durable, power)
    assert says in found.note == finding.text
    assert finding.level == ("ok" if power else "warn")


async def test_without_syncs_a_kill_loses_nothing():
    """What the server has answered it has given to the operating system."""
    with ValkeyServer(appendonly=True, appendfsync="no") as server:
        async with connected(server.url()) as client:
            for n in range(100):
                await client.command("k", "SET", "k", n)
            server.kill()
            server.restart()
            assert await client.command("k", "GET", "k", repeat=True) == b"99"


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_a_server_that_evicts_is_refused_with_the_cure(policy):
    with ValkeyServer(maxmemory_policy=policy) as server:
        async with connected(server.url()) as client:
            with pytest.raises(StoreMismatch, match="CONFIG SET maxmemory-policy noeviction") as caught:
                await doctor.refuse_eviction(client)
            assert policy in str(caught.value)
            finding = (await findings(client))["eviction"]
            assert (finding.level, policy in finding.text) == ("bad", True)
            server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
            await doctor.refuse_eviction(client)
            assert (await findings(client))["eviction"].level == "ok"


async def test_eviction_is_seen_without_the_right_to_config():
    with ValkeyServer(maxmemory_policy="allkeys-lru", appendonly=True, appendfsync="always") as server:
        server.command("ACL", "SETUSER", "ann", "on", ">p", "~*", "&*", "+@all", "-config")
        async with connected(f"redis://ann:p@{HOST}:{server.port}") as client:
            with pytest.raises(StoreMismatch):
                await doctor.refuse_eviction(client)
            found = await doctor.durability(client)
            assert (found.durable, found.survives_power_loss) == (False, False)
            assert "does not reveal" in found.note


async def test_a_user_without_rights_learns_which_are_missing():
    with ValkeyServer() as server:
        server.command("ACL", "SETUSER", "ann", "on", ">p", "~*", "resetchannels", "+@all", "-info", "-script")
        async with connected(f"redis://ann:p@{HOST}:{server.port}") as client:
            found = await findings(client)
            await doctor.refuse_eviction(client)
    assert (found["server"].level, "+info" in found["server"].cure) == ("warn", True)
    assert (found["scripts"].level, "+@scripting" in found["scripts"].cure) == ("bad", True)
    assert (found["notifications"].level, "&hf:*" in found["notifications"].cure) == ("bad", True)


async def test_memory_without_a_limit_or_nearly_full_is_noticed():
    with ValkeyServer(maxmemory="1gb") as server:
        async with connected(server.url()) as client:
            assert (await findings(client))["memory"].level == "ok"
            used = int(server.info("memory")["used_memory"])
            for share, level in ((0.88, "warn"), (0.999, "bad")):
                server.command("CONFIG", "SET", "maxmemory", int(used / share))
                assert (await findings(client))["memory"].level == level
            server.command("CONFIG", "SET", "maxmemory", 0)
            finding = (await findings(client))["memory"]
            assert (finding.level, "the host has" in finding.text) == ("warn", True)
            server.command("CONFIG", "SET", "maxmemory", finding.cure.split()[3].rstrip(","))


async def test_a_small_buffer_for_notifications_is_noticed():
    found = await findings_of_a_server(client_output_buffer_limit=("pubsub", "64kb", "32kb", 60))
    assert (found["notifications"].level, "32mb" in found["notifications"].cure) == ("warn", True)


async def test_a_failed_snapshot_is_bad():
    with ValkeyServer(save=(3600, 1)) as server:
        async with connected(server.url()) as client:
            # A directory in the place of the file: no user can write the file.
            (Path(server.command("CONFIG", "GET", "dir")[1]) / "dump.rdb").mkdir()
            server.command("BGSAVE")
            await eventually(
                lambda: server.info("persistence")["rdb_last_bgsave_status"], lambda status: status == "err"
            )
            finding = (await findings(client))["durability"]
            assert (finding.level, finding.text) == ("bad", "the last snapshot failed")


async def test_replicas_are_reported_and_a_replica_is_not_fit_for_a_store(valkey):
    with ValkeyServer(replicaof=(HOST, valkey.port), maxmemory="1gb") as replica:
        await eventually(lambda: replica.info("replication")["master_link_status"], lambda up: up == "up")
        async with connected(valkey.url()) as client:
            finding = await eventually(lambda: findings(client), lambda found: found["replication"].level == "ok")
            assert "a failover can lose acknowledged writes" in finding["replication"].text
        async with connected(replica.url()) as client:
            assert (await findings(client))["role"].level == "bad"


async def test_slow_scripts_are_named():
    slow = Script("for i = 1, 60000000 do end return 1")
    with ValkeyServer() as server:
        async with connected(server.url()) as client:
            assert (await findings(client, scripts={"slow": slow}))["scripts"].level == "ok"
            await client.run(slow, "k", [], repeat=False)
            await client.run(slow, "k", [], repeat=False)
            finding = (await findings(client, scripts={"slow": slow}))["scripts"]
            assert (finding.level, "slow (1)" in finding.text or "slow (2)" in finding.text) == ("warn", True)


async def test_a_clock_that_is_off_is_noticed(valkey):
    async with connected(valkey.url()) as client:
        finding = (await findings(client, clock=lambda: time.time() - 5))["clock"]
    assert finding.level == "warn"
    assert "5.0 s ahead of this machine; only the server's clock counts" in finding.text


@pytest.mark.parametrize(
    "info, level, text",
    [
        ({"valkey_version": "8.0.1", "redis_version": "7.2.4"}, "ok", "Valkey 8.0.1"),
        ({"valkey_version": "7.2.5", "redis_version": "7.2.4"}, "bad", "Valkey 7.2.5 is too old"),
        ({"redis_version": "7.0.0"}, "ok", "Redis 7.0.0"),
        ({"redis_version": "6.2.6"}, "bad", "Redis 6.2.6 is too old"),
        ({}, "bad", "Redis of an unknown version is too old"),
    ],
)
def test_old_versions_are_recognised(info, level, text):
    found = doctor._version(RedisNode("n", info, {}))
    assert (found.level, found.text) == (level, text)


async def test_the_spread_of_shards_over_a_cluster_is_judged(cluster):
    async with connected(cluster.url()) as client:
        even = [f"hf:{{{n}}}" for n in range(48)]
        found = await findings(client, shards=even)
        assert found["shards"].level == "ok"
        assert all(f"{HOST}:{node.port}: " in found["shards"].text for node in cluster.nodes)
        assert found["server"].text.partition(": ")[0] in {f"{HOST}:{node.port}" for node in cluster.nodes}
        assert (await findings(client, shards=["hf:{0}"] * 16))["shards"].level == "warn"
        assert (await doctor.durability(client)).durable is False
        await doctor.refuse_eviction(client)


async def test_a_server_that_is_down_is_unavailable():
    async with connected(f"redis://{HOST}:{free_port()}") as client:
        with pytest.raises(StoreUnavailable):
            await findings(client)
