"""Schedules on every store, ticked by workers as they run."""

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from holdfast import Queue, Worker, current_job, job
from holdfast.core.job import AttemptError, ClaimRequest, Finish
from holdfast.core.names import SCHEDULES
from holdfast.maintenance import scheduler
from tests.eventually import eventually

MINUTE = 60_000


@pytest.fixture(params=["memory", "file", "valkey", "postgres"])
def kind(request):
    return request.param


@pytest.fixture
def url(request, kind, prefix, fast):
    if kind == "memory":
        return f"memory:{prefix}?test_clock=1"
    if kind == "file":
        return f"file:{fast}/{prefix}?test_clock=1"
    server = request.getfixturevalue(kind)
    if kind == "postgres":
        return server.url(request.getfixturevalue("database"), test_clock=1)
    return server.url(prefix=prefix, test_clock=1)


def counting(runs):
    @job(name="count")
    async def count(n: int) -> None:
        runs.append((current_job().tenant, current_job().id, n))

    return count


@asynccontextmanager
async def working(*workers):
    tasks = [asyncio.create_task(worker.run(handle_signals=False)) for worker in workers]
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
            # Of ticks that nobody was there for, the last one.
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
        for queue, name in ((acme, "worn"), (acme, "broken"), (globex, "worn")):
            await queue.schedule(name, 1, every=60)
        await acme.store.shift_clock(MINUTE)
        claimed = await acme.store.claim(ClaimRequest(None, (SCHEDULES,), 10, 30_000, "w"))
        assert len(claimed.jobs) == 3
        await acme.store.finish(
            [
                Finish(held.key, held.token, "fail", error=AttemptError(type, "it failed"))
                for held in claimed.jobs
                for type in ["ValueError" if held.id == "broken" else scheduler.RENEWED]
            ]
        )
        await scheduler.mend(acme.store, None)
        found = {
            (queue.tenant, one.name): one.state.value for queue in (acme, globex) for one in await queue.schedules()
        }
        assert found == {("acme", "worn"): "ready", ("acme", "broken"): "failed", ("globex", "worn"): "ready"}


async def test_replacing_and_removing_hold_at_once(url):
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
