"""What becomes of a schedule when its time comes."""

import asyncio
import itertools
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import JobState, Queue
from holdfast.core import schedule as core
from holdfast.core.job import ClaimRequest, Envelope, Finish
from holdfast.core.names import SCHEDULES
from holdfast.maintenance import maintain, scheduler
from holdfast.maintenance.system_jobs import SystemContext
from holdfast.testing import failpoints
from tests.eventually import eventually
from tests.unit.running import claim, finish

MINUTE = 60_000
_numbers = itertools.count()


@pytest.fixture
async def queue():
    async with Queue(f"memory:scheduler-{next(_numbers)}?test_clock=frozen", tenant="acme") as queue:
        yield queue


async def tick(queue):
    """Serve the schedules that are due now. Returns their number."""
    claimed = await queue.store.claim(ClaimRequest(None, (SCHEDULES,), 100, 30_000, "c"))
    for held in claimed.jobs:
        await queue.store.finish([await scheduler.tick(held, SystemContext(queue.store))])
    return len(claimed.jobs)


async def advance(queue, ms):
    await queue.store.shift_clock(ms)
    await queue.store.reap(100, 0.0)


async def ids(queue, name="default"):
    return sorted(job.id for job in await queue.list(queue=name))


def of(schedule, *ticks):
    return [f"{schedule.name}@{core.tick_text(round(at.timestamp() * 1000))}" for at in ticks]


async def test_each_tick_makes_one_job_with_the_options_of_the_schedule(queue):
    every = timedelta(minutes=1)
    made = await queue.schedule("it", {"n": 1}, every=every, queue="emails", priority=8, result_ttl=5)
    assert await tick(queue) == 0
    for _ in range(3):
        await advance(queue, MINUTE)
        assert await tick(queue) == 1
        assert await tick(queue) == 0
    first = made.next_at
    assert await ids(queue, "emails") == of(made, first, first + every, first + 2 * every)
    one = await queue.get(of(made, first)[0], queue="emails")
    assert (one.payload, one.priority, one.enqueued_at, one.state) == ({"n": 1}, 8, first, JobState.READY)
    assert (await queue.get_schedule("it")).next_at == first + 3 * every
    assert (await queue.get("it", queue=SCHEDULES)).attempts == 0


async def test_a_cron_schedule_ticks_in_its_time_zone(queue):
    made = await queue.schedule("nightly", {}, cron="30 2 * * *", timezone="Europe/Berlin")
    await advance(queue, round((made.next_at - made.created_at).total_seconds() * 1000))
    assert await tick(queue) == 1
    (id,) = await ids(queue)
    assert id in (f"nightly@{made.next_at:%Y-%m-%d}T00:30:00Z", f"nightly@{made.next_at:%Y-%m-%d}T01:30:00Z")


async def test_of_several_missed_ticks_only_the_last_is_run(queue):
    made = await queue.schedule("it", {}, every=60)
    await advance(queue, 10 * MINUTE + 5)
    assert await tick(queue) == 1
    assert await ids(queue) == of(made, made.created_at + timedelta(minutes=10))
    following = made.created_at + timedelta(minutes=11)
    assert (await queue.get_schedule("it")).next_at == following
    assert (await queue.get("it", queue=SCHEDULES)).visible_at == following


@pytest.mark.parametrize("ending", ["waits", "completed", "canceled", "forgotten"])
async def test_a_crash_before_the_release_makes_no_second_job(queue, ending):
    """This holds in every state of the first job."""
    made = await queue.schedule("it", {}, every=timedelta(days=3), result_ttl=0 if ending == "forgotten" else 3600)
    await advance(queue, 3 * 24 * 60 * MINUTE)
    (held,) = await claim(queue, SCHEDULES)
    await scheduler.tick(held, SystemContext(queue.store))
    (id,) = of(made, made.next_at)
    if ending == "canceled":
        await queue.cancel(id)
    elif ending != "waits":
        (job,) = await claim(queue, "default")
        await finish(queue, job)
    # No process runs for long: the lease is over, and so is what the job left.
    await advance(queue, 24 * 60 * MINUTE if ending == "forgotten" else 31_000)
    await advance(queue, 6 * MINUTE)
    await queue.store.prune(100)
    events = [event async for event in queue.events() if event.kind == "enqueued" and event.queue == "default"]
    assert await tick(queue) == 1
    again = [event async for event in queue.events() if event.kind == "enqueued" and event.queue == "default"]
    assert len(again) == len(events) == 1
    assert (await queue.get_schedule("it")).next_at == made.next_at + timedelta(days=3)


async def test_a_tenant_at_its_quota_gets_the_job_when_there_is_room(queue):
    made = await queue.schedule("it", {}, every=60)
    await queue.enqueue({"fills": "it"}, id="full")
    await queue.set_tenant(max_waiting=1)
    await advance(queue, MINUTE)
    assert await tick(queue) == 1
    assert await ids(queue) == ["full"]
    kept = await queue.get("it", queue=SCHEDULES)
    assert kept.visible_at == made.next_at + timedelta(seconds=10)
    assert (await queue.get_schedule("it")).next_at == made.next_at
    await queue.cancel("full")
    await queue.purge("full")
    await advance(queue, 10_000)
    assert await tick(queue) == 1
    assert await ids(queue) == of(made, made.next_at)


async def test_another_queue_gets_no_second_job_of_a_tick_that_was_just_fired(queue):
    made = await queue.schedule("it", {}, every=60)
    await advance(queue, MINUTE)
    (held,) = await claim(queue, SCHEDULES)
    await scheduler.tick(held, SystemContext(queue.store))
    changed = await queue.schedule("it", {}, every=60, queue="other")
    assert changed.next_at == made.next_at + timedelta(minutes=1)
    assert await tick(queue) == 0
    assert (await ids(queue), await ids(queue, "other")) == (of(made, made.next_at), [])


async def test_a_removed_schedule_does_not_fire_even_if_it_is_leased(queue):
    made = await queue.schedule("it", {}, every=60)
    await advance(queue, MINUTE)
    (held,) = await claim(queue, SCHEDULES)
    assert await queue.unschedule("it") is True
    answer = await queue.store.finish([await scheduler.tick(held, SystemContext(queue.store))])
    assert [refusal.code for refusal in answer] == ["job_canceled"]
    await advance(queue, 10 * MINUTE)
    assert await tick(queue) == 0
    assert await ids(queue) == of(made, made.next_at)


async def test_a_schedule_survives_the_death_of_its_workers(queue):
    """Each lost lease counts as an attempt, over years: the count restarts in time. [RETRY-2]"""
    made = await queue.schedule("it", {}, every=3600)
    await advance(queue, 60 * MINUTE)
    for _ in range(scheduler.RENEW_AFTER - 1):
        assert len(await claim(queue, SCHEDULES)) == 1
        await advance(queue, 30_001)
        await advance(queue, 5 * MINUTE)
    assert (await queue.get("it", queue=SCHEDULES)).attempts == scheduler.RENEW_AFTER - 1
    # Where there is no room for a replay it goes on as it is.
    await queue.set_tenant(max_waiting=0, queue=SCHEDULES)
    assert await tick(queue) == 1
    assert (await queue.get("it", queue=SCHEDULES)).attempts == scheduler.RENEW_AFTER - 1
    await queue.set_tenant(max_waiting=10, queue=SCHEDULES)
    await advance(queue, 60 * MINUTE)
    assert await tick(queue) == 1
    kept = await queue.get("it", queue=SCHEDULES)
    assert (kept.attempts, kept.replays, kept.state) == (0, 1, JobState.READY)
    assert await tick(queue) == 1
    assert await tick(queue) == 0
    assert len(await ids(queue)) == 2
    assert (await queue.get_schedule("it")).next_at > made.next_at


async def wear_out(queue, leases, apart_ms):
    """Let this many leases of a schedule end with their workers."""
    for _ in range(leases):
        assert len(await claim(queue, SCHEDULES)) == 1
        await advance(queue, 30_001)
        await advance(queue, apart_ms)


async def test_the_next_coordinator_repairs_an_interrupted_renewal(queue):
    """Between its failure and its replay no process has a lease on it."""
    await queue.schedule("it", {}, every=3600)
    await advance(queue, 60 * MINUTE)
    await wear_out(queue, scheduler.RENEW_AFTER - 1, 5 * MINUTE)
    with failpoints.armed("scheduler.reset", "raise"), pytest.raises(failpoints.FailpointError):
        await tick(queue)
    assert (await queue.get("it", queue=SCHEDULES)).state is JobState.FAILED
    fired = await ids(queue)
    stop = asyncio.Event()
    keeping = asyncio.create_task(maintain(queue.store, stop=stop))
    kept = await eventually(lambda: queue.get("it", queue=SCHEDULES), lambda job: job.state is JobState.SCHEDULED)
    assert (kept.attempts, kept.replays, await ids(queue)) == (0, 1, fired)
    stop.set()
    await keeping


@pytest.mark.parametrize("apart_ms, state", [(7 * MINUTE, JobState.READY), (MINUTE, JobState.FAILED)])
async def test_a_failed_schedule_starts_again_unless_it_kills_its_workers(queue, apart_ms, state):
    """[RETRY-2]"""
    await queue.schedule("it", {}, every=3600)
    await advance(queue, 60 * MINUTE)
    await wear_out(queue, core.MAX_ATTEMPTS, apart_ms)
    assert (await queue.get("it", queue=SCHEDULES)).reason == "lease_expired"
    await scheduler.mend(queue.store, "globex")
    assert (await queue.get("it", queue=SCHEDULES)).state is JobState.FAILED
    assert await scheduler.mend(queue.store, "acme") > 0
    assert (await queue.get("it", queue=SCHEDULES)).state is state


async def test_an_expression_without_a_further_tick_ends_its_schedule(queue, monkeypatch):
    await queue.schedule("it", {}, cron="0 0 1 1 *")
    await advance(queue, 366 * 24 * 60 * MINUTE)
    monkeypatch.setattr(scheduler, "next_tick", lambda *_: None)
    assert await tick(queue) == 1
    assert len(await ids(queue)) == 1
    assert await queue.get_schedule("it") is None


async def test_an_unreadable_schedule_raises_to_the_coordinator(queue):
    key = core.JobKey("acme", SCHEDULES, "it")
    await queue.store.enqueue([core.NewJob(key, Envelope(core.TYPE, b'{"format": 2}'))])
    (held,) = await claim(queue, SCHEDULES)
    with pytest.raises(ValueError, match="missing required field"):
        await scheduler.tick(held, SystemContext(queue.store))
    await queue.store.finish([Finish(held.key, held.token, "release")])


def test_a_tick_is_named_by_its_instant():
    assert core.tick_text(round(datetime(2027, 1, 1, tzinfo=UTC).timestamp() * 1000)) == "2027-01-01T00:00:00Z"
