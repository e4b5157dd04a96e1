from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shutil
import socket
import ssl
import struct
import subprocess

import pytest
from msgspec import Struct
from msgspec.structs import replace
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.sentinel import Sentinel
from redis.crc import key_slot

from holdfast.core.errors import StoreBusy, StoreUnavailable
from holdfast.opening import parse_url
from holdfast.stores.redis.address import parse_address
from holdfast.stores.redis.client import RedisClient
from holdfast.stores.redis.connection import pack
from holdfast.testing.servers import HOST, MASTER, ValkeyCluster, ValkeySentinel, ValkeyServer, free_port
from tests.eventually import eventually


class Script(Struct, frozen=True):
    text: str

    @property
    def sha(self):
        return hashlib.sha1(self.text.encode()).hexdigest()


ECHO = Script("return ARGV[1]")
COUNT = Script("return redis.call('INCR', KEYS[1])")
PUSH = Script("return redis.call('RPUSH', KEYS[1], ARGV[1])")
FILL = Script("return redis.call('SET', KEYS[1], ARGV[1])")


@contextlib.asynccontextmanager
async def connected(url, **changes):
    """A client that is closed at the end. `changes` are of the address, also such as no URL can say."""
    client = RedisClient(replace(parse_address(parse_url(url)), **changes))
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
async def client(url):
    async with connected(url) as client:
        yield client


@pytest.fixture
async def far_client(far_url):
    """A client behind a proxy that can break its connections."""
    async with connected(far_url) as client:
        yield client


async def idle(client, count):
    """Leave this many connections idle in the pool."""
    pool = await client._router.pool(b"")
    for connection in [await pool.acquire() for _ in range(count)]:
        await pool.release(connection)
    assert len(pool._idle) >= count


async def tried(call):
    """What the call answers; None if the server is unavailable."""
    try:
        return await call
    except StoreUnavailable:
        return None


# Scripts ------------------------------------------------------------------------------------------------------


async def test_a_script_runs_also_if_it_is_not_loaded(client, prefix, valkey):
    assert await client.run(ECHO, prefix, ["a"], repeat=False) == b"a"
    valkey.command("SCRIPT", "FLUSH")
    assert await client.run(ECHO, prefix, [b"\x00\xff"], repeat=False) == b"\x00\xff"
    assert valkey.command("SCRIPT", "EXISTS", ECHO.sha) == [1]


async def test_arguments_of_every_kind_arrive_as_text(client, prefix):
    back = Script("return ARGV")
    given = ["é", b"\r\n", 0, -5, 2.5, ""]
    assert await client.run(back, prefix, given, repeat=False) == ["é".encode(), b"\r\n", b"0", b"-5", b"2.5", b""]


async def test_each_call_runs_once_while_scripts_are_flushed(client, prefix, valkey):
    other = client.sibling()
    stop = asyncio.Event()

    async def flush():
        while not stop.is_set():
            await other.command(b"", "SCRIPT", "FLUSH")
            await other.command(b"", "SCRIPT", "LOAD", PUSH.text)

    task = asyncio.create_task(flush())
    for n in range(2000):
        await client.run(PUSH, prefix, [n], repeat=False)
    stop.set()
    await task
    await other.close()
    kept = await client.command(prefix, "LRANGE", prefix, 0, -1)
    assert [int(n) for n in kept] == list(range(2000))


async def test_an_error_in_a_script_is_raised_with_its_text(client, prefix):
    broken = Script("return redis.error_reply('ERR out of cheese')")
    with pytest.raises(StoreUnavailable, match="out of cheese"):
        await client.run(broken, prefix, [], repeat=True)


# Lost connections ---------------------------------------------------------------------------------------------


async def test_a_call_with_a_lost_reply_is_repeated_only_if_that_is_allowed(far_client, prefix, proxy, valkey):
    await far_client.run(COUNT, prefix, [], repeat=False)
    proxy.cut_replies(when=b"EVALSHA")
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await far_client.run(COUNT, prefix, [], repeat=False)
    assert valkey.command("GET", prefix) == "2"
    proxy.cut_replies(when=b"EVALSHA")
    assert await far_client.run(COUNT, prefix, [], repeat=True) == 4
    assert proxy.counts.replies_cut == 2


async def test_a_lost_request_did_nothing(far_client, prefix, proxy, valkey):
    await far_client.run(COUNT, prefix, [], repeat=False)
    proxy.cut_requests(when=b"EVALSHA")
    with pytest.raises(StoreUnavailable):
        await far_client.run(COUNT, prefix, [], repeat=False)
    assert valkey.command("GET", prefix) == "1"


async def test_a_lost_call_is_repeated_once_only(far_client, prefix, proxy, valkey):
    await far_client.run(COUNT, prefix, [], repeat=True)
    proxy.cut_replies(when=b"EVALSHA", times=None)
    with pytest.raises(StoreUnavailable):
        await far_client.run(COUNT, prefix, [], repeat=True)
    assert proxy.counts.replies_cut == 2
    assert valkey.command("GET", prefix) == "3"


async def test_after_a_timeout_nothing_is_sent_again(far_url, prefix, proxy, valkey):
    async with connected(far_url, timeout_s=0.2) as client:
        await client.run(COUNT, prefix, [], repeat=True)
        proxy.freeze(new=False)
        with pytest.raises(StoreUnavailable, match=r"no answer within 0\.2 s"):
            await client.run(COUNT, prefix, [], repeat=True)
        proxy.thaw()
        await eventually(lambda: valkey.command("GET", prefix), lambda count: count == "2")
        assert await client.run(COUNT, prefix, [], repeat=True) == 3
    assert proxy.counts.connections == 2


async def test_one_frozen_connection_makes_the_pool_replace_all(far_url, prefix, proxy):
    async with connected(far_url, timeout_s=0.2) as client:
        await idle(client, 5)
        proxy.freeze(new=False)
        with pytest.raises(StoreUnavailable):
            await client.run(ECHO, prefix, ["a"], repeat=False)
        answers = await asyncio.gather(*(client.run(ECHO, prefix, [n], repeat=False) for n in range(5)))
        assert answers == [b"%d" % n for n in range(5)]


async def test_a_restarted_server_fails_no_call(prefix):
    with ValkeyServer() as server:
        async with connected(server.url()) as client:
            await idle(client, 8)
            server.kill()
            server.restart()
            await asyncio.sleep(0)  # The ends of the old connections have come in by now.
            answers = await asyncio.gather(*(client.run(ECHO, prefix, [n], repeat=False) for n in range(20)))
            assert answers == [b"%d" % n for n in range(20)]


async def test_a_server_that_is_down_is_unavailable_until_it_is_back(prefix):
    with ValkeyServer() as server:
        async with connected(server.url()) as client:
            await client.open()
            server.kill()
            for repeat in (False, True):
                with pytest.raises(StoreUnavailable, match=f"{HOST}:{server.port}"):
                    await client.run(ECHO, prefix, ["a"], repeat=repeat)
            server.restart()
            assert await client.run(ECHO, prefix, ["a"], repeat=False) == b"a"


async def test_a_server_that_accepts_and_is_silent_is_unavailable():
    heard = []
    over = asyncio.Event()

    async def listen(reader, writer):
        while chunk := await reader.read(1000):
            heard.append(chunk)
        writer.close()
        await writer.wait_closed()
        over.set()

    async with await asyncio.start_server(listen, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"redis://:secret@{HOST}:{port}"
        async with asyncio.timeout(30), connected(url, connect_timeout_s=0.2, timeout_s=60) as client:
            with pytest.raises(StoreUnavailable) as caught:
                await client.run(COUNT, "k", [], repeat=False)
        await over.wait()
    assert "secret" not in str(caught.value)
    assert b"".join(heard).count(b"AUTH") == 1


async def test_a_port_without_a_server_is_unavailable():
    async with connected(f"redis://:secret@{HOST}:{free_port()}") as client:
        with pytest.raises(StoreUnavailable, match="cannot be reached") as caught:
            await client.open()
    assert "secret" not in str(caught.value)


# Many at once, and canceled ones ------------------------------------------------------------------------------


async def test_an_exhausted_pool_is_busy(url, prefix):
    async with connected(url, connections=2, timeout_s=0.1) as client:
        pool = await client._router.pool(b"")
        connections = [await pool.acquire() for _ in range(2)]
        with pytest.raises(StoreBusy, match="all 2 connections"):
            await client.run(ECHO, prefix, ["a"], repeat=True)
        await pool.release(connections[0])
        assert await client.run(ECHO, prefix, ["a"], repeat=True) == b"a"
        await pool.release(connections[1])


async def test_a_few_connections_serve_many_callers(url, prefix):
    async with connected(url, connections=3) as client:
        answers = await asyncio.gather(*(client.run(ECHO, prefix, [n], repeat=False) for n in range(300)))
        assert answers == [b"%d" % n for n in range(300)]
        pool = await client._router.pool(b"")
        assert len(pool._idle) == pool._count == 3


async def test_a_canceled_call_never_leaves_its_reply_to_the_next(url, prefix):
    async with connected(url, connections=2) as client:
        for steps in range(60):
            task = asyncio.create_task(client.run(ECHO, prefix, [f"canceled-{steps}"], repeat=False))
            for _ in range(steps % 12):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                assert await task == f"canceled-{steps}".encode()
            assert await client.run(ECHO, prefix, [steps], repeat=False) == b"%d" % steps
        pool = await client._router.pool(b"")
        assert (len(pool._used), pool._count) == (0, len(pool._idle))


async def test_a_call_canceled_while_it_waits_for_a_reply_leaves_a_usable_client(far_client, prefix, proxy):
    await far_client.run(ECHO, prefix, ["a"], repeat=False)
    proxy.freeze(new=False)
    pool = await far_client._router.pool(b"")
    task = asyncio.create_task(far_client.run(ECHO, prefix, ["late"], repeat=False))
    await eventually(lambda: any(connection._waiting for connection in pool._used))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    proxy.thaw()
    assert await far_client.run(ECHO, prefix, ["b"], repeat=False) == b"b"


async def test_canceled_waiters_lose_no_connection(url, prefix):
    async with connected(url, connections=1) as client:
        pool = await client._router.pool(b"")
        for steps in range(12):
            connection = await pool.acquire()
            waiter = asyncio.create_task(client.run(ECHO, prefix, ["w"], repeat=False))
            await asyncio.sleep(0)
            await pool.release(connection)
            for _ in range(steps % 4):
                await asyncio.sleep(0)
            waiter.cancel()
            await asyncio.wait([waiter])
            assert await client.run(ECHO, prefix, ["a"], repeat=False) == b"a"


async def test_a_closed_client_fails_every_call(url, prefix):
    async with connected(url, connections=1) as client:
        pool = await client._router.pool(b"")
        await pool.acquire()
        waiting = asyncio.create_task(client.run(ECHO, prefix, ["a"], repeat=False))
        await asyncio.sleep(0)
        await client.close()
        await client.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await waiting
        with pytest.raises(StoreUnavailable, match="closed"):
            await client.run(ECHO, prefix, ["a"], repeat=False)


async def test_a_sibling_serves_another_event_loop(client, prefix):
    await client.open()

    async def elsewhere(sibling):
        try:
            return await sibling.run(ECHO, prefix, ["there"], repeat=False)
        finally:
            await sibling.close()

    assert await asyncio.to_thread(lambda: asyncio.run(elsewhere(client.sibling()))) == b"there"
    assert await client.run(ECHO, prefix, ["here"], repeat=False) == b"here"


# What servers refuse ------------------------------------------------------------------------------------------


async def test_passwords_are_used_and_their_absence_is_explained(prefix):
    with ValkeyServer(requirepass="p@ss/w:rd") as server:
        place = f"{HOST}:{server.port}"
        async with connected(f"redis://:p%40ss%2Fw%3Ard@{place}/3") as client:
            await client.command(prefix, "SET", prefix, "x")
            await client.command(b"", "ACL", "SETUSER", "ann", "on", ">secret", "~*", "+@all", "-config", "-info")
            await client.command(b"", "ACL", "SETUSER", "bob", "on", ">secret", "~*", "+get")
        async with connected(f"redis://ann:secret@{place}/3") as client:
            assert await client.command(prefix, "GET", prefix) == b"x"
            assert [setting for _, setting in await client.each("CONFIG", "GET", "maxmemory-policy")] == [None]
            assert [info for _, info in await client.info()] == [{}]
        async with connected(f"redis://bob:secret@{place}") as client:
            assert await client.command(prefix, "GET", prefix) is None
            with pytest.raises(StoreUnavailable, match="ACL SETUSER"):
                await client.run(ECHO, prefix, ["a"], repeat=True)
        async with connected(f"redis://{place}") as client:
            with pytest.raises(StoreUnavailable, match=":PASSWORD@"):
                await client.open()
        async with connected(f"redis://ann:wrong-one@{place}") as client:
            with pytest.raises(StoreUnavailable, match="user name or password") as caught:
                await client.open()
        assert "wrong-one" not in str(caught.value)


async def test_a_password_for_a_server_without_one_is_explained(valkey):
    async with connected(f"redis://:secret@{HOST}:{valkey.port}") as client:
        with pytest.raises(StoreUnavailable, match="no password set"):
            await client.open()


async def test_a_full_server_says_what_to_do(prefix):
    with ValkeyServer(maxmemory="3mb") as server:
        async with connected(server.url()) as client:
            fills = (client.run(FILL, f"{prefix}{n}", ["x" * 1_000_000], repeat=True) for n in range(10))
            with pytest.raises(StoreUnavailable, match="raise its maxmemory"):
                await asyncio.gather(*fills)
            assert await client.run(ECHO, prefix, ["a"], repeat=False) == b"a"


async def test_a_replica_is_unavailable_for_writing(valkey, prefix):
    with ValkeyServer(replicaof=(HOST, valkey.port)) as replica:
        async with connected(replica.url()) as client:
            with pytest.raises(StoreUnavailable, match="replica"):
                await client.run(COUNT, prefix, [], repeat=False)


async def test_a_server_stuck_in_a_script_is_busy(prefix):
    with ValkeyServer(busy_reply_threshold=20) as server:
        async with connected(server.url()) as client:
            stuck = asyncio.create_task(client.run(Script("while true do end"), prefix, [], repeat=False))
            with pytest.raises(StoreBusy, match="busy running a script"):
                await eventually(lambda: client.run(ECHO, prefix, ["a"], repeat=False), lambda _: False)
            await asyncio.to_thread(server.command, "SCRIPT", "KILL")
            with pytest.raises(StoreUnavailable, match="killed"):
                await stuck


async def test_a_cluster_url_for_a_server_and_the_reverse_are_explained(cluster, valkey):
    for node in cluster.nodes[:2]:
        async with connected(node.url()) as client:
            key = next(f"k{n}" for n in range(99) if cluster.owner(key_slot(b"k%d" % n)) is not node)
            with pytest.raises(StoreUnavailable, match=r"redis\+cluster:"):
                await client.run(ECHO, key, ["a"], repeat=True)
    async with connected(f"redis+cluster://{HOST}:{valkey.port}") as client:
        with pytest.raises(StoreUnavailable, match="not a cluster"):
            await client.open()


# Other ways to a server ---------------------------------------------------------------------------------------


async def test_a_socket_in_the_file_system_works_too(tmp_path, prefix):
    path = tmp_path / "a b.sock"
    with ValkeyServer(unixsocket=str(path)) as server:
        async with connected(f"redis+unix://{str(path).replace(' ', '%20')}?db=1") as client:
            await client.command(prefix, "SET", prefix, "x")
            assert (await client.info())[0][1]["db1"].startswith("keys=1")
        server.kill()
        async with connected(f"redis+unix://{str(path).replace(' ', '%20')}") as client:
            with pytest.raises(StoreUnavailable):
                await client.open()


@pytest.fixture
def certificate(tmp_path):
    """A certificate for `localhost` that signed itself, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed: no certificate for TLS")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@contextlib.asynccontextmanager
async def tls_relay(port, cert, key):
    """A server with TLS in front of one without: the program of the wheel is built without."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)

    async def carry(reader, writer):
        with contextlib.suppress(OSError):
            while chunk := await reader.read(65536):
                writer.write(chunk)
                await writer.drain()
        writer.close()

    async def connected(reader, writer):
        there, back = await asyncio.open_connection(HOST, port)
        await asyncio.gather(carry(reader, back), carry(there, writer))

    async with await asyncio.start_server(connected, HOST, 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]


async def test_tls_works_and_certificates_are_checked(valkey, certificate, prefix):
    cert, key = certificate
    async with tls_relay(valkey.port, cert, key) as port:
        async with connected(f"rediss://localhost:{port}?tls_ca={cert}") as client:
            answers = await asyncio.gather(*(client.run(ECHO, prefix, [n], repeat=False) for n in range(5)))
            assert answers == [b"%d" % n for n in range(5)]
        async with connected(f"rediss://localhost:{port}?tls_verify=none") as client:
            assert await client.run(ECHO, prefix, ["a"], repeat=False) == b"a"
        async with connected(f"rediss://localhost:{port}") as client:
            with pytest.raises(StoreUnavailable, match="tls_ca="):
                await client.open()


@pytest.fixture(scope="module")
def sentinel():
    with ValkeySentinel() as sentinel:
        yield sentinel


async def test_sentinel_leads_to_the_primary_even_after_a_failover(sentinel, prefix):
    async with connected(sentinel.url(), connect_timeout_s=1) as client:
        assert await client.run(COUNT, prefix, [], repeat=False) == 1
        await idle(client, 4)
        old = sentinel.primary
        new = await asyncio.to_thread(sentinel.failover)
        assert new is not old
        answer = await eventually(lambda: tried(client.run(COUNT, prefix, [], repeat=True)))
        assert answer >= 1  # What was acknowledged just before may be lost: that is Sentinel's promise, not ours.
        assert (await client.info())[0][1]["tcp_port"] == str(new.port)


async def test_a_service_that_sentinel_does_not_know_is_unavailable(sentinel):
    async with connected(f"redis+sentinel://{HOST}:{sentinel.sentinel.port}/nobody") as client:
        with pytest.raises(StoreUnavailable, match="nobody"):
            await client.open()
    async with connected(f"redis+sentinel://{HOST}:{free_port()}/{MASTER}") as client:
        with pytest.raises(StoreUnavailable, match=MASTER):
            await client.open()


# Clusters -----------------------------------------------------------------------------------------------------


async def test_a_cluster_serves_every_key(cluster, prefix):
    async with connected(cluster.url()) as client:
        keys = [f"{prefix}:{{{n}}}" for n in range(50)]
        assert [await client.run(COUNT, key, [], repeat=False) for key in keys] == [1] * 50
        for node in cluster.nodes:
            node.command("SCRIPT", "FLUSH")
        assert [await client.run(COUNT, key, [], repeat=False) for key in keys * 2] == [2] * 50 + [3] * 50
        assert len(await client.info()) == 3
        owners = await client.slot_owners(keys)
        assert {name for _, name in owners} == {f"{HOST}:{node.port}" for node in cluster.nodes}
        assert [slot for slot, _ in owners] == [key_slot(key.encode()) for key in keys]


async def test_a_slot_that_moved_is_followed(cluster, prefix):
    async with connected(cluster.url()) as client:
        slot = key_slot(prefix.encode())
        source = cluster.owner(slot)
        target = next(node for node in cluster.nodes if node is not source)
        assert await client.run(COUNT, prefix, [], repeat=False) == 1
        cluster.move_slot(slot, target)
        assert await client.run(COUNT, prefix, [], repeat=False) == 2
        assert await client.run(COUNT, prefix, [], repeat=False) == 3
        cluster.move_slot(slot, source)
        assert await client.run(COUNT, prefix, [], repeat=False) == 4
        cluster.wait()


async def test_commands_follow_a_moving_slot_and_scripts_do_not(cluster, prefix):
    """A script uses keys that it does not name: at the new node it would treat those not moved yet as empty."""
    async with connected(cluster.url()) as client:
        slot = key_slot(prefix.encode())
        source = cluster.owner(slot)
        target = next(node for node in cluster.nodes if node is not source)
        source_id, target_id = (str(node.command("CLUSTER", "MYID")) for node in (source, target))
        other = next(f"k{n}" for n in range(999) if cluster.owner(key_slot(b"k%d" % n)) is target)
        await asyncio.gather(*(client.run(ECHO, other, ["a"], repeat=False) for _ in range(5)))
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        try:
            # redis-py asks on another connection than it then uses, once it has two.
            for n in range(1, 11):
                assert await client.command(prefix, "INCR", prefix) == n
            with pytest.raises(StoreUnavailable, match="moving to another node"):
                await client.run(COUNT, prefix, [], repeat=False)
            refused = redirects(cluster)
            waiting = asyncio.create_task(client.run(COUNT, prefix, [], repeat=False))
            await eventually(lambda: redirects(cluster) > refused)
        finally:
            for node in (target, source):
                node.command("CLUSTER", "SETSLOT", slot, "NODE", target_id)
        assert await waiting == 11
        cluster.move_slot(slot, source)
        cluster.wait()


@pytest.mark.parametrize("key", ["{name}", "{{{name}}}:c"])
async def test_a_script_does_not_begin_while_its_slot_moves(cluster, prefix, key):
    """Though the key that it names is there: another may be gone, or be emptied by the script itself."""
    key = key.format(name=prefix)
    empty = Script("redis.call('DEL', KEYS[1]) return redis.call('SET', KEYS[1], 'x')")
    async with connected(cluster.url()) as client:
        await client.command(key, "SET", key, "before")
        slot = key_slot(key.encode())
        source = cluster.owner(slot)
        target = next(node for node in cluster.nodes if node is not source)
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", str(target.command("CLUSTER", "MYID")))
        try:
            with pytest.raises(StoreUnavailable, match="moving to another node"):
                await client.run(empty, key, [], repeat=False)
            assert source.command("GET", key) == "before"
        finally:
            source.command("CLUSTER", "SETSLOT", slot, "STABLE")
        assert await client.run(empty, key, [], repeat=False) == b"OK"


def redirects(cluster):
    """How often the nodes of the cluster have redirected a call because a slot moves."""
    found = [node.info("errorstats").get("errorstat_ASK", "count=0") for node in cluster.nodes]
    return sum(int(text.partition("=")[2]) for text in found)


async def test_a_node_that_died_is_replaced_by_its_replica(prefix):
    with ValkeyCluster(3, replicas=1, cluster_node_timeout=1000, repl_diskless_sync_delay=0) as cluster:
        for replica in cluster.nodes[3:]:
            await eventually(lambda r=replica: r.info("replication")["master_link_status"], lambda up: up == "up")
        async with connected(cluster.url(), timeout_s=1, connect_timeout_s=1) as client:
            assert await client.run(COUNT, prefix, [], repeat=False) == 1
            cluster.owner(key_slot(prefix.encode())).kill()
            with pytest.raises(StoreUnavailable):
                await client.run(COUNT, prefix, [], repeat=False)
            answer = await eventually(lambda: tried(client.run(COUNT, prefix, [], repeat=False)), every_s=0.05)
            assert answer >= 1


# Clients ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"decode_responses": True, "protocol": 2}, {"protocol": 3, "db": 1}])
async def test_a_store_can_use_a_given_client(valkey, prefix, settings):
    async with Redis(host=HOST, port=valkey.port, **settings) as redis_py:
        client = RedisClient.of_redis_py(redis_py)
        await redis_py.set(prefix, "41")
        assert await client.run(COUNT, prefix, [], repeat=False) == 42
        sibling = client.sibling()
        assert await sibling.run(COUNT, prefix, [], repeat=False) == 43
        await sibling.close()
        await client.close()
        assert int(await redis_py.get(prefix)) == 43
        assert client.shown == f"{HOST}:{valkey.port}"


async def test_a_store_can_use_a_given_cluster_client(cluster, prefix):
    async with RedisCluster(host=HOST, port=cluster.nodes[1].port) as redis_py:
        client = RedisClient.of_redis_py(redis_py)
        assert client.is_cluster
        assert [await client.run(COUNT, f"{prefix}{n}", [], repeat=False) for n in range(20)] == [1] * 20
        await client.close()
        assert await redis_py.get(f"{prefix}7") == b"1"


async def test_a_store_can_use_a_given_client_behind_sentinel(sentinel, prefix):
    manager = Sentinel([(HOST, sentinel.sentinel.port)])
    redis_py = manager.master_for(MASTER)
    client = RedisClient.of_redis_py(redis_py)
    assert await client.run(COUNT, prefix, [], repeat=False) == 1
    await client.close()
    # Not asked through the redis_py: it tries no second time while the sentinel is looking for the primary.
    assert sentinel.primary.command("GET", prefix) == "1"
    await redis_py.aclose()
    await manager.aclose()


PUBLISH = Script("redis.call('PUBLISH', 'channel', ARGV[1]) return ARGV[1]")
STAMPS = 35
"""SO_TIMESTAMPNS: the kernel says when it got what is read."""


class Stamped:
    """A connection to the server that knows when the kernel got the last thing it read."""

    def __init__(self, server):
        self.at = None
        self._socket = socket.create_connection((HOST, server.port))
        self._socket.settimeout(20)
        self._socket.setsockopt(socket.SOL_SOCKET, STAMPS, 1)
        while self.at is None:  # the kernel turns its stamps on a little later than it was asked to
            self.exchange(pack("PING"), b"+PONG\r\n")

    def exchange(self, request, end):
        self._socket.sendall(request)
        return self.read(end)

    def read(self, end):
        answer = b""
        while not answer.endswith(end):
            data, stamps, *_ = self._socket.recvmsg(4096, 64)
            assert data, "closed"
            answer += data
        self.at = struct.unpack("qq", stamps[0][2]) if stamps else None
        return answer

    def close(self):
        self._socket.close()


async def test_subscribers_are_written_to_before_the_caller(server):
    """The worker that waits for a job gets it before the caller gets its reply."""
    with contextlib.closing(Stamped(server)) as listener, contextlib.closing(Stamped(server)) as caller:
        listener.exchange(pack("SUBSCRIBE", "channel"), b":1\r\n")

        async def carry(reader, writer):
            with contextlib.closing(writer):
                while request := await reader.read(4096):
                    writer.write(caller.exchange(request, b"\r\n"))

        relay = await asyncio.start_server(carry, HOST, 0)
        async with relay, connected(f"redis://{HOST}:{relay.sockets[0].getsockname()[1]}") as client:
            for first in (False, True):
                for n in range(5):
                    reply = await client.run(PUBLISH, "k", [f"{n}"], repeat=False, subscribers_first=first)
                    assert reply == b"%d" % n
                    listener.read(b"%d\r\n" % n)
                    assert (listener.at < caller.at) == first


async def test_a_script_that_writes_to_subscribers_first_works_like_any_other(client):
    """In its reply, its errors, and when the server does not know it or the user may not run it."""
    assert await client.run(ECHO, "k", [b"new"], repeat=False, subscribers_first=True) == b"new"
    await client.command("k", "SCRIPT", "FLUSH", "SYNC")
    assert await client.run(ECHO, "k", [b"again"], repeat=False, subscribers_first=True) == b"again"
    with pytest.raises(StoreUnavailable, match="broken"):
        await client.run(
            Script("return redis.error_reply('ERR broken')"), "k", [], repeat=False, subscribers_first=True
        )
    assert await client.command("k", "ECHO", "after") == b"after"
