"""Odd line breaks in names, ids, headers and errors: no header, no answer and no event is split by them."""

import asyncio
import re

import pytest

from holdfast import JobFailed, Queue, Worker
from tests.service.support import problem, read_to_the_end, serving, token

CONTROLS = ["\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r", "\n", "\r\n", "\x7f", "\x9f"]
"""What some readers take for the end of a line, or worse, and what is a control character to Unicode."""
BREAKS = ["\u2028", "\u2029"]
"""The same, and no control characters: an id may have them."""
shown = ascii


def percent(text):
    return "".join(f"%{byte:02X}" for byte in text.encode())


def lines(text):
    """The lines of a stream, split by the standard."""
    return re.split(rb"\r\n|\r|\n", text)


def is_whole(text):
    """Whether each line of a stream is one that the service writes."""
    return all(re.fullmatch(rb"(id: [0-9.]+|event: [a-z]+|data: {.*}|: |)", line) for line in lines(text))


@pytest.mark.parametrize("odd", CONTROLS, ids=shown)
@pytest.mark.parametrize("name", ["id", "queue", "type", "idempotency_key", "request_id"])
async def test_a_name_with_a_control_character_is_refused(name, odd):
    async with serving("memory:controls") as service:
        client = await service.client()
        answer = await client.post("/v1/jobs", json={name: f"a{odd}b"})
        problem(answer, 400, "invalid_name")
        assert all(value.isprintable() for value in answer.headers.values())
        items = (await client.post("/v1/jobs:batch", json={"jobs": [{name: f"a{odd}b"}]})).json()["items"]
        assert [item["error"]["code"] for item in items] == ["invalid_name"]


@pytest.mark.parametrize("odd", CONTROLS, ids=shown)
async def test_a_path_with_a_control_character_is_refused(odd):
    async with serving("memory:control-paths") as service:
        client, name = await service.client(), f"a{percent(odd)}b: c"
        for path in (f"/v1/queues/default/jobs/{name}", f"/v1/queues/{name}/stats"):
            answer = await client.get(path)
            problem(answer, 400, "invalid_name")
            assert all(value.isprintable() for value in answer.headers.values())
        problem(await client.post("/v1/claims", json={"queues": ["q"], "worker_id": f"a{odd}b"}), 400, "invalid_name")


@pytest.mark.parametrize("odd", [b"\x85", b"\xc2\x85", b"\xe2\x80\xa8", b"\x0b", b"\x0c", b"\x1c", b"\x7f"], ids=repr)
@pytest.mark.parametrize("name", ["x-request-id", "traceparent", "tracestate", "last-event-id", "authorization"])
async def test_a_header_with_an_unusual_line_break_is_not_returned(name, odd):
    async with serving("memory:odd-headers") as service:
        good = b"" if name == "authorization" else f"Authorization: Bearer {token()}\r\n".encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(b"GET /v1/events?follow=false HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + good)
        writer.write(name.encode() + b": Bearer a" + odd + b"set-cookie: x\r\n\r\n")
        async with asyncio.timeout(20):
            answer = await read_to_the_end(reader)
        writer.close()
        head = answer.partition(b"\r\n\r\n")[0]
        assert re.match(rb"HTTP/1.1 (200|400|401) ", head)
        assert odd not in head
        assert b"set-cookie" not in head.lower()


@pytest.mark.parametrize("odd", [*CONTROLS, *BREAKS], ids=shown)
async def test_an_unusual_line_break_in_an_error_does_not_end_an_event(odd, tenant):
    """[EVENT-1]"""
    async with serving("memory:odd-errors") as service:
        client = await service.client(tenant)
        await client.enqueue(id="x", max_attempts=1)
        (job,) = await client.claim()
        text = f"a{odd}event: completed{odd}data: {{}}{odd}{odd}id: 7{odd}"
        await client.finish(job, "fail", error={"type": text, "message": text, "traceback": text})
        stream = (await client.get("/v1/events", params={"follow": "false"})).content
        assert is_whole(stream)
        assert [line for line in lines(stream) if line.startswith(b"event: ")] == [
            b"event: enqueued", b"event: claimed", b"event: failed",
        ]  # fmt: skip


@pytest.mark.parametrize("odd", BREAKS, ids=shown)
async def test_an_id_with_an_unusual_line_break_is_one_id(odd, tenant):
    async with serving("memory:odd-ids") as service:
        client, id = await service.client(tenant), f"a{odd}data: b"
        assert (await client.enqueue(id=id))["id"] == id
        assert (await client.get(f"/v1/queues/default/jobs/{percent(id)}")).json()["id"] == id
        stream = (await client.get("/v1/events", params={"follow": "false"})).content
        assert is_whole(stream)
        assert stream.count(b"\ndata: ") == 1


async def test_a_client_reads_events_with_unusual_line_breaks():
    async with serving("memory:odd-clients") as service:
        text = "".join([*CONTROLS, *BREAKS]).join("ab")

        async def handler(_):
            raise ValueError(text)

        async with Queue(f"http://127.0.0.1:{service.port}", token=token()) as queue:
            ticket = await queue.enqueue(1, id=f"a{BREAKS[0]}b", max_attempts=1)
            worker = Worker(queue, handler=handler)
            running = asyncio.create_task(worker.run())
            with pytest.raises(JobFailed):
                await ticket.wait(timeout=20)
            await worker.stop()
            await running
            seen = [event async for event in queue.events(follow=False)]
            assert [event.kind for event in seen] == ["enqueued", "claimed", "failed"]
            assert {event.job_id for event in seen} == {f"a{BREAKS[0]}b"}
