"""The proxy that breaks lines: each fault does what it says, and no more."""

import asyncio
import contextlib
import gc

import pytest

from holdfast.testing.proxy import Proxy
from tests.eventually import eventually

LIMIT = 1 << 24


class Echo:
    """A server that records each line, and returns it in capitals."""

    def __init__(self):
        self.heard = []
        self.greeting = b""

    async def serve(self, reader, writer):
        with contextlib.suppress(ConnectionError):
            if self.greeting:
                writer.write(self.greeting)
            async for line in reader:
                self.heard.append(line)
                writer.write(line.upper())
                await writer.drain()
        writer.close()


class Client:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def ask(self, line):
        self.writer.write(line)
        return await self.hears()

    async def hears(self):
        answer = await asyncio.wait_for(self.reader.readline(), 10)
        if not answer:
            raise ConnectionError("the end")
        return answer

    async def hears_all(self):
        while True:
            await self.hears()


@pytest.fixture
async def echo():
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0, limit=LIMIT)
    echo.port = server.sockets[0].getsockname()[1]
    yield echo
    server.close()


@pytest.fixture
async def proxy(echo):
    async with Proxy("127.0.0.1", echo.port) as proxy:
        yield proxy


@pytest.fixture
async def connect(proxy):
    """Connect through the proxy; closed at the end of the test."""
    clients = []

    async def connect():
        clients.append(Client(*await asyncio.open_connection("127.0.0.1", proxy.port, limit=LIMIT)))
        return clients[-1]

    yield connect
    for client in clients:
        client.writer.close()
        with contextlib.suppress(ConnectionError):
            await client.writer.wait_closed()


async def test_a_proxy_without_faults_forwards_everything(proxy, connect, echo):
    a, b = await connect(), await connect()
    assert [await a.ask(b"a\n"), await b.ask(b"b\n"), await a.ask(b"c\n")] == [b"A\n", b"B\n", b"C\n"]
    assert (proxy.counts.connections, proxy.counts.requests, proxy.counts.replies) == (2, 3, 3)
    assert proxy.open_connections == 2


async def test_large_amounts_are_forwarded_whole(connect):
    client = await connect()
    line = b"x" * 5_000_000 + b"\n"
    assert await client.ask(line) == line.upper()


async def test_the_last_bytes_of_a_server_still_arrive(proxy, echo):
    echo.greeting = b"y" * 3_000_000
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write_eof()
    assert len(await reader.read()) == 3_000_000
    writer.close()


async def test_a_reply_is_cut_after_its_request_has_run(proxy, connect, echo):
    client, other = await connect(), await connect()
    proxy.cut_replies(after=2)
    assert await client.ask(b"one\n") == b"ONE\n"
    with pytest.raises(ConnectionError):
        await client.ask(b"two\n")
    assert echo.heard == [b"one\n", b"two\n"]
    assert (proxy.counts.requests, proxy.counts.replies, proxy.counts.replies_cut) == (2, 1, 1)
    assert await other.ask(b"three\n") == b"THREE\n"
    assert await (await connect()).ask(b"four\n") == b"FOUR\n"


async def test_requests_sent_before_a_cut_run(proxy, connect, echo):
    client = await connect()
    proxy.cut_replies(when=b"2\n")
    client.writer.write(b"".join(b"%d\n" % n for n in range(2000)))
    with pytest.raises(ConnectionError):
        await client.hears_all()
    await eventually(lambda: len(echo.heard) == 2000)


async def test_only_matching_requests_are_cut(proxy, connect, echo):
    client = await connect()
    proxy.cut_replies(when=b"two")
    assert await client.ask(b"one\n") == b"ONE\n"
    with pytest.raises(ConnectionError):
        await client.ask(b"this is two\n")
    proxy.cut_replies(when=lambda chunk: len(chunk) > 5, times=None)
    for _ in range(3):
        client = await connect()
        assert await client.ask(b"tiny\n") == b"TINY\n"
        with pytest.raises(ConnectionError):
            await client.ask(b"enormous\n")
    assert proxy.counts.replies_cut == 4


async def test_a_match_is_found_across_two_packets(proxy, connect, echo):
    client = await connect()
    proxy.cut_replies(when=b"needle")
    client.writer.write(b"nee")
    await eventually(lambda: proxy.counts.requests == 1)
    with pytest.raises(ConnectionError):
        await client.ask(b"dle\n")
    assert echo.heard == [b"needle\n"]


async def test_a_request_that_is_cut_does_not_reach_the_server(proxy, connect, echo):
    client = await connect()
    proxy.cut_requests(when=b"two")
    assert await client.ask(b"one\n") == b"ONE\n"
    with pytest.raises(ConnectionError):
        await client.ask(b"two\n")
    assert await (await connect()).ask(b"two\n") == b"TWO\n"
    assert echo.heard == [b"one\n", b"two\n"]
    assert proxy.counts.requests_cut == 1


async def test_a_frozen_connection_stays_open_and_silent_until_it_is_resumed(proxy, connect, echo):
    old = await connect()
    assert await old.ask(b"one\n") == b"ONE\n"
    proxy.freeze()
    new = await connect()
    old.writer.write(b"two\n")
    new.writer.write(b"three\n")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(asyncio.gather(old.reader.read(1), new.reader.read(1))), 0.1)
    assert echo.heard == [b"one\n"]
    proxy.thaw()
    await eventually(lambda: sorted(echo.heard) == [b"one\n", b"three\n", b"two\n"])


async def test_a_freeze_can_exclude_new_connections(proxy, connect):
    old = await connect()
    await old.ask(b"one\n")
    proxy.freeze(new=False)
    assert await (await connect()).ask(b"two\n") == b"TWO\n"
    old.writer.write(b"three\n")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(old.reader.read(1), 0.1)


async def test_all_connections_can_be_dropped_even_frozen_ones(proxy, connect):
    clients = [await connect(), await connect()]
    for client in clients:
        await client.ask(b"hello\n")
    proxy.freeze()
    assert proxy.drop_all() == 2
    for client in clients:
        with pytest.raises(ConnectionError):
            await client.hears()
    await eventually(lambda: proxy.open_connections == 0)
    assert proxy.counts.dropped == 2


async def test_a_proxy_can_refuse_connections_and_accept_them_again(proxy, connect):
    old = await connect()
    await old.ask(b"one\n")
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        await connect()
    assert await old.ask(b"two\n") == b"TWO\n"
    await proxy.accept()
    assert await (await connect()).ask(b"three\n") == b"THREE\n"


async def test_a_proxy_can_delay_answers(proxy, connect):
    client = await connect()
    clock = asyncio.get_running_loop().time
    proxy.delay(0.05)
    before = clock()
    await client.ask(b"one\n")
    assert clock() - before >= 0.1


async def test_a_server_that_is_down_shows_as_a_reset(proxy, connect, echo):
    async with Proxy("127.0.0.1", proxy.port) as outer:
        proxy.refuse()
        client = Client(*await asyncio.open_connection("127.0.0.1", outer.port))
        with pytest.raises(ConnectionError):
            await client.hears()
        client.writer.close()
        assert outer.counts.connections == 0


async def test_healing_ends_all_faults(proxy, connect):
    proxy.cut_replies(times=None)
    proxy.cut_requests(times=None)
    proxy.delay(60)
    proxy.freeze()
    proxy.refuse()
    await proxy.heal()
    assert await (await connect()).ask(b"one\n") == b"ONE\n"


async def test_leaving_the_proxy_closes_all_connections(echo):
    async with Proxy("127.0.0.1", echo.port) as proxy:
        client = Client(*await asyncio.open_connection("127.0.0.1", proxy.port))
        await client.ask(b"one\n")
        proxy.delay(60)
        client.writer.write(b"two\n")
        proxy.freeze()
    with pytest.raises(ConnectionError):
        await client.hears()
    client.writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", proxy.port)


@pytest.mark.parametrize("turns", range(8))
async def test_leaving_the_proxy_closes_a_connection_that_is_just_made(echo, turns):
    async with Proxy("127.0.0.1", echo.port) as proxy:
        connecting = asyncio.create_task(asyncio.open_connection("127.0.0.1", proxy.port))
        for _ in range(turns):
            await asyncio.sleep(0)
    with contextlib.suppress(ConnectionError):
        reader, writer = await connecting
        with contextlib.closing(writer):
            assert await asyncio.wait_for(reader.read(), 10) == b""
    gc.collect()  # What is left unclosed is reported now.
