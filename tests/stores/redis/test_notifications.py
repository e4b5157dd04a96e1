from __future__ import annotations

import asyncio
import logging

import pytest
from msgspec.structs import replace

from holdfast.core.errors import StoreUnavailable
from holdfast.opening import parse_url
from holdfast.store import ALL_HINTS, Hint, Signal
from holdfast.stores.redis.address import parse_address
from holdfast.stores.redis.client import RedisClient
from holdfast.stores.redis.notifications import RedisListener
from holdfast.testing.servers import HOST, ValkeyCluster, ValkeySentinel, ValkeyServer
from tests.eventually import eventually


def decode(hint, data):
    """The messages of these tests: queues, one after another."""
    if data == b"broken":
        raise ValueError(data)
    for queue in data.decode().split():
        yield Signal(hint, queue=queue)


class Listening:
    """A listener that keeps its signals."""

    def __init__(self):
        self.signals = []
        self.came = asyncio.Event()

    def __call__(self, signal):
        self.signals.append(signal)
        self.came.set()

    async def until(self, *signals):
        """Wait until exactly these have come since the last time."""
        async with asyncio.timeout(20):
            while len(self.signals) < len(signals):
                self.came.clear()
                await self.came.wait()
        received, self.signals = self.signals, []
        assert sorted(received, key=str) == sorted(signals, key=str)


class Setting:
    """A RedisListener and its client."""

    def __init__(self, url, prefix, **changes):
        linger_s = changes.pop("linger_s", 1.0)
        self.client = RedisClient(replace(parse_address(parse_url(url)), **changes))
        self.prefix = prefix
        self.listener = RedisListener(self.client, prefix, decode, linger_s=linger_s)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.listener.close()
        await self.client.close()


@pytest.fixture
async def setting(url, prefix):
    async with Setting(url, prefix) as setting:
        yield setting


@pytest.fixture
def publish(valkey, prefix):
    """Publish from another client; returns the number of subscribers."""

    def publish(hint, text):
        return valkey.command("PUBLISH", f"{prefix}:{hint.value}", text)

    return publish


def channels(server, prefix):
    return set(server.command("PUBSUB", "CHANNELS", f"{prefix}:*"))


READY, DONE = Hint.READY, Hint.DONE


async def test_published_messages_arrive(setting, publish):
    listening = Listening()
    setting.listener.listen(listening, {READY, DONE})
    await setting.listener.ready()
    await listening.until(Signal(READY), Signal(DONE))
    assert publish(READY, "a b") == 1
    assert publish(DONE, "c") == 1
    await listening.until(Signal(READY, queue="a"), Signal(READY, queue="b"), Signal(DONE, queue="c"))


async def test_a_new_subscription_notifies_its_listeners(setting, publish):
    """A change may happen between reading the store and the start of the subscription."""
    listening = Listening()
    setting.listener.listen(listening, {READY})
    assert publish(READY, "missed") == 0
    await listening.until(Signal(READY))
    later = Listening()
    setting.listener.listen(later, {READY, DONE})
    await later.until(Signal(DONE))  # READY was there all the time: nothing can have been missed.
    publish(READY, "a")
    await later.until(Signal(READY, queue="a"))
    await listening.until(Signal(READY, queue="a"))


async def test_the_server_sends_only_wanted_hints(setting, publish, valkey, prefix):
    everything, done = Listening(), Listening()
    stop = setting.listener.listen(everything, ALL_HINTS)
    setting.listener.listen(done, {DONE})
    await setting.listener.ready()
    assert channels(valkey, prefix) == {f"{prefix}:{hint.value}" for hint in Hint}
    stop()
    stop()
    await eventually(lambda: channels(valkey, prefix), lambda found: found == {f"{prefix}:done"})
    await done.until(Signal(DONE))
    publish(DONE, "a")
    await done.until(Signal(DONE, queue="a"))
    assert Signal(DONE, queue="a") not in everything.signals


async def test_a_hint_wanted_again_at_once_stays_subscribed(setting, publish, valkey, prefix):
    """Its subscription lingers: a listener that returns does not wait and is not notified again."""
    stays, listening = Listening(), Listening()
    setting.listener.listen(stays, {DONE})
    stop = setting.listener.listen(listening, {READY})
    await listening.until(Signal(READY))
    for _ in range(50):
        stop()
        stop = setting.listener.listen(listening, {READY})
        await setting.listener.ready()
        assert publish(READY, "a") == 1
        await listening.until(Signal(READY, queue="a"))


async def test_a_hint_wanted_again_after_its_unsubscribe_is_subscribed_again(url, prefix, publish, valkey):
    async with Setting(url, prefix, linger_s=0) as setting:
        setting.listener.listen(Listening(), {DONE})
        listening = Listening()
        for _ in range(20):
            stop = setting.listener.listen(listening, {READY})
            await listening.until(Signal(READY))
            assert publish(READY, "a") == 1
            await listening.until(Signal(READY, queue="a"))
            stop()
            await eventually(lambda: channels(valkey, prefix), lambda found: found == {f"{prefix}:done"})


async def test_the_connection_ends_with_the_last_listener(url, prefix, valkey):
    async with Setting(url, prefix, linger_s=0) as setting:
        for _ in range(3):
            stop = setting.listener.listen(Listening(), {READY})
            await setting.listener.ready()
            assert channels(valkey, prefix) == {f"{prefix}:ready"}
            stop()
            await eventually(lambda: channels(valkey, prefix), lambda found: not found)
            assert await eventually(lambda: not setting.listener._tasks)


async def test_a_listener_that_follows_soon_uses_the_open_connection(setting, valkey):
    before = int(valkey.info("stats")["total_connections_received"])
    for _ in range(5):
        stop = setting.listener.listen(Listening(), {READY})
        await setting.listener.ready()
        stop()
    made = int(valkey.info("stats")["total_connections_received"]) - before
    assert made == 2  # Ours, and the one that asked just now.


class At:
    """An event loop at a given time."""

    def __init__(self, time):
        self.time = lambda: time
        self.call_later = asyncio.get_running_loop().call_later


async def test_short_listeners_share_one_connection(url, prefix, valkey):
    """The connection's time to linger is counted from the last listener that left, not from the first."""
    async with Setting(url, prefix, linger_s=600) as setting:
        for _ in range(2):
            stop = setting.listener.listen(Listening(), {READY})
            await setting.listener.ready()
            stop()
        timer = setting.listener._linger_timer
        timer.cancel()
        setting.listener._stop_lingering(At(timer.when()))  # 600 s after the first has left.
        assert channels(valkey, prefix)
        setting.listener._linger_timer.cancel()
        setting.listener._stop_lingering(At(setting.listener._left_at + 600))
        await eventually(lambda: not channels(valkey, prefix))


async def test_a_listener_that_fails_does_not_affect_the_others(setting, publish, caplog):
    def fails(signal):
        raise ValueError(signal)

    listening = Listening()
    setting.listener.listen(fails, {READY})
    setting.listener.listen(listening, {READY})
    await listening.until(Signal(READY))
    publish(READY, "a")
    publish(READY, "b")
    await listening.until(Signal(READY, queue="a"), Signal(READY, queue="b"))
    assert [record.name for record in caplog.records] == ["holdfast"] * 3


async def test_a_listener_may_stop_itself_and_others(setting, publish):
    received = []

    def once(signal):
        received.append(signal)
        for stop in stops:
            stop()

    last = Listening()
    stops = [setting.listener.listen(once, {READY}) for _ in range(3)]
    setting.listener.listen(last, {READY})
    await last.until(Signal(READY))
    assert received == [Signal(READY)]


async def test_an_unreadable_message_notifies_all_listeners(setting, publish, caplog):
    listening = Listening()
    setting.listener.listen(listening, {READY})
    await listening.until(Signal(READY))
    publish(READY, "broken")
    await listening.until(Signal(READY))
    assert "cannot read a notification" in caplog.text


async def test_after_a_lost_connection_all_listeners_are_notified(far_url, prefix, proxy, publish, caplog):
    async with Setting(far_url, prefix) as setting:
        listening, done = Listening(), Listening()
        setting.listener.listen(listening, {READY, DONE})
        setting.listener.listen(done, {DONE})
        await setting.listener.ready()
        await listening.until(Signal(READY), Signal(DONE))
        await done.until(Signal(DONE))
        for _ in range(3):
            proxy.drop_all()
            publish(READY, "missed")
            await listening.until(Signal(READY), Signal(DONE))
            await done.until(Signal(DONE))
        publish(DONE, "a")
        await done.until(Signal(DONE, queue="a"))
        assert caplog.text.count("notifications may be late") == 3


async def test_a_server_killed_and_restarted_is_subscribed_to_again(prefix):
    with ValkeyServer() as server:
        async with Setting(server.url(), prefix) as setting:
            listening = Listening()
            setting.listener.listen(listening, {READY})
            await listening.until(Signal(READY))
            server.kill()
            server.restart()
            await listening.until(Signal(READY))
            server.command("PUBLISH", f"{prefix}:ready", "a")
            await listening.until(Signal(READY, queue="a"))


async def test_a_half_open_connection_is_replaced(far_url, prefix, proxy, publish):
    async with Setting(far_url, prefix, timeout_s=0.2) as setting:
        listening = Listening()
        setting.listener.listen(listening, {READY})
        await listening.until(Signal(READY))
        proxy.freeze(new=False)
        publish(READY, "missed")
        await listening.until(Signal(READY))
        publish(READY, "a")
        await listening.until(Signal(READY, queue="a"))
        assert proxy.counts.connections == 2


async def test_silence_alone_ends_no_connection(far_url, prefix, proxy, publish):
    async with Setting(far_url, prefix, timeout_s=0.1) as setting:
        listening = Listening()
        setting.listener.listen(listening, {READY})
        await listening.until(Signal(READY))
        asked = proxy.counts.requests
        await eventually(lambda: proxy.counts.requests, lambda requests: requests >= asked + 4)
        publish(READY, "a")
        await listening.until(Signal(READY, queue="a"))
        assert proxy.counts.connections == 1


async def test_ready_does_not_wait_for_a_server_that_is_down(far_url, prefix, proxy):
    async with Setting(far_url, prefix) as setting:
        proxy.refuse()
        listening = Listening()
        setting.listener.listen(listening, {READY})
        await setting.listener.ready()
        assert listening.signals == []
        await proxy.accept()
        await listening.until(Signal(READY))


async def test_a_user_without_the_right_to_subscribe_gets_one_warning(prefix, caplog):
    caplog.set_level(logging.DEBUG, "holdfast")
    with ValkeyServer() as server:
        server.command("ACL", "SETUSER", "ann", "on", ">secret", "~*", "+@all", "resetchannels")
        async with Setting(f"redis://ann:secret@{HOST}:{server.port}", prefix) as setting:
            listening = Listening()
            setting.listener.listen(listening, {READY})
            await setting.listener.ready()
            await eventually(lambda: caplog.text.count("refuses to send notifications"), lambda times: times >= 3)
            assert [record.levelname for record in caplog.records][:3] == ["WARNING", "DEBUG", "DEBUG"]
            server.command("ACL", "SETUSER", "ann", f"&{prefix}:*")
            await listening.until(Signal(READY))


async def test_a_cluster_carries_hints_from_any_node_to_any(cluster, prefix):
    async with Setting(cluster.url(), prefix) as setting:
        listening = Listening()
        setting.listener.listen(listening, {READY})
        await listening.until(Signal(READY))
        for number, node in enumerate(cluster.nodes):
            node.command("PUBLISH", f"{prefix}:ready", f"q{number}")
            await listening.until(Signal(READY, queue=f"q{number}"))


async def test_a_dead_node_is_replaced_by_another(prefix):
    with ValkeyCluster(3, cluster_require_full_coverage=False) as cluster:
        async with Setting(cluster.url(), prefix) as setting:
            listening = Listening()
            setting.listener.listen(listening, {READY})
            await listening.until(Signal(READY))
            subscribed = [node for node in cluster.nodes if channels(node, prefix)]
            assert len(subscribed) == 1
            subscribed[0].kill()
            await listening.until(Signal(READY))
            other = next(node for node in cluster.nodes if node.alive)
            other.command("PUBLISH", f"{prefix}:ready", "a")
            await listening.until(Signal(READY, queue="a"))


async def test_a_failover_of_sentinel_is_followed(prefix):
    with ValkeySentinel() as sentinel:
        async with Setting(sentinel.url(), prefix, connect_timeout_s=1) as setting:
            listening = Listening()
            setting.listener.listen(listening, {READY})
            await listening.until(Signal(READY))
            new = await asyncio.to_thread(sentinel.failover)
            await listening.until(Signal(READY))
            new.command("PUBLISH", f"{prefix}:ready", "a")
            await listening.until(Signal(READY, queue="a"))


async def test_a_closed_listener_gets_nothing(setting, publish):
    listening = Listening()
    stop = setting.listener.listen(listening, {READY})
    await listening.until(Signal(READY))
    await setting.listener.close()
    await setting.listener.close()
    assert publish(READY, "a") == 0
    assert listening.signals == []
    stop()
    await setting.listener.ready()
    with pytest.raises(StoreUnavailable, match="closed"):
        setting.listener.listen(listening, {READY})


async def test_closing_ends_an_attempt_to_connect(far_url, prefix, proxy):
    async with Setting(far_url, prefix) as setting:
        proxy.freeze()
        setting.listener.listen(Listening(), {READY})
        waiting = asyncio.create_task(setting.listener.ready())
        await eventually(lambda: proxy.open_connections)
        await setting.listener.close()
        await waiting
        assert not setting.listener._tasks
