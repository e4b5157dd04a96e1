"""The coordinator: who takes care of the jobs that Holdfast keeps for itself, and how they are let go of."""

import asyncio
import itertools
from contextlib import asynccontextmanager

import pytest

from holdfast import Flow, Queue, StoreBusy, StoreUnavailable
from holdfast.core.job import Cancel, ClaimRequest, Envelope, Finish, JobKey, JobState, NewJob, Result
from holdfast.maintenance import coordinator as module
from holdfast.maintenance import maintain
from holdfast.maintenance.coordinator import Coordinator
from holdfast.maintenance.system_jobs import SystemHandler
from holdfast.opening import open_store
from holdfast.store import Hint, Signal
from tests.eventually import eventually

QUEUE = "holdfast:trial"
_numbers = itertools.count()


@pytest.fixture
async def store():
    return await open_store(f"memory:coordinator-{next(_numbers)}?test_clock=1")


@asynccontextmanager
async def coordinating(store, run, after=None, tenant=None):
    task = asyncio.create_task(Coordinator(store, tenant, {QUEUE: SystemHandler(run, after)}).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def add(store, *ids, tenant="acme"):
    keys = [JobKey(tenant, QUEUE, id) for id in ids]
    await store.enqueue([NewJob(key, Envelope("", b"1", max_attempts=100)) for key in keys])
    return keys


async def states(store, keys):
    return [job and job.state for job in await store.get(keys)]


async def complete(job, at):
    return Finish(job.key, job.token, "complete", Result(b'"done"'))


async def for_ever(job, at):
    await asyncio.Event().wait()


async def test_the_coordinator_serves_every_tenant(store):
    async with coordinating(store, complete):
        keys = await add(store, "a", "b") + await add(store, "a", tenant="globex")
        await eventually(lambda: states(store, keys), lambda found: found == [JobState.COMPLETED] * 3)


async def test_a_coordinator_of_one_tenant_serves_only_that_tenant(store):
    foreign = await add(store, "a", tenant="globex")
    own = await add(store, "a")
    async with coordinating(store, complete, tenant="acme"):
        await eventually(lambda: states(store, own), lambda found: found == [JobState.COMPLETED])
    assert await states(store, foreign) == [JobState.READY]


async def test_running_jobs_are_released_at_the_end_with_their_attempt(store):
    keys = await add(store, "a", "b")
    async with coordinating(store, for_ever):
        await eventually(lambda: states(store, keys), lambda found: found == [JobState.LEASED] * 2)
    assert [(job.state, job.attempts) for job in await store.get(keys)] == [(JobState.READY, 0)] * 2


async def test_jobs_of_a_claim_at_the_end_are_released_too(store):
    claimed, gate, real = asyncio.Event(), asyncio.Event(), store.claim

    async def claim(request):
        found = await real(request)
        claimed.set()
        await gate.wait()
        return found

    store.claim = claim
    keys = await add(store, "a")
    async with coordinating(store, for_ever):
        await claimed.wait()
        assert await states(store, keys) == [JobState.LEASED]
        asyncio.get_running_loop().call_later(0.05, gate.set)
    assert [(job.state, job.attempts) for job in await store.get(keys)] == [(JobState.READY, 0)]


async def test_a_job_whose_duty_raises_is_retried_without_limit(store):
    calls = []

    async def broken(job, at):
        calls.append(job.attempts)
        raise ValueError("it broke")

    keys = await add(store, "a")
    async with coordinating(store, broken):
        for n in range(1, 8):
            await eventually(lambda n=n: len(calls) >= n)
            await eventually(lambda: states(store, keys), lambda found: found == [JobState.SCHEDULED])
            await store.shift_clock(60_000)
    assert calls[:7] == [1] * 7, "no attempt is used up"
    (job,) = await store.get(keys)
    assert job.errors == []


async def test_the_memory_of_failures_is_bounded(store, monkeypatch):
    monkeypatch.setattr(module, "MAX_FAILURES", 3)
    ran = []

    async def breaks(job, at):
        ran.append(job.id)
        raise ValueError("no")

    leader = Coordinator(store, None, {QUEUE: SystemHandler(breaks)})
    task = asyncio.create_task(leader.run())
    await add(store, *map(str, range(10)))
    await eventually(lambda: len(ran) == 10)
    assert len(leader._failures) == 3
    task.cancel()
    await asyncio.wait([task])


async def test_a_canceled_job_ends_its_task_and_is_cleaned_up(store):
    cleaned = asyncio.Queue()

    async def waits(job, at):
        at.watch([JobKey("acme", "any", "x")])
        await asyncio.Event().wait()

    async def clean(job, at, state):
        cleaned.put_nowait((job.id, state))

    keys = await add(store, "a")
    async with coordinating(store, waits, clean):
        await eventually(lambda: states(store, keys), lambda found: found == [JobState.LEASED])
        await store.cancel([Cancel(keys[0])])
        assert await asyncio.wait_for(cleaned.get(), 15) == ("a", JobState.CANCELED)


async def test_watchers_of_a_job_are_notified_of_its_end(store):
    looks = []

    async def waits(job, at):
        at.watch([other])
        while True:
            (found,) = await store.get([other])
            looks.append(found.state)
            if found.state is JobState.COMPLETED:
                return await complete(job, at)
            assert await at.changed(60) == {other}

    other = JobKey("acme", "work", "x")
    await store.enqueue([NewJob(other, Envelope("", b"1"))])
    keys = await add(store, "a")
    async with coordinating(store, waits):
        await eventually(lambda: looks)
        (work,) = (await store.claim(ClaimRequest("acme", ("work",), 1, 30_000, "w"))).jobs
        await store.finish([Finish(other, work.token, "complete", Result(b"1"))])
        await eventually(lambda: states(store, keys), lambda found: found == [JobState.COMPLETED])


async def test_many_hints_without_a_job_cause_one_read(store, monkeypatch):
    monkeypatch.setattr(module, "BROAD_HINT_S", 0.5)
    notified, listeners, extends, extend = [], [], [], store.extend

    def listen(listener, hints):
        listeners.append(listener)
        return lambda: None

    async def counted(items):
        extends.append(len(items))
        return await extend(items)

    async def waits(job, at):
        at.watch([JobKey("acme", "work", str(n)) for n in range(3)])
        while True:
            notified.append(await at.changed(60))

    monkeypatch.setattr(store, "listen", listen)
    monkeypatch.setattr(store, "extend", counted)
    await add(store, "a")
    async with coordinating(store, waits):
        await eventually(lambda: listeners)
        for _ in range(50):
            for hint in (Hint.DONE, Hint.CANCELED):
                listeners[-1](Signal(hint, "acme", "work"))
            await asyncio.sleep(0)
        await eventually(lambda: len(notified) == 2)
        assert (notified, sum(extends) <= 2) == ([frozenset()] * 2, True)
        listeners[-1](Signal(Hint.DONE, "globex"))
        listeners[-1](Signal(Hint.DONE, "acme", "work", "1"))
        await eventually(lambda: len(notified) == 3)
        assert notified[-1] == {JobKey("acme", "work", "1")}


async def test_cleaning_up_waits_for_a_store_that_is_down(store, monkeypatch):
    troubles, cleaned = [StoreUnavailable("away"), StoreBusy("busy")], asyncio.Event()

    async def clean(job, at, state):
        if troubles:
            raise troubles.pop()
        cleaned.set()

    async with coordinating(store, complete, clean):
        await add(store, "a")
        await asyncio.wait_for(cleaned.wait(), 10)
    assert troubles == []


async def test_leases_are_renewed_and_a_lost_lease_ends_its_task(store, monkeypatch):
    monkeypatch.setattr(module, "LEASE_MS", 1000)
    ended = []

    async def waits(job, at):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(job.id)

    keys = await add(store, "a")
    async with coordinating(store, waits):
        await eventually(lambda: states(store, keys), lambda found: found == [JobState.LEASED])
        (first,) = await store.get(keys)
        await eventually(lambda: store.get(keys), lambda found: found[0].deadline > first.deadline + 500)
        assert ended == []
        await store.shift_clock(10_000)
        await store.reap(10, 0.0)
        await eventually(lambda: ended == ["a"])


async def test_a_coordinator_does_not_claim_again_for_jobs_of_others(store):
    claims, real = [], store.claim

    async def claim(request):
        claims.append(request.queues)
        return await real(request)

    store.claim = claim
    async with coordinating(store, complete):
        await eventually(lambda: claims)
        for n in range(20):
            key = JobKey("acme", "work", str(n))
            await store.enqueue([NewJob(key, Envelope("", b"1"))])
            (job,) = (await real(ClaimRequest("acme", ("work",), 1, 30_000, "w"))).jobs
            await store.finish([Finish(key, job.token, "complete", Result(b"1"))])
            await asyncio.sleep(0)
        assert claims == [(QUEUE,)]
        keys = await add(store, "a")
        await eventually(lambda: states(store, keys), lambda found: found == [JobState.COMPLETED])


async def test_maintenance_without_workers_leads_the_flows_of_every_tenant(store):
    """As in `holdfast maintain` and `holdfast serve`."""
    queue = Queue(store=store, tenant="acme")
    stop = asyncio.Event()
    upkeep = asyncio.create_task(maintain(store, stop=stop))
    flow = Flow("report")
    flow.add(2, name="second", after=[flow.add(1, name="first")])
    ticket = await queue.start(flow)
    for name in ("first", "second"):
        await eventually(lambda name=name: queue.get(f"{flow.id}/{name}"))
        (job,) = (await store.claim(ClaimRequest("acme", ("default",), 5, 30_000, "w"))).jobs
        await store.finish([Finish(job.key, job.token, "complete", Result(b"1"))])
    assert set(await ticket.wait(20)) == {"first", "second"}
    stop.set()
    await upkeep


async def test_waiting_coordinators_stop_when_there_are_enough(store, monkeypatch):
    monkeypatch.setattr(module, "CROWDED_JOBS", 3)
    monkeypatch.setattr(module, "MIN_WAIT_S", 0.01)
    answers = []

    async def waits(job, at):
        at.watch([JobKey("acme", "any", job.id)])
        answers.append(await at.changed(60))
        return Finish(job.key, job.token, "release", delay_ms=1000)

    await add(store, "a", "b", "c")
    async with coordinating(store, waits):
        await eventually(lambda: len(answers) >= 1)
    assert answers[0] is None
