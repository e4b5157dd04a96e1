from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

import holdfast
from holdfast import (
    Event,
    InvalidOption,
    InvalidPayload,
    JobNotFound,
    JobState,
    PartlyRefused,
    WaitTimeout,
    blocking,
    job,
)
from holdfast.blocking import Queue, Ticket
from holdfast.core.job import ClaimRequest, Finish, Result
from holdfast.opening import make_store

ROOT = Path(__file__).parents[2]
_numbers = itertools.count()


@job(queue="emails")
async def send_email(to: str) -> str:
    return to


@pytest.fixture
def url():
    return f"memory:blocking-{next(_numbers)}"


def work_one(url: str, queue: str = "emails", result: bytes = b'"sent"') -> None:
    async def work() -> None:
        store = make_store(url)
        claimed = await store.claim(ClaimRequest("acme", (queue,), 1, 30_000, "w"))
        (leased,) = claimed.jobs
        await store.finish([Finish(leased.key, leased.token, "complete", Result(result))])

    asyncio.run(work())


def test_the_same_methods_work_without_await(url):
    with Queue(url, tenant="acme") as queue:
        ticket = queue.enqueue(send_email.message("a"), id="1")
        assert isinstance(ticket, Ticket)
        assert Ticket[str].__origin__ is Ticket
        assert (ticket.status, ticket.id, ticket.queue, ticket.state) == ("queued", "1", "emails", JobState.READY)
        record = queue.get("1", queue="emails")
        assert record is not None
        assert record.payload == {"to": "a"}
        assert (queue.tenant, queue.name, queue.capabilities.name) == ("acme", "default", "memory")
        assert queue.stats("emails").counts[JobState.READY] == 1
        assert [record.id for record in queue.list(queue="emails")] == ["1"]
        work_one(url)
        assert ticket.wait(timeout=30) == "sent"
        assert queue.result("1", queue="emails") == "sent"
        assert queue.enqueue(send_email.message("a"), id="1").result == "sent"
        assert queue.cancel("1", queue="emails").status == "completed"
        assert ticket.refresh().state is JobState.COMPLETED


def test_errors_are_those_of_the_async_queue(url):
    with Queue(url, tenant="acme") as queue:
        with pytest.raises(JobNotFound):
            queue.result("nothing")
        with pytest.raises(WaitTimeout):
            queue.enqueue_and_wait(1, timeout=0.001)
        with pytest.raises(InvalidPayload):
            queue.enqueue(float("nan"))
        with pytest.raises(AttributeError):
            queue.no_such_method()
    with pytest.raises(InvalidOption, match="not open"):
        queue.get("1")
    with pytest.raises(holdfast.InvalidName):
        Queue(url, tenant="")


def test_tickets_in_lists_work_without_await(url):
    with Queue(url, tenant="acme") as queue:
        tickets = queue.enqueue_many(send_email.message(str(n)) for n in range(1500))
        assert len(tickets) == 1500
        assert isinstance(tickets[-1], Ticket)
        assert tickets[-1].refresh().payload == {"to": "1499"}
        assert queue.enqueue_many([1, 2], delay=timedelta(hours=1))[1].state is JobState.SCHEDULED


def test_refused_messages_are_raised_with_all_tickets_of_a_long_source(url):
    """[ENQ-4]"""

    def source(end: int):
        yield from (float("nan") if n in {3, 1500} else n for n in range(end))

    with Queue(url, tenant="acme") as queue:
        with pytest.raises(PartlyRefused) as caught:
            queue.enqueue_many(source(2100))
        tickets = caught.value.tickets
        assert [at for at, ticket in enumerate(tickets) if ticket.error is not None] == [3, 1500]
        assert len(tickets) == 2100
        assert isinstance(tickets[2099], Ticket)
        assert tickets[2099].refresh().payload == 2099
        assert len(queue.enqueue_many(source(10), on_refused="return")) == 10
        with pytest.raises(InvalidOption, match="'raise' or 'return'"):
            queue.enqueue_many([], on_refused="x")
        with pytest.raises(ZeroDivisionError) as broken:
            queue.enqueue_many(1 / (1500 - n) for n in range(1600))
        assert broken.value.__notes__ == ["enqueue_many: the first 1000 messages were answered before this, 0 refused."]


def test_messages_are_read_in_the_callers_thread(url):
    threads: set[int] = set()

    def source():
        for number in range(3):
            threads.add(threading.get_ident())
            yield number

    with Queue(url, tenant="acme") as queue:
        queue.enqueue_many(source())
    assert threads == {threading.get_ident()}


def test_events_are_an_iterator_that_can_be_closed_early(url):
    with Queue(url, tenant="acme") as queue:
        queue.enqueue_many([1, 2, 3])
        assert [event.kind for event in queue.events()] == ["enqueued"] * 3
        seen: list[Event] = []
        for event in queue.events(follow=True):
            seen.append(event)
            if len(seen) == 3:
                break
        stream = queue.events(after=seen[0].offset, follow=True)
        assert next(stream) == seen[1]
        stream.close()
        assert queue.store.side.notifier._listeners == {}


def test_one_queue_serves_many_threads(url):
    with Queue(url, tenant="acme") as queue:
        threads = [threading.Thread(target=lambda n=n: queue.enqueue(n, id=str(n))) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert queue.stats().counts[JobState.READY] == 20


def test_all_queues_of_a_process_share_one_loop(url):
    with Queue(url, tenant="acme"), Queue(url, tenant="other"):
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("holdfast-blocking") == 1


def test_opening_and_closing_twice_is_harmless(url):
    queue = Queue(url, tenant="acme")
    assert queue.open() is queue.open()
    queue.enqueue(1)
    queue.close()
    queue.close()
    with queue:
        assert queue.stats().counts[JobState.READY] == 1


def test_a_blocking_call_in_its_own_event_loop_is_refused(url):
    queue = Queue(url, tenant="acme").open()

    async def inside() -> None:
        queue.enqueue(1)

    with pytest.raises(InvalidOption, match="use await"):
        blocking._background.run(inside())
    queue.close()


def test_ctrl_c_ends_a_wait(url):
    with Queue(url, tenant="acme") as queue:
        ticket = queue.enqueue(1)
        main = threading.get_ident()

        def interrupt() -> None:
            # The wait has begun when the background loop listens for its end.
            while not queue.store.side.notifier._listeners:
                time.sleep(0.001)
            signal.pthread_kill(main, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            ticket.wait()
        thread.join()
        # The cancellation takes a few turns of the background loop; each call gives it some.
        trips = itertools.takewhile(lambda _: queue.store.side.notifier._listeners, range(1000))
        assert all(queue.stats().counts[JobState.READY] == 1 for _ in trips)
        assert queue.store.side.notifier._listeners == {}


def test_a_forked_child_gets_a_loop_and_a_connection_of_its_own():
    program = """
import os, sys
from holdfast.blocking import Queue

queue = Queue("memory:forked", tenant="acme").open()
queue.enqueue(1)
before = queue._target()
pid = os.fork()
if pid == 0:
    queue.enqueue(2)
    os._exit(0 if queue.stats().counts["ready"] == 2 and queue._target() is not before else 1)
_, status = os.waitpid(pid, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], timeout=60, check=False, env=os.environ)
    assert done.returncode == 0


def test_the_stub_is_up_to_date():
    script = ROOT / "scripts" / "make_blocking_stub.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
