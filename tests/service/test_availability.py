"""What one tenant or address does leaves room for the others: attacks on a real `holdfast serve`, and their counts.

The attacker is at 127.0.0.1, the victim at 127.0.0.2 with a token of another tenant.
"""

import asyncio
import base64
import contextlib
import os
import re
import socket
import subprocess
import sys

import httpx
import pytest

from holdfast.service import answer_size, turns
from holdfast.testing.processes import free_port
from tests.eventually import eventually
from tests.service.support import KEY, Client, problem, read_to_the_end, serving, token

KIB, MIB = 1024, 1024 * 1024
FLAGS = (
    "--memory", "48", "--memory-per-tenant", "12", "--memory-per-address", "24",
    "--max-connections", "400", "--max-connections-per-tenant", "40", "--max-connections-per-address", "100",
    "--max-waits-per-tenant", "20", "--max-streams-per-tenant", "20",
)  # fmt: skip
MOST_BYTES = 49 * MIB
"""What the flags say, and short answers, which are always sent."""
TURN_WORK = 3 * turns.TURN
"""What a turn may have: one large check, and small ones that do not wait."""


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """A service in a process of its own, with small limits."""
    port = free_port()
    directory = tmp_path_factory.mktemp("availability")
    command = [sys.executable, "-m", "holdfast", "serve", "--store", f"file:{directory}/data", "--port", str(port)]
    command += ["--blobs", f"file:{directory}/blobs", "--no-access-log", "--log-level", "warning", *FLAGS]
    process = subprocess.Popen(command, env={**os.environ, "HOLDFAST_JWT_HS256_KEY": KEY})
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                assert process.wait(0.1) is None
        yield port
    finally:
        process.terminate()
        process.wait(60)


def client(port, tenant="attacker", address="127.0.0.1", **options):
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=1000)
    transport = httpx.AsyncHTTPTransport(local_address=address, limits=limits)
    return Client(port, token(tenant), transport=transport, **options)


@contextlib.asynccontextmanager
async def both(port):
    """The attacker, and the victim."""
    async with client(port) as attacker, client(port, "victim", "127.0.0.2") as victim:
        yield attacker, victim


async def is_served(victim):
    """Whether the victim's usual requests work."""
    await victim.enqueue(queue="own")
    (job,) = await victim.claim("own")
    return (await victim.finish(job))["status"] == "completed"


async def most(victim, name):
    text = (await victim.get("/metrics")).text
    return float(re.search(rf"^holdfast_http_most_{name} (\S+)$", text, re.MULTILINE)[1])


def raw_request(path, length, tenant="attacker", method="POST", more=""):
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token(tenant)}\r\n{more}"
    return f"{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n".encode()


async def open_raw(port, sent=b"", address="127.0.0.1"):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    writer.write(sent)
    return reader, writer


async def close_all(connections):
    for _, writer in connections:
        writer.close()
    for _, writer in connections:
        with contextlib.suppress(OSError):
            await writer.wait_closed()


# Work per request ---------------------------------------------------------------------------------------------


def leaves(size, leaf=b"1,"):
    """99 nested lists, and in the innermost as many leaves as fit."""
    return b"[" * 99 + leaf * ((size - 210) // len(leaf)) + leaf.rstrip(b",") + b"]" * 99


LEASE = b'{"queue":"q","id":"none","token":"1.1.none","outcome":"complete",%s}'
K256 = 256 * KIB
PACKED = base64.b64encode(b"\xdd" + (K256 - 5).to_bytes(4, "big") + b"\x90" * (K256 - 5))
BODIES = {
    "a payload of 4 MiB": (
        "/v1/jobs:batch", b'{"jobs":[{"payload":%s}]}' % leaves(4 * MIB - 40), ["payload_too_large"],
    ),
    "15 payloads of 256 KiB": (
        "/v1/jobs:batch", b'{"jobs":[%s]}' % b",".join([b'{"payload":%s}' % leaves(K256)] * 15), ["queued"] * 15,
    ),
    "11 payloads of lists": (
        "/v1/jobs:batch", b'{"jobs":[%s]}' % b",".join([b'{"payload":%s}' % leaves(K256, b"[],")] * 11),
        ["queued"] * 11,
    ),
    "a result of no lease": (
        "/v1/leases:finish", b'{"leases":[%s]}' % (LEASE % b'"result":%s' % leaves(4 * MIB - 200)), ["lease_lost"],
    ),
    "msgpack of no lease": (
        "/v1/leases:finish", b'{"leases":[%s]}' % (LEASE % b'"codec":"msgpack","result":"%s"' % PACKED),
        ["lease_lost"],
    ),
}  # fmt: skip
REFUSED = {
    "a million items": b'{"jobs":[%s[]]}' % (b"[]," * (4 * MIB // 3 - 10)),
    "a million members": b'{"jobs":[],%s"z":0}' % (b'"a":0,' * (4 * MIB // 6 - 10)),
    "a list again and again": b'{%s"jobs":[]}' % (b'"jobs":[1,1,1,1,1,1],' * (4 * MIB // 21 - 10)),
    "no end": b'{"jobs":' + b"[" * (4 * MIB - 10),
}


@pytest.mark.parametrize("name", BODIES)
async def test_other_requests_are_answered_while_a_large_body_is_checked(port, name):
    path, body, expected = BODIES[name]
    async with both(port) as (attacker, victim):
        sent = asyncio.create_task(attacker.post(path, content=body, headers={"content-type": "application/json"}))
        assert await is_served(victim)
        answer = await sent
        assert answer.status_code == 200, answer.text
        assert [item.get("status") or item["error"]["code"] for item in answer.json()["items"]] == expected
        assert await most(victim, "turn_work") <= TURN_WORK


@pytest.mark.parametrize("name", REFUSED)
async def test_a_body_with_too_many_parts_is_refused_as_a_whole(port, name):
    async with both(port) as (attacker, victim):
        headers = {"content-type": "application/json"}
        problem(await attacker.post("/v1/jobs:batch", content=REFUSED[name], headers=headers), 400, "invalid_request")
        assert await is_served(victim)
        assert await most(victim, "turn_work") <= TURN_WORK


@pytest.mark.parametrize("path, part", [("/v1/flows", b'"steps"'), ("/v1/workers:beat", b'"types"')])
async def test_a_list_that_is_too_long_is_refused_before_it_is_decoded(port, path, part):
    body = b'{%s:[%s{"name":""}]}' % (part, b'{"name":""},' * (MIB // 12 - 10))
    async with both(port) as (attacker, victim):
        answer = await attacker.post(path, content=body, headers={"content-type": "application/json"})
        assert "at most length 1000" in problem(answer, 400, "invalid_request")["detail"]
        assert await most(victim, "turn_work") <= TURN_WORK


async def test_a_large_value_obeys_the_rules_of_a_small_one(port):
    filler = b"0," * (100 * KIB)
    bad = [
        b'{"a":[%s1e999]}',
        b'{"a":[%s"\\u0000"]}',
        b'{"a":[%s1],"a":1}',
        b'{"a":[%s{"b":1,"b":2}]}',
        b'{"a":[%s{"b":1}]}',
    ]
    items = b",".join(b'{"payload":%s}' % (text % filler) for text in bad)
    async with client(port) as attacker:
        headers = {"content-type": "application/json"}
        answer = await attacker.post("/v1/jobs:batch", content=b'{"jobs":[%s]}' % items, headers=headers)
        codes = [item.get("status") or item["error"]["code"] for item in answer.json()["items"]]
        assert codes == ["invalid_payload", "invalid_payload", "invalid_request", "invalid_request", "queued"]
        first = answer.json()["items"][0]["error"]["message"]
        assert f"$.a[{100 * KIB}]" in first


async def test_a_map_with_a_duplicate_key_is_refused(port):
    async with client(port) as attacker:
        packed = base64.b64encode(b"\x82\xa1a\x01\xa1a\x02").decode()
        problem(await attacker.post("/v1/jobs", json={"codec": "msgpack", "payload": packed}), 400, "invalid_payload")


async def test_a_result_that_is_too_large_is_not_decoded():
    """Its size is checked first: the job fails for that, whatever else is wrong with it."""
    async with serving("memory:unread") as service:
        ours = await service.client()
        await ours.enqueue(id="x")
        (job,) = await ours.claim()
        assert await ours.finish(job, result=["\x00", "x" * K256]) == {"status": "failed"}
        found = (await ours.get("/v1/queues/default/jobs/x")).json()
        assert found["errors"][-1]["type"] == "ResultTooLarge"


# Memory -------------------------------------------------------------------------------------------------------


async def test_endless_bodies_use_no_more_than_the_share_of_their_tenant(port):
    """60 bodies of 4 MiB that never arrive: those over the share are refused before they are read."""
    async with client(port, "victim", "127.0.0.2") as victim:
        connections = [
            await open_raw(port, raw_request("/v1/jobs:batch", 4 * MIB, f"slow{number % 3}")) for number in range(60)
        ]
        reads = [asyncio.create_task(reader.readuntil(b"}")) for reader, _ in connections]
        # Of each tenant 3 have room, of the address 6.
        done = await eventually(lambda: [read for read in reads if read.done()], lambda done: len(done) == 54)
        for read in done:
            assert b" 429 " in await read
            assert b"share_exceeded" in await read
            assert b"retry-after: " in await read
        assert await is_served(victim)
        assert 24 * MIB <= await most(victim, "bytes") <= MOST_BYTES
        for read in reads:
            read.cancel()
        await close_all(connections)
        # What was held is free again.
        await eventually(lambda: batch_of_4_mib(port), lambda status: status == 200)


async def batch_of_4_mib(port):
    async with client(port) as attacker:
        body = b'{"jobs":[%s{}]}' % (b" " * (4 * MIB - 20))
        headers = {"content-type": "application/json"}
        return (await attacker.post("/v1/jobs:batch", content=body, headers=headers)).status_code


async def test_bodies_from_many_addresses_use_no_more_than_the_limit_of_the_process(port):
    async with client(port, "victim", "127.0.0.2") as victim:
        sent = [
            (raw_request("/v1/jobs:batch", 4 * MIB, f"many{number}"), f"127.0.1.{number}") for number in range(1, 21)
        ]
        connections = [await open_raw(port, request, address) for request, address in sent]
        reads = [asyncio.create_task(reader.readuntil(b"}")) for reader, _ in connections]
        done = await eventually(lambda: [read for read in reads if read.done()], lambda done: len(done) >= 8)
        for read in done:
            assert b" 503 " in await read
            assert b"overloaded" in await read
            assert b"retry-after: " in await read
        assert await most(victim, "bytes") <= MOST_BYTES
        for read in reads:
            read.cancel()
        await close_all(connections)
        await eventually(lambda: batch_of_4_mib(port), lambda status: status == 200)
        assert await is_served(victim)


async def test_a_chunked_body_is_counted_as_it_arrives(port):
    async with client(port, "victim", "127.0.0.2") as victim:
        chunks = b"100000\r\n" + b" " * MIB + b"\r\n"
        head = f"POST /v1/jobs:batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token('chunks')}\r\n"
        head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        connections = [await open_raw(port, head.encode() + 3 * chunks) for _ in range(8)]
        reads = [asyncio.create_task(reader.readuntil(b"}")) for reader, _ in connections]
        # 12 MiB have room for 4 of them at most.
        done = await eventually(lambda: [read for read in reads if read.done()], lambda done: len(done) >= 4)
        assert all([b" 429 " in await read for read in done])
        assert await is_served(victim)
        for read in reads:
            read.cancel()
        await close_all(connections)


async def test_an_answer_has_the_documented_length(port):
    """A claim and a page of 100 jobs of 256 KiB end at 8 MiB; it was 26 and 52 MB."""
    async with client(port, "large") as ours:
        for _ in range(4):
            jobs = [{"queue": "large", "payload": "x" * (K256 - 2)}] * 15
            assert (await ours.post("/v1/jobs:batch", json={"jobs": jobs})).status_code == 200
        page = await ours.get("/v1/queues/large/jobs", params={"limit": 100})
        claim = await ours.post("/v1/claims", json={"queues": ["large"], "limit": 100})
        for answer in (page, claim):
            assert 4 * MIB < len(answer.content) <= answer_size.ANSWER_BYTES + 64 * KIB
        assert page.json()["cursor"] is not None


async def test_large_jobs_after_small_ones_do_not_exceed_the_size_of_an_answer(port):
    """After small jobs the service claims as many as the tenant wants. The surplus is released without an attempt."""
    async with client(port, "mixed") as ours:
        small = [{"queue": "mixed", "priority": 9}] * 10
        assert (await ours.post("/v1/jobs:batch", json={"jobs": small})).status_code == 200
        for _ in range(4):
            jobs = [{"queue": "mixed", "payload": "x" * (K256 - 2)}] * 15
            assert (await ours.post("/v1/jobs:batch", json={"jobs": jobs})).status_code == 200
        assert len((await ours.get("/v1/queues/mixed/jobs", params={"limit": 10})).json()["jobs"]) == 10
        pages, cursor = [], ""
        while cursor is not None:
            page = await ours.get("/v1/queues/mixed/jobs", params={"limit": 100, "cursor": cursor})
            assert len(page.content) <= answer_size.ANSWER_BYTES + 64 * KIB
            pages += [job["id"] for job in page.json()["jobs"]]
            cursor = page.json()["cursor"]
        assert len(pages) == len(set(pages)) == 70
        assert len((await ours.post("/v1/claims", json={"queues": ["mixed"], "limit": 10})).json()["jobs"]) == 10
        claim = await ours.post("/v1/claims", json={"queues": ["mixed"], "limit": 100})
        assert 4 * MIB < len(claim.content) <= answer_size.ANSWER_BYTES + 64 * KIB
        counts = (await ours.get("/v1/queues/mixed/stats")).json()["counts"]
        held = len(claim.json()["jobs"])
        assert (counts["leased"], counts["ready"]) == (10 + held, 60 - held)
        (job,) = (await ours.post("/v1/claims", json={"queues": ["mixed"]})).json()["jobs"]
        assert job["attempt"] == 1


async def test_unread_answers_use_no_more_than_the_share_of_their_tenant(port):
    """Pages of 8 MiB: while some are being sent, there is no room for another."""
    async with client(port, "unread") as ours, client(port, "victim", "127.0.0.2") as victim:
        for _ in range(3):
            jobs = [{"queue": "large", "payload": "x" * (K256 - 2)}] * 15
            assert (await ours.post("/v1/jobs:batch", json={"jobs": jobs})).status_code == 200
        request = f"GET /v1/queues/large/jobs?limit=100 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token('unread')}"
        sockets = []

        def ask_and_read_nothing():
            sock = socket.socket()
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", port))
            sock.sendall(f"{request}\r\n\r\n".encode())

        async def status():
            return (await ours.get("/v1/queues/large/jobs", params={"limit": 100})).status_code

        try:
            while await status() != 429:
                ask_and_read_nothing()
            assert await is_served(victim)
            assert await most(victim, "bytes") <= MOST_BYTES
        finally:
            for sock in sockets:
                sock.close()
        await eventually(status, lambda status: status == 200)


async def test_results_of_completed_jobs_do_not_exceed_the_size_of_an_answer():
    async with serving("memory:done") as service:
        ours = await service.client()
        await ours.enqueue(id="x")
        (job,) = await ours.claim()
        await ours.finish(job, result="x" * (K256 - 2))
        answer = await ours.post("/v1/jobs:batch", json={"jobs": [{"id": "x"}] * 40})
        problem(answer, 413, "body_too_large")
        answer = await ours.post("/v1/jobs:batch", json={"jobs": [{"id": "x"}] * 30})
        assert {item["status"] for item in answer.json()["items"]} == {"completed"}


# Connections --------------------------------------------------------------------------------------------------


async def test_sockets_without_a_token_leave_room_for_other_addresses(port):
    async with client(port, "victim", "127.0.0.2") as victim:
        connections = [await open_raw(port) for _ in range(150)]
        reads = [asyncio.create_task(read_to_the_end(reader)) for reader, _ in connections]
        done = await eventually(lambda: [read for read in reads if read.done()], lambda done: len(done) >= 50)
        reported = [await read for read in done]
        refused = [
            text for text in reported if b" 429 " in text and b"share_exceeded" in text and b"retry-after: " in text
        ]
        assert len(refused) >= 50
        assert await is_served(victim)
        await close_all(connections)
        await asyncio.gather(*reads)


async def test_event_streams_leave_room_for_requests_and_for_others(port):
    """Of 60 streams 20 are open and the others are refused; the tenant's other requests still work."""
    async with both(port) as (attacker, victim):
        request = raw_request("/v1/events", 0, method="GET")
        connections = [await open_raw(port, request) for _ in range(60)]
        heads = [await reader.readuntil(b"\r\n\r\n") for reader, _ in connections]
        statuses = [int(head.split()[1]) for head in heads]
        assert (statuses.count(200), statuses.count(429)) == (20, 40)
        assert all(b"retry-after: " in head for head in heads if b" 429 " in head)
        assert await short_wait(attacker) == 200  # Claims that wait are counted apart.
        assert await is_served(attacker)
        assert await is_served(victim)
        assert await most(victim, "waits") >= 20
        await close_all(connections)


async def short_wait(ours):
    return (await ours.post("/v1/claims", json={"queues": ["none"], "wait_s": 0.001})).status_code


async def test_waiting_claims_leave_room_for_requests_and_for_others(port):
    async with both(port) as (attacker, victim):
        body = b'{"queues":["none"],"wait_s":60}'
        connections = [await open_raw(port, raw_request("/v1/claims", len(body)) + body) for _ in range(30)]
        reads = [asyncio.create_task(reader.readuntil(b"}")) for reader, _ in connections]
        done = await eventually(lambda: [read for read in reads if read.done()], lambda done: len(done) == 10)
        assert all([b" 429 " in await read for read in done])
        assert await is_served(attacker)
        assert await is_served(victim)
        for read in reads:
            read.cancel()
        await close_all(connections)
        await eventually(lambda: short_wait(attacker), lambda status: status == 200)


async def test_the_connections_of_a_tenant_are_limited(port):
    """They are kept alive by successful requests; connections of waiting requests are counted separately."""
    async with client(port, "victim", "127.0.0.1") as victim:
        request = raw_request("/v1/session", 0, "crowd", "GET")
        connections = [await open_raw(port, request) for _ in range(60)]
        heads = [await reader.readuntil(b"\r\n\r\n") for reader, _ in connections]
        statuses = [int(head.split()[1]) for head in heads]
        assert (statuses.count(200), statuses.count(429)) == (40, 20)
        assert await is_served(victim)
        await close_all(connections)


async def test_a_connection_of_a_proxy_is_not_counted_by_its_address():
    async with serving("memory:proxied", proxies="127.0.0.1", address_connections=1) as service:
        connections = [await open_raw(service.port, raw_request("/v1/session", 0, method="GET")) for _ in range(3)]
        heads = [await reader.readuntil(b"\r\n\r\n") for reader, _ in connections]
        assert [head.split()[1] for head in heads] == [b"200"] * 3
        await close_all(connections)
    async with serving("memory:direct", address_connections=1) as service:
        connections = [await open_raw(service.port, raw_request("/v1/session", 0, method="GET")) for _ in range(3)]
        heads = [await reader.readuntil(b"\r\n\r\n") for reader, _ in connections]
        assert sorted(head.split()[1] for head in heads) == [b"200", b"429", b"429"]
        await close_all(connections)


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost:"])
async def test_the_time_for_headers_begins_at_the_end_of_the_previous_answer(sent):
    """It does not begin with the next byte: an idle connection has the same time."""
    async with serving("memory:idle", header_s=0.5) as service:
        (reader, writer) = await open_raw(service.port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"}")
        (protocol,) = service.server._server.server_state.connections
        timer = protocol._timer
        assert timer is not None
        writer.write(sent)
        assert (b"request_timeout" in await read_to_the_end(reader)) == bool(sent)
        assert protocol._timer is None
        assert not timer.cancelled()  # It was that one which ended it.
        await close_all([(reader, writer)])
