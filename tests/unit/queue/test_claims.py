"""Claims that wait. [CLAIM-3]"""

import asyncio
import itertools

import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.core.job import ClaimRequest, Envelope, JobKey, NewJob
from holdfast.extensions import DirectHandoff
from holdfast.opening import open_store
from holdfast.queue.claims import POLL_S, Claimer, PollingInbox, inbox_at
from holdfast.store import Hint, Signal
from tests.eventually import eventually

_numbers = itertools.count()


@pytest.fixture
async def store():
    return await open_store(f"memory:claims-{next(_numbers)}?test_clock=1")


@pytest.fixture
async def claimer(store):
    claimer = Claimer(store)
    claimer.start()
    yield claimer
    claimer.close()
    assert not claimer._lanes, "a wake-up was left behind"


def request(tenant="acme", *queues, limit=1):
    return ClaimRequest(tenant, queues or ("default",), limit, 30_000, "w")


async def enqueue(store, id, tenant="acme", queue="default", delay_ms=0):
    await store.enqueue([NewJob(JobKey(tenant, queue, id), Envelope("", b"1"), delay_ms)])


async def waiting(claimer, *requests, wait_s=30.0):
    tasks = [asyncio.create_task(claimer.claim(one, wait_s=wait_s)) for one in requests]
    await asyncio.sleep(0)
    return tasks


def counted(store):
    calls = []
    real = store.claim

    async def claim(request):
        calls.append(request)
        return await real(request)

    store.claim = claim
    return calls


async def test_a_claim_without_a_wait_answers_at_once(claimer):
    assert (await claimer.claim(request())).jobs == []


async def test_a_waiting_claim_wakes_for_a_new_job(claimer, store):
    [task] = await waiting(claimer, request())
    await enqueue(store, "x")
    assert [job.id for job in (await asyncio.wait_for(task, POLL_S / 2)).jobs] == ["x"]


async def test_a_waiting_claim_wakes_for_a_due_job(claimer, store):
    await enqueue(store, "x", delay_ms=200)
    [task] = await waiting(claimer, request())
    assert [job.id for job in (await asyncio.wait_for(task, POLL_S / 2)).jobs] == ["x"]


async def test_a_wait_ends_when_its_time_is_over(claimer, store):
    calls = counted(store)
    async with asyncio.timeout(POLL_S / 2):
        assert (await claimer.claim(request(), wait_s=0.05)).jobs == []
    assert len(calls) == 2, "one look before the wait, and one after it"


async def test_one_job_wakes_one_of_many(claimer, store):
    calls = counted(store)
    tasks = await waiting(claimer, *[request() for _ in range(50)])
    del calls[:]
    await enqueue(store, "x")
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=60)
    await eventually(lambda: len(calls) >= 2)
    for task in pending:
        task.cancel()
    await asyncio.wait(pending)
    assert (len(done), len(calls)) == (1, 2), "the one that got it, and the next, which was notified"


async def test_several_jobs_wake_as_many_claims(claimer, store):
    tasks = await waiting(claimer, *[request() for _ in range(10)])
    await store.enqueue([NewJob(JobKey("acme", "default", str(n)), Envelope("", b"1")) for n in range(10)])
    done, pending = await asyncio.wait(tasks, timeout=60)
    assert not pending
    assert len({job.id for task in done for job in task.result().jobs}) == 10


async def test_only_claims_of_the_hinted_queue_are_woken(claimer, store):
    calls = counted(store)
    tasks = await waiting(
        claimer, request("acme", "a"), request("acme", "b"), request("other", "a"), request(None, "a")
    )
    del calls[:]
    await enqueue(store, "x", queue="b")
    assert [job.id for job in (await asyncio.wait_for(tasks[1], 2)).jobs] == ["x"]
    assert [call.queues for call in calls] == [("b",)]
    await enqueue(store, "y", queue="a")
    await asyncio.wait([tasks[0], tasks[3]], return_when=asyncio.FIRST_COMPLETED, timeout=60)
    assert not tasks[2].done()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_notification_is_passed_on_by_a_claim_that_ends(claimer, store):
    first, second = await waiting(claimer, request(), request())
    first_wakeup = next(iter(claimer._lanes["acme", "default"]))
    await enqueue(store, "x")
    # The first is rung, and leaves before it can look.
    claimer._on_hint(Signal(Hint.READY, "acme", "default"))
    assert first_wakeup.notified
    first.cancel()
    assert [job.id for job in (await asyncio.wait_for(second, POLL_S / 2)).jobs] == ["x"]
    assert first.cancelled()


async def test_a_notification_is_passed_on_by_a_claim_that_failed(claimer, store):
    real = store.claim
    first, second = await waiting(claimer, request(), request())

    async def broken(request):
        store.claim = real
        raise StoreUnavailable("gone")

    store.claim = broken
    await enqueue(store, "x")
    done, _ = await asyncio.wait([first, second], timeout=60)
    assert sorted(type(task.exception()).__name__ for task in done) == ["NoneType", "StoreUnavailable"]


async def test_a_hint_without_an_address_wakes_one_in_each_lane(claimer, store):
    tasks = await waiting(claimer, request("acme", "a"), request("acme", "b"), request(None, "a"))
    calls = counted(store)
    claimer._on_hint(Signal(Hint.READY))
    await eventually(lambda: len(calls) >= 3)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert len(calls) == 3


async def test_queues_rotate_between_claims(claimer, store):
    calls = counted(store)
    [task] = await waiting(claimer, request("acme", "a", "b", "c"))
    claimer._on_hint(Signal(Hint.READY))
    await eventually(lambda: len(calls) >= 2)
    task.cancel()
    await asyncio.wait([task])
    assert [call.queues for call in calls] == [("a", "b", "c"), ("b", "c", "a")]


# A worker's inbox at a store ----------------------------------------------------------------------------------


class Inboxes:
    """A store with direct hand-off, or one whose deployment has none."""

    def __init__(self, inbox):
        self.inbox = inbox
        self.asked = []

    async def claim(self, request):
        return request

    def open_inbox(self, deliver):
        self.asked.append(deliver)
        return self.inbox


def deliver(claimed, sent):
    raise AssertionError("nothing is delivered here")


def test_a_store_with_direct_handoff_opens_an_inbox():
    inbox = object()
    handing = Inboxes(inbox)
    assert isinstance(handing, DirectHandoff)
    assert inbox_at(handing, deliver) is inbox
    assert handing.asked == [deliver]


async def test_a_store_that_opens_no_inbox_gets_a_polling_one():
    handing = Inboxes(None)
    inbox = inbox_at(handing, deliver)
    assert handing.asked == [deliver]
    assert isinstance(inbox, PollingInbox)
    assert await inbox.claim("a request") == "a request"
    assert not inbox.needs_claim


async def test_a_store_without_direct_handoff_gets_a_polling_inbox(store):
    assert not isinstance(store, DirectHandoff)
    inbox = inbox_at(store, deliver)
    assert isinstance(inbox, PollingInbox)
    await enqueue(store, "x")
    assert [job.id for job in (await inbox.claim(request())).jobs] == ["x"]
    await enqueue(store, "y")
    await asyncio.sleep(0)
    assert not inbox.needs_claim
    for _ in range(2):
        await inbox.close()
    assert [job.id for job in (await store.claim(request())).jobs] == ["y"]


async def test_a_wait_ends_when_its_client_has_left(claimer):
    gone = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(claimer.claim(request(), wait_s=60, gone=gone))
    await eventually(lambda: claimer._lanes)
    gone.set_result(None)
    assert (await asyncio.wait_for(waiting, 20)).jobs == []


async def test_jobs_of_a_claim_are_returned_even_if_the_client_left_meanwhile(store, claimer):
    """It is leased: the caller must release it."""
    gone = asyncio.get_running_loop().create_future()
    gone.set_result(None)
    await enqueue(store, "x")
    assert [job.id for job in (await claimer.claim(request(), wait_s=60, gone=gone)).jobs] == ["x"]
