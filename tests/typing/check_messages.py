"""Read by pyright, not run: arguments of `.message()` are checked, and results keep their types.

Each `pyright: ignore` stands for an error that must come: pyright complains where one is not needed.
"""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, assert_type

from holdfast import BlobRef, Event, JobRecord, Message, Queue, RetryPolicy, Ticket, Worker, blocking, current_job, job
from holdfast.jobs.definition import JobDefinition
from holdfast.testing import Drained
from holdfast.testing.blocking import inline_queue


@job(queue="emails", max_attempts=5, timeout=30, priority=7, retry=RetryPolicy(base=timedelta(seconds=1)))
async def send_email(to: str, template: str = "welcome") -> str:
    return f"{template} -> {to}"


@job
async def fetch(url: str) -> bytes:
    return url.encode()


@job
def add(a: int, *, b: int = 2) -> int:
    return a + b


@job(executor="process")
def crunch(*numbers: float, **names: str) -> list[float]:
    return [*numbers, float(len(names))]


def definitions() -> None:
    assert_type(send_email, JobDefinition[..., Any, Any])  # pyright: ignore[reportAssertTypeFailure]
    assert_type(send_email.message("a"), Message[str])
    assert_type(fetch.message("a"), Message[bytes])
    assert_type(add.message(1), Message[int])
    assert_type(crunch.message(1, 2.5, x="y"), Message[list[float]])


def calls() -> None:
    _ = assert_type(send_email("a"), Coroutine[Any, Any, str])
    _ = assert_type(fetch("a"), Coroutine[Any, Any, bytes])
    assert_type(add(1, b=3), int)
    assert_type(crunch(1.0), list[float])
    send_email(1)  # pyright: ignore[reportArgumentType, reportUnusedCoroutine]


def wrong_arguments() -> None:
    send_email.message()  # pyright: ignore[reportCallIssue]
    send_email.message(1)  # pyright: ignore[reportArgumentType]
    send_email.message("a", "b", "c")  # pyright: ignore[reportCallIssue]
    send_email.message("a", tmpl="b")  # pyright: ignore[reportCallIssue]
    fetch.message(None)  # pyright: ignore[reportArgumentType]
    add.message(1, 2)  # pyright: ignore[reportCallIssue]
    add.message("1")  # pyright: ignore[reportArgumentType]
    crunch.message("x")  # pyright: ignore[reportArgumentType]


def wrong_options() -> None:
    job(que="emails")  # pyright: ignore[reportCallIssue]
    job(executor="fiber")  # pyright: ignore[reportArgumentType]
    send_email.message("a").options(delay=5, id="x")
    send_email.message("a").options(dealy=5)  # pyright: ignore[reportCallIssue]
    send_email.message("a").options(delay="5")  # pyright: ignore[reportArgumentType]


async def results(queue: Queue) -> None:
    ticket = await queue.enqueue(send_email.message("a"), id="1", delay=timedelta(hours=1), idempotency="forever")
    assert_type(ticket, Ticket[str])
    assert_type(await ticket.wait(timeout=30), str)
    assert_type(ticket.result, str | None)
    assert_type(await queue.enqueue_and_wait(add.message(1), timeout=5), int)
    assert_type(await queue.enqueue_many(fetch.message(str(n)) for n in range(3)), list[Ticket[bytes]])
    assert_type(await queue.enqueue({"any": "json"}), Ticket[Any])
    assert_type(await queue.get("1", queue="emails"), JobRecord | None)
    assert_type(await queue.put_blob(b""), BlobRef)
    async for event in queue.events(after=None, follow=True):
        assert_type(event, Event)
    await queue.enqueue(add.message(1), prio=3)  # pyright: ignore[reportCallIssue]
    await queue.enqueue(add.message(1), idempotency="for ever")  # pyright: ignore[reportCallIssue, reportArgumentType]
    text: str = await queue.enqueue_and_wait(add.message(1))  # pyright: ignore[reportAssignmentType]
    del text


def without_await(queue: blocking.Queue) -> None:
    ticket = queue.enqueue(send_email.message("a"), id="1")
    assert_type(ticket, blocking.Ticket[str])
    assert_type(ticket.wait(), str)
    assert_type(queue.enqueue_many([add.message(1)]), list[blocking.Ticket[int]])
    for event in queue.events():
        assert_type(event, Event)
    with queue as opened:
        assert_type(opened, blocking.Queue)


async def clients() -> None:
    assert_type(current_job().client, Queue)
    assert_type(await current_job().enqueue(send_email.message("a"), id="1"), Ticket[str])
    ticket = blocking.current_job().enqueue(send_email.message("a"), id="1")
    assert_type(ticket, blocking.Ticket[str])
    assert_type(blocking.current_job().client, blocking.Queue)
    with inline_queue(tenant="acme") as queue:
        assert_type(queue.drain(raise_errors=True), Drained)


def handlers(queue: Queue) -> None:
    Worker(queue, jobs=[send_email, add, crunch], queues=["emails"], concurrency=10)
    current_job().progress(0.5, "half")
    current_job().progress("half")  # pyright: ignore[reportArgumentType]
