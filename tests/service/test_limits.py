"""How much a client may ask for, how long it may take, and what becomes of those who wait."""

import asyncio
import json
import socket
import sqlite3
from contextlib import closing

import pytest

from holdfast.service.listening import listen
from holdfast.service.settings import TokenSettings
from holdfast.testing.failpoints import armed
from holdfast.testing.postgres import PostgresServer
from holdfast.testing.servers import ValkeyServer
from tests.eventually import eventually
from tests.service.support import KEY, problem, read_to_the_end, serving, token


async def connect(service):
    return await asyncio.open_connection("127.0.0.1", service.port)


async def read_all(reader):
    async with asyncio.timeout(20):
        return (await read_to_the_end(reader)).decode()


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_headers_that_do_not_arrive_end_the_connection(sent):
    async with serving("memory:slow-headers", header_s=0.1) as service:
        reader, writer = await connect(service)
        writer.write(sent)
        assert "408" in await read_all(reader)
        writer.close()


async def test_single_bytes_do_not_keep_a_connection_open():
    async with serving("memory:drops", header_s=0.3) as service:
        reader, writer = await connect(service)
        reading = asyncio.create_task(read_all(reader))
        for byte in b"GET /healthz HTTP/1.1\r\nX-Slow: " + b"a" * 10_000:
            if reading.done():
                break
            writer.write(bytes([byte]))
            await asyncio.sleep(0.01)
        assert "request_timeout" in await reading
        writer.close()


async def test_empty_lines_between_requests_do_not_keep_a_connection_open():
    async with serving("memory:lines", header_s=0.2) as service:
        reader, writer = await connect(service)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in await reader.readuntil(b"}")
        reading = asyncio.create_task(read_all(reader))
        for _ in range(10_000):
            if reading.done():
                break
            writer.write(b"\r\n")
            await asyncio.sleep(0.01)
        assert await reading == ""
        writer.close()


async def test_a_stream_lives_no_longer_than_its_token():
    tokens = TokenSettings(hs256_key=KEY, leeway_s=0)
    async with serving("memory:short", tokens=tokens) as service:
        client = await service.client(lifetime_s=2)
        assert (await client.get("/v1/events")).status_code == 200
        problem(await client.get("/v1/events"), 401, "token_expired")


async def test_a_large_result_is_put_into_the_blob_store_or_the_job_fails(tmp_path):
    """[RESULT-1]"""
    large = "x" * 300_000
    for blobs, status in ((None, "failed"), (f"file:{tmp_path}/blobs", "completed")):
        async with serving(f"memory:large-{status}", blobs=blobs) as service:
            client = await service.client()
            await client.enqueue(id="x")
            (job,) = await client.claim()
            assert await client.finish(job, result=large) == {"status": status}
            answer = (await client.get("/v1/queues/default/jobs/x/result")).json()
            if blobs is None:
                assert answer["error"]["type"] == "ResultTooLarge"
            else:
                assert answer["result"] == large
                assert (await client.enqueue(id="x"))["result"] == large


async def test_a_body_that_does_not_arrive_is_answered_408():
    async with serving("memory:slow-body", body_s=0.1) as service:
        reader, writer = await connect(service)
        head = f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token()}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())
        answer = await read_all(reader)
        assert "408" in answer
        assert "connection: close" in answer
        writer.close()


async def test_the_requests_of_a_token_are_limited_with_retry_after():
    async with serving("memory:rates", rate=0.001) as service:
        client, other = await service.client("acme"), await service.client("acme")
        assert (await client.get("/v1/queues")).status_code == 200
        answer = await client.get("/v1/queues")
        problem(answer, 429, "rate_limited")
        assert 900 < int(answer.headers["retry-after"]) <= 1000
        assert (await other.get("/v1/queues")).status_code == 200


async def test_another_spelling_of_a_token_is_the_same_token():
    async with serving("memory:spelling", rate=0.001) as service:
        made = token()
        assert (await (await service.bare(made)).get("/v1/queues")).status_code == 200
        answer = await (await service.bare(f"{made}=")).get("/v1/queues")
        problem(answer, 429, "rate_limited")


async def test_a_connection_over_the_limit_is_answered_503():
    async with serving("memory:crowd", connections=2) as service:
        open_ones = [await connect(service) for _ in range(2)]
        await eventually(lambda: len(service.server._server.server_state.connections), lambda count: count == 2)
        reader, writer = await connect(service)
        assert "too_many_connections" in await read_all(reader)
        for _, one in [*open_ones, (reader, writer)]:
            one.close()


async def test_a_client_that_reads_nothing_is_disconnected():
    async with serving("memory:shed", send_s=0.2) as service:
        client = await service.client()
        for _ in range(8):
            jobs = [{"id": f"{number:04}" + "x" * 190, "type": "t" * 128} for number in range(1000)]
            await client.post("/v1/jobs:batch", json={"jobs": [{**job, "queue": f"q{_}"} for job in jobs]})
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", service.port))
        sock.sendall(f"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token()}\r\n\r\n".encode())
        state = service.server._server.server_state
        await eventually(lambda: len(state.tasks), lambda count: count == 1)
        await eventually(lambda: len(state.tasks), lambda count: count == 0)
        sock.close()


async def waiting_claims(service):
    return sum(map(len, service.context.claimer._lanes.values()))


def tasks():
    """Apart from the reads of a store in the background, for all requests of a tenant."""
    return sum(not task.get_name().startswith("budgets of") for task in asyncio.all_tasks())


async def test_a_long_poll_uses_one_task_and_ends_when_its_client_leaves():
    async with serving("memory:polls") as service:
        before = tasks()
        connections = []
        body = json.dumps({"queues": ["q"], "wait_s": 60}).encode()
        head = f"POST /v1/claims HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token()}\r\n"
        for _ in range(50):
            _, writer = await connect(service)
            writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            connections.append(writer)
        await eventually(lambda: waiting_claims(service), lambda count: count == 50)
        assert tasks() == before + 50
        for writer in connections:
            writer.close()
        await eventually(lambda: waiting_claims(service), lambda count: count == 0)
        await eventually(tasks, lambda count: count == before)


async def test_a_wait_for_a_result_ends_when_its_client_leaves():
    async with serving("memory:results") as service:
        client = await service.client()
        await client.enqueue(id="x")
        reader, writer = await connect(service)
        path = "/v1/queues/default/jobs/x/result?wait_s=60"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token()}\r\n\r\n".encode())
        watches = service.context.connection("acme").waits._watches
        await eventually(lambda: len(watches), lambda count: count == 1)
        writer.close()
        await eventually(lambda: len(watches), lambda count: count == 0)
        del reader


async def test_a_job_claimed_for_a_client_that_has_left_is_released():
    """[RETRY-5]"""
    async with serving("memory:left") as service:
        client = await service.client()
        await client.enqueue(id="x")
        reader, writer = await connect(service)
        body = json.dumps({"queues": ["default"]}).encode()
        head = f"POST /v1/claims HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token()}\r\n"
        transport = []

        def leave():
            transport[0].abort()

        await eventually(lambda: len(service.server._server.server_state.connections), lambda count: count == 2)
        ours = writer.get_extra_info("sockname")
        transport += [
            one.transport for one in service.server._server.server_state.connections if one.client == ours[:2]
        ]
        with armed("service.after_claim", leave):
            writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            with pytest.raises((ConnectionError, AssertionError)):
                assert await read_all(reader)
        seen = await eventually(
            lambda: service.context.store.get([job_key("x")]), lambda jobs: jobs[0].state == "ready" and jobs[0].token
        )
        assert seen[0].attempts == 0
        writer.close()


def job_key(id):
    from holdfast.core.job import JobKey

    return JobKey("acme", "default", id)


async def test_a_stop_answers_waiting_requests_and_lets_others_finish():
    async with serving("memory:stop") as service:
        client = await service.client()
        await client.enqueue(id="x", queue="other")
        claim = asyncio.create_task(client.claim("q", wait_s=60))
        result = asyncio.create_task(client.get("/v1/queues/other/jobs/x/result", params={"wait_s": 60}))
        stream = asyncio.create_task(client.get("/v1/events"))
        await eventually(lambda: len(service.server._server.server_state.tasks), lambda count: count == 3)
        await eventually(lambda: waiting_claims(service), lambda count: count == 1)
        service.server.stop()
        assert await claim == []
        assert (await result).status_code == 202
        assert "event: enqueued" in (await stream).text
        await asyncio.wait_for(asyncio.shield(service.server.ended), 20)


async def ask(client, id):
    return await client.post("/v1/jobs", json={"id": id})


@pytest.mark.parametrize("kind", [ValkeyServer, PostgresServer])
async def test_a_store_that_is_down_is_reported_and_used_again_when_it_is_back(kind):
    """By SIGSTOP, which keeps connections open without answers, and by SIGKILL. [ENQ-1]"""
    with kind() as store:
        async with serving(store.url(timeout_s=1, connect_timeout_s=1)) as service:
            client = await service.client()
            await client.enqueue(id="a")
            for leave, come_back, id in ((store.pause, store.resume, "b"), (store.kill, store.restart, "c")):
                leave()
                assert (await client.get("/healthz")).status_code == 200
                problem(await client.get("/readyz"), 503, "store_unavailable")
                answer = await ask(client, id)
                assert problem(answer, 503, "store_unavailable")["detail"].startswith("the store cannot be reached")
                assert answer.headers["retry-after"] == "1"
                proof = service.context.proofs.sign("acme", "default", "a", 1)
                lease = {"queue": "default", "id": "a", "token": proof, "outcome": "complete"}
                for path, body in (
                    ("/v1/jobs:batch", {"jobs": [{}]}),
                    ("/v1/claims", {"queues": ["q"]}),
                    ("/v1/leases:finish", {"leases": [lease]}),
                    ("/v1/queues/default/pause", None),
                ):
                    refused = await client.post(path, json=body) if body else await client.post(path)
                    problem(refused, 503, "store_unavailable")
                    assert refused.headers["retry-after"] == "1"
                problem(await client.delete("/v1/queues/default/jobs/a"), 503, "store_unavailable")
                come_back()
                await eventually(lambda: client.get("/readyz"), lambda answer: answer.status_code == 200)
                # A request without an answer may have been done: the same request again makes no second job.
                answered = await eventually(lambda one=id: ask(client, one), lambda answer: answer.status_code < 300)
                assert answered.json()["status"] in ("queued", "duplicate")


async def test_a_locked_file_store_is_reported_and_used_again_when_it_is_free(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.stores.file.database.BUSY_S", 0.2)
    async with serving(f"file:{tmp_path}/data") as service:
        client = await service.client()
        await client.enqueue(id="a")
        with closing(sqlite3.connect(tmp_path / "data" / "holdfast.db", isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            answer = await ask(client, "b")
            problem(answer, 503, "store_busy")
            assert answer.headers["retry-after"] == "1"
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.get("/v1/queues/default/jobs/a")).json()["state"] == "ready"
        assert (await client.enqueue(id="b"))["status"] == "queued"


def test_an_answer_in_two_packets_does_not_wait_for_an_acknowledgement():
    """On every event loop: connections inherit the option from the listening socket."""
    with (
        closing(listen("127.0.0.1", 0, 30)) as sock,
        closing(socket.create_connection(sock.getsockname())),
        closing(sock.accept()[0]) as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
