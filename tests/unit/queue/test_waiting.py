from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import JobState, StoreUnavailable, WaitTimeout
from holdfast.core.job import Envelope, Job, JobKey
from holdfast.queue.waiting import Waits
from holdfast.store import Hint, Listener, Signal
from tests.unit.running import asynchronous, turns

KEY = JobKey("acme", "emails", "1")
OTHER = JobKey("acme", "emails", "2")


def a_job(key: JobKey, state: JobState) -> Job:
    return Job(*key, 1, Envelope("t", b"{}"), state, 0, 0)


class Fake:
    """A store's hints and reads, with counts of its subscriptions."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.jobs: dict[JobKey, Job] = {}
        self.looks: list[JobKey] = []
        self.gate: asyncio.Event | None = None
        self.waits = Waits("acme", self.subscribe, self.get)

    def subscribe(self, listener: Listener, hints: frozenset[Hint]) -> Callable[[], None]:
        assert hints == {Hint.DONE}
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    async def get(self, key: JobKey) -> Job | None:
        self.looks.append(key)
        found = self.jobs.get(key)
        if self.gate is not None:
            await self.gate.wait()
        return found

    def end(self, key: JobKey = KEY, state: JobState = JobState.COMPLETED, **address: str) -> None:
        self.jobs[key] = a_job(key, state)
        for listener in self.listeners:
            listener(Signal(Hint.DONE, **(address or {"tenant": key.tenant, "queue": key.queue, "id": key.id})))

    async def wait(self, key: JobKey = KEY, timeout_s: float | None = None) -> Job | None:
        with self.waits.watch(key) as watch:
            watch.look()
            return await watch.wait(timeout_s)

    def start(self, key: JobKey = KEY) -> asyncio.Task[Any]:
        return asyncio.create_task(self.wait(key))


@asynchronous
async def test_the_first_read_finds_an_ended_job():
    fake = Fake()
    fake.end()
    job = await fake.wait()
    assert job is not None
    assert job.state is JobState.COMPLETED
    assert fake.looks == [KEY]
    assert fake.listeners == []


@asynchronous
async def test_a_waiter_reads_again_only_after_a_hint():
    fake = Fake()
    fake.jobs[KEY] = a_job(KEY, JobState.LEASED)
    waiter = fake.start()
    await turns(200)
    assert fake.looks == [KEY]
    fake.end()
    assert (await waiter).state is JobState.COMPLETED
    assert fake.looks == [KEY, KEY]


@asynchronous
async def test_hints_about_other_jobs_and_tenants_cause_no_read():
    fake = Fake()
    fake.jobs[KEY] = a_job(KEY, JobState.LEASED)
    waiter = fake.start()
    await turns()
    fake.end(OTHER)
    fake.end(OTHER, tenant="other", queue="emails", id="1")
    fake.end(OTHER, tenant="acme", queue="else", id="")
    await turns()
    assert fake.looks == [KEY]
    waiter.cancel()


@pytest.mark.parametrize(
    "address", [{"tenant": ""}, {"tenant": "acme"}, {"tenant": "acme", "queue": "emails"}, {"tenant": "", "id": "1"}]
)
@asynchronous
async def test_a_hint_with_a_part_of_the_address_causes_a_read(address):
    fake = Fake()
    fake.jobs[KEY] = a_job(KEY, JobState.LEASED)
    waiter = fake.start()
    await turns()
    fake.end(KEY, **address)
    assert (await waiter).state is JobState.COMPLETED


@asynchronous
async def test_a_completion_between_the_subscription_and_the_first_read_is_not_missed():
    fake = Fake()
    fake.jobs[KEY] = a_job(KEY, JobState.LEASED)
    fake.gate = asyncio.Event()
    waiter = fake.start()
    await turns()
    fake.end()
    fake.gate.set()
    assert (await waiter).state is JobState.COMPLETED
    assert fake.looks == [KEY, KEY]


@asynchronous
async def test_two_waiters_share_one_subscription_and_one_read():
    fake = Fake()
    fake.jobs[KEY] = a_job(KEY, JobState.LEASED)
    waiters = [fake.start(), fake.start()]
    await turns()
    assert len(fake.listeners) == 1
    looks = len(fake.looks)
    fake.end()
    first, second = await asyncio.gather(*waiters)
    assert first is second
    assert len(fake.looks) == looks + 1


@asynchronous
async def test_the_last_waiter_that_leaves_frees_everything():
    fake = Fake()
    fake.jobs[KEY] = a_job(KEY, JobState.LEASED)
    waiters = [fake.start(), fake.start()]
    await turns()
    waiters[0].cancel()
    await turns()
    assert len(fake.listeners) == 1
    waiters[1].cancel()
    await turns()
    assert fake.listeners == []
    assert fake.waits._watches == {}


@asynchronous
async def test_a_timeout_says_so_and_frees_everything():
    fake = Fake()
    fake.jobs[KEY] = a_job(KEY, JobState.LEASED)
    with pytest.raises(WaitTimeout) as caught:
        await fake.wait(timeout_s=0.001)
    assert (caught.value.queue, caught.value.job_id, caught.value.timeout_s) == ("emails", "1", 0.001)
    assert fake.listeners == []


@asynchronous
async def test_a_wait_for_a_result_ends_when_its_client_has_left():
    fake = Fake()
    fake.jobs[KEY] = a_job(KEY, JobState.LEASED)
    gone = asyncio.get_running_loop().create_future()
    with fake.waits.watch(KEY) as watch:
        watch.look()
        waiting = asyncio.create_task(watch.wait(60, gone))
        await turns()
        gone.set_result(None)
        with pytest.raises(WaitTimeout):
            await waiting
    assert fake.listeners == []


@asynchronous
async def test_a_missing_job_is_none_and_says_whether_it_was_seen():
    fake = Fake()
    with fake.waits.watch(KEY) as watch:
        watch.look()
        assert await watch.wait(None) is None
        assert not watch.seen
    fake.jobs[KEY] = a_job(KEY, JobState.LEASED)
    with fake.waits.watch(KEY) as watch:
        watch.look()
        await turns()
        del fake.jobs[KEY]
        watch.look()
        assert await watch.wait(None) is None
        assert watch.seen


@asynchronous
async def test_a_read_sent_before_the_enqueue_does_not_end_a_wait_that_began_after_it():
    fake = Fake()
    fake.gate = asyncio.Event()
    early = fake.start()
    await turns()
    fake.jobs[KEY] = a_job(KEY, JobState.READY)
    late = fake.start()
    await turns()
    fake.gate.set()
    await turns()
    assert not late.done()
    fake.end()
    assert (await late).state is JobState.COMPLETED
    assert (await early).state is JobState.COMPLETED


@asynchronous
async def test_a_watched_enqueue_is_not_read_until_a_hint_arrives():
    fake = Fake()
    with fake.waits.watch(KEY, "r1") as watch:
        fake.jobs[KEY] = a_job(KEY, JobState.READY)
        watch.enqueued()
        await turns()
        assert fake.looks == []


@asynchronous
async def test_a_hint_with_the_record_saves_the_read():
    fake = Fake()
    ended = Job(*KEY, 1, Envelope("t", b"{}", request_id="r1"), JobState.COMPLETED, 0, 0)
    with fake.waits.watch(KEY, "r1") as watch, fake.waits.watch(KEY, "r2") as other:
        fake.listeners[0](Signal(Hint.DONE, *KEY, ended))
        assert await watch.wait(None) is ended
        assert watch.seen
        await turns()
        assert fake.looks == [KEY]  # By the one who waits for another life of that id.
        assert not other.ended.done()


@asynchronous
async def test_a_job_forgotten_before_its_enqueue_was_answered_is_not_waited_for():
    fake = Fake()
    with fake.waits.watch(KEY, "r1") as watch:
        watch.look()  # A hint of its end, which came before the answer: there is nothing left to see.
        await turns()
        assert not watch.ended.done()
        watch.enqueued()
        assert await watch.wait(None) is None
        assert watch.seen


@asynchronous
async def test_a_new_waiter_does_not_get_an_old_answer():
    fake = Fake()
    fake.end(state=JobState.FAILED)
    with fake.waits.watch(KEY) as watch:
        watch.look()
        await watch.wait(None)
        fake.jobs[KEY] = a_job(KEY, JobState.READY)
        replayed = fake.start()
        await turns()
        assert not replayed.done()
        fake.end(state=JobState.COMPLETED)
        assert (await replayed).state is JobState.COMPLETED


@asynchronous
async def test_a_store_that_fails_ends_the_wait_with_its_error():
    fake = Fake()

    async def broken(key: JobKey) -> Job | None:
        raise StoreUnavailable("gone")

    fake.waits = Waits("acme", fake.subscribe, broken)
    with pytest.raises(StoreUnavailable):
        await fake.wait()
    assert fake.listeners == []


@asynchronous
async def test_a_wait_that_cannot_subscribe_leaves_nothing_behind():
    fake = Fake()

    def refuse(listener: Listener, hints: frozenset[Hint]) -> Callable[[], None]:
        raise StoreUnavailable("gone")

    fake.waits = Waits("acme", refuse, fake.get)
    with pytest.raises(StoreUnavailable):
        await fake.wait()
    assert fake.waits._watches == {}


@asynchronous
async def test_closing_ends_every_wait():
    fake = Fake()
    fake.jobs[KEY] = fake.jobs[OTHER] = a_job(KEY, JobState.LEASED)
    waiters = [fake.start(), fake.start(OTHER)]
    await turns()
    fake.waits.close()
    for waiter in waiters:
        with pytest.raises(StoreUnavailable, match="closed"):
            await waiter
    assert fake.listeners == []
