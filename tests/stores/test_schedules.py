"""Schedules on every store, ticked by workers as they run."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import JobState, Queue, Worker, current_job, job
from holdfast.core.errors import JobCanceled
from holdfast.core.job import AttemptError, ClaimRequest, Finish
from holdfast.core.names import SCHEDULES
from holdfast.maintenance import maintain, scheduler
from holdfast.maintenance.storeclock import StoreClock
from holdfast.maintenance.system_jobs import SystemContext
from holdfast.testing import failpoints
from tests.eventually import eventually

MINUTE = 60_000


@pytest.fixture(params=["memory", "file", "valkey", "postgres"])
def kind(request):
    return request.param


def counting(runs):
    @job(name="count")
    async def count(n: int) -> None:
        runs.append((current_job().tenant, current_job().id, n))

    return count


@asynccontextmanager
async def working(*workers):
    tasks = [asyncio.create_task(worker.run(signals=False)) for worker in workers]
    try:
        yield
    finally:
        for worker in workers:
            await worker.stop()
        await asyncio.gather(*tasks)


async def test_each_tick_is_run_once_for_each_tenant_by_many_workers(url):
    runs = []
    count = counting(runs)
    async with Queue(url, tenant="acme") as acme, Queue(url, tenant="globex") as globex:
        # Their jobs stay theirs when the clock is moved; a schedule that is held then is taken over.
        long = {"lease": timedelta(hours=1)}
        fleet = [Worker.for_all_tenants(acme.store, [count], **long) for _ in range(2)]
        workers = [Worker(acme, [count], **long), *fleet]
        async with working(*workers):
            first = await acme.schedule("it", count.message(1), every=timedelta(minutes=1))
            other = await globex.schedule("it", count.message(2), every=timedelta(minutes=1))
            wanted = set()
            for minutes in (1, 2, 3):
                await acme.store.shift_clock(MINUTE)
                for made, tenant, n in ((first, "acme", 1), (other, "globex", 2)):
                    at = made.created_at + timedelta(minutes=minutes)
                    wanted.add((tenant, f"it@{at:%Y-%m-%dT%H:%M:%S}{_fraction(at)}Z", n))
                await eventually(lambda: set(runs), lambda found: found >= wanted)
            assert await acme.unschedule("it") is True
            await acme.store.shift_clock(10 * MINUTE)
            # Of the ticks that were missed, the last one.
            late = other.created_at + timedelta(minutes=13)
            wanted.add(("globex", f"it@{late:%Y-%m-%dT%H:%M:%S}{_fraction(late)}Z", 2))
            await eventually(lambda: len(runs), lambda count: count >= 7)
        assert sorted(runs) == sorted(wanted)
        assert await acme.schedules() == []
        (kept,) = await globex.schedules()
        assert kept.next_at > other.next_at


def _fraction(at):
    return f".{at.microsecond // 1000:03}" if at.microsecond else ""


async def test_schedules_that_were_left_failed_start_again_for_each_tenant(url):
    async with Queue(url, tenant="acme") as acme, Queue(url, tenant="globex") as globex:
        for queue, name in ((acme, "exhausted"), (acme, "broken"), (globex, "exhausted")):
            await queue.schedule(name, 1, every=60)
        await acme.store.shift_clock(MINUTE)
        claimed = await acme.store.claim(ClaimRequest(None, (SCHEDULES,), 10, 30_000, "w"))
        assert len(claimed.jobs) == 3
        await acme.store.finish(
            [
                Finish(held.key, held.token, "fail", error=AttemptError(type, "it failed"))
                for held in claimed.jobs
                for type in ["ValueError" if held.id == "broken" else scheduler.ATTEMPTS_RESET]
            ]
        )
        await scheduler.mend(acme.store, None)
        found = {
            (queue.tenant, one.name): one.state.value for queue in (acme, globex) for one in await queue.schedules()
        }
        assert found == {("acme", "exhausted"): "ready", ("acme", "broken"): "failed", ("globex", "exhausted"): "ready"}


YEAR = 365 * 24 * 60 * MINUTE


async def asleep(queue, cron=None):
    """A schedule whose holder saw the clock a year ahead; it is right again."""
    timing = {"cron": cron} if cron else {"every": 60}
    made = await queue.schedule("it", 1, **timing)
    await queue.store.shift_clock(YEAR)
    (held,) = (await queue.store.claim(ClaimRequest("acme", (SCHEDULES,), 1, 30_000, "w"))).jobs
    await queue.store.finish([await scheduler.serve(held, SystemContext(queue.store))])
    await queue.store.shift_clock(-YEAR)
    assert (await queue.get_schedule("it")).next_at > made.next_at + timedelta(days=300)
    return made


async def serve(store):
    """Do what is due of schedules now; whether something was."""
    claimed = await store.claim(ClaimRequest(None, (SCHEDULES,), 10, 30_000, "c"))
    for held in claimed.jobs:
        await store.finish([await scheduler.serve(held, SystemContext(store))])
    return len(claimed.jobs)


async def test_putting_a_schedule_again_restarts_it_after_the_clock_was_ahead(url):
    async with Queue(url, tenant="acme") as queue:
        made = await asleep(queue)
        again = await queue.schedule("it", 1, every=60)
        assert again.next_at - made.next_at <= timedelta(minutes=1)
        assert (await queue.schedule("it", 1, every=60)).next_at == again.next_at
        # Also one that was put while the clock was ahead: it counts from then.
        await queue.store.shift_clock(YEAR)
        ahead = await queue.schedule("ahead", 1, every=60)
        await queue.store.shift_clock(-YEAR)
        assert ahead.next_at - (await queue.schedule("ahead", 1, every=60)).next_at > timedelta(days=300)


@pytest.mark.parametrize("cron", [None, "* * * * *"])
async def test_a_schedule_restarts_when_the_clock_is_right_again(url, cron):
    async with Queue(url, tenant="acme") as queue:
        made = await asleep(queue, cron)
        for _ in range(2):
            await scheduler.wake_up(queue.store, None)  # Another reader finds it, too.
        assert len(await queue.schedules()) == 1
        assert await serve(queue.store) == 1
        (woken,) = await queue.schedules()
        assert woken.next_at - made.next_at <= timedelta(minutes=1)
        await queue.store.shift_clock(MINUTE)
        assert await serve(queue.store) == 1
        ran = f"{(await queue.get_schedule('it')).next_at - timedelta(minutes=1):it@%Y-%m-%dT%H:%M:%S}"
        assert any(job.id.startswith(ran) for job in await queue.list())
        await scheduler.wake_up(queue.store, None)
        assert await serve(queue.store) == 0


async def test_the_death_of_the_process_that_restarts_a_schedule_loses_nothing(url):
    async with Queue(url, tenant="acme") as queue:
        made = await asleep(queue)
        await scheduler.wake_up(queue.store, None)
        (held,) = (await queue.store.claim(ClaimRequest(None, (SCHEDULES,), 10, 1_000, "dies"))).jobs
        with failpoints.armed("scheduler.woken"), pytest.raises(failpoints.FailpointError):
            await scheduler.serve(held, SystemContext(queue.store))
        assert await queue.schedules() == []
        await queue.store.shift_clock(1_001)
        await queue.store.reap(10, 0.0)
        await queue.store.shift_clock(5_000)
        assert await serve(queue.store) == 1
        (woken,) = await queue.schedules()
        assert woken.next_at - made.next_at <= timedelta(minutes=1)


class Between:
    """A store that lets something else happen just before the first call of one of its methods."""

    def __init__(self, store, name, happens):
        self._store, self._name, self._happens = store, name, happens

    def __getattr__(self, name):
        method = getattr(self._store, name)
        if name != self._name:
            return method

        async def call(*args, **kwargs):
            happens, self._happens = self._happens, None
            if happens is not None:
                await happens()
            return await method(*args, **kwargs)

        return call


async def a_waker(queue):
    """What wakes up a schedule that sleeps too long, leased."""
    await asleep(queue)
    await scheduler.wake_up(queue.store, None)
    (held,) = (await queue.store.claim(ClaimRequest(None, (SCHEDULES,), 10, 30_000, "w"))).jobs
    return held


async def test_a_schedule_removed_while_it_is_restarted_stays_removed(url):
    async with Queue(url, tenant="acme") as queue:
        held = await a_waker(queue)
        finish = await scheduler.serve(held, SystemContext(queue.store))
        assert await queue.unschedule("it") is True
        (answer,) = await queue.store.finish([finish])
        assert isinstance(answer, JobCanceled)
        assert await queue.schedules() == []
        assert await queue.unschedule("it") is False


async def test_a_schedule_removed_between_its_old_job_and_the_new_one_stays_removed(url):
    """Also if the waker dies right after it."""
    async with Queue(url, tenant="acme") as queue:
        held = await a_waker(queue)

        async def remove():
            assert await queue.unschedule("it") is True

        with pytest.raises(JobCanceled):
            await scheduler.serve(held, SystemContext(Between(queue.store, "enqueue", remove)))
        assert await queue.schedules() == []


async def test_a_schedule_put_while_it_is_restarted_is_kept(url):
    async with Queue(url, tenant="acme") as queue:
        held = await a_waker(queue)

        async def put_anew():
            assert await queue.unschedule("it") is True
            await queue.schedule("it", 2, every=60)

        await queue.store.finish([await scheduler.serve(held, SystemContext(Between(queue.store, "cancel", put_anew)))])
        (found,) = await queue.schedules()
        assert found.payload == 2


async def test_maintenance_notices_that_the_clock_was_set_back(url, monkeypatch):
    """It checks waiting schedules when it begins, and whenever the clock is set back."""
    monkeypatch.setattr("holdfast.maintenance.reaper.MAX_WAIT_S", 0.05)
    seen, observe = [], StoreClock.observe
    monkeypatch.setattr(StoreClock, "observe", lambda clock, now: (observe(clock, now), seen.append(now)))
    async with Queue(url, tenant="acme") as queue:
        await queue.schedule("it", 1, every=60)
        stop = asyncio.Event()
        upkeep = asyncio.create_task(maintain(queue.store, stop=stop))
        await eventually(lambda: seen)
        await queue.store.shift_clock(YEAR)
        await eventually(queue.list, lambda jobs: len(jobs) == 1)
        await eventually(lambda: seen[-1] - seen[0] >= YEAR)
        await eventually(lambda: queue.get_schedule("it"), lambda one: one.state is JobState.SCHEDULED)
        await queue.store.shift_clock(-YEAR)
        soon = datetime.fromtimestamp(seen[0] / 1000, UTC) + timedelta(days=1)
        await eventually(lambda: queue.get_schedule("it"), lambda one: one is not None and one.next_at < soon)
        stop.set()
        await upkeep


async def test_replacing_and_removing_a_schedule_take_effect_at_once(url):
    async with Queue(url, tenant="acme") as queue:
        first = await queue.schedule("it", {"n": 1}, cron="0 0 1 1 *")
        assert (await queue.schedule("it", {"n": 1}, cron="0 0 1 1 *")).next_at == first.next_at
        assert [event.kind async for event in queue.events()] == ["enqueued"]
        changed = await queue.schedule("it", {"n": 2}, cron="0 0 1 1 *")
        assert (changed.next_at, changed.payload) == (first.next_at, {"n": 2})
        assert [one.payload for one in await queue.schedules()] == [{"n": 2}]
        assert await queue.unschedule("it") is True
        assert await queue.schedules() == []
        assert (await queue.schedule("it", {"n": 3}, every=60)).payload == {"n": 3}
